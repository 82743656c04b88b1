"""Copies: elements as bits, and transposition by square blocks in registers.

A loop whose output lies along one axis and an input along another would touch a cache line for every element. Here a
block of the two axes is loaded along the input's, turned in registers, and stored along the output's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sardonyx.dtypes import of_name
from sardonyx.ir import dims
from sardonyx.lower.groups import Apply, BitCast, Expression, Loop
from sardonyx.providers.cpu.kernels.common.loop_nest import (
    Axis,
    Nest,
    apply,
    known,
    load,
    product,
    stride_class,
    traffic,
    walk,
)
from sardonyx.providers.cpu.kernels.loops.passes import operations
from sardonyx.providers.cpu.kernels.math.transpose import transposed
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, i64, register_dtype
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

TURNED = "t"
"""The class of an input that is turned."""

CHEAP = 4
"""Operations up to which an expression is written once for each row of a block, or each long row (``weave``)."""

SMALLEST = 4
"""Elements below which an axis is not worth a block."""

LINES = 16
"""Cache lines of an input that are turned one after the other: neighbours are fetched together, and share a page."""

COLUMNS = 64
"""Of the output in a piece. The next piece is the one below: it reads the same pages."""

LONG = 4
"""Times as many rows of the output as usual are in a piece of what is too large for caches, if blocks follow each other
down the output: the chip follows the few rows of the input that they read by itself. (NCHW to NHWC: 0.85 of a copy's
speed in place of 0.73.) Along the output they read more rows than it follows, which often share a few places of the
nearest cache: those are asked for a piece ahead (NHWC to NCHW: 0.85 in place of 0.67 without)."""


def bits_loop(group: BitCast) -> Loop:
    """A copy in which the bits of one type are those of another."""
    whole = Expression((of_name(f"u{group.x.dtype.bits}"),), (), (0,))
    return Loop(group.nodes, group.out.shape, 0, (group.x,), whole, (group.out,))


def as_bits(loop: Loop) -> Loop:
    """A loop that only copies, with unsigned integers in place of its types; any other as it is."""
    e = loop.expression
    source = list(range(len(e.operands)))
    for step in e.steps:
        if not isinstance(step, Apply) or not _is_identity(step) or e.dtype_of(step.args[0]) is not step.dtype:
            return loop
        source.append(source[step.args[0]])
    if not e.operands or any(t.itemsize not in (1, 2, 4, 8) for t in e.operands):
        return loop
    types = tuple(of_name(f"u{t.itemsize * 8}") for t in e.operands)
    return replace(loop, expression=Expression(types, (), tuple(source[r] for r in e.results)))


def _is_identity(step: Apply) -> bool:
    return step.program.arity == 1 and all(s.op in ("arg", "copy") for s in step.program.steps)


@dataclass(frozen=True)
class Form:
    """What is constant about a transposition."""

    expression: Expression
    kinds: tuple[str, ...]
    """Of each input: ``t``, or the class of its stride along the output's axis."""
    outer: int
    side: int
    """Rows and columns of a block in registers."""
    squares: int
    """Blocks side by side that are stored together."""
    rows: int
    """Of the output in a piece."""
    is_past: bool
    """Outputs go past the caches where rows begin with a line of theirs."""
    has_edge: bool
    """Blocks may not fill the rows of the output."""

    @property
    def step(self) -> int:
        return self.side * self.squares


def axes_of(loop: Loop) -> list[Axis]:
    """The axes of a loop that does little but move numbers, in the order of what it writes; none for any other."""
    e, views = loop.expression, (*loop.inputs, *loop.outputs)
    if loop.reduced or any(not isinstance(s, Apply) for s in e.steps):
        return []
    if sum(operations(s.program) for s in e.steps if isinstance(s, Apply)) > CHEAP:
        return []
    return list(Nest.of(loop.extents, views).ordered(len(loop.inputs)).axes)


def steps(loop: Loop, target: Target) -> list[Step]:
    """The step of a loop that transposes cheaply enough; none for any other."""
    e, n, views, axes = loop.expression, len(loop.inputs), (*loop.inputs, *loop.outputs), axes_of(loop)
    if len(axes) < 2 or any(stride_class(s) != "1" for s in axes[-1].strides[n:]):
        return []
    inner = axes.pop()
    turned = [[v for v in range(n) if a.strides[v] == 1 and stride_class(inner.strides[v]) == "s"] for a in axes]
    best = max(range(len(axes)), key=lambda i: len(turned[i]))
    across = axes.pop(best)
    if not turned[best] or any(isinstance(a.extent, int) and a.extent < SMALLEST for a in (inner, across)):
        return []
    kinds = tuple(TURNED if v in turned[best] else stride_class(inner.strides[v]) for v in range(n))
    bits = max(register_dtype(t).bits for t in e.operands)
    side = min(16, max(2, target.isa.lanes * 32 // bits))
    squares = max(1, min(target.isa.registers // 2, LINE_NBYTES * 8 // bits) // side)
    is_past = all(target.writes_past(y) and side * y.dtype.itemsize % LINE_NBYTES == 0 for y in loop.outputs)
    has_edge = not isinstance(inner.extent, int) or inner.extent % (side * squares) > 0
    form = Form(e, kinds, len(axes), side, squares, max(side, LINES * LINE_NBYTES * 8 // bits), is_past, has_edge)
    axes += [across, inner]
    args: dict[str, Any] = {f"m{v}": Ref.of(view) for v, view in enumerate(views)}
    args |= {f"n{i}": a.extent for i, a in enumerate(axes)}
    args |= {f"s{v}_{i}": a.strides[v] for v in range(len(views)) for i, a in enumerate(axes)}
    count = product(a.extent for a in axes)
    return [
        Step(
            turn(form=form),
            args,
            frozenset(f"m{v}" for v in range(n, len(views))),
            loop.nodes,
            flops=known(dims.mul(len(e.steps), count)),
            nbytes=traffic(views, axes),
            variant=f"blocks of {side} by {side}",
        )
    ]


def _params(form: Form) -> Params:
    axes = range(form.outer + 2)
    return {
        **{f"m{v}": (t,) for v, t in enumerate(form.expression.types)},
        **{f"n{i}": i64 for i in axes},
        **{f"s{v}_{i}": i64 for v in range(len(form.expression.types)) for i in axes},
    }


@kernel(_params)
def turn(k: Kernel, *, form: Form, **given: Any) -> None:
    """Piece by piece: whole blocks in registers, what is left along the output."""
    views, side = range(len(form.expression.types)), form.side
    extents = [given[f"n{i}"] for i in range(form.outer + 2)]
    strides = [[given[f"s{v}_{i}"] for i in range(form.outer + 2)] for v in views]
    is_far = strides[-1][-2] > strides[form.kinds.index(TURNED)][-1]
    high = k.select(is_far, k.const(form.rows), form.rows * LONG) if form.is_past else k.const(form.rows)
    sizes = high, k.const(COLUMNS)
    pieces = [(n + (size - 1)) // size for n, size in zip(extents[-2:], sizes, strict=True)]
    steps = [[*s[:-2], s[-1] * sizes[1], s[-2] * sizes[0]] for s in strides]
    with walk(k, [*extents[:-2], *reversed(pieces)], steps) as (index, moved):
        places = zip(extents[-2:], reversed(index[-2:]), sizes, strict=True)
        rows, columns = (k.min(n - i * size, size) for n, i, size in places)
        here = [given[f"m{v}"].at(at) for v, at in enumerate(moved)]
        ahead = [k.select(pieces[0] > 1, s[-2] * sizes[0], s[-1] * sizes[1]) for s in strides]
        piece = Piece(k, form, here, [(s[-2], s[-1]) for s in strides], ahead, is_far)
        whole_rows, whole_columns = rows & -side, columns & -form.step
        counts = whole_rows // side, whole_columns // form.step
        if form.is_past:
            with k.either(piece.begins_lines()) as (lines, other):
                with lines:
                    piece.blocks(*counts, is_past=True)
                with other:
                    piece.blocks(*counts)
        else:
            piece.blocks(*counts)
        if form.has_edge:
            piece.edge(counts[0], whole_columns, columns)
        with k.loop(whole_rows, rows) as r:
            piece.rest(r, columns)


class Piece:
    """The code of one piece: inputs and outputs from its first element on, with their strides down and along a row, how
    far ahead of it the next one lies, and whether neighbours lie farther apart down the output than along it in the
    input."""

    def __init__(
        self, k: Kernel, form: Form, here: list[Buf], strides: list[tuple[Val, Val]], ahead: list[Val], is_far: Val
    ) -> None:
        self.k, self.form, self.strides, self.ahead, self.is_far = k, form, strides, ahead, is_far
        self.inputs, self.outputs = here[: len(form.kinds)], here[len(form.kinds) :]

    def begins_lines(self) -> Val:
        """Whether every row of the outputs begins with a cache line."""
        rest = self.k.const(0)
        for buf, (down, _) in zip(self.outputs, self.strides[len(self.inputs) :], strict=True):
            rest = rest | buf.past_line() | buf.at(down).past_line()
        return rest.eq(0)

    def blocks(self, rows: Val, columns: Val, *, is_past: bool = False) -> None:
        """All blocks: along the side whose neighbours lie farther apart, in long runs, a few of them at a time."""
        k, form, is_far, views = self.k, self.form, self.is_far, (*self.inputs, *self.outputs)
        steps = [(down * form.side, along * form.step) for down, along in self.strides]
        with k.loop(0, k.select(is_far, rows, columns)) as i:
            first = (i * form.step // k.max(rows, 1), i * form.step % k.max(rows, 1)) if form.is_past else None
            runs = [buf.at(i * k.select(is_far, *s)) for buf, s in zip(views, steps, strict=True)]
            with k.loop(0, k.select(is_far, columns, rows)) as j:
                here = [run.at(j * k.select(is_far, *reversed(s))) for run, s in zip(runs, steps, strict=True)]
                if first is not None:
                    with k.when(is_far):
                        self._fetch(j, *first, rows)
                self._block(here, is_past=is_past)

    def _fetch(self, j: Val, row: Val, line: Val, rows: Val) -> None:
        """Ask for a block's share of the inputs' next piece, from a line of a row on, ``rows`` lines of each as they
        follow each other: neighbours of what the block itself reads lie in as many rows as it has, and memory likes
        that less.
        """
        k, step = self.k, self.form.step
        for _ in range(step):
            for v in (v for v, kind in enumerate(self.form.kinds) if kind == TURNED):
                place = (j * step + row) * self.strides[v][1] + line * self.form.side
                self.inputs[v].prefetch(place + self.ahead[v], locality=2)
            is_last = line.eq(rows - 1)
            row, line = k.select(is_last, row + 1, row), k.select(is_last, 0, line + 1)

    def _block(self, here: list[Buf], *, is_past: bool) -> None:
        """A few squares side by side, so that the output's cache lines are written whole."""
        side, count = self.form.side, len(self.inputs)
        squares = [[self._loaded(v, here[v], j * side) for v in range(count)] for j in range(self.form.squares)]
        for i in range(side):
            for j, square in enumerate(squares):
                self._store(here[count:], i, j * side, [rows[i] for rows in square], None, is_past=is_past)

    def _loaded(self, v: int, here: Buf, column: int, existing: Val | None = None) -> list[Val]:
        """The rows of a square, of so many columns that exist."""
        k, kind, side, (down, along) = self.k, self.form.kinds[v], self.form.side, self.strides[v]
        if kind == TURNED:
            square = here.at(along * column)
            masks = [None if existing is None else k.mask((existing - i) * side, side) for i in range(side)]
            return transposed([square.load(along * i, side, mask) for i, mask in enumerate(masks)])
        tile = Tile(k.const(column), side, None if existing is None else k.mask(existing, side))
        return [load(here.at(down * i), tile, kind, along) for i in range(side)]

    def edge(self, rows: Val, start: Val, stop: Val) -> None:
        """Blocks of which some columns do not exist."""
        k, side, count = self.k, self.form.side, len(self.inputs)
        with k.loop(0, rows) as i, k.loop(start, stop, side) as column:
            views = zip((*self.inputs, *self.outputs), self.strides, strict=True)
            here = [buf.at(i * side * down + column * along) for buf, (down, along) in views]
            loaded = [self._loaded(v, here[v], 0, stop - column) for v in range(count)]
            for row in range(side):
                self._store(here[count:], row, 0, [of[row] for of in loaded], k.mask(stop - column, side))

    def rest(self, row: Val, stop: Val) -> None:
        views = zip((*self.inputs, *self.outputs), self.strides, strict=True)
        here, count = [buf.at(row * down) for buf, (down, _) in views], len(self.inputs)
        for (tile,) in self.k.blocks(stop, self.form.side):
            values = [
                load(buf, tile, "s" if kind == TURNED else kind, along)
                for buf, kind, (_, along) in zip(here, self.form.kinds, self.strides, strict=False)
            ]
            self._store(here[count:], 0, tile.index, values, tile.mask)

    def _store(
        self, to: list[Buf], row: int, column: Operand, operands: list[Val], mask: Val | None, *, is_past: bool = False
    ) -> None:
        values = list(operands)
        for step in self.form.expression.steps:
            assert isinstance(step, Apply)
            values.append(apply(self.k, self.form.expression, step, [values[a] for a in step.args]))
        results = self.form.expression.results
        for buf, result, (down, _) in zip(to, results, self.strides[len(self.inputs) :], strict=True):
            v = values[result]
            whole = self.k.value(v, v.dtype, self.form.side)
            buf.store(down * row + column, whole, mask=mask, is_past=is_past)

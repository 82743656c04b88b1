"""Copies and transposes. Copies treat elements as integers of the same size.

A loop whose output is contiguous along one axis and an input along another would touch a cache line for every element.
The transpose kernel loads square tiles along the input's axis, transposes them in registers and stores them along the
output's axis.
"""

from __future__ import annotations

from typing import NamedTuple

from sardonyx.dtypes import of_name
from sardonyx.ir import dims
from sardonyx.lower.groups import Apply, BitCast, Expression, Loop
from sardonyx.providers.cpu.kernels.common.loop_nest import (
    Axis,
    Nest,
    NestArgs,
    apply,
    load,
    nest_loop,
    stride_class,
    traffic,
)
from sardonyx.providers.cpu.kernels.loops.passes import operations
from sardonyx.providers.cpu.kernels.math.transpose import transposed
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, register_dtype
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record, replace

TRANSPOSED = "t"
"""The access class of an input that is transposed."""

MAX_OPERATIONS = 4
"""Operations up to which an expression is unrolled over the rows of a tile, or over planes (``interleave``)."""

MIN_EXTENT = 4
"""Extents below which an axis is too short for tiles."""

BLOCK_LINES = 16
"""Cache lines of an input row in a cache block: adjacent lines are prefetched together and share a page."""

BLOCK_COLUMNS = 64
"""Output columns of a cache block. The next block is the one below, which reads the same pages."""

LONG_BLOCK = 4
"""The factor by which cache blocks of tensors larger than the caches are higher, if tiles are visited column by column.
They then read few input rows, which the hardware prefetcher follows. Visited row by row, tiles read more input rows
than it follows, and these often map to the same cache sets: those are prefetched one block ahead.
"""


def bit_cast_loop(group: BitCast) -> Loop:
    """A bit cast as a copy of integers."""
    whole = Expression((of_name(f"u{group.x.dtype.bits}"),), (), (0,))
    return Loop(group.nodes, group.out.shape, 0, (group.x,), whole, (group.out,))


def as_integers(loop: Loop) -> Loop:
    """A loop that only copies, with its types replaced by unsigned integers; any other loop unchanged."""
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


class TransposeConfig(Record):
    """The compile-time configuration of ``transpose``."""

    expression: Expression
    kinds: tuple[str, ...]
    """For each input: ``t`` (transposed), or its stride class along the output's contiguous axis."""
    outer: int
    side: int
    """Rows and columns of a tile."""
    tiles: int
    """Tiles side by side that are stored together, to fill cache lines."""
    rows: int
    """Output rows of a cache block."""
    is_non_temporal: bool
    """Non-temporal stores, where output rows begin at a cache line."""
    has_edge: bool
    """Output rows may end with a partial tile."""

    @property
    def tile_columns(self) -> int:
        return self.side * self.tiles


def axes_of(loop: Loop, most: int = MAX_OPERATIONS) -> list[Axis]:
    """The axes, in output order, of a pointwise loop with few operations, at ``most`` so many; empty for others."""
    e, views = loop.expression, (*loop.inputs, *loop.outputs)
    if loop.reduced or any(not isinstance(s, Apply) for s in e.steps):
        return []
    if sum(operations(s.program) for s in e.steps if isinstance(s, Apply)) > most:
        return []
    return list(Nest.of(loop.extents, views).ordered(len(loop.inputs)).axes)


def movable(group: Loop, analysis: Analysis) -> tuple[Loop, list[Axis]]:
    """The loop with integers for what it only copies, and its ``axes_of``."""

    def found(group: Loop) -> tuple[Loop, list[Axis]]:
        loop = as_integers(group)
        return loop, axes_of(loop)

    loop, axes = analysis.once("movable", group, found)
    return loop, list(axes)


class _Axes(NamedTuple):
    """The axes of a transpose."""

    outer: list[Axis]
    across: Axis
    """The axis along which some inputs are contiguous."""
    inner: Axis
    """The axis along which outputs are contiguous."""
    transposed: list[int]
    """The inputs that are transposed, by number."""


def _transposed_axes(loop: Loop, axes: list[Axis]) -> _Axes | None:
    """None for a loop that transposes no input, or along axes that are too short."""
    n = len(loop.inputs)
    if len(axes) < 2 or any(stride_class(s) != "1" for s in axes[-1].strides[n:]):
        return None
    inner = axes.pop()
    transposed_inputs = [
        [v for v in range(n) if a.strides[v] == 1 and stride_class(inner.strides[v]) == "s"] for a in axes
    ]
    best = max(range(len(axes)), key=lambda i: len(transposed_inputs[i]))
    across = axes.pop(best)
    if not transposed_inputs[best] or any(isinstance(a.extent, int) and a.extent < MIN_EXTENT for a in (inner, across)):
        return None
    return _Axes(axes, across, inner, transposed_inputs[best])


def supports(group: Loop, analysis: Analysis) -> Refusal | None:
    is_transpose = _transposed_axes(*movable(group, analysis)) is not None
    return None if is_transpose else Refusal("no input is transposed, or along short axes")


def steps(group: Loop, analysis: Analysis) -> list[Step]:
    """The step of a loop that transposes an input."""
    loop, every = movable(group, analysis)
    e, n, views, found = loop.expression, len(loop.inputs), (*loop.inputs, *loop.outputs), _transposed_axes(loop, every)
    assert found is not None
    axes, across, inner, transposed = found
    kinds = tuple(TRANSPOSED if v in transposed else stride_class(inner.strides[v]) for v in range(n))
    bits = max(register_dtype(t).bits for t in e.operands)
    side = min(16, max(2, analysis.isa.lanes * 32 // bits))
    tiles = max(1, min(analysis.isa.registers // 2, LINE_NBYTES * 8 // bits) // side)
    is_non_temporal = all(
        analysis.target.writes_non_temporal(y) and side * y.dtype.itemsize % LINE_NBYTES == 0 for y in loop.outputs
    )
    has_edge = not isinstance(inner.extent, int) or inner.extent % (side * tiles) > 0
    config = TransposeConfig(
        e, kinds, len(axes), side, tiles, max(side, BLOCK_LINES * LINE_NBYTES * 8 // bits), is_non_temporal, has_edge
    )
    axes += [across, inner]
    count = product(a.extent for a in axes)
    return [
        Step(
            transpose(config=config),
            flat(nest=NestArgs.of(views, axes)),
            frozenset(f"m{v}" for v in range(n, len(views))),
            loop.nodes,
            flops=expressible(dims.mul(len(e.steps), count)),
            nbytes=traffic(views, axes),
            variant=f"tiles of {side} x {side}",
        )
    ]


def _params(config: TransposeConfig) -> Params:
    return {"nest": NestArgs.declared(config.expression.types, config.outer + 2)}


@kernel(_params)
def transpose(k: Kernel, nest: NestArgs[Buf, Val], *, config: TransposeConfig) -> None:
    """Cache block by cache block: whole tiles in registers, the remaining rows by strided loads."""
    side, extents, strides = config.side, nest.extents, nest.strides
    by_rows = strides[-1][-2] > strides[config.kinds.index(TRANSPOSED)][-1]
    high = (
        k.select(by_rows, k.const(config.rows), config.rows * LONG_BLOCK)
        if config.is_non_temporal
        else k.const(config.rows)
    )
    sizes = high, k.const(BLOCK_COLUMNS)
    blocks = [(n + (size - 1)) // size for n, size in zip(extents[-2:], sizes, strict=True)]
    steps = [[*s[:-2], s[-1] * sizes[1], s[-2] * sizes[0]] for s in strides]
    with nest_loop(k, [*extents[:-2], *reversed(blocks)], steps) as (index, moved):
        places = zip(extents[-2:], reversed(index[-2:]), sizes, strict=True)
        rows, columns = (k.min(n - i * size, size) for n, i, size in places)
        here = [view.at(at) for view, at in zip(nest.views, moved, strict=True)]
        ahead = [k.select(blocks[0] > 1, s[-2] * sizes[0], s[-1] * sizes[1]) for s in strides]
        block = Block(k, config, here, [(s[-2], s[-1]) for s in strides], ahead, by_rows)
        whole_rows, whole_columns = rows & -side, columns & -config.tile_columns
        counts = whole_rows // side, whole_columns // config.tile_columns
        if config.is_non_temporal:
            with k.either(block.begins_lines()) as (lines, other):
                with lines:
                    block.whole_tiles(*counts, is_non_temporal=True)
                with other:
                    block.whole_tiles(*counts)
        else:
            block.whole_tiles(*counts)
        if config.has_edge:
            block.edge(counts[0], whole_columns, columns)
        with k.loop(whole_rows, rows) as r:
            block.remainder_row(r, columns)


class Block:
    """Emits one cache block.

    ``here`` are inputs and outputs from its first element on, ``strides`` those between and along output rows,
    ``ahead`` the distances to the next block. ``by_rows`` tells whether tiles are visited row by row: if output rows
    are farther apart than input rows.
    """

    def __init__(
        self,
        k: Kernel,
        config: TransposeConfig,
        here: list[Buf],
        strides: list[tuple[Val, Val]],
        ahead: list[Val],
        by_rows: Val,
    ) -> None:
        self.k, self.config, self.strides, self.ahead, self.by_rows = k, config, strides, ahead, by_rows
        self.inputs, self.outputs = here[: len(config.kinds)], here[len(config.kinds) :]

    def begins_lines(self) -> Val:
        """Whether every output row begins at a cache line."""
        remainder_row = self.k.const(0)
        for buf, (down, _) in zip(self.outputs, self.strides[len(self.inputs) :], strict=True):
            remainder_row = remainder_row | buf.line_offset() | buf.at(down).line_offset()
        return remainder_row.eq(0)

    def whole_tiles(self, rows: Val, columns: Val, *, is_non_temporal: bool = False) -> None:
        """All groups of tiles, row by row or column by column."""
        k, config, by_rows, views = self.k, self.config, self.by_rows, (*self.inputs, *self.outputs)
        steps = [(down * config.side, along * config.tile_columns) for down, along in self.strides]
        with k.loop(0, k.select(by_rows, rows, columns)) as i:
            first = (
                (i * config.tile_columns // k.max(rows, 1), i * config.tile_columns % k.max(rows, 1))
                if config.is_non_temporal
                else None
            )
            starts = [buf.at(i * k.select(by_rows, *s)) for buf, s in zip(views, steps, strict=True)]
            with k.loop(0, k.select(by_rows, columns, rows)) as j:
                here = [start.at(j * k.select(by_rows, *reversed(s))) for start, s in zip(starts, steps, strict=True)]
                if first is not None:
                    with k.when(by_rows):
                        self._prefetch(j, *first, rows)
                self._tiles(here, is_non_temporal=is_non_temporal)

    def _prefetch(self, j: Val, row: Val, line: Val, rows: Val) -> None:
        """Prefetches this tile group's share of the inputs' next block.

        Cache lines are taken in memory order, ``rows`` of each input row, beginning with ``line`` of ``row``, rather
        than one line of many rows as the tiles are read.
        """
        k, columns = self.k, self.config.tile_columns
        for _ in range(columns):
            for v in (v for v, kind in enumerate(self.config.kinds) if kind == TRANSPOSED):
                place = (j * columns + row) * self.strides[v][1] + line * self.config.side
                self.inputs[v].prefetch(place + self.ahead[v], locality=2)
            is_last = line.eq(rows - 1)
            row, line = k.select(is_last, row + 1, row), k.select(is_last, 0, line + 1)

    def _tiles(self, here: list[Buf], *, is_non_temporal: bool) -> None:
        """A few tiles side by side, so that the output's cache lines are written whole."""
        side, count = self.config.side, len(self.inputs)
        tiles = [[self._loaded(v, here[v], j * side) for v in range(count)] for j in range(self.config.tiles)]
        for i in range(side):
            for j, tile in enumerate(tiles):
                self._store(
                    here[count:], i, j * side, [rows[i] for rows in tile], None, is_non_temporal=is_non_temporal
                )

    def _loaded(self, v: int, here: Buf, column: int, existing: Val | None = None) -> list[Val]:
        """The rows of a tile; ``existing`` is the number of columns of a partial one."""
        k, kind, side, (down, along) = self.k, self.config.kinds[v], self.config.side, self.strides[v]
        if kind == TRANSPOSED:
            source = here.at(along * column)
            masks = [None if existing is None else k.mask((existing - i) * side, side) for i in range(side)]
            return transposed([source.load(along * i, side, mask) for i, mask in enumerate(masks)])
        tile = Tile(k.const(column), side, None if existing is None else k.mask(existing, side))
        return [load(here.at(down * i), tile, kind, along) for i in range(side)]

    def edge(self, rows: Val, start: Val, stop: Val) -> None:
        """The partial tiles at the end of output rows."""
        k, side, count = self.k, self.config.side, len(self.inputs)
        with k.loop(0, rows) as i, k.loop(start, stop, side) as column:
            views = zip((*self.inputs, *self.outputs), self.strides, strict=True)
            here = [buf.at(i * side * down + column * along) for buf, (down, along) in views]
            loaded = [self._loaded(v, here[v], 0, stop - column) for v in range(count)]
            for row in range(side):
                self._store(here[count:], row, 0, [of[row] for of in loaded], k.mask(stop - column, side))

    def remainder_row(self, row: Val, stop: Val) -> None:
        """An output row that belongs to no whole tile."""
        views = zip((*self.inputs, *self.outputs), self.strides, strict=True)
        here, count = [buf.at(row * down) for buf, (down, _) in views], len(self.inputs)
        for (tile,) in self.k.blocks(stop, self.config.side):
            values = [
                load(buf, tile, "s" if kind == TRANSPOSED else kind, along)
                for buf, kind, (_, along) in zip(here, self.config.kinds, self.strides, strict=False)
            ]
            self._store(here[count:], 0, tile.index, values, tile.mask)

    def _store(
        self,
        to: list[Buf],
        row: int,
        column: Operand,
        operands: list[Val],
        mask: Val | None,
        *,
        is_non_temporal: bool = False,
    ) -> None:
        values = list(operands)
        for step in self.config.expression.steps:
            assert isinstance(step, Apply)
            values.append(apply(self.k, self.config.expression, step, [values[a] for a in step.args]))
        results = self.config.expression.results
        for buf, result, (down, _) in zip(to, results, self.strides[len(self.inputs) :], strict=True):
            v = values[result]
            whole = self.k.value(v, v.dtype, self.config.side)
            buf.store(down * row + column, whole, mask=mask, is_non_temporal=is_non_temporal)

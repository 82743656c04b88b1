"""Rows of few numbers woven from as many long ones, and long ones parted from those: images of few colours between NCHW
and NHWC, boxes of four numbers each.

Blocks of a transposition (``movement``) would be mostly empty. Here as many vectors as there are long rows are loaded,
of these or of the short ones, one behind the other, and their numbers are brought to their places in registers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sardonyx.ir import dims
from sardonyx.lower.groups import Apply, Expression, Loop
from sardonyx.providers.cpu.kernels.common.loop_nest import Axis, apply, known, product, traffic, walk
from sardonyx.providers.cpu.kernels.loops.copy import axes_of
from sardonyx.providers.cpu.kernels.math.transpose import joined, parted
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64, register_dtype
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

FEW = 15
"""Long rows, at most."""
PIECE = 1024
"""Numbers of a long row that a thread takes at a time."""
LONG, SHORT, ONE = "long", "short", "one"
"""How a view lies: in long rows, in short ones that follow each other, or as one number for each long row."""


@dataclass(frozen=True)
class Form:
    """What is constant about it."""

    expression: Expression
    lies: tuple[str, ...]
    """Inputs and outputs."""
    few: int
    outer: int
    lanes: int


def steps(loop: Loop, target: Target) -> list[Step]:
    """The step of a loop that weaves or parts cheaply enough; none for any other."""
    e, n, views, axes = loop.expression, len(loop.inputs), (*loop.inputs, *loop.outputs), axes_of(loop)
    found = next(((f, a, lies) for f in axes for a in axes if f is not a and (lies := _lies(f, a, n))), None)
    if found is None:
        return []
    few, long, lies = found
    outer = [a for a in axes if a is not few and a is not long]
    bits = max(register_dtype(t).bits for t in e.types)
    form = Form(e, lies, int(few.extent), len(outer), min(16, target.isa.lanes * 32 // bits))
    args: dict[str, Any] = {f"m{v}": Ref.of(view) for v, view in enumerate(views)}
    args |= {f"n{i}": a.extent for i, a in enumerate((*outer, long))}
    args |= {f"s{v}_{i}": a.strides[v] for v in range(len(views)) for i, a in enumerate((*outer, few))}
    flops, nbytes = known(dims.mul(len(e.steps), product(a.extent for a in axes))), traffic(views, axes)
    writes = frozenset(f"m{v}" for v in range(n, len(views)))
    return [Step(weave(form=form), args, writes, loop.nodes, flops=flops, nbytes=nbytes, variant=f"{form.few} rows")]


def _lies(few: Axis, long: Axis, inputs: int) -> tuple[str, ...]:
    """How views lie along two axes; nothing where one lies otherwise, or all lie alike."""
    count = few.extent
    if not isinstance(count, int) or not 2 <= count <= FEW:
        return ()
    kinds = []
    for i, (across, along) in enumerate(zip(few.strides, long.strides, strict=True)):
        if along == 1:
            kinds.append(LONG)
        elif across == 1 and along == count:
            kinds.append(SHORT)
        elif along == 0 and i < inputs:
            kinds.append(ONE)
        else:
            return ()
    is_one = len(set(kinds[inputs:])) == 1  # all outputs lie as the first does, and some input does not
    return tuple(kinds) if is_one and {LONG, SHORT} <= set(kinds) else ()


def _params(form: Form) -> Params:
    return {
        **{f"m{v}": (t,) for v, t in enumerate(form.expression.types)},
        **{f"n{i}": i64 for i in range(form.outer + 1)},
        **{f"s{v}_{i}": i64 for v in range(len(form.expression.types)) for i in range(form.outer + 1)},
    }


@kernel(_params)
def weave(k: Kernel, *, form: Form, **given: Any) -> None:
    views, lanes = range(len(form.expression.types)), form.lanes
    extents = [given[f"n{i}"] for i in range(form.outer + 1)]
    pieces = (extents[-1] + (PIECE - 1)) // PIECE
    pace = {LONG: 1, SHORT: form.few, ONE: 0}
    strides = [[*(given[f"s{v}_{i}"] for i in range(form.outer)), pace[form.lies[v]] * PIECE] for v in views]
    with walk(k, [*extents[:-1], pieces], strides) as (index, moved):
        long = k.min(extents[-1] - index[-1] * PIECE, PIECE)
        here = [given[f"m{v}"].at(at) for v, at in enumerate(moved)]
        part = _Part(k, form, here, [given[f"s{v}_{form.outer}"] for v in views])
        whole = long & -lanes
        with k.loop(0, whole, lanes) as i:
            part.make(i, None)
        with k.when(whole < long):
            part.make(whole, long - whole)


@dataclass(frozen=True)
class _Part:
    """A piece of all long rows: views from its first number on, and how far long rows are apart in each."""

    k: Kernel
    form: Form
    here: list[Buf]
    across: list[Val]

    def make(self, at: Val, left: Val | None) -> None:
        """From number ``at`` on, ``lanes`` of each long row, or those that are left."""
        k, e, inputs = self.k, self.form.expression, len(self.form.expression.operands)
        columns: list[list[Val]] = [
            list(row) for row in zip(*(self._load(v, at, left) for v in range(inputs)), strict=True)
        ]
        for values in columns:
            for s in e.steps:
                assert isinstance(s, Apply)
                values.append(apply(k, e, s, [values[a] for a in s.args]))
        for i, result in enumerate(e.results):
            vectors = [k.value(values[result], values[result].dtype, self.form.lanes) for values in columns]
            self._store(inputs + i, at, left, vectors)

    def _load(self, v: int, at: Val, left: Val | None) -> list[Val]:
        """A vector of each long row."""
        k, form, buf = self.k, self.form, self.here[v]
        if form.lies[v] == ONE:
            return [k.splat(buf.load(self.across[v] * j), form.lanes) for j in range(form.few)]
        if form.lies[v] == LONG:
            mask = None if left is None else k.mask(left, form.lanes)
            return [buf.at(self.across[v] * j).load(at, form.lanes, mask) for j in range(form.few)]
        return parted([buf.load(*place) for place in self._places(at, left)])

    def _store(self, v: int, at: Val, left: Val | None, vectors: list[Val]) -> None:
        k, form, buf = self.k, self.form, self.here[v]
        if form.lies[v] == LONG:
            mask = None if left is None else k.mask(left, form.lanes)
            for j, vector in enumerate(vectors):
                buf.at(self.across[v] * j).store(at, vector, mask=mask)
            return
        for vector, (place, _, mask) in zip(joined(vectors), self._places(at, left), strict=True):
            buf.store(place, vector, mask=mask)

    def _places(self, at: Val, left: Val | None) -> list[tuple[Val, int, Val | None]]:
        """Of the vectors that short rows are: where they begin, how long they are, and what of them exists."""
        k, few, lanes = self.k, self.form.few, self.form.lanes
        masks = [None if left is None else k.mask(left * few - t * lanes, lanes) for t in range(few)]
        return [(at * few + t * lanes, lanes, mask) for t, mask in enumerate(masks)]

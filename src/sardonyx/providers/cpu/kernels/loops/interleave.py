"""Interleaves a few planes into rows of as many elements, and deinterleaves them: few-channel images between NCHW and
NHWC, arrays of boxes.

The tiles of ``copy.transpose`` would be mostly empty. Here one vector of each plane, or as many vectors of interleaved
elements, is loaded, and shuffled in registers.
"""

from __future__ import annotations

from sardonyx.ir import dims
from sardonyx.lower.groups import Apply, Expression, Loop
from sardonyx.providers.cpu.kernels.common.loop_nest import Axis, NestArgs, apply, nest_loop, traffic
from sardonyx.providers.cpu.kernels.loops.copy import axes_of, movable
from sardonyx.providers.cpu.kernels.math.transpose import deinterleaved, interleaved
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Val, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record, replace

MAX_PLANES = 15
"""The largest number of planes."""
MAX_OPERATIONS_OF_PAIRS = 24
"""Operations for an element of two planes, at most: each has one vector, as in any loop."""
CHUNK = 1024
"""Elements of a plane that are one work item."""
PLANAR, INTERLEAVED, PER_PLANE = "planar", "interleaved", "per plane"
"""Layouts of a view: contiguous planes, interleaved elements, or one element per plane."""


class InterleaveConfig(Record):
    """The compile-time configuration of ``interleave``."""

    expression: Expression
    layouts: tuple[str, ...]
    """The layouts of the inputs, then those of the outputs."""
    planes: int
    outer: int
    lanes: int


def supports(group: Loop, analysis: Analysis) -> Refusal | None:
    return None if _axes(*_movable(group, analysis)) else Refusal("no few planes that are interleaved")


def _movable(group: Loop, analysis: Analysis) -> tuple[Loop, list[Axis]]:
    """The loop and its axes; none if it has more operations than pay, which are more for a pair of planes."""
    loop, axes = movable(group, analysis)
    if axes:
        return loop, axes
    axes = analysis.once("pairs of planes", group, lambda given: axes_of(given, MAX_OPERATIONS_OF_PAIRS))
    found = _axes(group, list(axes))
    return group, list(axes) if found is not None and found[0].extent == 2 else []


def _axes(loop: Loop, axes: list[Axis]) -> tuple[Axis, Axis, tuple[str, ...]] | None:
    """The axis of the planes, the one along them, and the layouts of all views; None if a view has another one."""
    pairs = ((f, a) for f in axes for a in axes if f is not a)
    return next(((f, a, layouts) for f, a in pairs if (layouts := _layouts(f, a, len(loop.inputs)))), None)


def steps(group: Loop, analysis: Analysis) -> list[Step]:
    """The step of a loop that interleaves or deinterleaves with few operations."""
    loop, axes = _movable(group, analysis)
    e, n, views = loop.expression, len(loop.inputs), (*loop.inputs, *loop.outputs)
    found = _axes(loop, axes)
    assert found is not None
    planes, long, layouts = found
    outer = [a for a in axes if a is not planes and a is not long]
    bits = max(register_dtype(t).bits for t in e.types)
    config = InterleaveConfig(e, layouts, int(planes.extent), len(outer), min(16, analysis.isa.lanes * 32 // bits))
    extents = tuple(a.extent for a in (*outer, long))
    args = flat(nest=replace(NestArgs.of(views, (*outer, planes)), extents=extents))
    flops, nbytes = expressible(dims.mul(len(e.steps), product(a.extent for a in axes))), traffic(views, axes)
    writes = frozenset(f"m{v}" for v in range(n, len(views)))
    return [
        Step(
            interleave(config=config),
            args,
            writes,
            loop.nodes,
            flops=flops,
            nbytes=nbytes,
            variant=f"{config.planes} planes",
        )
    ]


def _layouts(planes: Axis, long: Axis, inputs: int) -> tuple[str, ...]:
    """The layouts of views along two axes; empty if one has another layout, or if all have the same."""
    count = planes.extent
    if not isinstance(count, int) or not 2 <= count <= MAX_PLANES:
        return ()
    kinds = []
    for i, (across, along) in enumerate(zip(planes.strides, long.strides, strict=True)):
        if along == 1:
            kinds.append(PLANAR)
        elif across == 1 and along == count:
            kinds.append(INTERLEAVED)
        elif along == 0 and i < inputs:
            kinds.append(PER_PLANE)
        else:
            return ()
    is_one = len(set(kinds[inputs:])) == 1  # outputs have one layout, and some input has the other
    return tuple(kinds) if is_one and {PLANAR, INTERLEAVED} <= set(kinds) else ()


def _params(config: InterleaveConfig) -> Params:
    return {"nest": NestArgs.declared(config.expression.types, config.outer + 1)}


@kernel(_params)
def interleave(k: Kernel, nest: NestArgs[Buf, Val], *, config: InterleaveConfig) -> None:
    """The last extent of the nest is that of a plane, its last strides are those between planes."""
    lanes, extents = config.lanes, nest.extents
    chunks = (extents[-1] + (CHUNK - 1)) // CHUNK
    strides_along: dict[str, int] = {PLANAR: 1, INTERLEAVED: config.planes, PER_PLANE: 0}
    layouts = zip(nest.strides, config.layouts, strict=True)
    strides: list[list[Operand]] = [[*s[: config.outer], strides_along[layout] * CHUNK] for s, layout in layouts]
    with nest_loop(k, [*extents[:-1], chunks], strides) as (index, moved):
        long = k.min(extents[-1] - index[-1] * CHUNK, CHUNK)
        here = [view.at(at) for view, at in zip(nest.views, moved, strict=True)]
        chunk = _Chunk(k, config, here, [s[config.outer] for s in nest.strides])
        whole = long & -lanes
        with k.loop(0, whole, lanes) as i:
            chunk.make(i, None)
        with k.when(whole < long):
            chunk.make(whole, long - whole)


class _Chunk(Record):
    """A chunk of every plane: ``here`` are views from its first element on, ``across`` their strides between planes."""

    k: Kernel
    config: InterleaveConfig
    here: list[Buf]
    across: list[Val]

    def make(self, at: Val, left: Val | None) -> None:
        """``lanes`` elements of each plane from ``at`` on, or the ``left`` ones at the end."""
        k, e, inputs = self.k, self.config.expression, len(self.config.expression.operands)
        columns: list[list[Val]] = [
            list(row) for row in zip(*(self._load(v, at, left) for v in range(inputs)), strict=True)
        ]
        for values in columns:
            for s in e.steps:
                assert isinstance(s, Apply)
                values.append(apply(k, e, s, [values[a] for a in s.args]))
        for i, result in enumerate(e.results):
            vectors = [k.value(values[result], values[result].dtype, self.config.lanes) for values in columns]
            self._store(inputs + i, at, left, vectors)

    def _load(self, v: int, at: Val, left: Val | None) -> list[Val]:
        """A vector of each plane."""
        k, config, buf = self.k, self.config, self.here[v]
        if config.layouts[v] == PER_PLANE:
            return [k.splat(buf.load(self.across[v] * j), config.lanes) for j in range(config.planes)]
        if config.layouts[v] == PLANAR:
            mask = None if left is None else k.mask(left, config.lanes)
            return [buf.at(self.across[v] * j).load(at, config.lanes, mask) for j in range(config.planes)]
        return deinterleaved([buf.load(*place) for place in self._places(at, left)])

    def _store(self, v: int, at: Val, left: Val | None, vectors: list[Val]) -> None:
        k, config, buf = self.k, self.config, self.here[v]
        if config.layouts[v] == PLANAR:
            mask = None if left is None else k.mask(left, config.lanes)
            for j, vector in enumerate(vectors):
                buf.at(self.across[v] * j).store(at, vector, mask=mask)
            return
        for vector, (place, _, mask) in zip(interleaved(vectors), self._places(at, left), strict=True):
            buf.store(place, vector, mask=mask)

    def _places(self, at: Val, left: Val | None) -> list[tuple[Val, int, Val | None]]:
        """Start, lanes and mask of the vectors of interleaved elements."""
        k, planes, lanes = self.k, self.config.planes, self.config.lanes
        masks = [None if left is None else k.mask(left * planes - t * lanes, lanes) for t in range(planes)]
        return [(at * planes + t * lanes, lanes, mask) for t, mask in enumerate(masks)]

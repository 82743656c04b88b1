"""Scatter: data are copied, then updates are stored at, or combined with, indexed elements.

The indexed axes are walked in order by a single thread for any given element of the result, so duplicate indices are
applied in the same order for any number of threads. Threads share the other axes; if those are too few, each thread
reads all indices and applies those in its range of the indexed axis.
"""

from __future__ import annotations

from contextlib import ExitStack

from sardonyx.dtypes import DType, of_name
from sardonyx.ir import dims
from sardonyx.lower.groups import Expression, Loop, Scatter, View
from sardonyx.providers.cpu.kernels.common.loop_nest import Nest, NestArgs, load, store, stride_class
from sardonyx.providers.cpu.kernels.loops import loop
from sardonyx.providers.cpu.kernels.math.reducers import extreme
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import product
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.records import Record, replace

INDICES, UPDATES, OUT = range(3)


class ScatterConfig(Record):
    """The compile-time configuration of ``scatter``."""

    dtype: DType
    index: DType
    free: int
    """The number of axes that threads share."""
    indexed: int
    kinds: tuple[str, str] | None
    """Stride classes of updates and result along a row; None if each element has its own index."""
    reduction: str


def steps(group: Scatter, analysis: Analysis) -> list[Step]:
    box, views = group.updates.shape, (group.indices, group.updates, group.places)
    is_indexed = [s == 0 for s in group.places.strides]
    free, indexed = (
        Nest.of(
            [n for n, s in zip(box, is_indexed, strict=True) if s == kind],
            [_axes(v, is_indexed, kind) for v in views],
        )
        for kind in (False, True)
    )
    outer = list(free.ordered(OUT).axes)
    row = outer.pop() if outer and outer[-1].strides[INDICES] == 0 else None
    axes = [*outer, *indexed.axes, *([] if row is None else [row])]
    dtype = group.out.dtype if group.reduction != "none" else of_name(f"u{group.out.dtype.itemsize * 8}")
    kinds = None if row is None else (stride_class(row.strides[UPDATES]), stride_class(row.strides[OUT]))
    config = ScatterConfig(dtype, group.indices.dtype, len(outer), len(indexed.axes), kinds, group.reduction)
    args = flat(nest=NestArgs.of(views, axes), size=group.size, pitch=group.pitch)
    moved = dims.known(dims.mul(3 * group.out.dtype.itemsize, product(box))) or 0
    identity = Expression((group.data.dtype,), (), (0,))
    copy = Loop(group.nodes, group.out.shape, 0, (group.data,), identity, (group.out,))
    scattered = Step(scatter(config=config), args, frozenset((f"m{OUT}",)), group.nodes, nbytes=moved, can_fail=True)
    return [*loop.steps(copy, analysis), scattered]


def _axes(view: View, is_indexed: list[bool], kind: bool) -> View:
    """A view of the axes whose ``is_indexed`` equals ``kind``."""
    own = [i for i, s in enumerate(is_indexed) if s == kind]
    return replace(view, shape=tuple(view.shape[i] for i in own), strides=tuple(view.strides[i] for i in own))


def _count(config: ScatterConfig) -> int:
    return config.free + config.indexed + (config.kinds is not None)


def _params(config: ScatterConfig) -> Params:
    nest = NestArgs.declared((config.index, config.dtype, config.dtype), _count(config))
    return {"nest": nest, "size": i64, "pitch": i64}


@kernel(_params)
def scatter(k: Kernel, nest: NestArgs[Buf, Val], size: Val, pitch: Val, *, config: ScatterConfig) -> None:
    extents, strides = nest.extents, [list(axis) for axis in zip(*nest.strides, strict=True)]
    total = k.const(1)
    for n in extents[: config.free]:
        total = total * n
    ranges = k.select(total >= k.threads, 1, k.threads)
    first, last = k.share_of(total * ranges)
    with k.loop(first, last) as unit, ExitStack() as loops:
        which, rest = unit % ranges, unit // ranges
        low, high = size * which // ranges, size * (which + 1) // ranges
        at = [k.const(0)] * 3
        for i in reversed(range(config.free)):
            divisor = k.max(extents[i], 1)
            at = [a + rest % divisor * s for a, s in zip(at, strides[i], strict=True)]
            rest = rest // divisor
        for i in range(config.free, config.free + config.indexed):
            j = loops.enter_context(k.loop(0, extents[i]))
            at = [a + j * s for a, s in zip(at, strides[i], strict=True)]
        indices, updates, out = (view.at(a) for view, a in zip(nest.views, at, strict=True))
        index = k.check_index(k.cast(indices.load(), i64), size)
        with k.when((index >= low) & (index < high)):
            place = out.at(index * pitch)
            if config.kinds is None:
                place.store(0, _combined(k, config, place.load(), updates.load()))
                return
            lanes = max(k.lanes * 32 // config.dtype.bits, 1)
            for tile in k.tiles(extents[-1], lanes, unroll=4 if config.reduction == "none" else 1):
                _scatter_tile(k, config, place, updates, tile, strides[-1])


def _scatter_tile(k: Kernel, config: ScatterConfig, place: Buf, updates: Buf, tile: Tile, strides: list[Val]) -> None:
    assert config.kinds is not None
    new = load(updates, tile, config.kinds[0], strides[UPDATES])
    if config.reduction != "none":
        old = load(place, tile, config.kinds[1], strides[OUT])
        new = _combined(k, config, old, k.value(new, new.dtype, old.lanes))
    store(place, tile, config.kinds[1], strides[OUT], new)


def _combined(k: Kernel, config: ScatterConfig, old: Val, new: Val) -> Val:
    if config.reduction == "none":
        return new
    if config.reduction == "add":
        return old + new
    if config.reduction == "mul":
        return old * new
    return extreme(k, old, new, largest=config.reduction == "max")

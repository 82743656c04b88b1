"""Gather along any axis (embedding lookups) and GatherElements.

Work items are the axes before the gathered one, those of the indices, and those after it except the last; each reads
and checks one index and copies one row. If nothing follows the gathered axis, the last axis of the indices takes the
place of the row, and every element is checked and copied separately.
"""

from __future__ import annotations

from sardonyx.dtypes import DType, of_name
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Gather, GatherElements, View
from sardonyx.providers.cpu.kernels.common.loop_nest import Axis, Nest, NestArgs, load, nest_loop, store, stride_class
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.records import Record, replace

CHUNK = 4096
"""Elements of a row that are one work item."""

DATA, INDICES, OUT = range(3)


class GatherConfig(Record):
    """The compile-time configuration of ``gather``; ``kinds`` are the stride classes of data and result along a row."""

    dtype: DType
    index: DType
    axes: int
    kinds: tuple[str, str]
    is_single: bool
    """A row is one element: the last axis is an axis of the indices."""


def steps(group: Gather, analysis: Analysis) -> list[Step]:
    axis, after = group.axis, group.axis + len(group.indices.shape)
    out = group.out
    views = (
        _broadcast(group.data, out.shape, [*range(axis), *range(after, len(out.shape))], skipping=axis),
        _broadcast(group.indices, out.shape, list(range(axis, after))),
        out,
    )
    rows = Nest.of(out.shape[after:], [_from(v, after) for v in views]).ordered(OUT).axes
    outer = Nest.of(out.shape[:axis], views).axes
    indexed = Nest.of(out.shape[axis:after], [_from(v, axis) for v in views]).axes
    axes = [*outer, *indexed, *rows]
    if not rows and not indexed:
        axes.append(Axis(1, (0, 0, 1)))
    return [_step(group, axes, is_single=not rows)]


def gather_elements_steps(group: GatherElements, analysis: Analysis) -> list[Step]:
    """Element by element, or row by row where adjacent elements have the same index."""
    out, axis = group.out, group.axis
    data = replace(
        group.data, shape=out.shape, strides=tuple(0 if i == axis else s for i, s in enumerate(group.data.strides))
    )
    axes = list(Nest.of(out.shape, [data, group.indices, out]).ordered(OUT).axes) or [Axis(1, (0, 0, 1))]
    return [_step(group, axes, is_single=axes[-1].strides[INDICES] != 0)]


def _step(group: Gather | GatherElements, axes: list[Axis], *, is_single: bool) -> Step:
    last, axis, out = axes[-1], group.axis, group.out
    dtype = of_name(f"u{group.data.dtype.itemsize * 8}")
    kinds = stride_class(last.strides[DATA]), stride_class(last.strides[OUT])
    config = GatherConfig(dtype, group.indices.dtype, len(axes), kinds, is_single)
    nest = NestArgs.of((group.data, group.indices, out), axes)
    args = flat(nest=nest, size=group.data.shape[axis], pitch=group.data.strides[axis])
    moved = expressible(dims.mul(2 * group.data.dtype.itemsize, product(out.shape)))
    return Step(gather(config=config), args, frozenset((f"m{OUT}",)), group.nodes, nbytes=moved)


def _broadcast(view: View, shape: tuple[Known, ...], places: list[int], skipping: int | None = None) -> View:
    """A view with the result's axes: its own, except ``skipping``, at ``places``; broadcast along the others."""
    own = [s for i, s in enumerate(view.strides) if i != skipping]
    strides: list[Known] = [0] * len(shape)
    for place, stride in zip(places, own, strict=True):
        strides[place] = stride
    return replace(view, shape=shape, strides=tuple(strides))


def _from(view: View, axis: int) -> View:
    return replace(view, shape=view.shape[axis:], strides=view.strides[axis:])


def _params(config: GatherConfig) -> Params:
    nest = NestArgs.declared((config.dtype, config.index, config.dtype), config.axes)
    return {"nest": nest, "size": i64, "pitch": i64}


@kernel(_params)
def gather(k: Kernel, nest: NestArgs[Buf, Val], size: Val, pitch: Val, *, config: GatherConfig) -> None:
    last, extents, strides = config.axes - 1, nest.extents, nest.strides
    chunks = (extents[last] + (CHUNK - 1)) // CHUNK
    steps = [[*s[:last], s[last] * CHUNK] for s in strides]
    with nest_loop(k, [*extents[:last], chunks], steps) as (index, moved):
        count = k.min(extents[last] - index[-1] * CHUNK, CHUNK)
        data, indices, out = (view.at(at) for view, at in zip(nest.views, moved, strict=True))
        along = [s[last] for s in strides]
        if config.is_single:
            with k.when(size <= 0, likely=False):
                _checked(k, indices, size)
            with k.loop(0, k.select(size > 0, count, 0)) as i:
                at = _checked(k, indices.at(i * along[INDICES]), size) * pitch
                out.store(i * along[OUT], data.load(i * along[DATA] + at))
            return
        at = _checked(k, indices, size) * pitch
        with k.when(size > 0):
            for tile in k.tiles(count, k.lanes * 32 // config.dtype.bits, unroll=4):
                v = load(data.at(at), tile, config.kinds[0], along[DATA])
                store(out, tile, config.kinds[1], along[OUT], v)


def _checked(k: Kernel, index: Buf, size: Val) -> Val:
    return k.check_index(k.cast(index.load(), i64), size)

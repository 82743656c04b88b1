"""Images read between their elements: rows blended into one, and that one read along.

The elements of all axes but the innermost that stand for a row of the result are rows of the image. They are summed
with their weights, vector by vector: into registers where the innermost axis stays as it is, otherwise into a row in
scratch memory, which is then read along. For a whole factor (``PolyphaseFilter``) that is a few vectors with constant
weights, shuffled by constants; by a table, elements are picked out of a vector or two, or, where they lie too far
apart, one by one. Where vectors are long, scratch memory is left out. Rows that are only picked are read where they
lie.

The grid of work is the rows of the result: each is made in one place, in one order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sardonyx.dtypes import of_name
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Expression, Resample, TapTable, View
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.loop_nest import Axis, known, nest_loop, traffic
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, number
from sardonyx.providers.cpu.kernels.image.resize_config import (
    MANY,
    PIECE,
    SLACK,
    STAGE,
    STAGED,
    ResizeConfig,
    Tabled,
    read_of,
)
from sardonyx.providers.cpu.kernels.image.resize_row import Row
from sardonyx.providers.cpu.kernels.image.resize_shuffle import Picks, may_pick, reach_of
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64, register_dtype
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

SHORT = 8
"""Elements below which an axis that stays as it is does not make a row."""


class _Layout:
    """A group's views with the innermost axis of the result last, and as few others as can be."""

    def __init__(self, group: Resample) -> None:
        self.along = dict(group.along)
        self.views = [group.x, *group.extra, *group.outputs]
        rank, inner = len(group.box), _innermost(group)
        order = [*(i for i in range(rank) if i != inner), inner]
        self.views = [views.permuted(v, order) for v in self.views]
        self.along = {order.index(i): a for i, a in self.along.items()}
        for axis in reversed(range(rank - 1)):
            if axis in self.along:
                continue
            if self.views[-1].shape[axis] == 1:
                self._change(axis, views.selected)
            elif (
                axis + 1 not in self.along
                and axis + 2 <= self.rank
                and all(views.is_mergeable(v, axis) for v in self.views)
            ):
                self._change(axis, views.merged)
        if self.rank == 1:
            self.along = {i + 1: a for i, a in self.along.items()}
            self.views = [views.inserted(v, 0) for v in self.views]

    @property
    def rank(self) -> int:
        return len(self.views[-1].shape)

    def _change(self, axis: int, change: Callable[[View, int], View]) -> None:
        self.views = [change(v, axis) for v in self.views]
        self.along = {i - (i > axis): a for i, a in self.along.items()}


def _innermost(group: Resample) -> int:
    """The axis that vectors lie along: the result's closest, unless it stays as it is and is short, like colours."""
    out = group.outputs[0]
    found = next((i for i, s in enumerate(out.strides) if s == 1 and out.shape[i] != 1), len(out.shape) - 1)
    size = out.shape[found]
    is_short = isinstance(size, int) and size < SHORT and found not in dict(group.along)
    return max(i for i, _ in group.along) if is_short else found


def steps(group: Resample, target: Target) -> list[Step]:
    layout = _Layout(group)
    x, rest = layout.views[0], layout.views[1:]
    extra, outputs = rest[: len(group.extra)], rest[len(group.extra) :]
    box, last, lanes = outputs[0].shape, layout.rank - 1, target.isa.lanes
    reads = [read_of(layout.along[i]) if i in layout.along else None for i in range(layout.rank)]
    expression, x_dtype = group.epilogue, group.x.dtype
    is_copy = not group.is_weighted and not expression.steps and x_dtype.bits in (8, 16, 32, 64)
    if is_copy:
        x_dtype = of_name(f"u{x_dtype.itemsize * 8}")
        expression = Expression((x_dtype,), (), expression.results)
    work = register_dtype(expression.operands[0])
    is_unit, reach = x.strides[last] == 1 or x.shape[last] == 1, reach_of(reads[last], x.shape[last], box[last], lanes)
    config = ResizeConfig(x_dtype, work, tuple(reads[:last]), reads[last], is_unit, is_copy, reach).written(
        x.shape[last], lanes
    )
    before, after = ([Matrix.of(v) for v in seen] for seen in (extra, outputs))
    epilogue, more = Epilogue.over(expression, before, after, box[last], last - 1)
    if is_copy:
        epilogue = replace(epilogue, outputs=tuple(replace(y, dtype=x_dtype) for y in epilogue.outputs))
    epilogue = epilogue.with_non_temporal_stores(outputs, target)
    args: dict[str, Ref | Known | float] = {"x": Ref.of(x), **more}
    args |= {f"n{i}": d for i, d in enumerate(box)}
    args |= {f"in{i}": d for i, d in enumerate(x.shape)}
    args |= {f"s{i}": s for i, s in enumerate(x.strides)}
    for i, a in layout.along.items():
        if isinstance(a, TapTable):
            args |= {f"i{i}": Ref.of(a.firsts), f"taps{i}": a.taps}
            args |= {} if a.weights is None else {f"w{i}": Ref.of(a.weights)}
    scratch: Known = 0
    if not config.is_direct and (config.inner is not None or config.rows == MANY):
        length = x.shape[last] if config.inner is not None else PIECE
        inner = layout.along.get(last)
        halo = inner.taps if isinstance(inner, TapTable) else max(config.halo)
        row = dims.total((length, dims.mul(2, halo), (2 + SLACK) * lanes))
        scratch = known(dims.mul(dims.mul(row, STAGED if config.is_staged else 1), work.bits // 8))
        if may_pick(config, lanes):
            scratch = known(dims.add(scratch, Picks.scratch_nbytes(config, box[last], lanes)))
    count = known(dims.product(box))
    axes = [Axis(d, tuple(v.strides[i] for v in rest)) for i, d in enumerate(box)]
    read = known(dims.mul(dims.product(x.shape), x.dtype.bits // 8))
    nbytes = dims.known(dims.add(traffic(rest, axes), read)) or 0
    flops = known(dims.mul(2 * max(config.rows, 1), count))
    spec = resize(config=config, epilogue=epilogue)
    return [Step(spec, args, epilogue.writes, group.nodes, scratch, flops, nbytes)]


def _params(config: ResizeConfig, epilogue: Epilogue) -> Params:
    reads = (*config.outer, config.inner)
    tables: dict[str, Any] = {}
    for i, read in enumerate(reads):
        if isinstance(read, Tabled):
            tables |= {f"i{i}": (i64,), f"taps{i}": i64}
            tables |= {f"w{i}": (config.work,)} if read.is_weighted else {}
    numbers = [f"{what}{i}" for what in ("n", "in", "s") for i in range(len(reads))]
    return {"x": (config.x,), **dict.fromkeys(numbers, i64), **tables, **epilogue.params}


@kernel(_params)
def resize(k: Kernel, x: Buf, *, config: ResizeConfig, epilogue: Epilogue, **memory: Any) -> None:
    """``n`` are the sizes of the result, ``in`` and ``s`` those and the strides of the image."""
    last = len(config.outer)
    sizes = [number(memory, f"n{i}") for i in range(last + 1)]
    strides = [number(memory, f"s{i}") if read is None else k.const(0) for i, read in enumerate(config.outer)]
    given = k, x, config, epilogue, memory, sizes, strides
    if may_pick(config, k.lanes):
        picks = Picks(k, config, memory, sizes[last])
        with k.either(picks.are_near) as (near, far):
            with near:
                _one_by_one(*given, picks)
            with far:
                _staged(*given)
    elif config.is_staged and not config.is_streamed(k.lanes):
        _staged(*given)
    elif config.is_streamed(k.lanes) and config.is_paired and not epilogue.extra:
        _pairs(*given)
    elif config.repeated:
        _repeated(*given)
    else:
        _one_by_one(*given)


def _one_by_one(
    k: Kernel,
    x: Buf,
    config: ResizeConfig,
    epilogue: Epilogue,
    memory: dict[str, Any],
    sizes: list[Val],
    strides: list[Val],
    picks: Picks | None = None,
) -> None:
    """Rows that need no scratch memory, or one row of it."""
    last = len(config.outer)
    pieces = k.const(1) if config.inner is not None else (sizes[last] + (PIECE - 1)) // PIECE
    step = number(memory, f"s{last}") * PIECE if config.inner is None else k.const(0)
    with nest_loop(k, [*sizes[:last], pieces], [[*strides, step]]) as (index, (moved,)):
        row = Row(k, config, memory, x.at(moved), index[:last])
        finish = BoundEpilogue(k, epilogue, memory, sizes[last], index[: last - 1])
        if picks is not None:
            row.stream_table(picks, finish, index[last - 1], sizes[last])
        elif config.is_staged:
            row.stream(finish, index[last - 1], sizes[last])
        elif config.inner is None:
            left = index[last] * PIECE
            row.put_as_it_is(finish, index[last - 1], left, k.min(sizes[last] - left, PIECE))
        else:
            row.put_along(row.where_it_lies(), finish, index[last - 1], sizes[last])


def _pairs(
    k: Kernel,
    x: Buf,
    config: ResizeConfig,
    epilogue: Epilogue,
    memory: dict[str, Any],
    sizes: list[Val],
    strides: list[Val],
) -> None:
    """Two rows at a time that are made of the same ones of the image. The first of all and the last stand alone: they
    are made twice.
    """
    last = len(config.outer)
    pairs = number(memory, f"in{last - 1}") + 1
    with nest_loop(k, [*sizes[: last - 1], pairs], [strides]) as (index, (moved,)):
        first, second = k.max(index[-1] * 2 - 1, 0), k.min(index[-1] * 2, sizes[last - 1] - 1)
        row = Row(k, config, memory, x.at(moved), [*index[:-1], first])
        row.stream(BoundEpilogue(k, epilogue, memory, sizes[last], index[:-1]), first, sizes[last], second)


def _repeated(
    k: Kernel,
    x: Buf,
    config: ResizeConfig,
    epilogue: Epilogue,
    memory: dict[str, Any],
    sizes: list[Val],
    strides: list[Val],
) -> None:
    """Rows, of which each stands for several neighbours as it is: channels of pixels, that is. They come in lines."""
    last = len(config.outer)
    length, step = number(memory, f"in{last - 1}"), number(memory, f"s{last - 1}")
    still = replace(config, outer=(*config.outer[:-1], None))
    with nest_loop(k, sizes[: last - 1], [strides[: last - 1]]) as (index, (moved,)):
        finish = BoundEpilogue(k, epilogue, memory, sizes[last], index)
        with k.loop(0, length) as at, k.loop(0, config.repeated) as i:
            row = Row(k, still, memory, x.at(moved + at * step), [*index, at])
            row.put_as_it_is(finish, at * config.repeated + i, k.const(0), sizes[last])


def _staged(
    k: Kernel,
    x: Buf,
    config: ResizeConfig,
    epilogue: Epilogue,
    memory: dict[str, Any],
    sizes: list[Val],
    strides: list[Val],
) -> None:
    """A few rows are blended before the first of them is read along.

    What reads across two vectors that were just stored waits until they have left the core, behind all results that
    were stored before them.
    """
    last = len(config.outer)
    length, halo = number(memory, f"in{last}"), Row.halo(k, config, memory)
    pitch = (length + halo * 2 + SLACK * k.lanes) & -k.lanes
    together = k.min(k.max(k.const(STAGE * k.lanes) // pitch, 1), STAGED)
    groups = (sizes[last - 1] + (together - 1)) // together
    steps = [*strides[:-1], strides[-1] * together]
    with nest_loop(k, [*sizes[: last - 1], groups], [steps]) as (index, (moved,)):
        first, outer = index[-1] * together, index[:-1]
        count = k.min(sizes[last - 1] - first, together)
        place = k.scratch(config.work).at(halo)
        with k.loop(0, count) as r:
            row = Row(k, config, memory, x.at(moved + r * strides[-1]), [*outer, first + r])
            row.make(place.at(r * pitch), halo)
        finish = BoundEpilogue(k, epilogue, memory, sizes[last], outer)
        with k.loop(0, count) as r:
            row.put_along(place.at(r * pitch), finish, first + r, sizes[last])

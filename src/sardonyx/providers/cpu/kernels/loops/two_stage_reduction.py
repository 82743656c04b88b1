"""Long reductions of few rows in two stages: partial results of chunks, which threads share, then their combination.

A chunk has a fixed length, and partial results are combined in a fixed order, so the result does not depend on the
number of threads. Where a row consists of short contiguous runs between which other rows lie (a group of channels of
an NHWC image), the first stage reduces all but these runs, with vectors across rows and runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Count, Expression, Loop, Reduce, Storage, View
from sardonyx.providers.cpu.kernels.common.loop_nest import Axis, Nest, typical
from sardonyx.providers.cpu.kernels.loops.passes import Schedule
from sardonyx.providers.cpu.language.values import register_dtype
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.records import Record, replace

CHUNK = 16384
"""Elements that are one work item."""

MAX_ROWS = 16
"""Rows up to which long ones are split."""

MAX_COLUMNS = 4096
"""Rows up to which long ones are split, with vectors across rows."""

MIN_ELEMENTS, MIN_CHUNK = 4 * CHUNK, 32
"""With vectors across rows: elements from which on splitting pays, and the elements of a row that a chunk has at least,
because partial results are written and read again."""

LONG_CHUNK = 1024
"""The elements of a row that a chunk has where there are enough rows for threads: it bounds the error of long sums."""

MAX_RUN = 256
"""Elements of a contiguous run of a row up to which vectors lie across runs."""


class Stage(Record):
    """One of the loops that a loop is split into."""

    loop: Loop
    count: Known
    """The number of reduced elements of the loop that was split."""
    chunk: int = 0
    """Elements of the row, or with vectors across rows of its outermost axis, that one work item reduces; 0: all."""
    chunk_stride: Known = 1
    """The stride from the partial results of one chunk to those of the next."""
    may_split: bool = False
    """Whether it may be split further."""


def split_rows(loop: Loop, count: Known) -> list[Stage] | None:
    """The two stages; None if rows are short, if there are enough rows, or if elements are stored."""
    kept = len(loop.extents) - loop.reduced
    rows, reduced_axes = product(loop.extents[:kept]), Nest.of(loop.extents[kept:], loop.inputs, skip=kept).axes
    if len(reduced_axes) != 1 or (isinstance(reduced_axes[0].extent, int) and reduced_axes[0].extent < 2 * CHUNK):
        return None
    schedule = _schedule(loop) if isinstance(rows, int) and rows <= MAX_ROWS else None
    if schedule is None:
        return None
    chunks = expressible(dims.ceildiv(reduced_axes[0].extent, CHUNK))
    partial = tuple(views.dense(s, (*loop.extents[:kept], chunks)) for s in _partials(schedule, rows, chunks))
    first = replace(_first_stage(loop, schedule), outputs=tuple(views.selected(v, kept) for v in partial))
    return [Stage(first, count, CHUNK), Stage(_second_stage(loop, schedule, chunks, partial), count)]


def split_across_rows(loop: Loop, column: int, row_axes: Sequence[Axis], count: Known) -> list[Stage] | None:
    """The two stages with vectors along the kept axis ``column``; None as for ``split_rows``.

    ``row_axes`` are the axes of a row, the outermost first: that one is split.
    """
    kept = len(loop.extents) - loop.reduced
    rows, (outermost, *others) = product(loop.extents[:kept]), row_axes
    columns = dims.product(d for d in loop.extents[:kept] if isinstance(d, int))  # a symbolic batch counts as small
    if not isinstance(columns, int) or not isinstance(loop.extents[column], int):
        return None
    if columns <= MAX_COLUMNS:
        at_once = columns * typical(product(axis.extent for axis in others))
        chunk = max(MIN_CHUNK if not others else 1, CHUNK // max(at_once, 1))
        is_large = typical(outermost.extent) * at_once >= MIN_ELEMENTS
    else:
        chunk, is_large = LONG_CHUNK, True
    schedule = _schedule(loop) if is_large and typical(outermost.extent) >= 2 * chunk else None
    if schedule is None:
        return None
    chunks, shape = expressible(dims.ceildiv(outermost.extent, chunk)), loop.extents[:kept]
    held = (views.dense(s, (chunks, *shape)) for s in _partials(schedule, rows, chunks))
    partial = tuple(views.permuted(v, (*range(1, kept + 1), 0)) for v in held)
    first = replace(_first_stage(loop, schedule), outputs=tuple(views.selected(v, kept) for v in partial))
    return [Stage(first, count, chunk, rows), Stage(_second_stage(loop, schedule, chunks, partial), count)]


def with_runs_first(loop: Loop) -> Loop | None:
    """The loop with the axis of its rows' contiguous runs as the first reduced one; None if rows have no short runs
    that lie next to those of other rows.
    """
    kept = len(loop.extents) - loop.reduced
    rows, reduced = range(kept), range(kept, len(loop.extents))
    for view in loop.inputs:
        for run in reduced:
            length = loop.extents[run]
            if view.strides[run] != 1 or not isinstance(length, int) or not 1 < length <= MAX_RUN:
                continue
            next_row = any(loop.extents[i] != 1 and view.strides[i] == length for i in rows)
            if next_row and any(loop.extents[i] != 1 and typical(view.strides[i]) > length for i in reduced):
                order = (*rows, run, *(i for i in reduced if i != run))
                extents = tuple(loop.extents[i] for i in order)
                inputs, outputs = (
                    tuple(views.permuted(v, order[: len(v.shape)]) for v in side)
                    for side in (loop.inputs, loop.outputs)
                )
                return replace(loop, extents=extents, inputs=inputs, outputs=outputs)
    return None


def split_runs(loop: Loop, count: Known, outputs: tuple[View, ...] | None = None) -> list[Stage] | None:
    """The two stages of a loop whose first reduced axis is that of runs; None if elements are stored.

    ``outputs`` replace those of the loop; they may have the axis of runs too.
    """
    schedule, kept = _schedule(loop), len(loop.extents) - loop.reduced
    if schedule is None:
        return None
    shape, run = loop.extents[: kept + 1], loop.extents[kept]
    partial = tuple(views.dense(s, shape) for s in _partials(schedule, product(shape), 1))
    first = replace(_first_stage(loop, schedule), reduced=loop.reduced - 1, outputs=partial)
    second = _second_stage(loop, schedule, run, partial)
    return [Stage(first, count, may_split=True), Stage(replace(second, outputs=outputs or loop.outputs), count)]


def _schedule(loop: Loop) -> Schedule | None:
    """The schedule of a loop with one pass, no element stores, and neither argmax nor argmin; None for others."""
    if any(len(v.strides) > len(loop.extents) - loop.reduced for v in loop.outputs):
        return None
    schedule = Schedule(loop.expression, frozenset(per_row(loop)), frozenset(range(len(loop.outputs))))
    if len(schedule.passes) != 1:
        return None
    kinds = (schedule.reduction(r).kind for r in schedule.passes[0].reductions)
    return None if any(kind.startswith("arg") for kind in kinds) else schedule


def per_row(loop: Loop) -> list[int]:
    """The operands that are constant along a row."""
    kept = len(loop.extents) - loop.reduced
    return [v for v, view in enumerate(loop.inputs) if all(s == 0 for s in view.strides[kept:])]


def _partials(schedule: Schedule, rows: Known, chunks: Known) -> list[Storage]:
    """Memory for the partial results of each reduction."""
    types = (register_dtype(schedule.reduction(r).dtype) for r in schedule.passes[0].reductions)
    return [Storage("temporary", dtype, product((rows, chunks))) for dtype in types]


def _first_stage(loop: Loop, schedule: Schedule) -> Loop:
    """The expression up to the last reduction."""
    e, reductions = loop.expression, schedule.passes[0].reductions
    before = e.steps[: reductions[-1] - len(loop.inputs) + 1]
    steps = (replace(s, dtype=register_dtype(s.dtype)) if isinstance(s, Reduce) else s for s in before)
    return replace(loop, expression=Expression(e.operands, tuple(steps), reductions))


def _second_stage(loop: Loop, schedule: Schedule, chunks: Known, partial: tuple[View, ...]) -> Loop:
    """Combines the partial results and computes the rest of the expression."""
    kept, operands = len(loop.extents) - loop.reduced, per_row(loop)
    return replace(
        loop,
        extents=(*loop.extents[:kept], chunks),
        reduced=1,
        inputs=(*(broadcast(views_of_rows(loop.inputs[v], kept), (chunks,)) for v in operands), *partial),
        expression=_combined(schedule, operands, schedule.passes[0].reductions),
    )


def views_of_rows(view: View, kept: int) -> View:
    """A per-row view without the reduced axes."""
    return replace(view, shape=view.shape[:kept], strides=view.strides[:kept])


def broadcast(view: View, along: Sequence[Known]) -> View:
    """A view, broadcast along further axes."""
    return replace(view, shape=(*view.shape, *along), strides=(*view.strides, *(0 for _ in along)))


def _combined(schedule: Schedule, operands: list[int], reductions: tuple[int, ...]) -> Expression:
    """The expression from the partial results on."""
    e = schedule.expression
    types = [e.operands[v] for v in operands] + [register_dtype(e.dtype_of(r)) for r in reductions]
    number = {v: i for i, v in enumerate(operands)}
    steps: list[Apply | Reduce | Count] = []
    for old in range(len(e.operands), len(e.operands) + len(e.steps)):
        step = schedule.step(old)
        if step is None or old not in schedule.per_row:
            continue
        if isinstance(step, Reduce):
            step = replace(step, arg=len(operands) + reductions.index(old))
        elif isinstance(step, Apply):
            step = replace(step, args=tuple(number[a] for a in step.args))
        number[old] = len(types) + len(steps)
        steps.append(step)
    return Expression(tuple(types), tuple(steps), tuple(number[r] for r in e.results))

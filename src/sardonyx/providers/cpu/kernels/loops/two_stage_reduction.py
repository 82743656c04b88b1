"""Long reductions of few rows, as two loops: partial results of chunks, which threads share, then their combination.

A chunk has a fixed length; with vectors across rows it is one index of the outermost reduced axis. Partial results are
combined in a fixed order, so the result does not depend on the number of threads.

A loop with vectors across rows that also stores elements (instance normalization of an NHWC image) is first split into
one loop per pass, because a vector of rows has too few work items for several threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Count, Expression, Loop, Reduce, Storage, View
from sardonyx.providers.cpu.kernels.common.loop_nest import Nest
from sardonyx.providers.cpu.kernels.loops.passes import Schedule
from sardonyx.providers.cpu.language.values import f32, register_dtype
from sardonyx.providers.cpu.program.sizes import expressible, product

CHUNK = 16384
"""Elements of a row that are one work item."""

MAX_ROWS = 16
"""Rows up to which long ones are split."""

MAX_COLUMNS = 4096
"""The same with vectors across rows."""

MIN_ELEMENTS, CHUNKS, MIN_CHUNK = 4 * CHUNK, 32, 4
"""With vectors across rows: elements from which on splitting pays, the number of chunks aimed at, and the elements that
a chunk has at least, because partial results are written and read again."""

MAX_ROWS_STORED, MIN_ELEMENTS_STORED = 128, 16 * CHUNK
"""Rows up to which, and elements from which on, passes that store elements become loops of their own."""


def split_passes(loop: Loop) -> list[Loop] | None:
    """One loop per pass over few long rows, of which only the last stores elements; None for other loops.

    Per-row values of a pass become operands of the next loop.
    """
    e, kept = loop.expression, len(loop.extents) - loop.reduced
    rows, elements = (dims.product(d for d in n if isinstance(d, int)) for n in (loop.extents[:kept], loop.extents))
    if not (
        isinstance(rows, int)
        and rows <= MAX_ROWS_STORED
        and isinstance(elements, int)
        and elements >= MIN_ELEMENTS_STORED
    ):
        return None
    if any(len(v.strides) <= kept for v in loop.outputs) or any(e.dtype_of(i) is not f32 for i in _numbers(e)):
        return None
    schedule = Schedule(e, frozenset(_per_row(loop)), frozenset())
    *before, last = schedule.passes
    reductions = [schedule.reduction(r).kind for p in before for r in p.reductions]
    stores_last = not (last.reductions or schedule.saved or any(p.stores for p in before))
    if not before or not stores_last or any(kind.startswith("arg") for kind in reductions):
        return None
    made, row_values = list[Loop](), dict[int, View]()
    for p in before:
        wanted = [v for v in _row_values_at(schedule, p.stage + 1) if v not in row_values]
        storages = (Storage("temporary", f32, product(loop.extents[:kept])) for _ in wanted)
        outputs = tuple(views.dense(storage, loop.extents[:kept]) for storage in storages)
        made.append(_subloop(loop, schedule, wanted, outputs, row_values, loop.reduced))
        row_values |= dict(zip(wanted, outputs, strict=True))
    stored = _subloop(loop, schedule, e.results, loop.outputs, row_values, 0)
    is_by_element = all(isinstance(step, Apply) for step in stored.expression.steps)
    return [*made, stored] if is_by_element else None


def _numbers(e: Expression) -> range:
    return range(len(e.operands) + len(e.steps))


def _row_values_at(schedule: Schedule, stage: int) -> list[int]:
    """The per-row values of a stage that elements or values of later stages depend on."""
    e, per_row = schedule.expression, schedule.per_row
    users = {v: step for v in _numbers(e) if isinstance(step := schedule.step(v), Apply)}
    used = {a for v, step in users.items() for a in step.args if v not in per_row or schedule.stage[v] > stage}
    return sorted(v for v in used if v in per_row and v >= len(e.operands) and schedule.stage[v] == stage)


def _subloop(
    loop: Loop, schedule: Schedule, results: Sequence[int], outputs: tuple[View, ...], row_values: dict[int, View],
    reduced: int,
) -> Loop:  # fmt: skip
    """The loop that computes ``results`` from operands and from ``row_values`` of earlier loops."""
    e, needed, todo = schedule.expression, set[int](), list(results)
    while todo:
        v = todo.pop()
        if v not in needed:
            needed.add(v)
            step = None if v in row_values else schedule.step(v)
            todo += step.args if isinstance(step, Apply) else [step.arg] if isinstance(step, Reduce) else []
    given = sorted(v for v in needed if v in row_values or v < len(e.operands))
    made = sorted(needed.difference(given))
    number = {v: i for i, v in enumerate((*given, *made))}
    steps = list[Apply | Reduce | Count]()
    for step in map(schedule.step, made):
        if isinstance(step, Apply):
            step = replace(step, args=tuple(number[a] for a in step.args))
        elif isinstance(step, Reduce):
            step = replace(step, arg=number[step.arg])
        assert step is not None
        steps.append(step)
    kept = len(loop.extents) - loop.reduced
    along = loop.extents[kept:]
    inputs = tuple(_broadcast(row_values[v], kept, along) if v in row_values else loop.inputs[v] for v in given)
    expression = Expression(tuple(e.dtype_of(v) for v in given), tuple(steps), tuple(number[r] for r in results))
    return replace(loop, reduced=reduced, inputs=inputs, expression=expression, outputs=outputs)


def split_rows(loop: Loop) -> tuple[Loop, Loop] | None:
    """The two loops; None if rows are short, if there are enough rows, or if elements are stored.

    The first has a result per row *and chunk*; ``fused_loop`` adds the axis of chunks, which is contiguous.
    """
    kept = len(loop.extents) - loop.reduced
    rows, reduced_axes = product(loop.extents[:kept]), Nest.of(loop.extents[kept:], loop.inputs, skip=kept).axes
    if len(reduced_axes) != 1 or (isinstance(reduced_axes[0].extent, int) and reduced_axes[0].extent < 2 * CHUNK):
        return None
    schedule = _schedule(loop) if isinstance(rows, int) and rows <= MAX_ROWS else None
    if schedule is None:
        return None
    chunks = expressible(dims.ceildiv(reduced_axes[0].extent, CHUNK))
    partial = _partials(schedule, loop.extents[:kept], chunks, kept)
    first = replace(
        _first_stage(loop, schedule),
        outputs=tuple(replace(view, shape=view.shape[:-1], strides=view.strides[:-1]) for view in partial),
    )
    return first, _second_stage(loop, schedule, chunks, partial)


def split_across_rows(loop: Loop, column: int) -> tuple[Loop, Loop] | None:
    """The two loops with vectors along the kept axis ``column``; None as for ``split_rows``.

    The first has a result per row and index of the outermost reduced axis; a single reduced axis is split into two.
    """
    loop = _split_axis(loop)
    kept = len(loop.extents) - loop.reduced
    size, elements = loop.extents[kept], product(loop.extents)
    if loop.reduced == 1 or size == 1 or (isinstance(elements, int) and elements < MIN_ELEMENTS):
        return None
    rows = dims.product(d for d in loop.extents[:kept] if isinstance(d, int))  # a symbolic batch counts as small
    is_few = isinstance(rows, int) and rows <= MAX_COLUMNS and isinstance(loop.extents[column], int)
    schedule = _schedule(loop) if is_few else None
    if schedule is None:
        return None
    partial = _partials(schedule, loop.extents[:kept], size, column)
    first = replace(_first_stage(loop, schedule), reduced=loop.reduced - 1, outputs=partial)
    return first, _second_stage(loop, schedule, size, partial)


def _split_axis(loop: Loop) -> Loop:
    """Splits a single reduced axis into about ``CHUNKS`` chunks, if its length has such a divisor."""
    *kept, n = loop.extents
    if loop.reduced != 1 or n == 0:
        return loop
    splits = {d: left for d in range(CHUNKS // 2, 2 * CHUNKS + 1) if (left := dims.exact_div(n, d)) is not None}
    splits = {d: left for d, left in splits.items() if not isinstance(left, int) or left >= MIN_CHUNK}
    if not splits:
        return loop
    count = min(splits, key=lambda d: abs(d - CHUNKS))
    sizes = (count, splits[count])
    inputs = tuple(views.split(v, len(kept), sizes) for v in loop.inputs)
    return replace(loop, extents=(*kept, *sizes), reduced=2, inputs=inputs)


def _schedule(loop: Loop) -> Schedule | None:
    """The schedule of a loop with one pass, no element stores, and neither argmax nor argmin; None for others."""
    if any(len(v.strides) > len(loop.extents) - loop.reduced for v in loop.outputs):
        return None
    schedule = Schedule(loop.expression, frozenset(_per_row(loop)), frozenset(range(len(loop.outputs))))
    if len(schedule.passes) != 1:
        return None
    kinds = (schedule.reduction(r).kind for r in schedule.passes[0].reductions)
    return None if any(kind.startswith("arg") for kind in kinds) else schedule


def _per_row(loop: Loop) -> list[int]:
    kept = len(loop.extents) - loop.reduced
    return [v for v, view in enumerate(loop.inputs) if all(s == 0 for s in view.strides[kept:])]


def _partials(schedule: Schedule, extents: tuple[Known, ...], chunks: Known, axis: int) -> tuple[View, ...]:
    """Views of the partial results: the axis of chunks is last, but in memory precedes ``axis``."""
    types = (register_dtype(schedule.reduction(r).dtype) for r in schedule.passes[0].reductions)
    return tuple(_partial(dtype, extents, chunks, axis) for dtype in types)


def _partial(dtype: DType, extents: tuple[Known, ...], chunks: Known, axis: int) -> View:
    held = (*extents[:axis], chunks, *extents[axis:])
    strides = [product(held[i + 1 :]) for i in range(len(held))]
    strides.append(strides.pop(axis))
    return View(Storage("temporary", dtype, product(held)), (*extents, chunks), tuple(strides))


def _first_stage(loop: Loop, schedule: Schedule) -> Loop:
    """The expression up to the last reduction."""
    e, reductions = loop.expression, schedule.passes[0].reductions
    before = e.steps[: reductions[-1] - len(loop.inputs) + 1]
    steps = (replace(s, dtype=register_dtype(s.dtype)) if isinstance(s, Reduce) else s for s in before)
    return replace(loop, expression=Expression(e.operands, tuple(steps), reductions))


def _second_stage(loop: Loop, schedule: Schedule, chunks: Known, partial: tuple[View, ...]) -> Loop:
    """Combines the partial results and computes the rest of the expression."""
    kept, per_row = len(loop.extents) - loop.reduced, _per_row(loop)
    return replace(
        loop,
        extents=(*loop.extents[:kept], chunks),
        reduced=1,
        inputs=(*(_broadcast(loop.inputs[v], kept, (chunks,)) for v in per_row), *partial),
        expression=_combined(schedule, per_row, schedule.passes[0].reductions),
    )


def _broadcast(view: View, kept: int, along: tuple[Known, ...]) -> View:
    """A per-row view, broadcast along further axes."""
    return replace(view, shape=(*view.shape[:kept], *along), strides=(*view.strides[:kept], *(0 for _ in along)))


def _combined(schedule: Schedule, per_row: list[int], reductions: tuple[int, ...]) -> Expression:
    """The expression from the partial results on."""
    e = schedule.expression
    types = [e.operands[v] for v in per_row] + [register_dtype(e.dtype_of(r)) for r in reductions]
    number = {v: i for i, v in enumerate(per_row)}
    steps: list[Apply | Reduce | Count] = []
    for old in range(len(e.operands), len(e.operands) + len(e.steps)):
        step = schedule.step(old)
        if step is None or old not in schedule.per_row:
            continue
        if isinstance(step, Reduce):
            step = replace(step, arg=len(per_row) + reductions.index(old))
        elif isinstance(step, Apply):
            step = replace(step, args=tuple(number[a] for a in step.args))
        number[old] = len(types) + len(steps)
        steps.append(step)
    return Expression(tuple(types), tuple(steps), tuple(number[r] for r in e.results))

"""Long reductions of few rows, in two loops: pieces of rows, which threads share, and what the pieces gave.

Pieces have a fixed length, or are one index of the outermost reduced axis where vectors lie across rows. Their results
are combined in order, so the result does not depend on the threads.

Where vectors lie across rows and elements are stored, as those of an instance normalization of an image that lies pixel
by pixel, every pass over the rows is a loop of its own first, since a vector of rows has no more than one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Count, Expression, Loop, Reduce, Storage, View
from sardonyx.providers.cpu.kernels.common.loop_nest import Nest, known, product
from sardonyx.providers.cpu.kernels.loops.passes import Schedule
from sardonyx.providers.cpu.language.values import f32, register_dtype

PIECE = 16384
"""Elements of a row that one thread reduces."""

FEW_ROWS = 16
"""Rows up to which long ones are cut."""

FEW_COLUMNS = 4096
"""The same where vectors lie across rows."""

LEAST, BANDS, SHORT = 4 * PIECE, 32, 4
"""Elements from which on that pays there, parts that are wanted, and rows that a part has at least: what parts give is
written and read again."""

FEW_STORED, LEAST_STORED = 128, 16 * PIECE
"""Rows up to which passes are loops where elements are stored, and elements from which on."""


def passes(loop: Loop) -> list[Loop] | None:
    """A loop for each pass over few long rows, the last of which stores elements; None for all others.

    What a pass makes of its reductions, one number for each row, is an operand of the next.
    """
    e, kept = loop.expression, len(loop.extents) - loop.reduced
    rows, elements = (dims.product(d for d in n if isinstance(d, int)) for n in (loop.extents[:kept], loop.extents))
    if not (isinstance(rows, int) and rows <= FEW_STORED and isinstance(elements, int) and elements >= LEAST_STORED):
        return None
    if any(len(v.strides) <= kept for v in loop.outputs) or any(e.dtype_of(i) is not f32 for i in _numbers(e)):
        return None
    schedule = Schedule(e, frozenset(_of_row(loop)), frozenset())
    *before, last = schedule.passes
    reductions = [schedule.reduction(r).kind for p in before for r in p.reductions]
    is_plain = not (last.reductions or schedule.kept or any(p.stores for p in before))
    if not before or not is_plain or any(kind.startswith("arg") for kind in reductions):
        return None
    made, handed = list[Loop](), dict[int, View]()
    for p in before:
        wanted = [v for v in _handed_on(schedule, p.stage + 1) if v not in handed]
        storages = (Storage("temporary", f32, product(loop.extents[:kept])) for _ in wanted)
        outputs = tuple(views.dense(storage, loop.extents[:kept]) for storage in storages)
        made.append(_excerpt(loop, schedule, wanted, outputs, handed, loop.reduced))
        handed |= dict(zip(wanted, outputs, strict=True))
    stored = _excerpt(loop, schedule, e.results, loop.outputs, handed, 0)
    is_by_element = all(isinstance(step, Apply) for step in stored.expression.steps)
    return [*made, stored] if is_by_element else None


def _numbers(e: Expression) -> range:
    return range(len(e.operands) + len(e.steps))


def _handed_on(schedule: Schedule, stage: int) -> list[int]:
    """The numbers of rows that there are from a stage on, and that elements or later ones are made of."""
    e, of_row = schedule.expression, schedule.of_row
    users = {v: step for v in _numbers(e) if isinstance(step := schedule.step(v), Apply)}
    used = {a for v, step in users.items() for a in step.args if v not in of_row or schedule.stage[v] > stage}
    return sorted(v for v in used if v in of_row and v >= len(e.operands) and schedule.stage[v] == stage)


def _excerpt(
    loop: Loop, schedule: Schedule, results: Sequence[int], outputs: tuple[View, ...], handed: dict[int, View],
    reduced: int,
) -> Loop:  # fmt: skip
    """What makes some values, of operands and of numbers of rows that were made before."""
    e, needed, todo = schedule.expression, set[int](), list(results)
    while todo:
        v = todo.pop()
        if v not in needed:
            needed.add(v)
            step = None if v in handed else schedule.step(v)
            todo += step.args if isinstance(step, Apply) else [step.arg] if isinstance(step, Reduce) else []
    given = sorted(v for v in needed if v in handed or v < len(e.operands))
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
    inputs = tuple(_still(handed[v], kept, along) if v in handed else loop.inputs[v] for v in given)
    expression = Expression(tuple(e.dtype_of(v) for v in given), tuple(steps), tuple(number[r] for r in results))
    return replace(loop, reduced=reduced, inputs=inputs, expression=expression, outputs=outputs)


def halves(loop: Loop) -> tuple[Loop, Loop] | None:
    """The two loops; None where a row is short, where there are rows enough, or where elements are stored.

    The first has results for each row *and piece*: the sweep adds the axis of pieces, along which they lie together.
    """
    kept = len(loop.extents) - loop.reduced
    rows, swept = product(loop.extents[:kept]), Nest.of(loop.extents[kept:], loop.inputs, skip=kept).axes
    if len(swept) != 1 or (isinstance(swept[0].extent, int) and swept[0].extent < 2 * PIECE):
        return None
    schedule = _schedule(loop) if isinstance(rows, int) and rows <= FEW_ROWS else None
    if schedule is None:
        return None
    pieces = known(dims.ceildiv(swept[0].extent, PIECE))
    partial = _partials(schedule, loop.extents[:kept], pieces, kept)
    first = replace(
        _first(loop, schedule),
        outputs=tuple(replace(view, shape=view.shape[:-1], strides=view.strides[:-1]) for view in partial),
    )
    return first, _second(loop, schedule, pieces, partial)


def bands(loop: Loop, column: int) -> tuple[Loop, Loop] | None:
    """The two loops where vectors lie along the kept axis ``column``; None as for ``halves``.

    The first has results for each row and each index of the outermost reduced axis; a single one is cut in two.
    """
    loop = _cut(loop)
    kept = len(loop.extents) - loop.reduced
    size, elements = loop.extents[kept], product(loop.extents)
    if loop.reduced == 1 or size == 1 or (isinstance(elements, int) and elements < LEAST):
        return None
    rows = dims.product(d for d in loop.extents[:kept] if isinstance(d, int))  # a batch of any size is a small one
    is_few = isinstance(rows, int) and rows <= FEW_COLUMNS and isinstance(loop.extents[column], int)
    schedule = _schedule(loop) if is_few else None
    if schedule is None:
        return None
    partial = _partials(schedule, loop.extents[:kept], size, column)
    first = replace(_first(loop, schedule), reduced=loop.reduced - 1, outputs=partial)
    return first, _second(loop, schedule, size, partial)


def _cut(loop: Loop) -> Loop:
    """With the one reduced axis as two, of which the first has about ``BANDS`` elements, where its length allows it."""
    *kept, n = loop.extents
    if loop.reduced != 1 or n == 0:
        return loop
    cuts = {d: left for d in range(BANDS // 2, 2 * BANDS + 1) if (left := dims.exact_div(n, d)) is not None}
    cuts = {d: left for d, left in cuts.items() if not isinstance(left, int) or left >= SHORT}
    if not cuts:
        return loop
    count = min(cuts, key=lambda d: abs(d - BANDS))
    sizes = (count, cuts[count])
    inputs = tuple(views.split(v, len(kept), sizes) for v in loop.inputs)
    return replace(loop, extents=(*kept, *sizes), reduced=2, inputs=inputs)


def _schedule(loop: Loop) -> Schedule | None:
    """Of a loop with one pass, which stores no elements; None for others, and where indices are found."""
    if any(len(v.strides) > len(loop.extents) - loop.reduced for v in loop.outputs):
        return None
    schedule = Schedule(loop.expression, frozenset(_of_row(loop)), frozenset(range(len(loop.outputs))))
    if len(schedule.passes) != 1:
        return None
    kinds = (schedule.reduction(r).kind for r in schedule.passes[0].reductions)
    return None if any(kind.startswith("arg") for kind in kinds) else schedule


def _of_row(loop: Loop) -> list[int]:
    kept = len(loop.extents) - loop.reduced
    return [v for v, view in enumerate(loop.inputs) if all(s == 0 for s in view.strides[kept:])]


def _partials(schedule: Schedule, extents: tuple[Known, ...], pieces: Known, axis: int) -> tuple[View, ...]:
    """What pieces give: views with an axis of pieces at the end, which in memory comes before an axis."""
    types = (register_dtype(schedule.reduction(r).dtype) for r in schedule.passes[0].reductions)
    return tuple(_partial(dtype, extents, pieces, axis) for dtype in types)


def _partial(dtype: DType, extents: tuple[Known, ...], pieces: Known, axis: int) -> View:
    held = (*extents[:axis], pieces, *extents[axis:])
    strides = [product(held[i + 1 :]) for i in range(len(held))]
    strides.append(strides.pop(axis))
    return View(Storage("temporary", dtype, product(held)), (*extents, pieces), tuple(strides))


def _first(loop: Loop, schedule: Schedule) -> Loop:
    """Up to the last reduction."""
    e, reductions = loop.expression, schedule.passes[0].reductions
    before = e.steps[: reductions[-1] - len(loop.inputs) + 1]
    steps = (replace(s, dtype=register_dtype(s.dtype)) if isinstance(s, Reduce) else s for s in before)
    return replace(loop, expression=Expression(e.operands, tuple(steps), reductions))


def _second(loop: Loop, schedule: Schedule, pieces: Known, partial: tuple[View, ...]) -> Loop:
    """From the pieces' results on."""
    kept, of_row = len(loop.extents) - loop.reduced, _of_row(loop)
    return replace(
        loop,
        extents=(*loop.extents[:kept], pieces),
        reduced=1,
        inputs=(*(_still(loop.inputs[v], kept, (pieces,)) for v in of_row), *partial),
        expression=_combined(schedule, of_row, schedule.passes[0].reductions),
    )


def _still(view: View, kept: int, along: tuple[Known, ...]) -> View:
    """A view of rows, whose numbers stay the same along other axes."""
    return replace(view, shape=(*view.shape[:kept], *along), strides=(*view.strides[:kept], *(0 for _ in along)))


def _combined(schedule: Schedule, of_row: list[int], reductions: tuple[int, ...]) -> Expression:
    """The expression from the pieces' results on."""
    e = schedule.expression
    types = [e.operands[v] for v in of_row] + [register_dtype(e.dtype_of(r)) for r in reductions]
    number = {v: i for i, v in enumerate(of_row)}
    steps: list[Apply | Reduce | Count] = []
    for old in range(len(e.operands), len(e.operands) + len(e.steps)):
        step = schedule.step(old)
        if step is None or old not in schedule.of_row:
            continue
        if isinstance(step, Reduce):
            step = replace(step, arg=len(of_row) + reductions.index(old))
        elif isinstance(step, Apply):
            step = replace(step, args=tuple(number[a] for a in step.args))
        number[old] = len(types) + len(steps)
        steps.append(step)
    return Expression(tuple(types), tuple(steps), tuple(number[r] for r in e.results))

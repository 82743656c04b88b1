"""Long reductions of few rows, in two loops: pieces of rows, which threads share, and what the pieces gave.

Pieces have a fixed length, and their results are combined in order, so the result does not depend on the threads.
"""

from __future__ import annotations

from dataclasses import replace

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, Count, Expression, Loop, Reduce, Storage, View
from sardonyx.providers.cpu.kernels.nest import Nest, known, product
from sardonyx.providers.cpu.kernels.passes import Schedule
from sardonyx.providers.cpu.values import register_dtype

PIECE = 16384
"""Elements of a row that one thread reduces."""

FEW_ROWS = 16
"""Rows up to which long ones are cut."""


def halves(loop: Loop) -> tuple[Loop, Loop] | None:
    """The two loops; None where a row is short, where there are rows enough, or where elements are stored.

    The first has results for each row *and piece*: the sweep adds the axis of pieces, along which they lie together.
    """
    kept = len(loop.extents) - loop.reduced
    rows, swept = product(loop.extents[:kept]), Nest.of(loop.extents[kept:], loop.inputs, skip=kept).axes
    if len(swept) != 1 or (isinstance(swept[0].extent, int) and swept[0].extent < 2 * PIECE):
        return None
    if not isinstance(rows, int) or rows > FEW_ROWS or any(len(v.strides) == len(loop.extents) for v in loop.outputs):
        return None
    of_row = [v for v, view in enumerate(loop.inputs) if all(s == 0 for s in view.strides[kept:])]
    schedule = Schedule(loop.expression, frozenset(of_row), frozenset(range(len(loop.outputs))))
    if len(schedule.passes) != 1:
        return None
    reductions = schedule.passes[0].reductions
    if any(schedule.reduction(r).kind.startswith("arg") for r in reductions):
        return None
    pieces = known(dims.ceildiv(swept[0].extent, PIECE))
    partial = [_partial(register_dtype(schedule.reduction(r).dtype), loop.extents[:kept], pieces) for r in reductions]
    e, operands = loop.expression, len(loop.inputs)
    before = e.steps[: reductions[-1] - operands + 1]
    steps = (replace(s, dtype=register_dtype(s.dtype)) if isinstance(s, Reduce) else s for s in before)
    first = replace(
        loop,
        expression=Expression(e.operands, tuple(steps), reductions),
        outputs=tuple(replace(view, shape=view.shape[:-1], strides=view.strides[:-1]) for view in partial),
    )
    second = replace(
        loop,
        extents=(*loop.extents[:kept], pieces),
        reduced=1,
        inputs=(*(_still(loop.inputs[v], kept, pieces) for v in of_row), *partial),
        expression=_combined(schedule, of_row, reductions),
    )
    return first, second


def _partial(dtype: DType, extents: tuple[Known, ...], pieces: Known) -> View:
    shape = (*extents, pieces)
    strides = tuple(product(shape[i + 1 :]) for i in range(len(shape)))
    return View(Storage("temporary", dtype, product(shape)), shape, strides)


def _still(view: View, kept: int, pieces: Known) -> View:
    """A view of rows, seen along the pieces."""
    return replace(view, shape=(*view.shape[:kept], pieces), strides=(*view.strides[:kept], 0))


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

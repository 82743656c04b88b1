"""The passes of a loop as loops of their own, of which only the last stores elements: normalizations of images.

A fused loop gives whole rows to threads. It is split where there are too few rows for that (instance normalization of
an NHWC image, whose rows are vectors of channels; normalization of a whole image), and where a row's elements are
scattered in short runs between those of other rows (group normalization of an NHWC image). Reductions then follow
``loops.two_stage_reduction``, and the last loop is pointwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Count, Expression, Loop, Reduce, Storage, View
from sardonyx.providers.cpu.kernels.common.loop_nest import typical
from sardonyx.providers.cpu.kernels.loops.passes import Schedule
from sardonyx.providers.cpu.kernels.loops.two_stage_reduction import (
    CHUNK,
    MAX_ROWS,
    Stage,
    broadcast,
    per_row,
    split_runs,
    with_runs_first,
)
from sardonyx.providers.cpu.language.values import register_dtype
from sardonyx.providers.cpu.program.sizes import product
from sardonyx.records import replace

MAX_COLUMNS, MIN_ELEMENTS = 128, 16 * CHUNK
"""With vectors across rows: rows up to which, and elements from which on, passes become loops."""

MIN_ROW = 16 * CHUNK
"""Elements of a row from which on its passes become loops if there are few rows: threads gain more than caches lose."""


def split_passes(loop: Loop, count: Known, *, is_across: bool) -> list[Stage] | None:
    """The loops; None for a loop that stays one. ``is_across``: vectors lie across rows."""
    by_run = with_runs_first(loop)
    if by_run is None and not (_has_few_columns(loop) if is_across else _has_few_rows(loop)):
        return None
    return _Passes(by_run or loop, count, has_runs=by_run is not None).stages()


def _has_few_columns(loop: Loop) -> bool:
    kept = len(loop.extents) - loop.reduced
    rows = dims.product(d for d in loop.extents[:kept] if isinstance(d, int))  # a symbolic batch counts as small
    return isinstance(rows, int) and rows <= MAX_COLUMNS and typical(product(loop.extents)) >= MIN_ELEMENTS


def _has_few_rows(loop: Loop) -> bool:
    kept = len(loop.extents) - loop.reduced
    rows, elements = product(loop.extents[:kept]), product(loop.extents[kept:])
    return isinstance(rows, int) and rows <= MAX_ROWS and isinstance(elements, int) and elements >= MIN_ROW


class _Passes:
    """The loops in the making, and the values of the expression that those before have stored."""

    def __init__(self, loop: Loop, count: Known, *, has_runs: bool) -> None:
        loop = replace(loop, expression=_unrounded(loop.expression))
        self.loop, self.count, self.has_runs = loop, count, has_runs
        self.kept = len(loop.extents) - loop.reduced
        self.schedule = Schedule(loop.expression, frozenset(per_row(loop)), frozenset())
        self.stored: dict[int, View] = {}

    def stages(self) -> list[Stage] | None:
        loop, schedule, made = self.loop, self.schedule, list[Stage]()
        *before, last = schedule.passes
        kinds = [schedule.reduction(r).kind for p in before for r in p.reductions]
        stores_last = not (last.reductions or any(p.stores for p in before))
        stores_elements = all(len(v.strides) > self.kept for v in loop.outputs)
        if not before or not (stores_last and stores_elements) or any(kind.startswith("arg") for kind in kinds):
            return None
        if schedule.saved and not self.has_runs:
            return None
        for p in before:
            wanted = [v for v in self._row_values_at(p.stage + 1) if v not in self.stored]
            types = (loop.expression.dtype_of(v) for v in (*wanted, *p.saves))
            if any(register_dtype(dtype) is not dtype for dtype in types):
                return None
            made += [self._element_value(v) for v in p.saves]
            found = self._row_values(wanted)
            if found is None:
                return None
            made += found
        if self.has_runs:
            made += self._row_operands()
        made.append(Stage(self._subloop(loop.expression.results, loop.outputs, 0), self.count))
        by_element = (stage.loop.expression.steps for stage in made if not stage.loop.reduced)
        return made if all(isinstance(step, Apply) for steps in by_element for step in steps) else None

    def _element_value(self, number: int) -> Stage:
        """Stores an expensive value of each element, in the memory order of the first operand of elements."""
        loop = self.loop
        lead = next(view for v, view in enumerate(loop.inputs) if v not in self.schedule.row_operands)
        order = views.memory_order(lead)
        storage = Storage("temporary", register_dtype(loop.expression.dtype_of(number)), product(loop.extents))
        dense = views.dense(storage, [loop.extents[i] for i in order])
        view = views.permuted(dense, [order.index(i) for i in range(len(order))])
        made = Stage(self._subloop([number], (view,), 0), self.count)
        self.stored[number] = view
        return made

    def _row_values(self, wanted: Sequence[int]) -> list[Stage] | None:
        """Stores values of rows; with runs, one for each element of a run, so that vectors lie across rows and runs."""
        loop, e = self.loop, self.loop.expression
        shape = loop.extents[: self.kept + self.has_runs]
        rows = loop.extents[: self.kept]
        if not wanted:
            return []
        full = tuple(views.dense(Storage("temporary", e.dtype_of(v), product(shape)), shape) for v in wanted)
        if not self.has_runs:
            made: list[Stage] | None = [Stage(self._subloop(wanted, full, loop.reduced), self.count, may_split=True)]
        else:
            unused = tuple(views.dense(Storage("temporary", e.dtype_of(v), product(rows)), rows) for v in wanted)
            made = split_runs(self._subloop(wanted, unused, loop.reduced), self.count, full)
        self.stored |= dict(zip(wanted, full, strict=True))
        return made

    def _row_operands(self) -> list[Stage]:
        """Copies operands that have one element for each row, once for each element of a run, as row values are."""
        loop, shape, made = self.loop, self.loop.extents[: self.kept + 1], list[Stage]()
        for number in sorted(self.schedule.row_operands & self._needed(loop.expression.results)):
            view = loop.inputs[number]
            if any(s != 0 for s in view.strides[: self.kept]):
                dtype = loop.expression.dtype_of(number)
                full = views.dense(Storage("temporary", dtype, product(shape)), shape)
                given = replace(view, shape=shape, strides=view.strides[: self.kept + 1])
                copied = Expression((dtype,), (), (0,))
                copy = replace(loop, extents=shape, reduced=0, inputs=(given,), expression=copied, outputs=(full,))
                made.append(Stage(copy, self.count))
                self.stored[number] = full
        return made

    def _row_values_at(self, stage: int) -> list[int]:
        """The per-row values of a stage that elements or values of later stages depend on."""
        schedule, e = self.schedule, self.loop.expression
        numbers = range(len(e.operands) + len(e.steps))
        users = {v: step for v in numbers if isinstance(step := schedule.step(v), Apply)}
        used = {
            a for v, step in users.items() for a in step.args if v not in schedule.per_row or schedule.stage[v] > stage
        } | {v for v in e.results if v in schedule.per_row}
        return sorted(v for v in used if v in schedule.per_row and v >= len(e.operands) and schedule.stage[v] == stage)

    def _subloop(self, results: Sequence[int], outputs: tuple[View, ...], reduced: int) -> Loop:
        """The loop that computes ``results`` from operands and from values that earlier loops stored."""
        loop, schedule, stored = self.loop, self.schedule, self.stored
        e, needed = loop.expression, self._needed(results)
        given = sorted(v for v in needed if v in stored or v < len(e.operands))
        steps, number = _renumbered(schedule, given, sorted(needed.difference(given)))
        inputs = tuple(self._input(v) for v in given)
        types = tuple(stored[v].dtype if v in stored else e.dtype_of(v) for v in given)
        expression = Expression(types, steps, tuple(number[r] for r in results))
        return replace(loop, reduced=reduced, inputs=inputs, expression=expression, outputs=outputs)

    def _needed(self, results: Sequence[int]) -> set[int]:
        """The values that ``results`` are computed from, back to operands and to values that earlier loops stored."""
        needed, todo = set[int](), list(results)
        while todo:
            v = todo.pop()
            if v not in needed:
                needed.add(v)
                step = None if v in self.stored else self.schedule.step(v)
                todo += step.args if isinstance(step, Apply) else [step.arg] if isinstance(step, Reduce) else []
        return needed

    def _input(self, number: int) -> View:
        view = self.stored.get(number)
        return self.loop.inputs[number] if view is None else broadcast(view, self.loop.extents[len(view.shape) :])


def _unrounded(e: Expression) -> Expression:
    """The expression with intermediate floats in the types that registers hold them in."""
    operands = len(e.operands)
    steps = (
        replace(step, dtype=register_dtype(step.dtype)) if step.dtype.is_float and number not in e.results else step
        for number, step in enumerate(e.steps, operands)
    )
    return replace(e, steps=tuple(steps))


def _renumbered(
    schedule: Schedule, given: Sequence[int], made: Sequence[int]
) -> tuple[tuple[Apply | Reduce | Count, ...], Mapping[int, int]]:
    """The steps of an expression that make the values ``made`` from ``given``, and the new numbers of all of them."""
    number = {v: i for i, v in enumerate((*given, *made))}
    steps = list[Apply | Reduce | Count]()
    for step in map(schedule.step, made):
        if isinstance(step, Apply):
            step = replace(step, args=tuple(number[a] for a in step.args))
        elif isinstance(step, Reduce):
            step = replace(step, arg=number[step.arg])
        assert step is not None
        steps.append(step)
    return tuple(steps), number

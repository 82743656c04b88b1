"""If, Loop and Scan. A body is lowered once, and writes its results directly to those of the node.

Both branches of an If write the same storages. A scan output is written row by row into the stacked tensor. A
loop-carried value has two buffers, which are swapped after each iteration. Addresses that change from iteration to
iteration are in an ``IndirectStorage``, so that the groups of a body are the same in every iteration.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx import dtypes
from sardonyx.interpret.bodies import ENDLESS
from sardonyx.interpret.control import condition_varies
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node, Value
from sardonyx.lower import views
from sardonyx.lower.groups import Branch, IndirectStorage, Repeat, View
from sardonyx.lower.groups.control import Carried, Row
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import Refused, maximum, mul, sub
from sardonyx.optimize.loop_inference import LoopSignature
from sardonyx.records import Record

UNLIMITED = (1 << 63) - 1


class _Trips(Record):
    """How often a body runs."""

    count: View
    """Holds the number of the current trip."""
    limit: View
    going: View
    """Whether there is a first trip."""
    again: Value | None
    """Whether another trip follows, as the body says; None if only the limit ends the loop."""
    known: Known | None
    """The number of trips, if the sizes determine it."""


@rule("If")
def branch(low: Lowering, node: Node) -> None:
    taken = low.facts.taken(node)
    if taken is not None:
        if taken.guard is not None:
            low.guard("another branch is taken", taken.guard)
        low.emit(taken.body.nodes)
        low.node = node
        for out, made in zip(node.outputs, taken.body.outputs, strict=True):
            low.alias(out, low.view(made))
        return
    condition = _one(low, low.input(0))
    bodies = [node.attrs[key] for key in ("then_branch", "else_branch")]
    for i, out in enumerate(node.outputs):
        if any(low.shape(body.outputs[i]) != low.shape(out) for body in bodies):
            raise Refused(f"the branches give {out.name!r} different shapes")
    results = [low.make(out) for out in node.outputs]
    arms = []
    for body in bodies:
        with low.body_scope(node, {v.storage for v in results}) as arm:
            low.emit(body.nodes)
            _write_results(low, body.outputs, results)
        arms.append(arm)
    then, other = arms
    low.groups.append(Branch((node,), condition, then.groups, other.groups, tuple(then.checks), tuple(other.checks)))


@rule("Loop")
def loop(low: Lowering, node: Node) -> None:
    signature = _signature(node)
    condition, known = node.input(1), low.facts.trips(node)
    count = low.temporary(dtypes.i64, ())
    limit, going, again = low.scalar(UNLIMITED, dtypes.i64), low.scalar(True, dtypes.bool_), signature.condition
    if known is not None:
        limit, again = low.number(known), None
    else:
        if node.input(0) is not None:
            limit = _one(low, low.input(0))
        if condition is not None:
            going = _one(low, condition)
    number, running = signature.body.inputs[:2]
    given = {number: count, running: low.scalar(True, dtypes.bool_)}
    _repeat(low, node, signature, _Trips(count, limit, going, again, known), given)


@rule("Scan")
def scan(low: Lowering, node: Node) -> None:
    signature = _signature(node)
    if not signature.sources:
        raise Refused("a Scan that reads no rows has no length")
    axes = signature.axes(node)
    length = low.facts.trips(node)
    assert axes is not None and length is not None
    for source, axis in zip(signature.sources, axes, strict=True):
        low.require("scan inputs differ in length", low.shape(source)[axis], length)
    yes = low.scalar(True, dtypes.bool_)
    trips = _Trips(low.temporary(dtypes.i64, ()), low.number(length), yes, None, length)
    _repeat(low, node, signature, trips, {})


def _one(low: Lowering, value: Value) -> View:
    """The scalar view of a value of one element."""
    if any(d != 1 for d in low.shape(value)):
        raise Refused(f"{value.name!r} is not one element")
    return views.scalar(low.view(value))


def _signature(node: Node) -> LoopSignature:
    signature = LoopSignature.of(node)
    if signature is None:
        raise Refused("the body's inputs and outputs do not fit the node's")
    return signature


def _repeat(low: Lowering, node: Node, signature: LoopSignature, trips: _Trips, given: dict[Value, View]) -> None:
    """``given`` are inputs of the body beside those that the signature names."""
    carried = [_carried(low, *each) for each in zip(signature.starts, signature.states, signature.nexts, strict=True)]
    read = _rows_read(low, node, signature)
    collected, made = _rows_made(low, node, signature, trips)
    targets = [*(c.made for c in carried), *(_current_row(row) for row in made)]
    with low.body_scope(node, {v.storage for v in targets}) as inner:
        for value, view in given.items():
            low.alias(value, view)
        for state, c in zip(signature.states, carried, strict=True):
            low.alias(state, c.before)
        for value, row in zip(signature.rows, read, strict=True):
            _alias_row(low, value, row)
        low.emit(signature.body.nodes)
        _write_results(low, [*signature.nexts, *collected], targets)
        again = low.scalar(True, dtypes.bool_) if trips.again is None else _at_rest(low, _one(low, trips.again))
        inner.kept.add(again.storage)
    low.checks.update(inner.checks)
    rows, is_endless = (*read, *made), node.op_type == "Loop" and not condition_varies(signature.body, len(carried))
    low.groups.append(
        Repeat(
            (node,), trips.count, trips.limit, trips.going, again, rows, tuple(carried), inner.groups, trips.known,
            is_endless,
        )
    )  # fmt: skip
    for out, c in zip(node.outputs, carried, strict=False):
        low.alias(out, c.before)


def _rows_read(low: Lowering, node: Node, signature: LoopSignature) -> list[Row]:
    """A row of each scanned input."""
    axes = signature.axes(node) or []
    directions = node.attrs.get("scan_input_directions") or [0] * len(axes)
    each = zip(signature.sources, axes, directions, strict=True)
    return [_row(_dense(low, source), axis, back) for source, axis, back in each]


def _rows_made(low: Lowering, node: Node, signature: LoopSignature, trips: _Trips) -> tuple[list[Value], list[Row]]:
    """For the scan outputs that are read: the body's values, and the rows of the stacked tensors for them."""
    outs = node.outputs[len(signature.states) :]
    axes = node.attrs.get("scan_output_axes") or [0] * len(outs)
    directions = node.attrs.get("scan_output_directions") or [0] * len(outs)
    collected, rows = [], []
    for out, value, axis, back in zip(outs, signature.collected, axes, directions, strict=True):
        if not out.is_dead:
            view = low.make(out) if trips.known is not None else _counted(low, node, out, trips.count)
            collected.append(value)
            rows.append(_row(view, axis_of(axis, len(view.shape)), back))
    return collected, rows


def _alias_row(low: Lowering, value: Value, row: Row) -> None:
    """Let the body read the current row as this value."""
    current = _current_row(row)
    if low.shape(value) != current.shape:
        raise Refused(f"the rows of {row.source.storage} do not have the shape that the body reads")
    low.alias(value, current)


def _at_rest(low: Lowering, view: View) -> View:
    """The scalar in memory that does not move from trip to trip."""
    if not isinstance(view.storage, IndirectStorage):
        return view
    copied = low.temporary(view.dtype, ())
    low.copy(view, copied)
    return copied


def _counted(low: Lowering, node: Node, out: Value, count: View) -> View:
    """A buffer for as many rows as the limit of a Loop allows, because its condition may end it earlier."""
    limit = low.facts.content(node.inputs[0]) if node.inputs[0] is not None else None
    if limit is None or limit[0] is None or (isinstance(limit[0], int) and limit[0] >= ENDLESS):
        raise Refused("the number of rows that a Loop collects depends on the data")
    most = maximum(limit[0], 0)
    place = low.make_counted(out, 0, most, count)
    return views.dense(place.storage, (most, *low.shape(out)[1:]))


def _carried(low: Lowering, start: Value | None, state: Value, after: Value) -> Carried:
    """The two buffers of a loop-carried value; the first is filled with its initial value."""
    if start is None:
        raise Refused("a carried value is absent")
    shape = low.shape(start)
    if low.shape(state) != shape or low.shape(after) != shape:
        raise Refused(f"{state.name!r} changes its shape from iteration to iteration")
    first, second = (low.temporary(low.dtype(start), shape) for _ in range(2))
    low.copy(low.view(start), first)
    backing = (first.storage, second.storage)
    now, then = (IndirectStorage("indirect", first.dtype, first.storage.elements, backing=backing) for _ in range(2))
    return Carried(now, then, first, second)


def _dense(low: Lowering, source: Value) -> View:
    view = low.view(source)
    if not views.is_dense(view):
        dense = low.temporary(view.dtype, view.shape)
        low.copy(view, dense)
        view = dense
    return view


def _row(source: View, axis: int, back: int) -> Row:
    skipped = mul(sub(source.shape[axis], 1), source.strides[axis])
    elements = sub(source.storage.elements, skipped)
    place = IndirectStorage("indirect", source.dtype, elements, backing=(source.storage,))
    return Row(place, source, axis, bool(back))


def _current_row(row: Row) -> View:
    """The row of the current iteration."""
    inner = views.selected(row.source, row.axis)
    return View(row.place, inner.shape, inner.strides)


def _write_results(low: Lowering, values: Sequence[Value], targets: Sequence[View]) -> None:
    """Copy a body's results to their targets."""
    for value, target in zip(values, targets, strict=True):
        if low.shape(value) != target.shape:
            raise Refused(f"{value.name!r} does not have the shape of a row of the result")
        low.node = value.producer or low.node
        low.copy(low.view(value), target)

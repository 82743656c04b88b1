"""If, Loop and Scan. A body is lowered once, and writes its results directly to those of the node.

Both branches of an If write the same storages, with a count where they give an axis different sizes. A scan output is
written row by row into the stacked tensor. A loop-carried value has two buffers, which are swapped after each
iteration. Addresses that change from iteration to iteration are in an ``IndirectStorage``, so that the groups of a body
are the same in every iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from sardonyx import dtypes
from sardonyx.interpret.bodies import ENDLESS
from sardonyx.interpret.control import condition_varies
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node, Value
from sardonyx.lower import views
from sardonyx.lower.groups import Branch, Fill, IndirectStorage, Repeat, View
from sardonyx.lower.groups.control import Carried, Row
from sardonyx.lower.lowering import ROOM, Lowering, axis_of, rule
from sardonyx.lower.sizes import Refused, maximum, mul, sub
from sardonyx.optimize.loop_inference import LoopSignature
from sardonyx.partition.order import draws
from sardonyx.records import Record

UNLIMITED = (1 << 63) - 1
LEAST_ROOM, MOST_ROOM, ROOM_NBYTES = 4, 64, 1 << 20
"""The room for rows of an unknown number at first: as many as take so many bytes, within these bounds. It is the least
where only the run tells how large they are."""


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
    results = [_chosen(low, out, *made) for out, *made in zip(node.outputs, *(b.outputs for b in bodies), strict=True)]
    kept = {v.storage for result in results for v in (*result.places, *result.counts)}
    arms = []
    for number, body in enumerate(bodies):
        with low.body_scope(node, kept) as arm:
            low.emit(body.nodes)
            _write_results(low, body.outputs, [result.places[number] for result in results])
            for result in results:
                for count in result.counts:
                    low.groups.append(Fill((node,), count, (result.sizes[number],)))
        arms.append(arm)
    then, other = arms
    low.groups.append(Branch((node,), condition, then.groups, other.groups, tuple(then.checks), tuple(other.checks)))


class _Chosen(Record):
    """A result of an If: where each branch writes it."""

    places: tuple[View, ...]
    counts: tuple[View, ...] = ()
    """Where a branch writes the size that differs between them, if there is one."""
    sizes: tuple[Known, ...] = ()
    """That size, for each branch."""


def _chosen(low: Lowering, out: Value, *made: Value) -> _Chosen:
    """A place for a result of an If. The branches may give one of its axes different sizes."""
    shapes = [low.shape(value) for value in made]
    if shapes[0] == shapes[1]:
        if low.shape(out) != shapes[0]:
            raise Refused(f"the branches give {out.name!r} another shape than the node has")
        place = low.make(out)
        return _Chosen((place, place))
    differ = [axis for axis, (one, two) in enumerate(zip(*shapes, strict=False)) if one != two]
    if len(shapes[0]) != len(shapes[1]) or len(differ) != 1 or len(low.shape(out)) != len(shapes[0]):
        raise Refused(f"the branches give {out.name!r} different shapes")
    axis, count = differ[0], low.count()
    sizes = tuple(shape[axis] for shape in shapes)
    place = low.make_counted(out, axis, maximum(*sizes), count)
    return _Chosen(tuple(views.dense(place.storage, shape) for shape in shapes), (count,), sizes)


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
    room = ROOM if any(row.source.shape[row.axis] == ROOM for row in made) else None
    rows, is_endless = (*read, *made), node.op_type == "Loop" and not condition_varies(signature.body, len(carried))
    low.groups.append(
        Repeat(
            (node,), trips.count, trips.limit, trips.going, again, rows, tuple(carried), inner.groups, trips.known,
            is_endless, room,
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
            view = low.make(out) if trips.known is not None else _counted(low, node, out, value, trips)
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


def _counted(low: Lowering, node: Node, out: Value, row: Value, trips: _Trips) -> View:
    """A buffer for as many rows as the limit of a Loop allows, because its condition may end it earlier, or for as many
    as there is room for."""
    most = _most(low, node)
    if most is not None:
        place = low.make_counted(out, 0, most, trips.count)
        return views.dense(place.storage, (most, *low.shape(out)[1:]))
    assert node.graph is not None
    if any(draws(other) for other in node.graph.nodes):
        raise Refused("the number of rows that a Loop collects depends on the data, and a run cannot be repeated")
    known = [d for d in low.shape(row) if isinstance(d, int)]
    rows = ROOM_NBYTES // max(prod(known) * low.dtype(row).itemsize, 1) if len(known) == len(low.shape(row)) else 0
    return low.make_room(out, trips.count, max(LEAST_ROOM, min(MOST_ROOM, rows)))


def _most(low: Lowering, node: Node) -> Known | None:
    """The most trips of a Loop, if its limit is known before the run and is one that can be reached."""
    limit = low.facts.content(node.inputs[0]) if node.inputs[0] is not None else None
    if limit is None or limit[0] is None or (isinstance(limit[0], int) and limit[0] >= ENDLESS):
        return None
    return maximum(limit[0], 0)


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

"""The number of trips of a Loop, if it depends on sizes only.

A condition that compares counters with sizes, as exporters write it, is interpreted as a bound on the trip's index: if
it holds as long as trips are left, the limit alone ends the loop.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.contents import MAX_INTEGER, Array

Content = Callable[[Value], "Array | None"]

TRIP = dims.fresh("trip")
"""The index of the current trip."""

MAX_DEPTH = 32
"""Longest chain of nodes through which a number is followed."""

CARRIED = 2
"""Index of the first carried input of a Loop and of its body."""


def loop_trips(node: Node, content: Content) -> Known | None:
    """The trips of a Loop; None if they depend on data."""
    body: Graph = node.attrs["body"]
    numbers = _Numbers(node, body, content)
    most, given, again = node.input(0), node.input(1), body.outputs[0]
    limit = None if most is None else numbers.of(most)
    if limit is not None and (type(limit) is not int or limit < MAX_INTEGER):
        # The condition is evaluated before trip 0 and after each trip t. If another may follow, t is at most limit - 2.
        if not (given is None or numbers.is_true_within(given, dims.sub(limit, 1))):
            return None
        return _trips(limit) if numbers.is_true_within(again, dims.sub(dims.sub(limit, 2), TRIP)) else None
    return numbers.counted(given, again)


def _trips(count: Known | None) -> Known | None:
    return count if dims.at_least(count, 0) else dims.maximum(count, 0)


class _Numbers:
    """Values of a Loop's body as expressions of sizes and the trip's index."""

    def __init__(self, node: Node, body: Graph, content: Content) -> None:
        self._node, self._body, self._content = node, body, content
        self._numbers: dict[Value, Known | None] = {}
        self._held: dict[Value, bool] = {}

    def of(self, value: Value, depth: int = MAX_DEPTH) -> Known | None:
        """The only element of a value."""
        if value not in self._numbers:
            self._numbers[value] = None if depth == 0 else self._found(value, depth - 1)
        return self._numbers[value]

    def _found(self, value: Value, depth: int) -> Known | None:
        found = self._content(value)
        if found is not None:
            return found.flat[0] if found.size == 1 else None
        if value is self._body.inputs[0]:
            return TRIP
        if value in self._body.inputs[CARRIED:]:
            return self._counter(value)
        node = value.producer
        if node is None or node.domain:
            return None
        if node.onnx_op in ("Add", "Sub"):
            one, two = (None if v is None else self.of(v, depth) for v in node.inputs)
            return dims.add(one, two) if node.onnx_op == "Add" else dims.sub(one, two)
        exact = value.dtype is not None and value.dtype.name in ("i32", "i64", "f32", "f64")
        passes = node.onnx_op in ("Identity", "Squeeze", "Unsqueeze", "Reshape") or (node.onnx_op == "Cast" and exact)
        return self.of(node.inputs[0], depth) if passes and node.inputs[0] is not None else None

    def _counter(self, value: Value) -> Known | None:
        """A carried value to which every trip adds the same number."""
        at = self._body.inputs.index(value)
        start, after = self._node.input(at), _source(self._body.outputs[at - 1])
        first = None if start is None else self._content(start)
        step = after.producer
        if first is None or first.size != 1 or step is None or step.onnx_op != "Add":
            return None
        other = [v for v in step.inputs if v is not value]
        number = self._content(other[0]) if len(other) == 1 and other[0] is not None else None
        if number is None or number.size != 1:
            return None
        return dims.add(first.flat[0], dims.mul(number.flat[0], TRIP))

    def is_true_within(self, value: Value, room: Known | None) -> bool:
        """Whether a condition is true whenever ``room`` is not negative."""
        self._held.clear()
        return self._is_true_at(value, room, MAX_DEPTH)

    def _is_true_at(self, value: Value, room: Known | None, depth: int) -> bool:
        value = _source(value)
        if value not in self._held:
            self._held[value] = depth > 0 and self._is_true(value, room, depth - 1)
        return self._held[value]

    def _is_true(self, value: Value, room: Known | None, depth: int) -> bool:
        if value is self._body.inputs[1]:
            return True
        found = self._content(value)
        if found is not None and found.size == 1 and found.flat[0] is not None:
            return bool(found.flat[0] == 1)
        node = value.producer
        if node is None or node.domain or len(node.inputs) != 2:
            return False
        if node.onnx_op == "And":
            return all(v is not None and self._is_true_at(v, room, depth) for v in node.inputs)
        gap = self._gap(node)
        return gap is not None and (dims.at_least(gap, 0) or dims.at_least(dims.sub(gap, room), 0))

    def _gap(self, node: Node) -> Known | None:
        """An expression that is non-negative if and only if the comparison holds."""
        if node.onnx_op not in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
            return None
        one, two = (None if v is None else self.of(v) for v in node.inputs)
        gap = dims.sub(two, one) if node.op_type.startswith("Less") else dims.sub(one, two)
        return gap if node.op_type.endswith("Equal") else dims.sub(gap, 1)

    def counted(self, given: Value | None, again: Value) -> Known | None:
        """The trips of a loop without a limit whose condition counts up to a size in steps of one."""
        first, after = (None if v is None else _source(v).producer for v in (given, again))
        if first is None or after is None:
            return None
        before, left = self._gap(first), self._gap(after)
        if before is None or left is None or dims.add(left, dims.add(TRIP, 1)) != before:
            return None
        return None if "?trip" in dims.names(before) else _trips(dims.add(before, 1))


def _source(value: Value) -> Value:
    """The value that a value is a copy of."""
    while value.producer is not None and value.producer.onnx_op == "Identity" and value.producer.inputs[0] is not None:
        value = value.producer.inputs[0]
    return value

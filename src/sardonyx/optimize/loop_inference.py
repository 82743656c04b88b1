"""Type and shape inference for Loop and Scan, whose bodies run many times.

Carried values are first assumed to have the types of their initial values. Inference over the body shows whether a trip
preserves them; a dimension that changes gets a name of its own, and the body is inferred again, until all assumptions
hold. Which dimensions change is remembered: otherwise nested loops would take time exponential in their depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sardonyx.errors import InvalidGraph
from sardonyx.ir import dims, types
from sardonyx.ir.dims import Dim, Known
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import OptionalType, TensorType, ValueType
from sardonyx.optimize.trips import CARRIED, loop_trips
from sardonyx.records import Record

if TYPE_CHECKING:
    from sardonyx.optimize.symbolic import Facts

Change = Callable[[Graph, Node], None]


class LoopSignature(Record):
    """The inputs and outputs of a Loop or Scan, matched with those of its body."""

    body: Graph
    starts: tuple[Value | None, ...]
    """Initial values of the carried values."""
    states: tuple[Value, ...]
    """Carried values as inputs of the body."""
    nexts: tuple[Value, ...]
    """Carried values as outputs of the body."""
    sources: tuple[Value, ...]
    """Values that are scanned row by row."""
    rows: tuple[Value, ...]
    """Their rows, as inputs of the body."""
    collected: tuple[Value, ...]
    """Rows that the body outputs, to be stacked."""
    condition: Value | None
    """The body's condition for another trip."""

    @staticmethod
    def of(node: Node) -> LoopSignature | None:
        """The signature of a node; None if the numbers of inputs and outputs do not match."""
        body = node.attrs.get("body")
        if not isinstance(body, Graph):
            return None
        if node.onnx_op == "Loop":
            count = max(len(node.inputs) - CARRIED, 0)
            if len(body.inputs) != count + CARRIED or len(body.outputs) != len(node.outputs) + 1:
                return None
            states, made = tuple(body.inputs[CARRIED:]), tuple(body.outputs[1:])
            starts = tuple(node.inputs[CARRIED:])
            return LoopSignature(body, starts, states, made[:count], (), (), made[count:], body.outputs[0])
        scanned = node.attrs.get("num_scan_inputs", 0)
        count = len(node.inputs) - scanned
        if count < 0 or len(body.inputs) != len(node.inputs) or len(body.outputs) != len(node.outputs):
            return None
        sources = tuple(v for v in node.inputs[count:] if v is not None)
        states, rows = tuple(body.inputs[:count]), tuple(body.inputs[count:])
        made = tuple(body.outputs)
        if len(sources) != scanned or len(made) < count:
            return None
        return LoopSignature(body, tuple(node.inputs[:count]), states, made[:count], sources, rows, made[count:], None)

    def axes(self, node: Node) -> list[int] | None:
        """The axis along which each source is scanned, as a non-negative number."""
        axes = node.attrs.get("scan_input_axes") or [0] * len(self.sources)
        ranks = [len(v.shape) if v.shape is not None else 0 for v in self.sources]
        if len(axes) != len(ranks) or not all(-r <= a < r for a, r in zip(axes, ranks, strict=True)):
            return None
        return [a % r for a, r in zip(axes, ranks, strict=True)]


def learn(facts: Facts, node: Node, change: Change | None) -> list[ValueType | None] | None:
    """Infer the body until its types hold for every trip; returns the types of the node's outputs."""
    signature = LoopSignature.of(node)
    axes = None if signature is None else signature.axes(node)
    if signature is None or axes is None:
        return None
    trips = _trips(facts, node, signature, axes)
    fixed = _fixed(node, signature, axes)
    before = facts.names_made
    guesses = [
        _guess(facts, node, start, state) for start, state in zip(signature.starts, signature.states, strict=True)
    ]
    while True:
        given = {**fixed, **dict(zip(signature.states, guesses, strict=True))}
        forget = facts.try_body(signature.body, given)
        wider = [_wider(facts, node, guess, v.type, before) for guess, v in zip(guesses, signature.nexts, strict=True)]
        if wider == guesses:
            break
        forget()
        for state, guess, wide in zip(signature.states, guesses, wider, strict=True):
            if wide != guess:
                facts.varying[state] = _varying(facts, wide, before)
        guesses = wider
    if change is not None:
        forget()
        facts.walk_body(signature.body, given, change)
    if trips is not None:
        facts.trips[node] = trips
    return [*(_outside(facts, t, before) for t in guesses), *_stacks(facts, node, signature, trips, before)]


def _trips(facts: Facts, node: Node, signature: LoopSignature, axes: list[int]) -> Known | None:
    if node.onnx_op == "Loop":
        return loop_trips(node, facts.content)
    lengths = [v.shape[axis] for v, axis in zip(signature.sources, axes, strict=True) if v.shape is not None]
    return dims.known(lengths[0]) if lengths else None


def _fixed(node: Node, signature: LoopSignature, axes: list[int]) -> dict[Value, ValueType]:
    """Types that are the same in every trip: of rows, and of the two scalar inputs of a Loop's body."""
    known: dict[Value, ValueType] = {}
    for source, row, axis in zip(signature.sources, signature.rows, axes, strict=True):
        if isinstance(source.type, TensorType) and source.type.shape is not None:
            shape = source.type.shape
            known[row] = TensorType(source.type.dtype, (*shape[:axis], *shape[axis + 1 :]))
    if node.onnx_op == "Loop":
        for v in signature.body.inputs[:CARRIED]:
            if isinstance(v.type, TensorType):
                known[v] = TensorType(v.type.dtype, ())
    return known


def _guess(facts: Facts, node: Node, start: Value | None, state: Value) -> ValueType | None:
    """The assumed type of a carried value: its initial type, without dimensions that are known to change."""
    if start is None or start.type is None:
        return state.type
    _require_same(node, start.type, state.type, f"state {state.name!r}")
    axes = facts.varying.get(state, frozenset())
    if axes == frozenset() or not isinstance(start.type, TensorType) or start.type.shape is None:
        return start.type
    if axes is None:
        return TensorType(start.type.dtype)
    shape = (facts.fresh() if i in axes else d for i, d in enumerate(start.type.shape))
    return TensorType(start.type.dtype, tuple(shape))


def _varying(facts: Facts, t: ValueType | None, before: int) -> frozenset[int] | None:
    if not isinstance(t, TensorType) or t.shape is None:
        return None
    return frozenset(i for i, d in enumerate(t.shape) if facts.is_newer(d, before))


def _wider(facts: Facts, node: Node, guess: ValueType | None, found: ValueType | None, before: int) -> ValueType | None:
    """A more general assumption that includes the inferred type."""
    _require_same(node, guess, found, "a carried value")
    if not isinstance(guess, TensorType) or guess.shape is None:
        return guess
    if not isinstance(found, TensorType) or found.shape is None or len(found.shape) != len(guess.shape):
        return TensorType(guess.dtype)
    return TensorType(
        guess.dtype,
        tuple(
            g if g == f or facts.is_newer(g, before) else facts.fresh()
            for g, f in zip(guess.shape, found.shape, strict=True)
        ),
    )


def _require_same(node: Node, before: ValueType | None, after: ValueType | None, what: str) -> None:
    """Refuse unless a trip preserves the kind and element type of what it carries."""
    if before is None or after is None or isinstance(before, OptionalType) or isinstance(after, OptionalType):
        return
    if type(before) is not type(after) or types.dtype_of(before) is not types.dtype_of(after):
        raise InvalidGraph(
            f"the body of a {node.op_type} changes the type of {what}", where=node.label, expected=before, got=after
        )


def _outside(facts: Facts, t: ValueType | None, before: int) -> ValueType | None:
    """A type without names that differ from trip to trip."""
    if not isinstance(t, TensorType) or t.shape is None:
        return t
    return TensorType(t.dtype, tuple(None if facts.is_newer(d, before) else d for d in t.shape))


def _stacks(
    facts: Facts, node: Node, signature: LoopSignature, trips: Known | None, before: int
) -> list[ValueType | None]:
    axes = node.attrs.get("scan_output_axes") or [0] * len(signature.collected)
    found: list[ValueType | None] = []
    for row, axis in zip(signature.collected, axes, strict=False):
        t = _outside(facts, row.type, before)
        if isinstance(t, TensorType) and t.shape is not None:
            rank = len(t.shape) + 1
            if not -rank <= axis < rank:
                return [None] * len(signature.collected)
            shape: list[Dim] = list(t.shape)
            shape.insert(axis % rank, trips)
            t = TensorType(t.dtype, tuple(shape))
        found.append(t)
    return found

"""If, Loop, Scan and SequenceMap. Bodies are compiled once and run once per trip.

A kernel gets the node's inputs, followed by the values that each body captures, body by body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph, OutOfBudget
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.live import HeldValues, nbytes_of
from sardonyx.interpret.program import Kernel
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.ops import registry
from sardonyx.ops.limits import check_nbytes

ENDLESS = 2**31
"""A loop with this many trips and no way to end early is refused: it would run for hours."""


class Body(Protocol):
    """A compiled subgraph; its captures follow its inputs."""

    inputs: tuple[Value, ...]

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]: ...


Bodies = dict[str, Body]


def make_if(node: Node, bodies: Bodies) -> Kernel:
    try:
        then, other = bodies["then_branch"], bodies["else_branch"]
    except KeyError as e:
        raise InvalidGraph(f"If needs {e}", where=node.label) from None
    order = [key for key, _ in node.subgraphs()]
    sizes = {"then_branch": len(then.inputs), "else_branch": len(other.inputs)}
    start = {key: sum(sizes[k] for k in order[: order.index(key)]) for key in order}

    def run(cond: Any, *captured: Any, context: RunContext) -> tuple[Any, ...]:
        if cond.size != 1:
            raise InvalidArgument("If needs one condition", got=f"shape {list(cond.shape)}")
        key, body = ("then_branch", then) if bool(cond.reshape(())) else ("else_branch", other)
        return tuple(body.run(captured[start[key] : start[key] + sizes[key]], context))

    return run


def make_loop(node: Node, bodies: Bodies) -> Kernel:
    graph, body = _single(node, bodies)
    given = min(len(node.inputs), 2)
    states = len(node.inputs) - given
    least = max(states, len(node.outputs)) + 1
    if len(graph.inputs) != states + 2 or len(graph.outputs) < least:
        raise InvalidGraph(
            "a Loop body takes iteration, condition and states, and returns condition, states and scan outputs",
            where=node.label,
            expected=f"{states + 2} inputs, at least {least} outputs",
            got=f"{len(graph.inputs)} and {len(graph.outputs)}",
        )
    scans = graph.outputs[states + 1 :]
    ends_early = condition_varies(graph, states)

    def run(*args: Any, context: RunContext) -> tuple[Any, ...]:
        trips, cond = (*args[:given], None, None)[:2]
        carried, captured = list(args[given : given + states]), args[given + states :]
        limit = None if trips is None else int(trips.reshape(()))
        going = True if cond is None else bool(cond.reshape(()))
        collected: list[list[Any]] = [[] for _ in scans]
        i = nbytes = 0
        held = HeldValues(context.budget)
        while going and (limit is None or i < limit):
            context.check()
            out = body.run([np.array(i, np.int64), np.array(going), *carried, *captured], context)
            going = bool(out[0].reshape(()))
            if i == 0 and going and not ends_early and (limit is None or limit >= ENDLESS):
                raise OutOfBudget("a Loop whose condition never changes has no reachable end", got=f"{limit} trips")
            carried = _carried(carried, out[1 : states + 1])
            for rows, row in zip(collected, out[states + 1 :], strict=True):
                nbytes += _collected(rows, row)
                check_nbytes(nbytes, f"{i + 1} trips of a Loop have collected too much")
            held.set(carried, nbytes)
            i += 1
        held.release()
        return (*carried, *(_stacked(rows, value.type) for rows, value in zip(collected, scans, strict=True)))

    return run


def condition_varies(graph: Graph, states: int) -> bool:
    """Whether a Loop's condition can become false after a trip left it true: it depends on something that changes."""
    pairs = zip(graph.inputs[2:], graph.outputs[1 : states + 1], strict=False)
    changing = {graph.inputs[0], *(before for before, after in pairs if _skip_identities(after) is not before)}
    todo: list[Value] = [graph.outputs[0]]
    seen: set[Value] = set()
    while todo:
        value = todo.pop()
        if value in changing:
            return True
        node = value.producer
        if value in seen or node is None or node.graph is not graph:
            continue
        seen.add(value)
        meaning = registry.find(node.domain, node.op_type)
        if meaning is not None and not meaning.pure:
            return True
        todo += [v for v in node.inputs if v is not None]
        todo += [v for _, sub in node.subgraphs() for v in sub.captures()]
    return False


def make_scan(node: Node, bodies: Bodies) -> Kernel:
    graph, body = _single(node, bodies)
    scanned = node.attrs.get("num_scan_inputs", 0)
    states = len(node.inputs) - scanned
    gathered = len(node.outputs) - states
    if states < 0 or gathered < 0 or len(graph.inputs) != states + scanned or len(graph.outputs) != len(node.outputs):
        raise InvalidGraph(
            "a Scan body takes states and scan elements, and returns states and scan elements",
            where=node.label,
            expected=f"{len(node.inputs)} inputs, {len(node.outputs)} outputs",
            got=f"{len(graph.inputs)} and {len(graph.outputs)}",
        )
    read, write = _sides(node, "input", scanned), _sides(node, "output", gathered)

    def run(*args: Any, context: RunContext) -> tuple[Any, ...]:
        carried, captured = list(args[:states]), args[states + scanned :]
        sources = [_rows_of(array, *side) for array, side in zip(args[states : states + scanned], read, strict=True)]
        lengths = {len(s) for s in sources}
        if len(lengths) > 1:
            raise InvalidArgument("scan inputs differ in length", got=sorted(lengths))
        collected: list[list[Any]] = [[] for _ in range(gathered)]
        held, nbytes = HeldValues(context.budget), 0
        for i in range(lengths.pop() if lengths else 0):
            context.check()
            out = body.run([*carried, *(np.asarray(s[i]) for s in sources), *captured], context)
            carried = _carried(carried, out[:states])
            for rows, row in zip(collected, out[states:], strict=True):
                nbytes += _collected(rows, row)
            held.set(carried, nbytes)
        held.release()
        results = zip(collected, graph.outputs[states:], write, strict=True)
        return (*carried, *(_stacked_along(rows, value.type, *side) for rows, value, side in results))

    return run


def _sides(node: Node, side: str, count: int) -> list[tuple[int, int]]:
    """Axis and direction of each of a Scan's inputs or outputs."""
    axes = node.attrs.get(f"scan_{side}_axes") or [0] * count
    directions = node.attrs.get(f"scan_{side}_directions") or [0] * count
    return list(zip(axes, directions, strict=True))


def _rows_of(array: Any, axis: int, back: int) -> Any:
    """A scan input with its rows along the first axis, in the order in which they are read."""
    if not -array.ndim <= axis < array.ndim:
        raise InvalidArgument("a scan axis is out of range", expected=f"rank {array.ndim}", got=axis)
    moved = np.moveaxis(array, axis, 0)
    return moved[::-1] if back else moved


def _stacked_along(rows: list[Any], type_: Any, axis: int, back: int) -> Any:
    """A scan output whose rows were made in this direction, and lie along this axis."""
    stacked = _stacked(rows[::-1] if back else rows, type_)
    return np.moveaxis(stacked, 0, axis) if axis else stacked


def make_sequence_map(node: Node, bodies: Bodies) -> Kernel:
    graph, body = _single(node, bodies)
    own = len(node.inputs)

    def run(*args: Any, context: RunContext) -> tuple[Any, ...]:
        inputs, captured = args[:own], args[own:]
        if not isinstance(inputs[0], list):
            raise InvalidArgument("SequenceMap needs a sequence as its first input")
        lengths = {len(x) for x in inputs if isinstance(x, list)}
        if len(lengths) > 1:
            raise InvalidArgument("SequenceMap's sequences differ in length", got=sorted(lengths))
        results: list[list[Any]] = [[] for _ in graph.outputs]
        held, nbytes = HeldValues(context.budget), 0
        for i in range(len(inputs[0])):
            context.check()
            out = body.run([*(x[i] if isinstance(x, list) else x for x in inputs), *captured], context)
            for items, item in zip(results, out, strict=True):
                items.append(item)
                nbytes += nbytes_of(item)
            held.set((), nbytes)
        held.release()
        return tuple(results)

    return run


def _skip_identities(value: Value) -> Value:
    while value.producer is not None and value.producer.op_type == "Identity":
        source = value.producer.inputs[0]
        assert source is not None
        value = source
    return value


def _single(node: Node, bodies: Bodies) -> tuple[Graph, Body]:
    graph = node.attrs.get("body")
    if not isinstance(graph, Graph):
        raise InvalidGraph(f"{node.op_type} needs a body", where=node.label)
    return graph, bodies["body"]


def _carried(before: list[Any], after: list[Any]) -> list[Any]:
    """The loop-carried values after a trip, checked to have the kind and element type that they had before."""
    for i, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is not None and getattr(old, "dtype", None) != getattr(new, "dtype", None):
            raise InvalidArgument(
                "a body changes the type of a carried value",
                where=f"state {i}",
                expected=getattr(old, "dtype", type(old).__name__),
                got=getattr(new, "dtype", type(new).__name__),
            )
    return after


def _collected(rows: list[Any], row: Any) -> int:
    """The bytes of one more row of a scan output, which must have the shape of the other rows."""
    if rows and row.shape != rows[0].shape:
        raise InvalidArgument(
            f"a scan output changes its shape in iteration {len(rows)}", expected=rows[0].shape, got=row.shape
        )
    rows.append(row)
    return int(row.nbytes)


def _stacked(rows: list[Any], type_: Any) -> Any:
    """Scan outputs stacked along a new first axis. Without trips, the shape comes from the body's types."""
    if rows:
        return np.stack(rows)
    dims = type_.shape if isinstance(type_, TensorType) and type_.shape is not None else ()
    dtype = type_.dtype.numpy if isinstance(type_, TensorType) else np.dtype(np.float32)
    return np.zeros((0, *(d if isinstance(d, int) else 0 for d in dims)), dtype)


KERNELS: dict[str, Callable[[Node, Bodies], Kernel]] = {
    "If": make_if,
    "Loop": make_loop,
    "Scan": make_scan,
    "SequenceMap": make_sequence_map,
}

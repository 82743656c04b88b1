"""If, Loop, Scan and SequenceMap: nodes with bodies, as functions of ``bodies``. Bodies are compiled once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from sardonyx.errors import InvalidGraph
from sardonyx.interpret.bodies import Row, Runnable, run_if, run_loop, run_scan, run_sequence_map
from sardonyx.interpret.program import Kernel
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType, ValueType
from sardonyx.ops import registry


class Body(Runnable, Protocol):
    """A compiled subgraph; its captures follow its inputs."""

    inputs: tuple[Value, ...]


Bodies = Mapping[str, Body]


def make_if(node: Node, bodies: Bodies) -> Kernel:
    for key in ("then_branch", "else_branch"):
        if key not in bodies:
            raise InvalidGraph(f"If needs {key!r}", where=node.label)
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for key, _ in node.subgraphs():
        places[key] = end, end + len(bodies[key].inputs)
        end = places[key][1]
    return partial(run_if, bodies=bodies, then_takes=places["then_branch"], else_takes=places["else_branch"])


def make_loop(node: Node, bodies: Bodies) -> Kernel:
    graph = _single(node)
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
    rows = tuple(_row_of(value.type) for value in graph.outputs[states + 1 :])
    ends_early = condition_varies(graph, states)
    return partial(run_loop, bodies=bodies, given=given, states=states, scans=rows, ends_early=ends_early)


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
    graph = _single(node)
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
    rows = tuple(_row_of(value.type) for value in graph.outputs[states:])
    read, write = _sides(node, "input", scanned), _sides(node, "output", gathered)
    return partial(run_scan, bodies=bodies, states=states, read=read, write=write, scans=rows)


def _sides(node: Node, side: str, count: int) -> tuple[tuple[int, int], ...]:
    """Axis and direction of each of a Scan's inputs or outputs."""
    axes = node.attrs.get(f"scan_{side}_axes") or [0] * count
    directions = node.attrs.get(f"scan_{side}_directions") or [0] * count
    return tuple(zip(axes, directions, strict=True))


def make_sequence_map(node: Node, bodies: Bodies) -> Kernel:
    results = len(_single(node).outputs)
    return partial(run_sequence_map, bodies=bodies, own=len(node.inputs), results=results)


def _skip_identities(value: Value) -> Value:
    while value.producer is not None and value.producer.onnx_op == "Identity":
        source = value.producer.inputs[0]
        assert source is not None
        value = source
    return value


def _single(node: Node) -> Graph:
    graph = node.attrs.get("body")
    if not isinstance(graph, Graph):
        raise InvalidGraph(f"{node.op_type} needs a body", where=node.label)
    return graph


def _row_of(type_: ValueType | None) -> Row:
    if not isinstance(type_, TensorType):
        return "f32", ()
    return type_.dtype.name, tuple(d if isinstance(d, int) else 0 for d in type_.shape or ())


KERNELS: dict[str, Callable[[Node, Bodies], Kernel]] = {
    "If": make_if,
    "Loop": make_loop,
    "Scan": make_scan,
    "SequenceMap": make_sequence_map,
}

"""The invariants of a graph, checked between stages when ``SARDONYX_VERIFY`` is on.

Every edge is recorded at both ends, every value is defined before it is read, and names of graph inputs are unique.
"""

from __future__ import annotations

from sardonyx.errors import EngineError
from sardonyx.ir.graph import Graph, Value


def verify(graph: Graph, stage: str) -> None:
    """Raise EngineError, naming the stage at fault, when a graph breaks an invariant."""
    uses: dict[Value, set[tuple[object, int]]] = {}
    outputs: dict[Value, int] = {}
    around = _made_around(graph)
    _walk(graph, around, uses, outputs, stage)
    for value, found in uses.items():
        if value not in around and set(value.uses) != found:
            raise EngineError("a value's uses are not those of the graph", where=f"{stage}: {value.name!r}")
    for value, count in outputs.items():
        if value not in around and value.is_output != count:
            raise EngineError("a value's count of graph outputs is wrong", where=f"{stage}: {value.name!r}")


def _made_around(graph: Graph) -> set[Value]:
    """What the graphs that a body is in have made before it runs."""
    made: set[Value] = set()
    node = graph.parent
    while node is not None and node.graph is not None:
        made |= {*node.graph.inputs, *node.graph.initializers.values()}
        for before in node.graph.nodes:
            if before is node:
                break
            made |= set(before.outputs)
        node = node.graph.parent
    return made


def _walk(
    graph: Graph,
    outer: set[Value],
    uses: dict[Value, set[tuple[object, int]]],
    outputs: dict[Value, int],
    stage: str,
) -> None:
    ready = outer | set(graph.inputs) | set(graph.initializers.values())
    if len({v.name for v in graph.inputs}) != len(graph.inputs):
        raise EngineError("two graph inputs have one name", where=stage)
    for value in ready - outer:
        uses.setdefault(value, set())
    count = 0
    for node in graph.nodes:
        count += 1
        if node.graph is not graph:
            raise EngineError("a node does not know its graph", where=f"{stage}: {node.label}")
        for i, v in enumerate(node.inputs):
            if v is None:
                continue
            if v not in ready:
                raise EngineError(f"{v.name!r} is read before it is made", where=f"{stage}: {node.label}")
            uses.setdefault(v, set()).add((node, i))
        for _, sub in node.subgraphs():
            if sub.parent is not node:
                raise EngineError("a subgraph does not know its node", where=f"{stage}: {node.label}")
            _walk(sub, ready, uses, outputs, stage)
        for i, out in enumerate(node.outputs):
            if out.producer is not node or out.index != i:
                raise EngineError("an output does not know its node", where=f"{stage}: {node.label}")
            uses.setdefault(out, set())
            ready.add(out)
    if count != len(graph) or len(graph.outputs) != len(graph.output_names):
        raise EngineError("a graph miscounts its nodes or outputs", where=stage)
    for v in graph.outputs:
        if v not in ready:
            raise EngineError(f"output {v.name!r} is made by nothing", where=stage)
        outputs[v] = outputs.get(v, 0) + 1

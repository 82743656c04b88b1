"""The graphs of a report: as the file has it, as the optimizer left it, and as kernels run it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.report.collect.drawing import drawn
from sardonyx.report.collect.families import family_of, leading
from sardonyx.report.collect.groups import Group
from sardonyx.report.records import DrawnGraph, GraphNode

TEXT = 160
"""Characters of an attribute's value that are kept."""
LISTED = 40
"""Members of a fused group, or inputs of a node, that are listed."""

Types = Mapping[str, str]


def file_graph(graph: Graph, types: Types, links: Callable[[Node], Sequence[int]]) -> DrawnGraph:
    """The graph of the file. ``types`` are texts of inferred types by value; ``links`` are numbers of kernels."""
    nodes = list(graph.nodes)
    made = [_node(n, types, links=tuple(links(n))) for n in nodes]
    about = "The nodes of the file, before any optimization."
    return drawn("Model file", about, made, _edges(nodes, types))


def optimized_graph(
    graph: Graph, types: Types, links: Mapping[Node, int], providers: Mapping[Node, tuple[str, str]]
) -> DrawnGraph:
    """The graph that the providers were given: what is left after the optimizer and the providers' own rewrites."""
    nodes = list(graph.nodes)
    made = [
        _node(n, types, links=(links[n],) if n in links else (), placed=providers.get(n, ("", "")), members=n.origin)
        for n in nodes
    ]
    about = "What the optimizer left: fused, folded and rewritten nodes."
    return drawn("Optimized", about, made, _edges(nodes, types))


def kernel_graph(groups: Sequence[Group], types: Types, seconds: Mapping[int, float]) -> DrawnGraph:
    """One box for each fused group of nodes, which kernels compute together."""
    made = [_group(g, types, seconds.get(i)) for i, g in enumerate(groups)]
    owner = {node: i for i, g in enumerate(groups) for node in g.nodes}
    edges: dict[tuple[int, int], str] = {}
    for i, group in enumerate(groups):
        for value in _read(group.nodes):
            source = owner.get(value.producer) if value.producer is not None else None
            if source is not None and source != i:
                edges.setdefault((source, i), type_text(value, types))
    about = "What runs: each box is a group of nodes that are computed together. Dashed boxes only rearrange memory."
    return drawn("Kernels", about, made, [(a, b, t) for (a, b), t in edges.items()])


def type_text(value: Value, types: Types) -> str:
    return types.get(value.name) or (str(value.type) if value.type is not None else "")


def _read(nodes: Iterable[Node]) -> Iterable[Value]:
    for node in nodes:
        yield from (v for v in node.inputs if v is not None)
        for _, sub in node.subgraphs():
            yield from sub.captures()


def _edges(nodes: Sequence[Node], types: Types) -> list[tuple[int, int, str]]:
    number = {node: i for i, node in enumerate(nodes)}
    found: dict[tuple[int, int], str] = {}
    for i, node in enumerate(nodes):
        for value in _read([node]):
            source = None if value.producer is None else number.get(value.producer)
            if source is not None:
                found.setdefault((source, i), type_text(value, types))
    return [(a, b, t) for (a, b), t in found.items()]


def _node(
    node: Node,
    types: Types,
    *,
    links: tuple[int, ...],
    placed: tuple[str, str] = ("", ""),
    members: tuple[str, ...] = (),
) -> GraphNode:
    return GraphNode(
        label=node.name or (node.outputs[0].name if node.outputs else node.op_type),
        op_type=f"{node.domain}.{node.op_type}" if node.domain else node.op_type,
        family=family_of(node.op_type),
        provider=placed[0],
        reason=placed[1],
        inputs=tuple(_value(v, types) for v in node.inputs[:LISTED]),
        outputs=tuple(_value(v, types) for v in node.outputs[:LISTED]),
        attributes=tuple(f"{name} = {_attribute(value)}" for name, value in node.attrs.items()),
        members=members[:LISTED],
        links=links[:LISTED],
    )


def _group(group: Group, types: Types, seconds: float | None) -> GraphNode:
    inside = set(group.nodes)
    read = dict.fromkeys(v for v in _read(group.nodes) if v.producer not in inside)
    written = [v for n in group.nodes for v in n.outputs if v.is_output or any(u not in inside for u, _ in v.uses)]
    ops = [n.op_type for n in group.nodes]
    lead = leading(ops)
    named = next(n for n in group.nodes if n.op_type == lead)
    return GraphNode(
        label=named.name or named.outputs[0].name,
        op_type=" + ".join(dict.fromkeys([lead, *ops])),
        family=family_of(lead),
        provider=group.provider,
        kernel=", ".join(dict.fromkeys(group.kernels)),
        reason=group.reason,
        inputs=tuple(_value(v, types) for v in list(read)[:LISTED]),
        outputs=tuple(_value(v, types) for v in written[:LISTED]),
        members=tuple(n.label for n in group.nodes[:LISTED]),
        seconds=seconds,
    )


def _value(value: Value | None, types: Types) -> str:
    if value is None:
        return "(left out)"
    text = type_text(value, types)
    kind = " constant" if value.is_const else ""
    return f"{value.name}: {text}{kind}" if text else f"{value.name}{kind}"


def _attribute(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor {value.type}"
    if isinstance(value, Graph):
        return f"graph of {len(value)} nodes"
    text = str(value)
    return text if len(text) <= TEXT else f"{text[:TEXT]}… ({len(text)} characters)"

"""What a graph knows of its nodes without walking them."""

from __future__ import annotations

from sardonyx.ir.graph import Graph, Node, Value


def node(op_type: str, **attrs: object) -> Node:
    return Node(op_type, [], [Value("y")], attrs=dict(attrs))


def test_types_of_nodes() -> None:
    graph = Graph()
    first, second = graph.append(node("Relu")), graph.append(node("Relu"))
    added = graph.insert(node("Add"), before=second)
    assert graph.has_any(("Add", "Mul")) and graph.has_any({"Relu": 1}) and not graph.has_any(("Mul",))
    graph.move(added, before=first)
    graph.remove(second)
    assert graph.has_any(("Relu",)) and [n.op_type for n in graph.nodes] == ["Add", "Relu"]
    graph.remove(first)
    assert not graph.has_any(("Relu",)) and graph.has_any(("Add",))


def test_owners_of_subgraphs() -> None:
    graph, body, other = Graph(), Graph(), Graph()
    body.append(node("Relu"))
    plain = graph.append(node("Relu"))
    owner = graph.append(node("If", then_branch=body, else_branch=other))
    many = graph.insert(node("Custom", bodies=[Graph()]), before=plain)
    assert graph.owners == [owner, many] and body.parent is other.parent is owner
    graph.move(owner, before=plain)
    assert set(graph.owners) == {owner, many}
    graph.remove(owner)
    graph.remove(plain)
    assert graph.owners == [many] and not graph.has_any(("If", "Relu"))

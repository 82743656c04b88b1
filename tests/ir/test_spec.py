"""What a legal graph is, for whole graphs and for bodies by themselves."""

from __future__ import annotations

import pytest

from sardonyx.errors import EngineError
from sardonyx.ir.graph import Graph
from sardonyx.ir.spec import verify
from sardonyx.model.text import from_text

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[2] x, bool c) => (float[2] y, float[2] early) {
  early = Relu(x)
  y = If(c) <then_branch = a () => (float[2] p) { q = Neg(early) p = Add(q, x) },
             else_branch = b () => (float[2] early) { r = Neg(x) }>
  late = Neg(y)
}"""


def body(name: str) -> tuple[Graph, Graph]:
    """A graph with a body in it, and the body."""
    graph = from_text(TEXT).graph
    bodies = {key: sub for node in graph.nodes for key, sub in node.subgraphs()}
    return graph, bodies[name]


@pytest.mark.parametrize("name", ["then_branch", "else_branch"])
def test_a_body_may_read_and_give_back_what_was_made_around_it(name: str) -> None:
    graph, sub = body(name)
    verify(graph, "test")
    verify(sub, "test")


def test_a_body_cannot_read_what_is_made_after_it() -> None:
    graph, sub = body("then_branch")
    reader, late = next(iter(sub.nodes)), next(v for n in graph.nodes for v in n.outputs if v.name == "late")
    reader.set_input(0, late)
    for whole in (sub, graph):
        with pytest.raises(EngineError, match="'late' is read before it is made"):
            verify(whole, "test")

"""Groups of nodes that kernels compute together, and their order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from onnx import parser

from sardonyx.ir.graph import Node
from sardonyx.model.load import load
from sardonyx.report.collect.groups import groups_of

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y)
    { a = Abs(x) b = Relu(x) c = Exp(b) d = Add(a, c) y = Neg(d) }"""


def groups(*steps: str) -> list[str]:
    """The operators of each group, where steps compute nodes of these operators."""
    graph = load(parser.parse_model(TEXT).SerializeToString()).graph

    def step(ops: str) -> Any:
        nodes = [node for node in graph.nodes if node.op_type in ops.split()]
        return SimpleNamespace(nodes=nodes, spec=SimpleNamespace(name="k"), variant="", choice=None)

    table = SimpleNamespace(steps=[step(ops) for ops in steps])
    part: list[Node] = list(graph.nodes)
    made = groups_of(graph, [(SimpleNamespace(nodes=part), SimpleNamespace(table=table))])
    return [" ".join(node.op_type for node in group.nodes) for group in made]


def test_groups_come_in_the_order_of_the_graph() -> None:
    assert groups("Abs", "Relu", "Exp", "Add", "Neg") == ["Abs", "Relu", "Exp", "Add", "Neg"]


def test_a_group_comes_behind_those_that_it_reads() -> None:
    assert groups("Relu Exp", "Abs Add", "Neg") == ["Relu Exp", "Abs Add", "Neg"]


def test_groups_that_read_each_other_are_all_there() -> None:
    assert groups("Relu", "Abs Exp", "Relu Add", "Neg") == ["Abs Exp", "Relu Add", "Neg"]

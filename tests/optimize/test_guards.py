"""Which branch of an If sizes tell."""

from __future__ import annotations

from sardonyx.optimize import guards
from tests.lower.agree import parse


def test_a_condition_from_a_node_without_inputs_is_undecided() -> None:
    graph = parse(
        """r = RandomUniform<shape=[1]>() c = Cast<to=9>(r)
        y = If(c) <then_branch = t () => (a) { a = Neg(x) }, else_branch = e () => (b) { b = Relu(x) }>""",
        "float[3] x",
        "float[3] y",
    )
    (branching,) = (n for n in graph.nodes if n.op_type == "If")
    assert guards.assumed(branching, lambda value: None) is None

"""An If whose branches differ in rank and whose condition follows from sizes: one branch is compiled, under a guard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import sardonyx
from sardonyx.ir.graph import Model
from sardonyx.lower.analysis.facts import GraphFacts
from tests.comparing import Tolerance, assert_same
from tests.optimize.graphs import apply, parse

onnxruntime = pytest.importorskip("onnxruntime")

SQUEEZED = """
 sh = Shape<start=1>(x) one = Constant<value_ints=[1]>() c = {condition}
 y = If(c)<then_branch = t () => (float[a] p) {{ ax = Constant<value_ints=[1]>() p = Squeeze(x, ax) }},
           else_branch = e () => (float[a,b] q) {{ q = {other} }}>
"""
CONDITIONS = {
    "Equal": "Equal(sh, one)",
    "Not Equal": "Not(d) ",
    "Less": "LessOrEqual(sh, one)",
    "Greater": "GreaterOrEqual(one, sh)",
}


def text(condition: str, other: str = "Neg(x)") -> str:
    body = SQUEEZED.format(condition=CONDITIONS[condition], other=other)
    if condition == "Not Equal":
        body = body.replace("c = Not(d)", "two = Constant<value_ints=[2]>() d = GreaterOrEqual(sh, two) c = Not(d)")
    return f"{body} z = Exp(y)"


def session(body: str, inputs: str = "float[m,n] x") -> tuple[Any, sardonyx.InferenceSession]:
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    data = parser.parse_model(f"{head} g ({inputs}) => (float[] z) {{ {body} }}")
    data.graph.output[0].type.tensor_type.ClearField("shape")
    plain = data.SerializeToString()
    return onnxruntime.InferenceSession(plain, providers=["CPUExecutionProvider"]), sardonyx.InferenceSession(plain)


def same(peer: Any, ours: sardonyx.InferenceSession, feeds: dict[str, Any]) -> None:
    assert_same(ours.run(None, feeds), peer.run(None, feeds), Tolerance(relative=1e-6))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_both_branches_answer(condition: str) -> None:
    peer, ours = session(text(condition))
    for rows, columns in ((3, 1), (4, 2), (5, 1), (4, 2), (2, 7), (6, 1), (0, 1), (0, 3)):
        same(peer, ours, {"x": np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)})


def test_all_of_it_is_compiled() -> None:
    model = parse(text("Equal"), inputs="float[m,n] x", outputs="float[k] z")
    apply(model, "FoldConstants")
    facts = GraphFacts.of(model.graph)
    (node,) = [n for n in model.graph.nodes if n.op_type == "If"]
    taken = facts.taken(node)
    assert taken is not None and taken.guard is not None and taken.guard.size == "n" and taken.guard.allowed == (1,)
    _, ours = session(text("Equal"))
    assert "reference" not in str(ours.explain()).split("placement")[0]


def test_a_guard_inside_a_branch() -> None:
    body = """outer = Greater(k, zero)
    z = If(outer)<then_branch = tt () => (float[] u) {{ {inner} u = Identity(y) }},
                  else_branch = ee () => (float[] v) {{ v = Neg(x) }}>"""
    inner = SQUEEZED.format(condition=CONDITIONS["Equal"], other="Neg(x)")
    body = "zero = Constant<value_float=0.0>() " + body.format(inner=inner)
    peer, ours = session(body, "float[m,n] x, float k")
    for columns in (1, 3, 1):
        for k in (1.0, -1.0):
            x = np.random.default_rng(columns).standard_normal((4, columns)).astype(np.float32)
            same(peer, ours, {"x": x, "k": np.array(k, np.float32)})


def test_a_condition_from_data_is_not_guarded() -> None:
    model: Model = parse(
        """c = Greater(k, k) y = If(c)<then_branch = t () => (float[a] p) { ax = Constant<value_ints=[1]>()
        p = Squeeze(x, ax) }, else_branch = e () => (float[a,b] q) { q = Neg(x) }> z = Exp(y)""",
        inputs="float[m,n] x, float k",
        outputs="float[j] z",
    )
    (node,) = [n for n in model.graph.nodes if n.op_type == "If"]
    assert GraphFacts.of(model.graph).taken(node) is None

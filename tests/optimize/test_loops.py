"""What a Loop carries along unchanged is read from outside."""

from __future__ import annotations

import pytest

from sardonyx.ir.graph import Graph, Model
from sardonyx.model.text import from_text
from sardonyx.normalize.run import normalize
from tests.optimize.agree import apply_and_compare
from tests.optimize.graphs import apply, ops

HEAD = "body (int64 i, bool c, float[2,3] s, float[3,3] w) => "
STEP = "{ co = Identity(c) so = MatMul(s, w) wo = Identity(w) z = Relu(so) }"


def looped(body: str, results: str = "y, v, zs", outputs: str = "float[2,3] y, float[n,2,3] zs") -> Model:
    """A Loop of three trips over x (2, 3), carrying x and the weights v0 (3, 3)."""
    model = from_text(
        f'<ir_version: 10, opset_import: ["" : 21]> g (float[2,3] x, float[3,3] v0) => ({outputs}) {{ '
        "n = Constant<value_int=3>() t = Constant<value_int=1>() on = Cast<to=9>(t) "
        f"{results} = Loop (n, on, x, v0) <body = {body}> }}"
    )
    normalize(model)
    return model


def loop_of(graph: Graph) -> tuple[list[str], Graph]:
    node = next(node for node in graph.nodes if node.op_type == "Loop")
    return [v.name for v in node.inputs if v is not None], node.attrs["body"]


@pytest.mark.parametrize("outputs", ["float[2,3] y, float[n,2,3] zs", "float[2,3] y, float[3,3] v, float[n,2,3] zs"])
def test_values_that_no_trip_changes_are_captured(outputs: str) -> None:
    model = looped(HEAD + "(bool co, float[2,3] so, float[3,3] wo, float[2,3] z) " + STEP, outputs=outputs)
    report = apply_and_compare(model, "RemoveNoOps", "FoldLoopInvariants")
    inputs, body = loop_of(model.graph)
    assert inputs[2:] == ["x"]
    assert [len(body.inputs), len(body.outputs)] == [3, 3]
    assert [v.name for v in body.captures()] == ["v0"]
    assert report.count()["FoldLoopInvariants"] == 1


KEPT = {
    "it changes": HEAD
    + "(bool co, float[2,3] so, float[3,3] wo, float[2,3] z) "
    + STEP.replace("Identity(w)", "Neg(w)"),
    "it is a scan output too": HEAD + "(bool co, float[2,3] so, float[3,3] w, float[3,3] w) "
    "{ co = Identity(c) so = MatMul(s, w) }",
}


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_changing_or_collected_values_stay_loop_carried(body: str) -> None:
    model = looped(body, outputs="float[2,3] y, float[n,a,3] zs")
    report = apply_and_compare(model, "RemoveNoOps", "FoldLoopInvariants")
    assert "FoldLoopInvariants" not in report.count()
    assert len(loop_of(model.graph)[0]) == 4


def test_values_that_change_places_are_carried() -> None:
    body = "body (int64 i, bool c, float[2,3] s, float[2,3] w) => "
    body += "(bool co, float[2,3] w1, float[2,3] s1, float[2,3] z) "
    body += "{ co = Identity(c) w1 = Identity(w) s1 = Identity(s) z = Add(s, w) }"
    model = from_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[2,3] x, float[2,3] v0) => (float[2,3] y, float[2,3] v) { '
        "n = Constant<value_int=3>() t = Constant<value_int=1>() on = Cast<to=9>(t) "
        f"y, v, zs = Loop (n, on, x, v0) <body = {body}> }}"
    )
    normalize(model)
    apply_and_compare(model, "RemoveNoOps", "FoldLoopInvariants")
    assert ops(model.graph) == ["Loop"]
    assert len(loop_of(model.graph)[0]) == 4


def test_loop_invariant_nodes_are_hoisted() -> None:
    body = HEAD + "(bool co, float[2,3] so, float[3,3] wo, float[2,3] z) "
    body += "{ co = Identity(c) t1 = Tanh(v0) k = Constant<value_float=2.0>() t2 = Mul(t1, k) b = MatMul(s, t2) "
    body += "so = Add(b, s) wo = Neg(w) q = Exp(w) z = Relu(so) }"
    model = looped(body)
    report = apply_and_compare(model, "FoldConstants", "HoistLoopInvariants")
    assert report.count()["HoistLoopInvariants"] == 1
    assert ops(model.graph)[-3:] == ["Tanh", "Mul", "Loop"]
    assert "MatMul" in ops(loop_of(model.graph)[1])


def test_nodes_that_can_fail_are_not_hoisted() -> None:
    body = HEAD + "(bool co, float[2,3] so, float[3,3] wo, float[2,3] z) "
    body += "{ co = Identity(c) i0 = Cast<to=7>(v0) g = Gather<axis=0>(x, i0) e = ReduceMax<keepdims=0>(g) "
    body += "so = Add(s, e) wo = Neg(w) z = Relu(x) }"
    model = looped(body)
    report = apply(model, "FoldConstants", "HoistLoopInvariants", "RemoveDeadCode")
    assert report.count()["HoistLoopInvariants"] == 1
    assert [op for op in ops(loop_of(model.graph)[1]) if op in ("Gather", "ReduceMax", "Relu", "Cast")] == [
        "Gather",
        "ReduceMax",
        "Relu",
    ]


def read(product: str, *, row: str = "Gather(x, i)") -> Model:
    """A Loop of four trips, each adding the product of a row of x (4, 2, 3) and a weight (3, 5)."""
    model = from_text(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[4,2,3] x, float[2,5] s0) => (float[2,5] y) '
        "<float[3,5] w = {" + ",".join(str(n / 7) for n in range(-7, 8)) + "}> "
        "{ n = Constant<value_int=4>() t = Constant<value_int=1>() on = Cast<to=9>(t) "
        "y = Loop (n, on, s0) <body = body (int64 i, bool c, float[2,5] s) => (bool co, float[2,5] so) "
        f"{{ co = Identity(c) r = {row} p = {product} so = Tanh(p) }}> }}"
    )
    normalize(model)
    return model


@pytest.mark.parametrize(
    ("product", "after"),
    [
        ("Gemm(r, w, s)", ["Identity", "Gather", "Add", "Tanh"]),
        ("Gemm(r, w)", ["Identity", "Gather", "Tanh"]),
        ("MatMul(r, w)", ["Identity", "Gather", "Tanh"]),
    ],
)
def test_rows_of_a_product_are_multiplied_once(product: str, after: list[str]) -> None:
    model = read(product)
    report = apply_and_compare(model, "InferShapes", "HoistLoopProducts", "RemoveDeadCode")
    assert report.count()["HoistLoopProducts"] == 1
    assert ops(loop_of(model.graph)[1]) == after
    assert "MatMul" in ops(model.graph)


@pytest.mark.parametrize(
    ("product", "row"),
    [
        ("Gemm<alpha = 0.5>(r, w, s)", "Gather(x, i)"),
        ("Gemm(u, w, s)", "Gather(x, i) u = Relu(r)"),
    ],
)
def test_other_products_stay(product: str, row: str) -> None:
    model = read(product, row=row)
    report = apply_and_compare(model, "InferShapes", "HoistLoopProducts")
    assert "HoistLoopProducts" not in report.count()

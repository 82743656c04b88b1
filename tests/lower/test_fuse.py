"""Which groups come of small graphs. Every graph's answers are compared as well."""

from __future__ import annotations

import pytest

from sardonyx.lower.groups import Contraction, Loop
from tests.lower.agree import compare, kinds, lowered, parse

SIZES = ({"n": 3, "m": 4}, {"n": 1, "m": 1}, {"n": 2, "m": 5})
WEIGHTS = "float[6,6] w, float[6] b"

CASES = {
    "a chain is one loop": (
        "a = Exp(x) b = Add(a, x) y = Tanh(b)", "float[n,m] x", "float[n,m] y", ["Loop(Exp Add Tanh)"]
    ),
    "what others read is stored too": (
        "a = Exp(x) y = Tanh(a)", "float[n,m] x", "float[n,m] y, float[n,m] a", ["Loop(Exp Tanh)"]
    ),
    "transposes vanish between loops": (
        "a = Exp(x) t = Transpose(a) y = Tanh(t)", "float[n,m] x", "float[m,n] y", ["Loop(Exp Tanh)"]
    ),
    "reshapes do too": (
        "a = Exp(x) s = Constant<value = int64[3] {0, -1, 2}>() r = Reshape(a, s) y = Add(r, z)",
        "float[n,6] x, float[3,1] z", "float[n,3,2] y", ["Loop(Exp Add)"],
    ),
    "a smaller tensor is computed once": (
        "a = Exp(z) y = Add(x, a)", "float[n,m] x, float[m] z", "float[n,m] y", ["Loop(Exp)", "Loop(Add)"]
    ),
    "softmax by hand": (
        ("r = Constant<value = int64[1] {-1}>() t = ReduceMax(x, r) d = Sub(x, t) e = Exp(d) s = ReduceSum(e, r) "
         "y = Div(e, s)"),
        "float[n,m] x", "float[n,m] y", ["Loop(ReduceMax Sub Exp ReduceSum Div)"],
    ),
    "a norm takes what comes before and after it": (
        "a = Add(x, z) l = LayerNormalization(a, s) y = Relu(l)",
        "float[n,m,6] x, float[n,m,6] z, float[6] s", "float[n,m,6] y, float[n,m,6] a",
        ["Loop(Add LayerNormalization Relu)"],
    ),
    "arithmetic on rows": (
        "r = Constant<value = int64[1] {1}>() t = ReduceMean<keepdims = 0>(x, r) a = Add(t, z) y = Sqrt(a)",
        "float[n,m] x, float[n] z", "float[n] y", ["Loop(ReduceMean Add Sqrt)"],
    ),
    "reductions of different axes stay apart": (
        ("r = Constant<value = int64[1] {1}>() t = ReduceSum(x, r) q = Constant<value = int64[1] {0}>() "
         "y = ReduceSum(t, q)"),
        "float[n,m] x", "float[1,1] y", ["Loop(ReduceSum)", "Loop(ReduceSum)"],
    ),
    "so do reductions of a part of the axes": (
        "a = Softmax(x) r = Constant<value = int64[2] {1, 2}>() y = ReduceMax(a, r)",
        "float[n,m,6] x", "float[n,1,1] y", ["Loop(Softmax)", "Loop(ReduceMax)"],
    ),
    "bias, activation, residual": (
        "a = MatMul(x, w) c = Add(a, b) d = Gelu(c) y = Add(d, x)",
        f"float[n,m,6] x, {WEIGHTS}", "float[n,m,6] y", ["Contraction(MatMul Add Gelu Add)"],
    ),
    "the epilogue goes through a reshape": (
        ("s = Constant<value = int64[2] {-1, 6}>() f = Reshape(x, s) a = Gemm(f, w, b) t = Shape(x) r = Reshape(a, t) "
        "y = Add(r, x)"), f"float[n,m,6] x, {WEIGHTS}", "float[n,m,6] y", ["Contraction(Gemm Add)"],
    ),
    "parts of one result that are put together again are written there at once": (
        ("a = MatMul(x, w) s = Constant<value = int64[2] {2, 4}>() p, q = Split<axis = -1>(a, s) e = Exp(q) "
        "y = Concat<axis = -1>(p, q, e)"), f"float[n,6] x, {WEIGHTS}", "float[n,10] y",
        ["Contraction(MatMul Concat)", "Loop(Exp Concat)"],
    ),
    "a norm is no epilogue": (
        "a = MatMul(x, w) c = Add(a, x) y = LayerNormalization(c, b)",
        f"float[n,m,6] x, {WEIGHTS}", "float[n,m,6] y", ["Contraction(MatMul Add)", "Loop(LayerNormalization)"],
    ),
    "two products, one gate": (
        "g = MatMul(x, w) u = MatMul(x, v) h = Swish(g) y = Mul(h, u)",
        f"float[n,6] x, {WEIGHTS}, float[6,6] v", "float[n,6] y",
        ["Contraction(MatMul)", "Contraction(MatMul Swish Mul)"],
    ),
    "nothing is fused across what lies between": (
        "a = Exp(x) t = MatMul(a, w) y = Add(a, t)", f"float[n,6] x, {WEIGHTS}", "float[n,6] y",
        ["Loop(Exp)", "Contraction(MatMul Add)"],
    ),
    "products are written where they are joined": (
        "a = MatMul(x, w) c = Exp(x) y = Concat<axis = 1>(a, c)", f"float[n,6] x, {WEIGHTS}", "float[n,12] y",
        ["Contraction(MatMul Concat)", "Loop(Exp Concat)"],
    ),
    "what follows groups that write one result together is shared out": (
        "a = MatMul(x, w) c = MatMul(z, w) d = Concat<axis = 1>(a, c) e = Relu(d) f = Mul(e, d) y = Add(f, r)",
        f"float[n,6] x, float[n,6] z, {WEIGHTS}, float[n,12] r", "float[n,12] y",
        ["Contraction(MatMul Concat Relu Mul Add)", "Contraction(MatMul Concat Relu Mul Add)"],
    ),
    "not if somebody else reads it": (
        "a = MatMul(x, w) c = MatMul(z, w) d = Concat<axis = 1>(a, c) y = Relu(d) t = MatMul(d, v)",
        f"float[n,6] x, float[n,6] z, {WEIGHTS}, float[12,2] v", "float[n,12] y, float[n,2] t",
        ["Contraction(MatMul Concat)", "Contraction(MatMul Concat)", "Loop(Relu)", "Contraction(MatMul)"],
    ),
    "nor what lies in another way": (
        "a = MatMul(x, w) c = MatMul(z, w) d = Concat<axis = 1>(a, c) y = Add(d, r)",
        f"float[n,6] x, float[n,6] z, {WEIGHTS}, float[12] r", "float[n,12] y",
        ["Contraction(MatMul Concat)", "Contraction(MatMul Concat)", "Loop(Add)"],
    ),
    "shape arithmetic costs nothing": (
        "s = Shape(z) a = Constant<value = int64[1] {2}>() c = Concat<axis = 0>(s, a) e = Expand(x, c) y = Exp(e)",
        "float[2] x, float[n,m] z", "float[n,m,2] y", ["Loop(Exp)"],
    ),
    "queries are not copied": (
        ("q = MatMul(x, w) a, c, d = Split<axis = 2, num_outputs = 3>(q) "
        "y = Attention<q_num_heads = 1, kv_num_heads = 1>(a, c, d)"),
        f"float[n,m,6] x, {WEIGHTS}", "float[n,m,2] y", ["Contraction(MatMul)", "Attention(Attention)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_groups(name: str) -> None:
    *text, expected = CASES[name]
    assert kinds(compare(parse(*text), *SIZES)) == expected


def test_the_batch_of_one_weight_is_more_rows() -> None:
    (group,) = lowered(parse("y = MatMul(x, w)", "float[n,m,6] x, float[6,5] w", "float[n,m,5] y")).groups
    assert isinstance(group, Contraction) and group.batch == () and group.m == "m*n"


def test_index_spaces_have_the_fewest_possible_axes() -> None:
    (group,) = lowered(parse("y = Exp(x)", "float[n,1,m,6] x", "float[n,1,m,6] y")).groups
    assert isinstance(group, Loop) and group.extents == ("6*m*n",)


def test_results_are_written_in_order() -> None:
    (group,) = lowered(parse("t = Transpose(x) y = Exp(t)", "float[n,m] x", "float[m,n] y")).groups
    assert isinstance(group, Loop)
    assert group.outputs[0].strides == ("n", 1) and group.inputs[0].strides == (1, "m")


def test_a_result_that_is_a_view_is_copied_once() -> None:
    graph = parse("a = Exp(x) y = Transpose(a) z = Identity(a)", "float[n,m] x", "float[m,n] y, float[n,m] z")
    found = lowered(graph)
    compare(graph, *SIZES)
    assert kinds(found.groups) == ["Loop(Exp Transpose)"]
    assert [v.storage.kind for v in found.outputs] == ["output", "output"]

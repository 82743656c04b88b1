"""Each pass on the smallest graph it changes, and on those it must leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.optimize import fold
from tests.optimize.graphs import apply, ops, parse

UNCHANGED = ["Relu", "Neg"]

NO_OPS = {
    "identity": "a = Relu(x) b = Identity(a) y = Neg(b)",
    "dropout": "a = Relu(x) b = Dropout(a) y = Neg(b)",
    "cast to its own type": "a = Relu(x) b = Cast<to=1>(a) y = Neg(b)",
    "transpose that keeps the order": "a = Relu(x) b = Transpose<perm=[0,1]>(a) y = Neg(b)",
    "reshape to its own shape": "a = Relu(x) s = Constant<value_ints=[2,3]>() b = Reshape(a, s) y = Neg(b)",
    "expand to its own shape": "a = Relu(x) s = Constant<value_ints=[2,1]>() b = Expand(a, s) y = Neg(b)",
    "concat of one": "a = Relu(x) b = Concat<axis=0>(a) y = Neg(b)",
    "sum of one": "a = Relu(x) b = Sum(a) y = Neg(b)",
    "times one": "a = Relu(x) c = Constant<value_float=1.0>() b = Mul(c, a) y = Neg(b)",
    "times ones": "a = Relu(x) c = Constant<value_floats=[1.0,1.0,1.0]>() b = Mul(a, c) y = Neg(b)",
    "minus zero": "a = Relu(x) c = Constant<value_float=0.0>() b = Sub(a, c) y = Neg(b)",
    "over one": "a = Relu(x) c = Constant<value_float=1.0>() b = Div(a, c) y = Neg(b)",
    "pad by nothing": "a = Relu(x) p = Constant<value_ints=[0,0,0,0]>() b = Pad(a, p) y = Neg(b)",
}


@pytest.mark.parametrize("body", NO_OPS.values(), ids=NO_OPS.keys())
def test_no_ops_are_removed(body: str) -> None:
    model = parse(body)
    report = apply(model, "FoldConstants", "InferShapes", "RemoveNoOps", "RemoveDeadCode")
    assert ops(model.graph) == UNCHANGED
    assert report.count()["RemoveNoOps"] == 1


NOT_NO_OPS = {
    "zero minus": "a = Relu(x) c = Constant<value_float=0.0>() b = Sub(c, a) y = Neg(b)",
    "plus zero turns -0 into 0": "a = Relu(x) c = Constant<value_float=0.0>() b = Add(a, c) y = Neg(b)",
    "times a one that broadcasts": "a = Relu(x) c = Constant<value_floats=[1.0]>() d = Unsqueeze(c, e) "
    "b = Mul(a, d) y = Neg(b)",
    "times ones, and a two": "a = Relu(x) c = Constant<value_floats=[1.0,2.0,1.0]>() b = Mul(a, c) y = Neg(b)",
    "transpose that turns": "a = Relu(x) b = Transpose(a) y = Neg(b)",
    "cast to another type": "a = Relu(x) b = Cast<to=11>(a) c = Cast<to=1>(b) y = Neg(c)",
    "dropout in training": "a = Relu(x) t = Constant<value_int=1>() m = Cast<to=9>(t) b = Dropout(a, , m) y = Neg(b)",
}


@pytest.mark.parametrize("body", NOT_NO_OPS.values(), ids=NOT_NO_OPS.keys())
def test_near_no_ops_are_kept(body: str) -> None:
    if " e)" in body:
        body = "e = Constant<value_ints=[0,1]>() " + body
    model = parse(body)
    before = len([op for op in ops(model.graph) if op not in ("Constant", "Unsqueeze", "Cast")])
    report = apply(model, "FoldConstants", "InferShapes", "RemoveNoOps")
    assert "RemoveNoOps" not in report.count()
    assert len([op for op in ops(model.graph) if op not in ("Constant", "Unsqueeze", "Cast")]) == before


def test_an_identity_between_input_and_output_can_go() -> None:
    model = parse("y = Identity(x)")
    apply(model, "RemoveNoOps")
    assert ops(model.graph) == []
    assert model.graph.output_names == ["y"]
    assert model.graph.outputs[0] is model.graph.inputs[0]


def test_constants_fold_through_a_chain() -> None:
    model = parse("a = Constant<value_ints=[1,3]>() b = Cast<to=1>(a) c = Neg(b) d = Concat<axis=0>(c, c) "
                  "s = Constant<value_ints=[2,2]>() e = Reshape(d, s) z = Constant<value_ints=[1]>() "
                  "f = ReduceSum(e, z) y = Add(x, f)")  # fmt: skip
    apply(model, "FoldConstants", "RemoveDeadCode")
    assert ops(model.graph) == ["Add"]
    added = next(iter(model.graph.nodes)).inputs[1]
    assert added is not None
    np.testing.assert_array_equal(added.numpy(), np.float32([[-4], [-4]]))


HUGE = {
    "ConstantOfShape": "s = Constant<value_ints=[100000,100000]>() a = ConstantOfShape(s) y = ReduceSum(a)",
    "Expand": "c = Constant<value_float=1.0>() s = Constant<value_ints=[100000,100000]>() a = Expand(c, s) "
    "y = ReduceSum(a)",
    "Tile": "c = Constant<value_floats=[1.0,2.0]>() r = Constant<value_ints=[1000000000]>() a = Tile(c, r) "
    "y = ReduceSum(a)",
    "Range": "b = Constant<value_int=0>() l = Constant<value_int=1000000000>() d = Constant<value_int=1>() "
    "a = Range(b, l, d) f = Cast<to=1>(a) y = ReduceSum(f)",
    "OneHot": "i = Constant<value_ints=[1,2,3]>() d = Constant<value_int=1000000000>() "
    "v = Constant<value_floats=[0.0,1.0]>() a = OneHot(i, d, v) y = ReduceSum(a)",
}


@pytest.mark.parametrize("op_type", HUGE)
def test_a_huge_result_is_not_computed_at_load(op_type: str) -> None:
    model = parse(HUGE[op_type], outputs="float y")
    report = apply(model, "InferShapes", "FoldConstants")
    assert op_type in ops(model.graph)
    assert any(op_type in d.node and ("bytes" in d.reason or "size" in d.reason) for d in report.declined)


def test_quantization_of_constants_is_left_to_providers() -> None:
    model = parse("w = Constant<value_ints=[1,2,3]>() q = Cast<to=3>(w) s = Constant<value_float=0.5>() "
                  "d = DequantizeLinear(q, s) y = Add(x, d)")  # fmt: skip
    apply(model, "FoldConstants", "RemoveDeadCode")
    assert ops(model.graph) == ["DequantizeLinear", "Add"]


def test_folding_that_fails_is_declined_with_the_reason() -> None:
    model = parse(
        "a = Constant<value_ints=[1,2]>() i = Constant<value_int=7>() b = Gather(a, i) c = Cast<to=1>(b) y = Add(x, c)"
    )
    report = apply(model, "FoldConstants")
    assert "Gather" in ops(model.graph)
    assert any("Gather" in d.node and "fails" in d.reason for d in report.declined)


def test_random_numbers_are_neither_folded_nor_shared() -> None:
    model = parse("a = RandomNormal<shape=[2,3]>() b = RandomNormal<shape=[2,3]>() y = Sub(a, b)")
    apply(model, "FoldConstants", "ShareDuplicates")
    assert ops(model.graph) == ["RandomNormal", "RandomNormal", "Sub"]


def test_equal_computations_are_shared_but_different_attributes_are_not() -> None:
    model = parse("a = Softmax<axis=0>(x) b = Softmax<axis=0>(x) c = Softmax<axis=1>(x) d = Add(a, b) y = Add(c, d)")
    apply(model, "ShareDuplicates")
    assert ops(model.graph) == ["Softmax", "Softmax", "Add", "Add"]


@pytest.mark.parametrize("axes", [(0, 1, 0, 1), (0, 1, 1, 0), (0, 0, 1, 1), (1, 0, 0, 0)])
def test_equal_computations_are_shared_wherever_they_are_among_others(axes: tuple[int, ...]) -> None:
    nodes = " ".join(f"v{i} = Softmax<axis={axis}>(x)" for i, axis in enumerate(axes))
    model = parse(f"{nodes} a = Add(v0, v1) b = Sub(v2, v3) y = Mul(a, b)")
    apply(model, "ShareDuplicates")
    assert ops(model.graph).count("Softmax") == 2


def test_equal_constants_are_shared_by_content() -> None:
    model = parse("a = Constant<value_float=2.0>() b = Constant<value_float=2.0>() c = Mul(x, a) y = Mul(c, b)")
    apply(model, "FoldConstants", "ShareConstants", "RemoveDeadCode")
    assert len(model.graph.initializers) == 1


def test_dead_code_is_removed_but_captures_are_kept() -> None:
    model = parse(
        "dead = Exp(x) alive = Neg(x) c = Constant<value_int=1>() b = Cast<to=9>(c) "
        "y = If(b) <then_branch = t () => (float[2,3] p) { gone = Abs(alive) p = Identity(alive) }, "
        "else_branch = e () => (float[2,3] q) { q = Identity(alive) }>"
    )
    apply(model, "RemoveDeadCode")
    assert ops(model.graph).count("Exp") == 0 and "Neg" in ops(model.graph)
    branch = next(n for n in model.graph.nodes if n.op_type == "If").attrs["then_branch"]
    assert "Abs" not in ops(branch)


def test_no_output_is_larger_than_the_folding_limit() -> None:
    side = int((fold.MAX_NBYTES // 4) ** 0.5)
    for n, folded in ((side, True), (side + 1, False)):
        body = f"s = Constant<value_ints=[{n},{n}]>() a = ConstantOfShape(s) y = ReduceSum(a)"
        model = parse(body, outputs="float y")
        apply(model, "InferShapes", "FoldConstants")
        assert ("ConstantOfShape" not in ops(model.graph)) is folded

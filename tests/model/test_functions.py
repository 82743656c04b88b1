"""Model-local functions: inlined with attributes, defaults, overloads and nesting, as onnx.reference runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper
from onnx.reference import ReferenceEvaluator

from sardonyx import errors
from sardonyx.interpret.context import RunContext
from sardonyx.model import functions
from sardonyx.model.load import load
from sardonyx.session.build import BuildOptions, build
from tests.model.hostile.cases import body, const, model, node

X = np.array([-1, 2], np.float32)


def function(
    name: str, *nodes: onnx.NodeProto, inputs: str = "a", outputs: str = "b", **options: Any
) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", options.pop("version", 21)), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, inputs.split(), outputs.split(), list(nodes), opsets, **options)


def referring(n: onnx.NodeProto, attribute: str, to: str, kind: Any = AttributeProto.FLOAT) -> onnx.NodeProto:
    n.attribute.append(AttributeProto(name=attribute, ref_attr_name=to, type=kind))
    return n


def check(made: onnx.ModelProto) -> None:
    expected = ReferenceEvaluator(made).run(None, {"x": X})
    for level in ("disabled", "all"):
        engine = build(made.SerializeToString(), BuildOptions(level=level))
        got = engine.run({"x": X}, [v.name for v in engine.outputs], RunContext())
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def test_nested() -> None:
    inner = function("Inner", node("Neg", "a", "n"), node("Relu", "n", "b"))
    outer = function(
        "Outer", node("Inner", "a", "t", domain="f"), node("Inner", "t", "u", domain="f"), node("Sub", "u a", "b")
    )
    made = model(
        [node("Outer", "x", "m", domain="f"), node("Outer", "m", domain="f")],
        functions=[inner, outer],
        imports={"f": 1},
    )
    check(made)
    assert {n.domain for n in load(made).graph.all_nodes()} == {""}


@pytest.mark.parametrize("given", [{}, {"slope": 0.5}])
def test_attributes_and_defaults(given: dict[str, float]) -> None:
    leaky = function(
        "Leaky",
        referring(node("LeakyRelu", "a", "b"), "alpha", "slope"),
        attribute_protos=[helper.make_attribute("slope", 0.25)],
    )
    made = model(node("Leaky", "x", domain="f", **given), functions=[leaky], imports={"f": 1})
    engine = build(made.SerializeToString(), BuildOptions())
    np.testing.assert_array_equal(engine.run({"x": X}, ["y"], RunContext())[0], [-given.get("slope", 0.25), 2])


def test_an_attribute_that_the_caller_leaves_out() -> None:
    leaky = function("Leaky", referring(node("LeakyRelu", "a", "b"), "alpha", "slope"), attributes=["slope"])
    made = model(node("Leaky", "x", domain="f"), functions=[leaky], imports={"f": 1})
    engine = build(made.SerializeToString(), BuildOptions())
    np.testing.assert_allclose(engine.run({"x": X}, ["y"], RunContext())[0], [-0.01, 2])


def test_overloads() -> None:
    one, two = function("F", node("Neg", "a", "b")), function("F", node("Abs", "a", "b"))
    one.overload, two.overload = "neg", "abs"
    calls = [node("F", "x", "p", domain="f"), node("F", "p", "y", domain="f")]
    calls[0].overload, calls[1].overload = "neg", "abs"
    made = model(calls, functions=[one, two], imports={"f": 1})
    engine = build(made.SerializeToString(), BuildOptions())
    np.testing.assert_array_equal(engine.run({"x": X}, ["y"], RunContext())[0], [1, 2])
    assert [n.op_type for n in load(made).graph.nodes] == ["Neg", "Abs"]


def test_called_from_a_branch_and_holding_one() -> None:
    choose = node(
        "If",
        "c",
        "b",
        then_branch=body([node("Neg", "a", "t")], [], "t"),
        else_branch=body([node("Abs", "a", "e")], [], "e"),
    )
    held = function("Choose", choose, inputs="a c")
    call = body([node("Choose", "x c", "u", domain="f")], [], "u")
    other = body([node("Relu", "x", "v")], [], "v")
    made = model(
        node("If", "c", then_branch=call, else_branch=other), const("c", True, bool), functions=[held], imports={"f": 1}
    )
    check(made)


def test_optional_inputs_left_out() -> None:
    clip = function("Clip2", node("Clip", "a low high", "b"), inputs="a low high")
    check(model(node("Clip2", "x _ top", domain="f"), const("top", 1.5), functions=[clip], imports={"f": 1}))


def test_weights_inside_functions_stay_in_the_file() -> None:
    big = node("Constant", "", "w", value=const("", np.arange(2000, dtype=np.float32).reshape(1000, 2)))
    made = model(
        node("Dot", "x", domain="f"), functions=[function("Dot", big, node("MatMul", "w a", "b"))], imports={"f": 1}
    )
    check(made)


def test_a_function_of_an_older_opset() -> None:
    older = function("Old", node("Relu", "a", "b"), version=13)
    made = model(node("Old", "x", domain="f"), functions=[older], imports={"f": 1})
    engine = build(made.SerializeToString(), BuildOptions())
    np.testing.assert_array_equal(engine.run({"x": X}, ["y"], RunContext())[0], [0, 2])


def test_growth_is_bounded_by_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "FREE_NODES", 100)
    monkeypatch.setattr(functions, "MAX_GROWTH", 3)
    layer = function(
        "Layer", *[node("Neg", "a" if i == 0 else f"t{i}", f"t{i + 1}" if i < 9 else "b") for i in range(10)]
    )
    calls = [node("Layer", "x" if i == 0 else f"v{i}", f"v{i + 1}" if i < 19 else "y", domain="f") for i in range(20)]
    with pytest.raises(errors.OutOfBudget, match="200 nodes"):
        load(model(calls, functions=[layer], imports={"f": 1}))


def run(made: onnx.ModelProto, x: Any = X) -> list[Any]:
    engine = build(made.SerializeToString(), BuildOptions())
    return engine.run({"x": x}, [v.name for v in engine.outputs], RunContext())


def test_opsets_that_differ_need_no_types() -> None:
    """What the function reads has no type that onnx could find, and Squeeze and ReduceSum mean different things."""
    old = function(
        "Old",
        node("Unsqueeze", "a", "u", axes=[0]),
        node("Squeeze", "u", "s", axes=[0]),
        node("ReduceSum", "s", "b", axes=[0], keepdims=1),
        version=11,
    )
    new = function("New", node("Constant", "", "axis", value_ints=[0]), node("ReduceMax", "a axis", "b"), version=20)
    calls = [
        node("SampleOp", "x", "p", domain="com.microsoft"),
        node("Old", "p", "q", domain="f"),
        node("ReduceMax", "p", "r", axes=[0]),
        node("New", "p", "s", domain="f"),
        node("Sum", "q r s"),
    ]
    made = model(calls, functions=[old, new], imports={"f": 1, "com.microsoft": 1}, opset=13)
    np.testing.assert_array_equal(run(made)[0], [1 + 2 + 2])


def test_branches_in_a_function_of_another_opset() -> None:
    choose = node(
        "If",
        "c",
        "b",
        then_branch=body([node("Unsqueeze", "a", "t", axes=[0])], [], "t"),
        else_branch=body([node("Squeeze", "a", "e", axes=[0])], [], "e"),
    )
    held = function("Choose", choose, inputs="a c", version=11)
    made = model(node("Choose", "x c", domain="f"), const("c", True, bool), functions=[held], imports={"f": 1})
    np.testing.assert_array_equal(run(made)[0], X[None])


def test_saved_models_have_one_opset(tmp_path: Any) -> None:
    from sardonyx.transformers.float16 import convert_float_to_float16

    old = function("Old", node("ReduceSum", "a", "b", axes=[0]), version=11)
    made = model(node("Old", "x", domain="f"), functions=[old], imports={"f": 1})
    halved = convert_float_to_float16(made)
    assert next(o.version for o in halved.opset_import if o.domain == "") >= 21
    assert run(halved, X.astype(np.float16))[0].tolist() == [1]


def test_a_domain_that_only_the_function_imports() -> None:
    held = function("Double", node("Scaler", "a", "b", domain="ai.onnx.ml", offset=[1.0], scale=[2.0]))
    held.opset_import.add(domain="ai.onnx.ml", version=3)
    made = model(node("Double", "x", domain="f"), functions=[held], imports={"f": 1})
    np.testing.assert_array_equal(run(made)[0], [-4, 2])


def test_an_unknown_opset_of_a_function_is_reported() -> None:
    held = function("F", node("Relu", "a", "b"), version=10_000)
    with pytest.raises(errors.BrokenGraph, match="function imports an opset"):
        load(model(node("F", "x", domain="f"), functions=[held], imports={"f": 1}))


def test_inlined_names_do_not_clash() -> None:
    """Functions reuse the caller's names, and the names that inlining would make up are taken."""
    inner = function("F", node("Neg", "a", "t"), node("Exp", "t", "y"), inputs="a", outputs="y")
    calls = [
        node("Abs", "x", "t"),
        node("Relu", "x", "F/t"),
        node("F", "t", "a", domain="f"),
        node("F", "a", "F/t_1", domain="f"),
        node("Sum", "t a F/t_1 F/t"),
    ]
    check(model(calls, functions=[inner], imports={"f": 1}))


def test_a_name_of_the_caller_is_not_seen_inside() -> None:
    held = function("F", node("Add", "a t", "b"))
    with pytest.raises(errors.DanglingName):
        load(model([node("Abs", "x", "t"), node("F", "x", domain="f")], functions=[held], imports={"f": 1}))


def test_inputs_that_are_outputs_and_outputs_left_out() -> None:
    held = function("Pass", node("Neg", "a", "n"), node("Abs", "n", "m"), inputs="a", outputs="a n n m")
    calls = [node("Pass", "x", "p q r", domain="f"), node("Pass", "p", "_ s", domain="f"), node("Sum", "p q r s s")]
    np.testing.assert_array_equal(run(model(calls, functions=[held], imports={"f": 1}))[0], X - 4 * X)


def test_names_of_a_body_in_a_function_are_its_own() -> None:
    iteration = body(
        [node("Identity", "go", "go_on"), node("Add", "sum a", "more")],
        [helper.make_tensor_value_info(n, t, []) for n, t in (("i", 7), ("go", 9))] + [onnx.ValueInfoProto(name="sum")],
        "go_on more",
    )
    held = function("Times", node("Loop", "n _ a", "b", body=iteration), inputs="a n")
    calls = [node("Times", "x n", "sum", domain="f"), node("Times", "sum n", domain="f")]
    np.testing.assert_array_equal(run(model(calls, const("n", 2), functions=[held], imports={"f": 1}))[0], 9 * X)


def test_a_graph_as_an_attribute() -> None:
    """A branch given to a function reads the caller's values, be their names those of the function's."""
    held = function("Choose", inputs="c t", outputs="b", attributes=["branch"])
    choose = node("If", "c", "b", else_branch=body([node("Neg", "t", "e")], [], "e"))
    choose.attribute.append(AttributeProto(name="then_branch", ref_attr_name="branch", type=AttributeProto.GRAPH))
    held.node.append(choose)
    call = node("Choose", "c x", domain="f", branch=body([node("Add", "t t", "d")], [], "d"))
    made = model([node("Abs", "x", "t"), call], const("c", True, bool), functions=[held], imports={"f": 1})
    np.testing.assert_array_equal(run(made)[0], 2 * np.abs(X))


def test_graphs_that_double_at_every_call() -> None:
    def twice(i: int) -> onnx.FunctionProto:
        inner = node(f"F{i + 1}", "a", "b", domain="f") if i < 25 else node("If", "a", "b")
        both = node("If", "a", "d")
        for key in ("then_branch", "else_branch"):
            both.attribute.append(AttributeProto(name=key, ref_attr_name="g", type=AttributeProto.GRAPH))
        graph = helper.make_attribute("g", body([both], [], "d"))
        inner.attribute.extend([graph] if i < 25 else [])
        return function(f"F{i}", inner, attributes=["g"])

    call = node("F0", "x", domain="f", g=body([node("Neg", "x", "t")], [], "t"))
    with pytest.raises((errors.OutOfBudget, errors.InvalidGraph)):
        load(model(call, functions=[twice(i) for i in range(26)], imports={"f": 1}))

"""Model-local functions: inlined with attributes, defaults, overloads and nesting, as onnx.reference runs them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper
from onnx.reference import ReferenceEvaluator

from model.hostile.cases import body, const, model, node
from sardonyx import errors
from sardonyx.interpret.context import RunContext
from sardonyx.model import functions
from sardonyx.model.load import load
from sardonyx.session.build import BuildOptions, build

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


def test_weights_inside_functions_stay_where_they_are() -> None:
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

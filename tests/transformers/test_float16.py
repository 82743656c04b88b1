"""Half precision: what is converted, what stays wide, and that the numbers are those of the wide model, roughly."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser

import sardonyx
from sardonyx.errors import InvalidArgument
from sardonyx.transformers import optimizer
from sardonyx.transformers.float16 import (
    DEFAULT_OP_BLOCK_LIST,
    convert_float_to_bfloat16,
    convert_float_to_float16,
    convert_np_to_float16,
)
from tests.transformers.models import encoder, feeds

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
RNG = np.random.default_rng(0)


def parse(body: str, inputs: str = "float[2,3] x", outputs: str = "float[2,3] y", opset: int = 18) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}')


def run(model: onnx.ModelProto, **fed: Any) -> list[Any]:
    """What the model gives, each float input in the type that it asks for."""
    session = sardonyx.InferenceSession(model.SerializeToString())
    wanted = {i.name: np.float16 if i.type == "tensor(float16)" else None for i in session.get_inputs()}
    return session.run(None, {k: v.astype(wanted[k]) if wanted[k] else v for k, v in fed.items()})


def ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def agree(model: onnx.ModelProto, half: onnx.ModelProto, **fed: Any) -> None:
    onnx.checker.check_model(half, full_check=True)
    for want, got in zip(run(model, **fed), run(half, **fed), strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=1e-2, atol=1e-2)


X = RNG.standard_normal((2, 3)).astype(np.float32)
SCALAR = "c = Constant<value_float=0.5>()"

CASES = {
    "plain": (parse(f"{SCALAR} a = Mul(x, c) y = Tanh(a)"), ["Constant", "Mul", "Tanh"]),
    "floats in a constant": (parse("c = Constant<value_floats=[1.0,2.0,3.0]>() y = Add(x, c)"), ["Constant", "Add"]),
    "a blocked operator": (parse("a = Neg(x) b = Max(a, x) y = Neg(b)"), ["Neg", "Cast", "Cast", "Max", "Cast", "Neg"]),
    "two blocked neighbours": (
        parse("a = Neg(x) b = Max(a, a) d = Min(b, b) y = Neg(d)"),
        ["Neg", "Cast", "Max", "Min", "Cast", "Neg"],
    ),
    "a cast": (parse("a = Cast<to=11>(x) b = Cast<to=1>(a) y = Neg(b)"), ["Cast", "Cast", "Neg"]),
    "a filled shape": (parse("s = Shape(x) a = ConstantOfShape(s) y = Add(a, x)"), ["Shape", "ConstantOfShape", "Add"]),
    "scales that stay wide": (
        parse("s = Constant<value_floats=[1.0,2.0]>() a = Resize<mode=\"nearest\">(x, , s) y = Neg(a)",
              outputs="float[2,6] y"),
        ["Constant", "Cast", "Resize", "Neg"],
    ),
    "quantization before it had half": (
        parse("s = Constant<value_float=0.1>() q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)", opset=13),
        None,
    ),
    "an If": (
        parse("t = Constant<value_int=1>() b = Cast<to=9>(t) y = If(b) <then_branch = p () => (float[2,3] u) "
              "{ u = Max(x, x) }, else_branch = q () => (float[2,3] v) { v = Neg(x) }>"),
        None,
    ),
    "a Loop": (
        parse("n = Constant<value_int=3>() t = Constant<value_int=1>() b = Cast<to=9>(t) "
              "y = Loop(n, b, x) <body = g (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] u) "
              "{ on = Identity(go) k = Constant<value_float=0.5>() w = Mul(s, k) u = Max(w, x) }>"),
        None,
    ),
    "an input that is an output": (parse("z = Neg(x)", outputs="float[2,3] x, float[2,3] z"), None),
    "a sequence": (
        parse("a = Neg(x) s = SequenceConstruct(a, x) i = Constant<value_int=0>() y = SequenceAt(s, i)"), None
    ),
}  # fmt: skip


@pytest.mark.parametrize("keep", [False, True], ids=["half borders", "wide borders"])
@pytest.mark.parametrize("case", CASES)
def test_numbers_and_nodes(case: str, keep: bool) -> None:
    model, expected = CASES[case]
    before = model.SerializeToString()
    half = convert_float_to_float16(model, keep_io_types=keep)
    assert model.SerializeToString() == before
    if case != "an input that is an output":
        agree(model, half, x=X)
    types = [v.type.tensor_type.elem_type for v in (*half.graph.input, *half.graph.output)]
    assert set(types) == {FLOAT if keep else HALF}
    if expected is not None and not keep:
        assert ops(half) == expected


def test_the_users_lists_decide() -> None:
    model = parse("a = Neg(x) b = Max(a, x) y = Tanh(b)")
    model.graph.node[2].name = "last"
    assert ops(convert_float_to_float16(model, op_block_list=[])) == ["Neg", "Max", "Tanh"]
    wide = convert_float_to_float16(model, op_block_list=[], node_block_list=["last"])
    assert ops(wide) == ["Neg", "Max", "Cast", "Tanh", "Cast"]
    kept = convert_float_to_float16(model, keep_io_types=["x"], op_block_list=[])
    assert kept.graph.input[0].type.tensor_type.elem_type == FLOAT
    assert kept.graph.output[0].type.tensor_type.elem_type == HALF


def initializers(model: onnx.ModelProto) -> dict[str, int]:
    return {t.name: t.data_type for t in model.graph.initializer}


def test_a_constant_is_kept_in_the_types_that_its_readers_want() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) <float[2] w = {{0.1, 1e-9}}> {{ {} }}'
    )
    both = parser.parse_model(text.format("a = Add(x, w) y = Max(a, w)"))
    assert sorted(initializers(convert_float_to_float16(both)).values()) == [FLOAT, HALF]
    forced = convert_float_to_float16(both, force_fp16_initializers=True)
    values = {t.data_type: onnx.numpy_helper.to_array(t) for t in forced.graph.initializer}
    np.testing.assert_array_equal(values[FLOAT], values[HALF].astype(np.float32))
    only_wide = parser.parse_model(text.format("y = Max(x, w)"))
    assert list(initializers(convert_float_to_float16(only_wide)).values()) == [FLOAT]


def test_numbers_that_half_cannot_hold() -> None:
    x = np.float32([1e-9, -1e-9, 1e9, -3e38, 0.0, -0.0, np.inf, -np.inf, np.nan, 1.5])
    got = convert_np_to_float16(x)
    smallest, largest = np.float16(5.96e-8), np.float16(65504)
    np.testing.assert_array_equal(
        got, np.float16([smallest, -smallest, largest, -largest, 0, 0, np.inf, -np.inf, np.nan, 1.5])
    )
    assert np.signbit(got[5])
    assert convert_np_to_float16(x, 1e-4, 100.0)[2] == 100.0
    with pytest.raises(InvalidArgument, match="largest"):
        convert_float_to_float16(parse("y = Neg(x)"), max_finite_val=1e9)
    with pytest.raises(InvalidArgument, match="smallest"):
        convert_float_to_float16(parse("y = Neg(x)"), min_positive_val=1e-30)


def test_blocked_nodes_may_compute_in_bfloat16() -> None:
    model = parse("a = Neg(x) b = Max(a, x) y = Neg(b)")
    half = convert_float_to_float16(model, use_bfloat16_as_blocked_nodes_dtype=True)
    assert {a.i for n in half.graph.node if n.op_type == "Cast" for a in n.attribute} == {HALF, TensorProto.BFLOAT16}
    agree(model, half, x=X)


BFLOAT = TensorProto.BFLOAT16


@pytest.mark.parametrize("keep", [False, True], ids=["narrow borders", "wide borders"])
@pytest.mark.parametrize("case", CASES)
def test_bfloat16(case: str, keep: bool) -> None:
    model, _ = CASES[case]
    before = model.SerializeToString()
    narrow = convert_float_to_bfloat16(model, keep_io_types=keep)
    assert model.SerializeToString() == before
    onnx.checker.check_model(narrow, full_check=True)
    types = [v.type.tensor_type.elem_type for v in (*narrow.graph.input, *narrow.graph.output)]
    assert set(types) == {FLOAT if keep else BFLOAT}
    session = sardonyx.InferenceSession(narrow.SerializeToString())
    fed = {"x": X if keep else X.astype(ml_dtypes.bfloat16)}
    for want, got in zip(run(model, x=X), session.run(None, fed), strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=2e-2, atol=2e-2)


def test_bfloat16_of_a_convolution_and_of_large_numbers() -> None:
    weight = "<float[1,1,1,1] w = {2.0}, float[1] m = {-3.4028234663852886e38}>"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,2,2] x) => (float[1,1,2,2] y) {weight} {{ %s }}'
    model = parser.parse_model(text % "a = Conv(x, w) y = Max(a, m)")
    narrow = convert_float_to_bfloat16(model)
    assert {t.data_type for t in narrow.graph.initializer} == {BFLOAT} and "Cast" not in ops(narrow)
    assert narrow.opset_import[0].version >= 22 and narrow.ir_version >= 10
    held = {t.name: onnx.numpy_helper.to_array(t) for t in narrow.graph.initializer}
    assert all(np.isfinite(a.astype(np.float32)).all() for a in held.values())
    kept = convert_float_to_bfloat16(model, op_block_list=["Conv"])
    assert ops(kept) == ["Cast", "Conv", "Cast", "Max"]
    ones = np.ones((1, 1, 2, 2), ml_dtypes.bfloat16)
    for made in (narrow, kept):
        got = sardonyx.InferenceSession(made.SerializeToString()).run(None, {"x": ones})[0]
        assert got.dtype == ml_dtypes.bfloat16 and (got == 2).all()


def test_default_lists_are_onnxruntimes() -> None:
    pytest.importorskip("onnxruntime")
    from onnxruntime.transformers import float16 as theirs

    assert theirs.DEFAULT_OP_BLOCK_LIST == DEFAULT_OP_BLOCK_LIST


@pytest.mark.parametrize("keep", [False, True])
def test_an_optimized_transformer_runs_in_half_precision(keep: bool) -> None:
    model = optimizer.optimize_model(encoder())
    model.convert_float_to_float16(keep_io_types=keep)
    assert model.use_float16()
    want, (got,) = run(encoder(), **feeds())[0], run(model.model, **feeds())
    assert got.dtype == (np.float32 if keep else np.float16)
    assert np.linalg.norm(got.astype(np.float64) - want) < 2e-2 * np.linalg.norm(want)
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model.model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert np.linalg.norm(session.run(None, feeds())[0].astype(np.float64) - want) < 2e-2 * np.linalg.norm(want)

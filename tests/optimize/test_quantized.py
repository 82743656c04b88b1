"""Quantized groups as onnxruntime's integer operators: written where its kernels take them, within one step of what
onnxruntime gives for the group, there and here."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx
from sardonyx.optimize.api import optimize_model
from tests.comparing import Tolerance, assert_same

ml_dtypes = pytest.importorskip("ml_dtypes")
SCALES = {"0": 0.0078125, "1": 0.02, "2": 0.05, "3": 0.03, "4": 0.00390625, "5": 0.0041}


def constants(kind: str) -> dict[str, Any]:
    """Scales, zero points and weights for u8 or i8: s1 z1 is one pair; w has a scale for each channel.

    Weights have seven bits, which onnxruntime multiplies without loss on every chip.
    """
    rng, dtype = np.random.default_rng(7), np.dtype(kind)
    low = np.iinfo(dtype).min
    found: dict[str, Any] = {f"s{k}": np.float32(v) for k, v in SCALES.items()}
    found |= {f"z{k}": np.array(low + int(k) * 30, dtype) for k in SCALES} | {"zlow": np.array(low, dtype)}
    for name, shape in {"w": (4, 3, 3, 3), "v": (4, 1, 3, 3), "t": (6, 4), "u": (4, 6)}.items():
        found[name] = rng.integers(-64, 64, shape).astype(np.int8)
    found |= {"ws": np.array([0.01, 0.02, 0.015, 0.03], np.float32), "wz": np.zeros(4, np.int8)}
    found |= {"bq": rng.integers(-900, 900, 4, np.int32), "bs": found["s1"] * found["ws"], "bz": np.zeros(4, np.int32)}
    found["uneven"] = rng.normal(size=4).astype(np.float32)
    found["real"] = (found["bq"] * found["bs"]).astype(np.float32)
    found |= {"cq": np.array(low + 200, dtype), "one": np.int64(1), "axis": np.array([1]), "last": np.array([3])}
    found |= {"twice": np.array([1, 1, 2, 2], np.float32), "flat": np.array([2, -1]), "picked": np.array([2, 0])}
    found |= {"around": np.array([0, 0, 1, 2, 0, 0, 0, 1]), "repeats": np.array([1, 2, 1, 3])}
    found |= {"halves": np.array([3, 3]), "lo": np.float32(-100), "hi": np.float32(100)}
    return found


def built(body: str, inputs: str, outputs: str, consts: dict[str, Any]) -> onnx.ModelProto:
    """``Dk(x)`` and ``Qk(x)`` in a body dequantize and quantize by the scale and zero point k."""
    for short, full in (("D", "DequantizeLinear"), ("Q", "QuantizeLinear")):
        body = re.sub(rf"\b{short}(\d)\((\w+)\)", rf"{full}(\2, s\1, z\1)", body)
    domains = '"" : 21, "com.microsoft" : 1'
    model = onnx.parser.parse_model(
        f"<ir_version: 10, opset_import: [{domains}]> g ({inputs}) => ({outputs}) {{ {body} }}"
    )
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in consts.items() if n in read)
    return model


def feeds_for(model: onnx.ModelProto) -> dict[str, Any]:
    rng, found = np.random.default_rng(3), {}
    for given in model.graph.input:
        kind = given.type.tensor_type
        shape = [d.dim_value or 2 for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        whole = dtype.kind in "iub"
        limits = (0, 2) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max) if whole else (0, 1)
        found[given.name] = (rng.integers(*limits, shape) if whole else rng.normal(size=shape)).astype(dtype)
    return found


def agree(model: onnx.ModelProto, step: int = 1, rtol: float = 1e-4) -> sardonyx.optimize.api.Optimized:
    """The model in onnxruntime's spelling; results there and here are within ``step`` of the original, or ``rtol``."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4

    def there(data: bytes) -> Any:
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, given)

    given = feeds_for(model)
    wanted = there(model.SerializeToString())
    result = optimize_model(model, "extended")
    data = result.to_proto().SerializeToString()
    for got in (there(data), sardonyx.InferenceSession(data).run(None, given)):
        for a, w in zip(got, wanted, strict=True):
            assert np.ptp(w.astype(np.float64)) > 0
            assert_same(a, w, Tolerance(relative=rtol, absolute=1e-4, steps=step))
    return result


def ops(result: sardonyx.optimize.api.Optimized) -> list[str]:
    return sorted(n.op_type for n in result.model.graph.nodes)


IMAGE = ("T[2,3,6,6] x", "T[] y")
FLAT = ("T[5,6] x", "T[] y")
PAIR = ("T[2,3,4] x, T[3,1] x2", "T[] y")
W = "k = DequantizeLinear<axis=0>(w, ws, wz) "
B = "b = DequantizeLinear<axis=0>(bq, bs, bz) "
V = "k = DequantizeLinear<axis=0>(v, ws, wz) "
T = "k = DequantizeLinear<axis=1>(t, ws, wz) "
U = "k = DequantizeLinear<axis=0>(u, ws, wz) "

GROUPS = {
    "Conv, one scale for each channel": (IMAGE, W + B + "a = D1(x) c = Conv<pads=[1,1,1,1]>(a, k, b) y = Q3(c)",
                                         ["QLinearConv"]),
    "Conv without bias": (IMAGE, W + "a = D1(x) c = Conv<strides=[2,2]>(a, k) y = Q3(c)", ["QLinearConv"]),
    "Conv whose bias is a whole number of steps": (IMAGE, W + "a = D1(x) c = Conv(a, k, real) y = Q3(c)",
                                                   ["QLinearConv"]),
    "depthwise Conv, Relu": (("T[1,4,6,6] x", "T[] y"), V + "a = D1(x) "
                             "c = Conv<group=4>(a, k) r = Relu(c) y = QuantizeLinear(r, s3, zlow)", ["QLinearConv"]),
    "MatMul, one scale for each column": (FLAT, T + "a = D1(x) m = MatMul(a, k) y = Q2(m)", ["QLinearMatMul"]),
    "MatMul of two that are computed": (("T[2,5,6] x, T[2,6,3] x2", "T[] y"),
                                        "a = D1(x) b = D0(x2) m = MatMul(a, b) y = Q2(m)", ["QLinearMatMul"]),
    "MatMul that gives reals": (("T[5,6] x", "float[] y"), T + "a = D1(x) y = MatMul(a, k)", ["MatMulIntegerToFloat"]),
    "Gemm": (FLAT, U + B + "a = D1(x) m = Gemm<transB=1>(a, k, b) y = Q2(m)", ["QGemm"]),
    "Gemm that gives reals": (("T[5,6] x", "float[] y"), T + B + "a = D1(x) y = Gemm(a, k, b)", ["QGemm"]),
    "Gemm that gives reals, with a bias between two steps": (
        ("T[5,6] x", "float[] y"), T + "a = D1(x) m = MatMul(a, k) y = Add(m, uneven)", ["MatMulIntegerToFloat"]),
    "Add": (PAIR, "a = D1(x) b = D2(x2) r = Add(b, a) y = Q3(r)", ["QLinearAdd"]),
    "Mul by a constant": (PAIR, "a = D1(x) b = D0(cq) r = Mul(a, b) y = Q3(r)", ["QLinearMul"]),
    "Sigmoid": (PAIR, "a = D1(x) r = Sigmoid(a) y = Q4(r)", ["QLinearSigmoid"]),
    "LeakyRelu": (PAIR, "a = D1(x) r = LeakyRelu<alpha=0.3>(a) y = Q3(r)", ["QLinearLeakyRelu"]),
    "Relu": (PAIR, "a = D1(x) r = Relu(a) y = Q3(r)", ["QLinearLeakyRelu"]),
    "Softmax": (PAIR, "a = D1(x) r = Softmax<axis=1>(a) y = QuantizeLinear(r, s4, zlow)", ["QLinearSoftmax"]),
    "Softmax, odd scale": (PAIR, "a = D1(x) r = Softmax(a) y = QuantizeLinear(r, s5, zlow)", ["QLinearSoftmax"]),
    "AveragePool": (IMAGE, "a = D1(x) r = AveragePool<kernel_shape=[3,3],pads=[1,1,0,0],strides=[2,2]>(a) y = Q3(r)",
                    ["QLinearAveragePool"]),
    "AveragePool that counts the padding": (
        IMAGE, "a = D1(x) r = AveragePool<kernel_shape=[2,2],pads=[1,1,1,1],count_include_pad=1>(a) y = Q3(r)",
        ["QLinearAveragePool"]),
    "Softmax whose zero point is not the least": (PAIR, "a = D1(x) r = Softmax(a) y = Q1(r)", ["QLinearSoftmax"]),
    "MatMul of a vector": (("T[6] x", "T[] y"), T + "a = D1(x) m = MatMul(a, k) y = Q2(m)", ["QLinearMatMul"]),
    "GlobalAveragePool": (IMAGE, "a = D1(x) r = GlobalAveragePool(a) y = Q2(r)", ["QLinearGlobalAveragePool"]),
    "Concat": (("T[2,3] x, T[2,4] x2, T[2,1] x3", "T[] y"),
               "a = D1(x) b = D2(x2) d = D0(x3) r = Concat<axis=1>(a, b, d) y = Q3(r)", ["QLinearConcat"]),
    "Where": (("bool[2,3] m, T[2,3] x, T[3] x2", "T[] y"), "a = D1(x) b = D2(x2) r = Where(m, a, b) y = Q3(r)",
              ["QLinearWhere"]),
    "Reshape": (IMAGE, "a = D1(x) r = Reshape(a, flat) y = Q1(r)", ["Reshape"]),
    "Transpose, Reshape": (IMAGE, "a = D1(x) t0 = Transpose<perm=[0,2,3,1]>(a) r = Reshape(t0, flat) y = Q1(r)",
                           ["Reshape", "Transpose"]),
    "MaxPool": (IMAGE, "a = D1(x) r = MaxPool<kernel_shape=[2,2],pads=[1,0,0,1]>(a) y = Q1(r)", ["MaxPool"]),
    "Resize": (IMAGE, 'a = D1(x) r = Resize<mode="nearest">(a, , twice) y = Q1(r)', ["Resize"]),
    "Gather": (IMAGE, "a = D1(x) r = Gather<axis=1>(a, picked) y = Q1(r)", ["Gather"]),
    "Slice": (IMAGE, "a = D1(x) r = Slice(a, axis, last, last) y = Q1(r)", ["Slice"]),
    "Pad": (IMAGE, "a = D1(x) r = Pad(a, around) y = Q1(r)", ["Pad"]),
    "Pad by its edge": (IMAGE, 'a = D1(x) r = Pad<mode="edge">(a, around) y = Q1(r)', ["Pad"]),
    "DepthToSpace": (("T[1,8,2,2] x", "T[] y"), "a = D1(x) r = DepthToSpace<blocksize=2>(a) y = Q1(r)",
                     ["DepthToSpace"]),
    "Tile": (("T[1,3,2,2] x", "T[] y"), "a = D1(x) r = Tile(a, repeats) y = Q1(r)", ["Tile"]),
    "ReduceMax": (IMAGE, "a = D1(x) r = ReduceMax(a, axis) y = Q1(r)", ["ReduceMax"]),
    "ArgMax": (("T[2,9] x", "int64[] y"), "a = D1(x) y = ArgMax<axis=1>(a)", ["ArgMax"]),
    "Split": (("T[2,3,6,6] x", "T[] y, T[] y2"), "a = D1(x) r, r2 = Split<axis=3>(a, halves) y = Q1(r) y2 = Q1(r2)",
              ["Split"]),
    "a product of what was rearranged": (("T[2,6,5] x", "T[] y"), T + "a = D1(x) r = Transpose<perm=[0,2,1]>(a) "
                                         "m = MatMul(r, k) y = Q2(m)", ["QLinearMatMul", "Transpose"]),
    "a product rearranged": (IMAGE, W + "a = D1(x) c = Conv(a, k) p = Transpose<perm=[0,2,3,1]>(c) "
                             "r = Reshape(p, flat) y = Q3(r)", ["QLinearConv", "Reshape", "Transpose"]),
    "Clip that the integers do": (PAIR, "a = D1(x) b = D2(x2) r = Add(b, a) l = Clip(r, lo, hi) y = Q3(l)",
                                  ["QLinearAdd"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(("types", "body", "expected"), GROUPS.values(), ids=GROUPS.keys())
def test_groups_become_integer_operators(types: tuple[str, str], body: str, expected: list[str], kind: str) -> None:
    inputs, outputs = (re.sub(r"\bT\b", kind, text) for text in types)
    assert ops(agree(built(body, inputs, outputs, constants(kind)))) == expected


DYNAMIC = (
    "q, s, z = DynamicQuantizeLinear(x) i = MatMulInteger(q, t, z) f = Cast<to=1>(i) n = Mul(s, ws) m = Mul(f, n) "
)
PRODUCTS = {
    "one reader": (DYNAMIC + "y = Identity(m)", ["DynamicQuantizeMatMul"]),
    "with a bias": (DYNAMIC + "y = Add(real, m)", ["DynamicQuantizeMatMul"]),
    "scaled one by one": (DYNAMIC.replace("n = Mul(s, ws) m = Mul(f, n)", "n = Mul(f, s) m = Mul(n, ws)")
                          + "y = Add(real, m)", ["DynamicQuantizeMatMul"]),
    "two readers": (DYNAMIC + "i2 = MatMulInteger(q, t2, z) f2 = Cast<to=1>(i2) n2 = Mul(s2, s) m2 = Mul(n2, f2) "
                    "y = Div(m, m2)", ["Div", "DynamicQuantizeLinear", "MatMulIntegerToFloat", "MatMulIntegerToFloat"]),
}  # fmt: skip


@pytest.mark.parametrize(("body", "expected"), PRODUCTS.values(), ids=PRODUCTS.keys())
def test_dynamic_quantization_goes_into_the_product(body: str, expected: list[str]) -> None:
    consts = {**constants("uint8"), "t2": np.random.default_rng(1).integers(1, 90, (6, 4)).astype(np.int8)}
    result = agree(built(body, "float[2,5,6] x", "float[2,5,4] y", consts), rtol=1e-3)
    assert ops(result) == ops(optimize_model(result.to_proto(), "extended")) == expected


@pytest.mark.parametrize("kind", ["uint4", "int4", "uint8"])
@pytest.mark.parametrize(("k", "block"), [(64, 16), (48, 16), (96, 32), (40, 16)])
@pytest.mark.parametrize("points", [True, False])
def test_blocks_are_repacked(kind: str, k: int, block: int, points: bool) -> None:
    rng = np.random.default_rng(5)
    dtype = np.dtype(getattr(ml_dtypes, kind, None) or kind)
    low, high = (-8, 8) if kind == "int4" else (0, 2 ** int(kind[4:]))
    consts = {
        "w": rng.integers(low, high, (k, 5)).astype(dtype),
        "s": rng.uniform(0.01, 0.1, (-(-k // block), 5)).astype(np.float32),
        "z": rng.integers(low, high, (-(-k // block), 5)).astype(dtype),
        "b": rng.normal(size=5).astype(np.float32),
    }
    given = "w, s, z" if points else "w, s"
    body = f"d = DequantizeLinear<axis=0, block_size={block}>({given}) m = MatMul(x, d) y = Add(m, b)"
    result = agree(built(body, f"float[3,{k}] x", "float[3,5] y", consts), rtol=1e-3)
    assert ops(result) == ["MatMulNBits"]
    again = optimize_model(result.to_proto(), "extended")
    assert ops(again) == ["MatMulNBits"]


ONNXRUNTIME = {
    "QLinearAdd": "y = com.microsoft.QLinearAdd(x, s1, z1, x, s2, z2, s3, z3)",
    "QLinearMul": "y = com.microsoft.QLinearMul(x, s1, z1, x, s2, z2, s3, z3)",
    "QLinearSigmoid": "y = com.microsoft.QLinearSigmoid(x, s1, z1, s4, z4)",
    "QLinearLeakyRelu": "y = com.microsoft.QLinearLeakyRelu<alpha=0.2>(x, s1, z1, s3, z3)",
    "QLinearSoftmax": "y = com.microsoft.QLinearSoftmax<opset=13, axis=-1>(x, s1, z1, s4, zlow)",
    "QLinearAveragePool": "y = com.microsoft.QLinearAveragePool<kernel_shape=[2,2]>(x, s1, z1, s3, z3)",
    "QLinearGlobalAveragePool": "y = com.microsoft.QLinearGlobalAveragePool(x, s1, z1, s2, z2)",
    "QLinearConcat": "y = com.microsoft.QLinearConcat<axis=1>(s3, z3, x, s1, z1, x, s2, z2)",
    "QLinearWhere": "m = Cast<to=9>(x) y = com.microsoft.QLinearWhere(m, x, s1, z1, x, s2, z2, s3, z3)",
}


@pytest.mark.parametrize("op_type", ONNXRUNTIME)
def test_onnxruntimes_operators_are_found_again(op_type: str) -> None:
    result = agree(built(ONNXRUNTIME[op_type], "uint8[2,3,6,6] x", "uint8[] y", constants("uint8")))
    assert op_type in ops(result) and len(ops(result)) == (2 if op_type == "QLinearWhere" else 1)


@pytest.mark.parametrize("bias", ["bq", ""])
def test_a_quantized_gemm_is_found_again(bias: str) -> None:
    body = f"y = com.microsoft.QGemm<transB=1>(x, s1, z1, u, ws, wz, {bias}, s2, z2)"
    assert ops(agree(built(body, "uint8[5,6] x", "uint8[5,4] y", constants("uint8")))) == ["QGemm"]


LEFT_ALONE = {
    "a bias in other units": (IMAGE, W + "b = DequantizeLinear<axis=0>(bq, ws, bz) a = D1(x) c = Conv(a, k, b) "
                              "y = Q3(c)", "other units"),
    "a bias between two steps": (IMAGE, W + "a = D1(x) c = Conv(a, k, uneven) y = Q3(c)", "integer multiple"),
    "a group that others read": (("T[2,3] x", "T[2,3] y, float[2,3] v"), "a = D1(x) r = Add(a, a) v = Abs(r) y = Q3(r)",
                                 "also read"),
    "reals on one side": (("T[2,3] x, float[3] r", "T[2,3] y"), "a = D1(x) p = Add(a, r) y = Q3(p)",
                          "not dequantized"),
    "a scale that is computed": (("T[2,3] x, float r", "T[2,3] y"),
                                 "a = DequantizeLinear(x, r, z1) p = Add(a, a) y = Q3(p)", "not a constant"),
    "a Relu that the integers do not do": (("float[2,3] x", "T[2,3] y"), "r = Relu(x) y = Q3(r)", "clips more"),
    "another type": (("T[2,3] x", "int8[2,3] y"), "a = D1(x) p = Add(a, a) y = QuantizeLinear(p, s3, kz)",
                     "another type"),
    "blocks too small": (("float[2,8] x", "float[2,4] y"),
                         "d = DequantizeLinear<axis=0,block_size=8>(g, gs) y = MatMul(x, d)", "power of two"),
}  # fmt: skip


@pytest.mark.parametrize(("types", "body", "reason"), LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_unsupported_forms_are_reported_with_a_reason(types: tuple[str, str], body: str, reason: str) -> None:
    consts = {**constants("uint8"), "kz": np.int8(3), "g": np.ones((8, 4), np.uint8), "gs": np.ones((1, 4), np.float32)}
    inputs, outputs = (re.sub(r"\bT\b", "uint8", text) for text in types)
    result = optimize_model(built(body, inputs, outputs, consts), "extended")
    assert not [n for n in result.model.graph.nodes if n.domain or n.op_type.startswith("QLinear")]
    assert any(reason in d.reason for d in result.report.declined), [str(d) for d in result.report.declined]


def test_another_step_keeps_the_conversion() -> None:
    body = "a = D1(x) r = MaxPool<kernel_shape=[2,2]>(a) y = Q2(r)"
    result = agree(built(body, "uint8[1,2,5,5] x", "uint8[1,2,4,4] y", constants("uint8")))
    assert ops(result) == ["DequantizeLinear", "MaxPool", "QuantizeLinear"]


def test_the_portable_spelling_keeps_the_conversions() -> None:
    body = GROUPS["Add"][1]
    model = built(body, "uint8[2,3,4] x, uint8[3,1] x2", "uint8[2,3,4] y", constants("uint8"))
    result = optimize_model(model, "extended", spelling="portable")
    assert ops(result) == ["Add", "DequantizeLinear", "DequantizeLinear", "QuantizeLinear"]

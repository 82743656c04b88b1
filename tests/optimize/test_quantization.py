"""What quantization-aware training and converters write: products run on integers, or explain() says why not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sardonyx

ort = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(0)


def f32(x: Any) -> Array:
    return np.asarray(x, np.float32)


CHANNEL_SCALES = f32(np.abs(rng.standard_normal(16)) * 0.004 + 0.004)
CONSTANTS: dict[str, Any] = {
    "sx": f32(0.0517), "zx": np.uint8(120), "sy": f32(0.0613), "zy": np.uint8(100), "sa": f32(0.07), "za": np.uint8(3),
    "zs": np.int8(0), "sw": f32(0.0113), "swc": CHANNEL_SCALES, "zwc": np.zeros(16, np.int8),
    "w": f32(rng.standard_normal((16, 8, 3, 3)) * 0.2), "rows": f32(rng.standard_normal((16, 32)) * 0.2),
    "columns": f32(rng.standard_normal((32, 16)) * 0.2), "rows8": f32(rng.standard_normal((16, 8)) * 0.3),
    "deep": f32(rng.standard_normal((8, 1, 3, 3)) * 0.3), "b": f32(rng.standard_normal(16)),
    "b8": f32(rng.standard_normal(8)), "bi": rng.integers(-900, 900, 16).astype(np.int32),
    "sb": f32(0.0517) * CHANNEL_SCALES, "sb1": f32(0.0517) * f32(0.0113), "sbo": f32(0.002),
    "sp": f32(0.9), "zb": np.zeros(16, np.int32), "lo": f32(0),
    "hi": f32(6), "s16": f32(0.0002), "z16": np.uint16(30000), "up": f32([1, 1, 2, 2]),
    "transposed": f32(rng.standard_normal((8, 16, 3, 3)) * 0.2), "flat": np.array([32, 16], np.int64),
    "z8": onnx.helper.make_tensor("z8", onnx.TensorProto.FLOAT8E4M3FN, [], [0.0]),
}  # fmt: skip


def qdq(x: str, to: str, scale: str = "sx", zero: str = "zx", axis: int | None = None) -> str:
    more = "" if axis is None else f"<axis = {axis}>"
    parameters = f"{scale}, {zero}" if zero else scale
    return f"q_{to} = QuantizeLinear{more}({x}, {parameters}) {to} = DequantizeLinear{more}(q_{to}, {parameters}) "


X, SIGNED_X = qdq("x", "xd"), qdq("x", "xd", "sx", "zs")
W, ONE_SCALE_W = qdq("w", "wd", "swc", "zwc", 0), qdq("w", "wd", "sw", "zs")
Y, SIGNED_Y = qdq("c", "y", "sy", "zy"), qdq("c", "y", "sy", "zs")
ROWS = X + qdq("rows", "wd", "swc", "zwc", 0)
CONV = "Conv<pads = [1, 1, 1, 1]>"
IMAGE, MATRIX = "1, 8, 12, 12", "2, 5, 32"


@dataclass(frozen=True)
class Case:
    body: str
    shape: str = IMAGE
    integers: str = "ConvInteger"
    """The operator that products become, or why they do not."""


CASES = {
    "real weights, a scale for each channel": Case(X + W + f"c = {CONV}(xd, wd, b) " + Y),
    "symmetric activations": Case(SIGNED_X + W + f"c = {CONV}(xd, wd, b) " + SIGNED_Y),
    "a dequantized bias": Case(
        X + W + f"d = DequantizeLinear<axis = 0>(bi, sb, zb) c = {CONV}(xd, wd, d) " + Y
    ),
    "one scale, a dequantized bias": Case(
        SIGNED_X + ONE_SCALE_W + f"d = DequantizeLinear(bi, sb1) e = {CONV}(xd, wd, d) c = Relu(e) " + SIGNED_Y
    ),
    "a bias in other units": Case(X + W + f"d = DequantizeLinear(bi, sbo) c = {CONV}(xd, wd, d) " + Y),
    "Relu6": Case(X + W + f"e = {CONV}(xd, wd, b) c = Clip(e, lo, hi) " + Y),
    "depthwise": Case(
        X + qdq("deep", "wd", "sw", "zs") + "e = Conv<group = 8, pads = [1, 1, 1, 1]>(xd, wd, b8) "
        "c = Clip(e, lo, hi) " + Y
    ),
    "a residual": Case(
        X + W + f"e = {CONV}(xd, wd, b) " + qdq("e", "ed", "sy", "zy") + f"f = {CONV}(xd, wd) "
        + qdq("f", "fd", "sa", "za") + "g = Add(ed, fd) c = Relu(g) " + Y
    ),
    "joined, one scale": Case(
        X + W + f"e = {CONV}(xd, wd, b) " + qdq("e", "ed") + "c = Concat<axis = 1>(ed, xd) " + qdq("c", "y")
    ),
    "joined, several scales": Case(
        X + W + f"e = {CONV}(xd, wd, b) " + qdq("e", "ed", "sy", "zy") + "c = Concat<axis = 1>(ed, xd) "
        + qdq("c", "y", "sa", "za")
    ),
    "joined before it is quantized": Case(
        X + W + f"e = {CONV}(xd, wd, b) f = {CONV}(xd, wd) c = Concat<axis = 1>(e, f) " + Y
    ),
    "pooled": Case(
        X + W + "p = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(xd) " + qdq("p", "pd")
        + f"c = {CONV}(pd, wd, b) " + Y
    ),
    "averaged": Case(
        X + W + "p = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(xd) " + qdq("p", "pd", "sa", "za")
        + f"c = {CONV}(pd, wd, b) " + Y
    ),
    "upsampled": Case(
        X + W + 'u = Resize<mode = "nearest">(xd, , up) ' + qdq("u", "ud") + f"c = {CONV}(ud, wd, b) " + Y
    ),
    "quantized twice": Case(X + qdq("xd", "xe") + W + f"c = {CONV}(xe, wd, b) " + Y),
    "quantized again": Case(X + qdq("xd", "xe", "sa", "za") + W + f"c = {CONV}(xe, wd, b) " + Y),
    "pooled features": Case(
        X + "g = GlobalAveragePool(xd) " + qdq("g", "gd", "sa", "za") + "f = Flatten(gd) "
        + qdq("rows8", "wd", "swc", "zwc", 0) + "c = Gemm<transB = 1>(f, wd, b) " + Y, IMAGE, "MatMulInteger",
    ),
    "matrix": Case(
        X + qdq("columns", "wd", "swc", "zwc", 1) + "e = MatMul(xd, wd) c = Add(e, b) " + Y, MATRIX, "MatMulInteger"
    ),
    "a transposed matrix": Case(
        ROWS + "t = Transpose<perm = [1, 0]>(wd) e = MatMul(xd, t) c = Add(e, b) " + Y,
        MATRIX, "MatMulInteger",
    ),
    "a matrix of another shape": Case(
        ROWS + "t = Transpose(wd) r = Reshape(t, flat) c = MatMul(xd, r) " + Y, MATRIX,
        "MatMulInteger",
    ),
    "Gemm, a dequantized bias": Case(
        ROWS + "d = DequantizeLinear<axis = 0>(bi, sb, zb) "
        "c = Gemm<transB = 1>(xd, wd, d) " + Y, "5, 32", "MatMulInteger",
    ),
    "limited integers": Case(
        "q_x = QuantizeLinear(x, sx, zx) k_x = Clip(q_x, least, most) xd = DequantizeLinear(k_x, sx, zx) "
        "q_wd = QuantizeLinear(w, sw, zs) k_w = Clip(q_wd, floor, top) wd = DequantizeLinear(k_w, sw, zs) "
        f"c = {CONV}(xd, wd, b) " + Y
    ),
    "a rectified activation": Case(X + W + f"r = Relu(xd) c = {CONV}(r, wd, b) " + Y),
    "a rectified activation of 0": Case(SIGNED_X + W + f"r = Relu(xd) c = {CONV}(r, wd, b) " + Y),
    "weights of 4 bits": Case(
        X + "wd = DequantizeLinear<axis = 0>(w4, swc, z4) c = Conv(xd, wd, b) " + Y
    ),
    "a matrix of unsigned 4 bits": Case(
        X + "wd = DequantizeLinear(m4, s4, n4) c = MatMul(xd, wd) " + Y, MATRIX, "MatMulInteger"
    ),
    "two activations": Case(
        X + "t = Transpose<perm = [0, 2, 1]>(xd) c = MatMul(xd, t) " + qdq("c", "y", "sp", "zy"), MATRIX,
        "MatMulInteger",
    ),
}  # fmt: skip
REAL = {
    "16 bits": Case(
        qdq("x", "xd", "s16", "z16") + W + f"c = {CONV}(xd, wd, b) " + qdq("c", "y", "s16", "z16"),
        integers="products of u16 are not integer products (q_xd)",
    ),
    "small floats": Case(
        qdq("x", "xd", "sx", "z8") + W + f"c = {CONV}(xd, wd, b) " + qdq("c", "y", "sy", "z8"),
        integers="products of f8e4m3fn are not integer products (q_xd)",
    ),
    "real activations": Case(W + f"y = {CONV}(x, wd, b)", integers="'x' is not dequantized: it is an input"),
    "an activation in between": Case(
        X + W + f"s = Sigmoid(xd) c = {CONV}(s, wd, b) " + Y,
        integers="'s' is not dequantized: it is the result of Sigmoid",
    ),
    "real weights": Case(X + f"c = {CONV}(xd, w, b) " + Y, integers="'w' is not dequantized: it is a real constant"),
    "an operator without integers": Case(
        X + qdq("columns", "wd", "sw", "zs") + 'c = Einsum<equation = "...k, kn -> ...n">(xd, wd) ' + Y,
        MATRIX,
        "Einsum has no form for integers",
    ),
    "scales along the sums": Case(
        X + qdq("columns", "wd", "sk", "zk", 0) + "c = MatMul(xd, wd) " + Y, MATRIX, "there is more than one scale (sk)"
    ),
}  # fmt: skip
CONSTANTS |= {"least": np.uint8(0), "most": np.uint8(127), "floor": np.int8(-20), "top": np.int8(20)}
CONSTANTS |= {"flat8": np.array([64, 8], np.int64)}
CONSTANTS |= {
    "w4": rng.integers(-8, 8, (16, 8, 1, 1)).astype(ml_dtypes.int4), "z4": np.zeros(16, ml_dtypes.int4),
    "m4": rng.integers(0, 16, (32, 16)).astype(ml_dtypes.uint4), "n4": np.array(7, ml_dtypes.uint4), "s4": f32(0.0123),
}  # fmt: skip
CONSTANTS |= {"sk": f32(np.arange(1, 33) * 0.001), "zk": np.zeros(32, np.int8)}


def model(case: Case) -> onnx.ModelProto:
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    made = onnx.parser.parse_model(f"{head} g (float[{case.shape}] x) => (float y) {{ {case.body} }}")
    for name, content in CONSTANTS.items():
        if re.search(rf"\b{name}\b", case.body):
            is_tensor = isinstance(content, onnx.TensorProto)
            made.graph.initializer.append(content if is_tensor else numpy_helper.from_array(np.asarray(content), name))
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def feed(case: Case) -> dict[str, Array]:
    shape = [int(d) for d in case.shape.split(",")]
    return {"x": f32(np.random.default_rng(1).standard_normal(shape) * 2)}


def expected(case: Case) -> Array:
    """onnxruntime, which computes each operator as it is written when it does not optimize."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    found = ort.InferenceSession(model(case).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(found.run(None, feed(case))[0])


def assert_steps_agree(got: Array, want: Array) -> None:
    """Equal, but for one step of the quantization in at most 0.1 % of the elements."""
    assert len(np.unique(want)) > 8, "the case says nothing"
    gaps = np.diff(np.unique(want))
    step = gaps[gaps > 1e-4].min()
    differences = np.abs(got - want)
    assert differences.max() < 1.5 * step
    assert (differences > step / 2).mean() <= 1e-3


@pytest.mark.parametrize("name", CASES)
def test_products_are_of_integers(name: str) -> None:
    case = CASES[name]
    session = sardonyx.InferenceSession(model(case))
    said = str(session.explain())
    assert case.integers in said
    assert not re.search(r"(Conv|MatMul|Gemm) [1-9]", said), said
    assert "'q_wd'" not in str(session.explain(stage="cpu")), "constants are quantized in every run"
    assert_steps_agree(session.run(None, feed(case))[0], expected(case))


@pytest.mark.parametrize("name", REAL)
def test_what_stays_real_is_explained(name: str) -> None:
    case = REAL[name]
    session = sardonyx.InferenceSession(model(case))
    said = str(session.explain())
    assert "Integer" not in "".join(line for line in said.splitlines() if " left " not in line)
    assert case.integers in said
    got = session.run(None, feed(case))[0]
    if name != "16 bits":  # steps of 0.0002 are as small as the rounding of sums
        np.testing.assert_allclose(got, expected(case), atol=0.062)
    else:
        np.testing.assert_allclose(got, expected(case), atol=0.0005)


def test_rearranged_constants_without_an_axis_for_the_scales_are_left() -> None:
    body = X + qdq("rows", "wd", "swc", "zwc", 0) + "f = Reshape(wd, flat8) c = MatMul(xd, f) " + Y
    case = Case(body, "5, 64", "there is more than one scale")
    session = sardonyx.InferenceSession(model(case))
    assert "no axis of the result has the scales" in str(session.explain())
    np.testing.assert_allclose(session.run(None, feed(case))[0], expected(case), atol=0.062)


@pytest.mark.parametrize("axis", [-3, 7])
def test_an_axis_out_of_range_is_an_error(axis: int) -> None:
    body = X + qdq("rows", "wd", "swc", "zwc", axis) + "t = Transpose(wd) c = MatMul(xd, t) " + Y
    with pytest.raises(sardonyx.errors.SardonyxError):
        case = Case(body, MATRIX)
        sardonyx.InferenceSession(model(case)).run(None, feed(case))

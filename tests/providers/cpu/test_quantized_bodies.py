"""Quantized products in the bodies of If, Loop and Scan are products of integers, as they are outside of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import sardonyx

Array = np.ndarray[Any, Any]
CHIPS = ("sapphirerapids", "cascadelake", "haswell", "neoverse-n1")
WITHOUT_BYTE_DOT = "haswell"
PRODUCTS = {"Conv", "Gemm", "MatMul"}
SCALARS = (
    "s = Constant<value = float {0.02}>() z = Constant<value = uint8 {120}>() "
    "v = Constant<value = float {0.05}>() r0 = Constant<value = float {0.0006}>() e = Constant<value = uint8 {131}>() "
    "t = Constant<value = float {0.01}>() o = Constant<value = int8 {0}>() "
)


def to_bytes(x: str, y: str, scale: str = "s", zero: str = "z") -> str:
    return f"{y}_q = QuantizeLinear({x}, {scale}, {zero}) {y} = DequantizeLinear({y}_q, {scale}, {zero}) "


WEIGHT = "w = DequantizeLinear<axis = 1>(k, ws) "
MATMUL = to_bytes("p", "a") + "m = MatMul(a, w) " + to_bytes("m", "d", "v", "e") + "u = Tanh(d) "
IMAGE = to_bytes("x", "i")


def net(n: str, kernels: str) -> str:
    """A small image network, whose values are named for a branch ``n``."""
    weights = "".join(f"{n}{k} = DequantizeLinear<axis = 0>({k}, {k}s) " for k in kernels)
    return (
        weights + to_bytes("x", f"{n}i") + f"{n}a = Conv<pads = [1, 1, 1, 1]>({n}i, {n}{kernels[0]}) {n}b = Relu({n}a) "
        + to_bytes(f"{n}b", f"{n}c", "v", "e")
        + f"{n}d = Conv<pads = [1, 1, 1, 1], group = 16>({n}c, {n}{kernels[1]}) " + to_bytes(f"{n}d", f"{n}e", "v", "e")
        + f"{n}p = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>({n}c) {n}f = Add({n}e, {n}p) "
        + to_bytes(f"{n}f", f"{n}g", "v", "e") + f"{n}y = Conv({n}g, {n}{kernels[2]}) "
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model whose inputs besides ``fed`` are constants."""

    body: str
    inputs: str
    outputs: str
    fed: tuple[str, ...]

    def drawn(self) -> dict[str, Array]:
        rng, found = np.random.default_rng(0), dict[str, Array]()
        for given in onnx.parser.parse_graph(f"g ({self.inputs}) => ({self.outputs}) {{ {self.body} }}").input:
            shape = [d.dim_value or 5 for d in given.type.tensor_type.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
            if dtype == np.float32:
                is_scale = given.name.endswith("s")
                found[given.name] = (rng.uniform(0.002, 0.02, shape) if is_scale else rng.normal(0, 1, shape)).astype(
                    dtype
                )
            elif dtype == np.bool_:
                found[given.name] = np.array(True)
            elif dtype == np.int64:
                found[given.name] = np.array(4)
            else:
                info = np.iinfo(dtype)
                found[given.name] = rng.integers(max(info.min, -127), info.max, shape, endpoint=True).astype(dtype)
        return found

    def model(self, arrays: dict[str, Array]) -> bytes:
        text = f'<ir_version: 10, opset_import: ["" : 21]> g ({self.inputs}) => ({self.outputs}) {{ {self.body} }}'
        made = onnx.parser.parse_model(text)
        given = {value.name: value for value in made.graph.input}
        for name in arrays.keys() - set(self.fed):
            made.graph.initializer.append(numpy_helper.from_array(arrays[name], name))
            made.graph.input.remove(given[name])
        onnx.checker.check_model(made, full_check=True)
        return bytes(made.SerializeToString())


LOOP = "y = Loop(n, , x) <body = b (int64 j, bool c, float[8, 64] p) => (bool g, float[8, 64] u) "
WEIGHTS = "int8[64, 64] k, float[64] ws, int64 n"
KERNELS = (
    "int8[16, 8, 3, 3] k, float[16] ks, int8[16, 1, 3, 3] l, float[16] ls, int8[24, 16, 1, 1] h, float[24] hs, "
    "int8[16, 8, 3, 3] q, float[16] qs"
)
CASES = {
    "a loop": Case(
        SCALARS + LOOP + "{ " + WEIGHT + MATMUL + "g = Identity(c) }>", f"float[8, 64] x, {WEIGHTS}",
        "float[8, 64] y", ("x",),
    ),
    "weights from outside": Case(
        SCALARS + WEIGHT + LOOP + "{ " + MATMUL + "g = Identity(c) }>", f"float[8, 64] x, {WEIGHTS}",
        "float[8, 64] y", ("x",),
    ),
    "weights that the run brings": Case(
        SCALARS + WEIGHT + LOOP + "{ " + MATMUL + "g = Identity(c) }>", f"float[8, 64] x, {WEIGHTS}",
        "float[8, 64] y", ("x", "k"),
    ),
    "an operand that is quantized outside": Case(
        SCALARS + WEIGHT + to_bytes("r", "a") + LOOP + "{ m = MatMul(a, w) " + to_bytes("m", "d", "v", "e")
        + "h = Add(d, p) u = Tanh(h) g = Identity(c) }>",
        f"float[8, 64] x, float[8, 64] r, {WEIGHTS}", "float[8, 64] y", ("x", "r"),
    ),
    "a loop whose state grows": Case(
        SCALARS + WEIGHT
        + "y = Loop(n, , x) <body = b (int64 j, bool c, float[l, 64] p) => (bool g, float[r, 64] u) { "
        + to_bytes("p", "a") + "m = MatMul(a, w) " + to_bytes("m", "d", "v", "e")
        + "u = Concat<axis = 0>(d, f) g = Identity(c) }>",
        f"float[3, 64] x, float[1, 64] f, {WEIGHTS}", "float[q, 64] y", ("x", "f"),
    ),
    "a loop whose state grows, and weights that the run brings": Case(
        SCALARS + WEIGHT
        + "y = Loop(n, , x) <body = b (int64 j, bool c, float[l, 64] p) => (bool g, float[r, 64] u) { "
        + to_bytes("p", "a") + "m = MatMul(a, w) " + to_bytes("m", "d", "v", "e")
        + "u = Concat<axis = 0>(d, f) g = Identity(c) }>",
        f"float[3, 64] x, float[1, 64] f, {WEIGHTS}", "float[q, 64] y", ("x", "f", "k"),
    ),
    "a scan, quantized in its body": Case(
        SCALARS + "l, y = Scan<num_scan_inputs = 1, body = b (float[4, 64] i, float[4, 64] r) => "
        "(float[4, 64] u, float[4, 64] m) { p = Add(i, r) a, b, f = DynamicQuantizeLinear(p) "
        "h = MatMulInteger(a, k, f, o) d = Cast<to = 1>(h) q = Mul(b, t) m = Mul(d, q) u = Tanh(m) }>(v0, x)",
        "float[5, 4, 64] x, float[4, 64] v0, int8[64, 64] k", "float[4, 64] l, float[5, 4, 64] y", ("x", "v0"),
    ),
    "integer operators in a loop": Case(
        SCALARS + "y = Loop(n, , x) <body = b (int64 j, bool c, uint8[2, 16, 6, 7] p) => "
        "(bool g, uint8[2, 16, 6, 7] u) { m = QLinearConv<pads = [1, 1, 1, 1]>(p, s, z, k, r0, o, v, e, d) "
        "u = QLinearMatMul(m, v, e, w, r0, o, s, z) g = Identity(c) }>",
        "uint8[2, 16, 6, 7] x, int8[16, 16, 3, 3] k, int32[16] d, int8[7, 7] w, int64 n",
        "uint8[2, 16, 6, 7] y", ("x",),
    ),
    "branches with networks": Case(
        SCALARS + "y = If (f) <then_branch = a () => (float[2, 24, 9, 11] ay) { " + net("a", "klh")
        + "}, else_branch = b () => (float[2, 24, 9, 11] by) { " + net("b", "qlh") + "}>",
        f"float[2, 8, 9, 11] x, {KERNELS}, bool f", "float[2, 24, 9, 11] y", ("x", "f"),
    ),
    "a branch beside a network": Case(
        SCALARS + net("o", "klh") + "y = If (f) <then_branch = a () => (float[2, 24, 9, 11] ar) { " + net("a", "qlh")
        + "ar = Add(ay, oy) }, else_branch = b () => (float[2, 24, 9, 11] br) { br = Mul(oy, oy) }>",
        f"float[2, 8, 9, 11] x, {KERNELS}, bool f", "float[2, 24, 9, 11] y", ("x", "f"),
    ),
    "a branch in a loop": Case(
        SCALARS + LOOP + "{ odd = Cast<to = 9>(j) u = If (odd) <then_branch = a () => (float[8, 64] u1) { " + WEIGHT
        + MATMUL.replace("u = ", "u1 = ") + "}, else_branch = b () => (float[8, 64] u2) { u2 = Relu(p) }> "
        "g = Identity(c) }>",
        f"float[8, 64] x, {WEIGHTS}", "float[8, 64] y", ("x",),
    ),
}  # fmt: skip


def steps_apart(got: Array, want: Array) -> Array:
    """How many steps of the coarsest scale lie between two results."""
    unit = 1 if want.dtype == np.uint8 else 0.05
    return np.abs(got.astype(np.float64) - want) / unit


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_bodies_multiply_integers(name: str, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", cpu)
    case = CASES[name]
    arrays = case.drawn()
    model = case.model(arrays)
    session = sardonyx.InferenceSession(model)
    counts = session.explain().counts()
    assert set(counts.get("reference", ())) <= {"Loop"}, session.explain()
    if cpu != WITHOUT_BYTE_DOT and name != "a loop whose state grows, and weights that the run brings":
        assert not PRODUCTS & set(counts["cpu"]), session.explain()
    peer = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    for condition in (True, False):
        feeds = {name: arrays[name] for name in case.fed}
        if "f" in feeds and feeds["f"].dtype == np.bool_:
            feeds["f"] = np.array(condition)
        for want, got in zip(peer.run(None, feeds), session.run(None, feeds), strict=True):
            assert got.shape == want.shape and len(np.unique(want)) > 4
            apart = steps_apart(got, want)
            assert apart.max() < 2 and (apart > 0.5).mean() < 0.01, (apart.max(), (apart > 0.5).mean())

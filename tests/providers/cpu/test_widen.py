"""f16 and bf16 images between convolutions are f32 where vectors multiply f32 only."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.providers.cpu.language.values import bf16, f16, f32
from sardonyx.providers.cpu.program.steps import Ref
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array

N = 32
FIRST = "a0 = Conv<pads = [1, 1, 1, 1]>(x, w0, b) a = Relu(a0) "
TWICE = "s = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()"
NETS = {
    "chain": "y = Conv<pads = [1, 1, 1, 1]>(a, w)",
    "pool": "p = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(a) y = Conv(p, v)",
    "mean": "p = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a) y = Conv(p, v)",
    "residual": "c = Conv<pads = [1, 1, 1, 1]>(a, w) d = Add(c, a) y = Relu(d)",
    "beside": "c = Conv(a, v) d = Sigmoid(c) y = Mul(c, d)",
    "joined": "c = Conv(a, v) d = Conv<pads = [1, 1, 1, 1]>(a, w) e = Concat<axis = 1>(c, d) y = Conv(e, u)",
    "reduced": "c = Conv(a, v) g = GlobalAveragePool(c) y = Softmax<axis = 1>(g)",
    "excited": "g = GlobalAveragePool(a) c = Conv(g, v) s = Sigmoid(c) m = Mul(a, s) y = Conv(m, v)",
    "turned": "c = Conv(a, v) y = Transpose<perm = [0, 2, 3, 1]>(c)",
    "told twice": "c = Conv(a, v) y = Relu(c) h = Identity(a)",
    "larger": f'{TWICE} r = Resize<mode = "nearest">(a, , s) y = Conv(r, v)',
    "smoother": f'{TWICE} r = Resize<mode = "linear">(a, , s) y = Conv(r, v)',
    "depthwise": f"c = Conv<group = {N}, pads = [1, 1, 1, 1]>(a, dw) y = Conv(c, v)",
    "multiplied": "c = Conv(a, v) r = Flatten(c) y = MatMul(r, mm)",
}
SIZES = {"x": (2, 3, 9, 10), "w0": (N, 3, 3, 3), "b": (N,), "w": (N, N, 3, 3), "v": (N, N, 1, 1), "u": (8, 2 * N, 1, 1)}
SIZES |= {"dw": (N, 1, 3, 3), "mm": (N * 90, 5)}
TYPES = {"float16": (np.float16, 2e-3), "bfloat16": (ml_dtypes.bfloat16, 2e-2)}


class Net:
    def __init__(self, name: str, dtype: str, cpu: str | None) -> None:
        self.body = FIRST + NETS[name]
        used = {
            k: s for k, s in SIZES.items() if f"({k}," in self.body or f" {k})" in self.body or f" {k}," in self.body
        }
        rng, (kind, _) = np.random.default_rng(0), TYPES[dtype]
        self.feeds = {
            k: (rng.standard_normal(s) / (1 if k == "x" else np.prod(s[1:]) ** 0.5)).astype(kind)
            for k, s in used.items()
        }
        self.inputs = ", ".join(f"{dtype}[{','.join(map(str, s))}] {k}" for k, s in used.items())
        self.outputs = f"{dtype}[{'A,B' if name == 'multiplied' else 'A,B,C,D'}] y"
        self.outputs += f", {dtype}[E,F,G,H] h" if " h = " in self.body else ""
        weights = {k: v for k, v in self.feeds.items() if k != "x"}
        self.compiled = Compiled(self.body, self.inputs, self.outputs, cpu, constants=weights)

    def run(self, **options: Any) -> list[Array]:
        return [np.asarray(y).astype(np.float64) for y in self.compiled.run([self.feeds["x"]], **options)]

    def expected(self) -> list[Array]:
        dtype = self.inputs.split("[")[0]
        text = f'<ir_version: 10, opset_import: ["" : 21]> g ({self.inputs}) => ({self.outputs}) {{ {self.body} }}'
        model = ReferenceEvaluator(onnx.parser.parse_model(text.replace(dtype, "double")))
        return list(model.run(None, {k: v.astype(np.float64) for k, v in self.feeds.items()}))

    @property
    def narrow(self) -> int:
        """Images that convolutions and windows read as narrow floats."""
        seen = [s.args["x"] for s in self.compiled.steps if s.spec.name.startswith(("conv", "pool"))]
        return sum(isinstance(x, Ref) and x.storage.dtype in (f16, bf16) for x in seen)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", NETS)
def test_against_onnx(name: str, dtype: str) -> None:
    net, (_, bound) = Net(name, dtype, "skylake-avx512"), TYPES[dtype]
    assert net.narrow == 0
    got = net.run(checked=True)
    for y, want in zip(got, net.expected(), strict=True):
        assert np.linalg.norm(y - want) < bound * np.linalg.norm(want)
    for y, again in zip(got, net.run(threads=3), strict=True):
        np.testing.assert_array_equal(y, again)


COMPARED = {
    "where a maximum is": "p, i = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(a) y = Cast<to = 1>(i)",
    "peaks": "q = Pad(a, four, low) m = MaxPool<kernel_shape = [3, 3]>(q) e = Equal(a, m) y = Cast<to = 1>(e)",
    "the least": "m = ReduceMin<keepdims = 1>(a) e = Sub(a, m) r = Sqrt(e) n = IsNaN(r) y = Cast<to = 1>(n)",
    "the largest": "m = ReduceMax<keepdims = 1>(a) e = Equal(a, m) y = Cast<to = 1>(e)",
    "there and back": "q = Pad(a, four, low) s = Slice(q, one, last, axes) e = Equal(a, s) y = Cast<to = 1>(e)",
    "cast": "f = Cast<to = 1>(a) g = Mul(f, third) h = Cast<to = 10>(g) k = Conv(h, v) y = Cast<to = 1>(h)",
}
CONSTANTS = {
    "four": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "low": np.array(-60000, np.float16), "one": np.array([1, 1]),
    "last": np.array([-1, -1]), "axes": np.array([2, 3]), "third": np.array(1 / 3, np.float32),
}  # fmt: skip
TEXT = {"float16": "float16", "float32": "float", "int64": "int64"}


@pytest.mark.parametrize("name", COMPARED)
def test_widened_images_equal_values_derived_from_them(name: str) -> None:
    """As if it were stored in half precision, whether it is or not. Many rows, so that reductions are stored."""
    body = f"a = Conv<pads = [1, 1, 1, 1]>(x, w0) {COMPARED[name]} z = Conv(a, v)"
    rng = np.random.default_rng(0)
    sizes = {"x": (1, 3, 64, 64), "w0": (N, 3, 3, 3), "v": (N, N, 1, 1)}
    feeds = {k: rng.standard_normal(s).astype(np.float16) for k, s in sizes.items()}
    given = feeds | {k: v for k, v in CONSTANTS.items() if f" {k}" in COMPARED[name]}
    shapes = {k: f"[{','.join(map(str, v.shape))}]" if v.ndim else "" for k, v in given.items()}
    inputs = ", ".join(f"{TEXT[str(v.dtype)]}{shapes[k]} {k}" for k, v in given.items())
    outputs = "float[A,B,C,D] y, float16[E,F,G,H] z" + (", float16[I,J,K,L] k" if name == "cast" else "")
    weights = {k: v for k, v in given.items() if k != "x"}
    got, narrow = (
        Compiled(body, inputs, outputs, cpu, constants=weights).run([feeds["x"]])[0]
        for cpu in ("skylake-avx512", "sapphirerapids")
    )
    if name == "cast":
        np.testing.assert_array_equal(got, got.astype(np.float16))
        np.testing.assert_allclose(got, narrow, rtol=2e-3, atol=1e-3)
    elif name in ("where a maximum is", "peaks"):  # sums differ in their last place, and so may what is the largest
        assert (got == narrow).mean() > 0.99
    else:
        np.testing.assert_array_equal(got, narrow)


def test_a_copy_is_made_once_and_where_it_pays() -> None:
    weights = {
        k: np.ones(s, np.float16) for k, s in {"w": (32, 16, 3, 3), "v": (32, 16, 1, 1), "u": (2, 16, 1, 1)}.items()
    }
    inputs = "float16[1,16,9,9] x, " + ", ".join(
        f"float16[{','.join(map(str, v.shape))}] {k}" for k, v in weights.items()
    )
    outputs = "float16[A,B,C,D] a, float16[E,F,G,H] b, float16[I,J,K,L] c"
    body = "a = Conv(x, w) b = Conv(x, v) c = Conv(x, u)"
    steps = Compiled(body, inputs, outputs, "skylake-avx512", constants=weights).steps
    read = [s.args["x"].storage for s in steps if s.spec.name.startswith("conv")]
    assert len({id(s) for s in read if s.dtype is f32}) == 1 and sum(s.dtype is f16 for s in read) == 1


def test_tiles_take_narrow_numbers() -> None:
    names = [step.spec.name for step in Net("chain", "bfloat16", "sapphirerapids").compiled.steps]
    assert "fused_loop" not in names and "pack_image" in names

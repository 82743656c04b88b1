"""Images of narrow floats between convolutions are f32 where vectors multiply nothing else."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.providers.cpu.steps import Ref
from sardonyx.providers.cpu.values import bf16, f16
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

    def run(self, **options: int) -> list[Array]:
        return [np.asarray(y).astype(np.float64) for y in self.compiled.run([self.feeds["x"]], **options)]  # type: ignore[arg-type]

    def expected(self) -> list[Array]:
        dtype = self.inputs.split("[")[0]
        text = f'<ir_version: 10, opset_import: ["" : 21]> g ({self.inputs}) => ({self.outputs}) {{ {self.body} }}'
        model = ReferenceEvaluator(onnx.parser.parse_model(text.replace(dtype, "double")))
        return list(model.run(None, {k: v.astype(np.float64) for k, v in self.feeds.items()}))

    @property
    def narrow(self) -> int:
        """Images that convolutions and windows read as narrow floats."""
        seen = [s.args["x"] for s in self.compiled.steps if s.spec.name.startswith(("conv", "slide"))]
        return sum(isinstance(x, Ref) and x.storage.dtype in (f16, bf16) for x in seen)


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


def test_tiles_take_narrow_numbers() -> None:
    names = [step.spec.name for step in Net("chain", "bfloat16", "sapphirerapids").compiled.steps]
    assert "sweep" not in names and "spread" in names

"""Random graphs of quantized products, with everything a quantizer writes around them, in integers and as stated.

Each operator's own meaning, by numpy, is the oracle. A number that lies between two integers may be rounded either way
where sums are added in another order, so a few results may be off by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.providers.cpu.machine import isa
from tests.lower.agree import parse, part_of

Array = np.ndarray[Any, Any]
BYTES = ("uint8", "int8")
OFF_BY_ONE = 0.005
"""The share of results that may be rounded the other way."""


class Maker:
    """Writes a graph as text."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.lines: list[str] = []
        self.inputs: list[str] = []
        self.feeds: dict[str, Array] = {}
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def constant(self, array: Array) -> str:
        name, types = self.name(), {"f": "float", "i1": "int8", "u1": "uint8", "i8": "int64"}
        kind = types.get(array.dtype.str[1:], types.get(array.dtype.kind, ""))
        shape = "" if array.ndim == 0 else str(list(array.shape))
        listed = ", ".join(map(repr, array.reshape(-1).tolist()))
        self.lines.append(f"{name} = Constant<value = {kind}{shape} {{{listed}}}>()")
        return name

    def op(self, text: str) -> str:
        name = self.name()
        self.lines.append(f"{name} = {text}")
        return name

    def parameters(self, dtype: str, spread: float, channels: int = 0) -> str:
        """A scale and a zero point, for the tensor or for each channel."""
        shape, info = (channels,) if channels else (), np.iinfo(dtype)
        scale = self.constant(np.asarray(spread * self.rng.uniform(0.5, 1.5, shape), np.float32))
        zero = self.rng.integers(info.min, info.max, shape, endpoint=True)
        if self.pick(False, False, True):
            zero = np.zeros(shape, int) + (0 if self.pick(True, False) else info.min // 2)
        return f"{scale}, {self.constant(np.asarray(zero, dtype))}"

    def quantized(self, real: str, spread: float) -> str:
        """A value between a QuantizeLinear and a DequantizeLinear."""
        given = self.parameters(self.pick(*BYTES), spread)
        return self.op(f"DequantizeLinear({self.op(f'QuantizeLinear({real}, {given})')}, {given})")

    def activation(self, shape: tuple[int, ...], axes: tuple[str, ...] = ()) -> str:
        dtype, name = self.pick(*BYTES), self.name()
        listed = ", ".join(axes or map(str, shape))
        self.inputs.append(f"{dtype}[{listed}] {name}")
        info = np.iinfo(dtype)
        self.feeds[name] = self.rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
        return self.op(f"DequantizeLinear({name}, {self.parameters(dtype, 0.02)})")

    def weights(self, k: int, n: int, *, is_transposed: bool = False) -> str:
        dtype, info = self.pick("int8", "int8", "uint8"), None
        info = np.iinfo(dtype)
        shape = (n, k) if is_transposed else (k, n)
        w = self.constant(self.rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype))
        is_each = self.pick(True, False)
        given, axis = self.parameters(dtype, 0.01, n if is_each else 0), 0 if is_transposed else 1
        return self.op(f"DequantizeLinear<axis = {self.pick(axis, axis - 2)}>({w}, {given})")

    def bias(self, n: int) -> str:
        return self.constant(self.rng.standard_normal(n).astype(np.float32))

    def around(self, x: str, n: int, spread: float) -> str:
        """What follows a product, some of it quantized."""
        for _ in range(int(self.rng.integers(0, 3))):
            x = self.quantized(x, spread) if self.pick(True, False) else x
            x = self.op(self.pick(
                f"Add({x}, {self.bias(n)})", f"Mul({x}, {self.constant(np.asarray(0.7, np.float32))})", f"Relu({x})",
                f"Tanh({x})", f"Erf({x})", f"Softmax<axis = -1>({x})",
            ))  # fmt: skip
        return x


def projection(m: Maker) -> tuple[str, int]:
    rows, k, n = (int(m.rng.integers(1, high)) for high in (70, 150, 70))
    batch = m.pick((), (2,), (1, 3))
    axes = tuple("n" if i == len(batch) and m.pick(True, False) else str(d) for i, d in enumerate((*batch, rows, k)))
    x = m.activation((*batch, rows, k), axes)
    return m.op(f"MatMul({x}, {m.weights(k, n)})"), n


def gemm(m: Maker) -> tuple[str, int]:
    rows, k, n = (int(m.rng.integers(1, high)) for high in (70, 150, 70))
    is_transposed = m.pick(True, False)
    x, w = m.activation((rows, k)), m.weights(k, n, is_transposed=is_transposed)
    bias = f", {m.bias(n)}" if m.pick(True, False) else ""
    return m.op(f"Gemm<transB = {int(is_transposed)}, alpha = {m.pick(1.0, 0.5)}>({x}, {w}{bias})"), n


def attention(m: Maker) -> tuple[str, int]:
    """Two products of activations, rearranged in between, by heads."""
    rows, heads, width = int(m.rng.integers(1, 40)), 2, int(m.rng.integers(1, 40))
    axes = ("1", "n" if m.pick(True, False) else str(rows), str(heads), str(width))
    q, key, value = (m.activation((1, rows, heads, width), axes) for _ in range(3))
    q = m.op(f"Transpose<perm = [0, 2, 1, 3]>({q})")
    key = m.op(f"Transpose<perm = [0, 2, 3, 1]>({key})")
    value = m.op(f"Transpose<perm = [0, 2, 1, 3]>({value})")
    scores = m.op(f"MatMul({q}, {key})")
    scores = m.quantized(scores, 0.05) if m.pick(True, False) else scores
    shown = m.quantized(m.op(f"Softmax<axis = -1>({scores})"), 1 / 255)
    seen = m.op(f"Transpose<perm = [0, 2, 1, 3]>({m.op(f'MatMul({shown}, {value})')})")
    shape = m.constant(np.array([0, 0, heads * width], np.int64))
    return m.op(f"Reshape({seen}, {shape})"), heads * width


@pytest.mark.parametrize("seed", range(60))
def test_integers_are_what_reals_are(seed: int) -> None:
    onnx = pytest.importorskip("onnx")
    m = Maker(seed)
    x, n = m.pick(projection, gemm, attention)(m)
    spread = 0.06
    x = m.around(x, n, spread)
    dtype = m.pick(*BYTES)
    y = m.op(f"QuantizeLinear({x}, {m.parameters(dtype, spread)})")
    body, inputs = " ".join(m.lines).replace(f"{y} = ", "y = "), ", ".join(m.inputs)
    graph = parse(body, inputs, f"{dtype}[] y")
    part = part_of(graph)
    (want,) = Program(part.nodes, part.inputs, part.outputs, bind).run(
        [m.feeds[v.name] for v in part.inputs], RunContext()
    )
    sizes = (
        ", ".join(map(str, want.shape)) if "n" not in inputs.split() else ", ".join(f"d{i}" for i in range(want.ndim))
    )
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({dtype}[{sizes}] y) {{ {body} }}'
    session = sardonyx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    (got,) = session.run(None, m.feeds)
    assert got.shape == want.shape and got.dtype == want.dtype
    off = np.abs(got.astype(int) - want.astype(int))
    assert off.max(initial=0) <= 1 and (off > 0).mean() <= max(OFF_BY_ONE, 2.5 / off.size), (
        off.max(),
        (off > 0).mean(),
    )
    chip = isa.current()
    assert ("MatMulInteger" in session.explain().counts()["cpu"]) or not (chip.byte_dot or chip.amx)

"""DynamicQuantizeLSTM, against onnxruntime on one thread, for which all sequences share the scale of their states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.lower import interpret
from sardonyx.lower.groups import Contraction, Recurrence
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array

ort = pytest.importorskip("onnxruntime")

OPSETS = '"" : 21, "com.microsoft" : 1'
WEIGHTS = ("w", "r", "ws", "wz", "rs", "rz")


@dataclass(frozen=True)
class Layer:
    hidden: int = 8
    width: int = 5
    direction: str = "forward"
    dtype: str = "int8"
    per_column: bool = False
    zero: int = 0
    has_lengths: bool = False
    has_peepholes: bool = False
    has_bias: bool = True
    more: str = ""

    @property
    def ways(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def text(self) -> tuple[str, str, str]:
        ways, hidden, columns = self.ways, self.hidden, 4 * self.hidden
        each = f"{ways},{columns}" if self.per_column else f"{ways}"
        shapes = {
            "x": f"t,n,{self.width}", "w": f"{ways},{self.width},{columns}", "r": f"{ways},{hidden},{columns}",
            "b": f"{ways},{2 * columns}", "lens": "n", "h": f"{ways},n,{hidden}", "c": f"{ways},n,{hidden}",
            "p": f"{ways},{3 * hidden}", "ws": each, "wz": each, "rs": each, "rz": each,
        }  # fmt: skip
        left_out = {"lens": self.has_lengths, "p": self.has_peepholes, "b": self.has_bias}
        names = [name if left_out.get(name, True) else '""' for name in shapes]
        types = dict.fromkeys(("w", "r", "wz", "rz"), self.dtype) | {"lens": "int32"}
        inputs = ", ".join(f"{types.get(n, 'float')}[{s}] {n}" for n, s in shapes.items() if n in names)
        attributes = f'hidden_size = {hidden}, direction = "{self.direction}"{self.more}'
        body = f"y, yh, yc = com.microsoft.DynamicQuantizeLSTM<{attributes}>({', '.join(names)})"
        state = f"float[{ways},n,{hidden}]"
        return body, inputs, f"float[t,{ways},n,{hidden}] y, {state} yh, {state} yc"

    @property
    def model(self) -> onnx.ModelProto:
        body, inputs, outputs = self.text
        return onnx.parser.parse_model(
            f"<ir_version: 10, opset_import: [{OPSETS}]> g ({inputs}) => ({outputs}) {{ {body} }}"
        )

    def given(self, steps: int, batch: int) -> dict[str, Array]:
        """Random operands; with several sequences, the first has no steps."""
        rng, sizes = np.random.default_rng(steps + batch), {"t": steps, "n": batch}
        found: dict[str, Array] = {}
        for value in self.model.graph.input:
            shape = [d.dim_value or sizes[d.dim_param] for d in value.type.tensor_type.shape.dim]
            if value.name in ("w", "r"):
                found[value.name] = (rng.integers(-90, 91, shape) + self.zero).astype(self.dtype)
            elif value.name in ("wz", "rz"):
                found[value.name] = np.full(shape, self.zero, self.dtype)
            elif value.name in ("ws", "rs"):
                found[value.name] = rng.uniform(0.8, 1.2, shape).astype(np.float32) / np.float32(90 * self.hidden**0.5)
            elif value.name == "lens":
                found[value.name] = rng.integers(min(steps, 1), steps, shape, endpoint=True).astype(np.int32)
            else:
                found[value.name] = rng.standard_normal(shape).astype(np.float32)
        if "lens" in found and batch > 1:
            found["lens"][0] = 0
        if "lens" in found:
            found["x"][max(found["lens"], default=0) :] *= 100
        return found


CASES = {
    "small": Layer(),
    "one unit": Layer(1, 1),
    "unsigned, by column": Layer(19, 7, dtype="uint8", per_column=True, zero=117),
    "with zero points": Layer(16, 64, zero=3),
    "both ways": Layer(32, 20, "bidirectional", per_column=True),
    "backwards with lengths": Layer(33, 3, "reverse", has_lengths=True),
    "both ways with lengths": Layer(24, 9, "bidirectional", has_lengths=True, has_peepholes=True),
    "peepholes": Layer(20, 6, has_peepholes=True, has_bias=False),
    "coupled": Layer(20, 6, has_peepholes=True, more=", input_forget = 1"),
    "clipped": Layer(20, 6, more=", clip = 0.3"),
    "functions": Layer(12, 4, more=', activations = ["HardSigmoid", "Relu", "Tanh"], activation_alpha = [0.3]'),
    "many units": Layer(200, 70),
}
SIZES = ((5, 1), (3, 2), (4, 3), (2, 7), (3, 18))


def expected(layer: Layer, given: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(layer.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(v) for v in session.run(None, given)]


def assert_close(got: list[Array], want: list[Array]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)


@pytest.mark.sliced(3)
@pytest.mark.parametrize("has_constants", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_against_onnxruntime(name: str, has_constants: bool) -> None:
    layer = CASES[name]
    for steps, batch in SIZES:
        given = layer.given(steps, batch)
        constants = {k: given[k] for k in WEIGHTS} if has_constants else {}
        compiled = Compiled(*layer.text, opsets=OPSETS, constants=constants)
        args = [v for k, v in given.items() if k not in constants]
        got = compiled.run(args, checked=True)
        assert_close(got, expected(layer, given))
        assert_close(interpret.run(compiled.lowered, args), got)
        for threads in (2, 3):
            for a, b in zip(compiled.run(args, threads=threads), got, strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.sliced(5)
@pytest.mark.parametrize("cpu", ["x86-64", "haswell", "skylake-avx512", "cascadelake", "sapphirerapids", "neoverse-n1"])
@pytest.mark.parametrize("name", ["unsigned, by column", "with zero points", "both ways with lengths"])
def test_other_chips(name: str, cpu: str) -> None:
    layer = CASES[name]
    compiled = Compiled(*layer.text, cpu, opsets=OPSETS)
    for steps, batch in (*SIZES, (0, 2), (2, 0)):
        given = layer.given(steps, batch)
        want = interpret.run(compiled.lowered, list(given.values()))
        assert_close(compiled.run(list(given.values()), threads=2, checked=True), want)


def test_products_are_of_integers() -> None:
    groups = Compiled(*CASES["both ways"].text, opsets=OPSETS).lowered.groups
    (layer,) = (g for g in groups if isinstance(g, Recurrence))
    (projection,) = (g for g in groups if isinstance(g, Contraction))
    assert layer.r.dtype.name == projection.b.dtype.name == "i8" and projection.a.dtype.name == "u8"


def test_session() -> None:
    layer = CASES["both ways with lengths"]
    given = layer.given(6, 4)
    assert_close(sardonyx.InferenceSession(layer.model).run(None, given), expected(layer, given))

"""Transposed convolutions of NHWC images: neighbouring phases are one convolution."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.providers.cpu.layout import nhwc
from sardonyx.providers.cpu.pipeline import steps_for
from sardonyx.providers.cpu.program.analysis import Target
from sardonyx.providers.cpu.program.constants import content
from sardonyx.providers.cpu.program.steps import Packed, Ref, Unrepresentable
from tests.providers.cpu.compiled import Compiled, forcing
from tests.providers.cpu.running import Array

CASES = {
    "2x2": ((1, 24, 5, 7), (24, 24, 2, 2), "strides = [2, 2]", 2),
    "2x2, one filter": ((2, 24, 5, 7), (24, 1, 2, 2), "strides = [2, 2]", 2),
    "2x2, three filters": ((1, 9, 3, 17), (9, 3, 2, 2), "strides = [2, 2]", 2),
    "3x4": ((1, 80, 4, 5), (80, 40, 3, 4), "strides = [3, 4]", 3),
    "2x2x2": ((1, 8, 3, 4, 5), (8, 10, 2, 2, 2), "strides = [2, 2, 2]", 4),
    "one axis": ((2, 16, 9), (16, 12, 2), "strides = [2]", 1),
    "one pixel": ((1, 32, 1, 1), (32, 34, 2, 2), "strides = [2, 2]", 4),
    "windows overlap": ((1, 16, 5, 6), (16, 12, 4, 4), "strides = [2, 2], pads = [1, 1, 1, 1]", 4),
    "longer than the kernel": ((1, 16, 4, 5), (16, 12, 2, 2), "strides = [2, 2], output_padding = [1, 1]", 4),
}  # fmt: skip
"""The image, the weights, the attributes, and how many convolutions that is."""


@pytest.fixture(autouse=True)
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nhwc, "MIN_NHWC_LANES", 1)


class Model:
    """A transposed convolution of an image, and into one, that others write and read, so that it may be NHWC."""

    def __init__(self, name: str) -> None:
        x, w, attributes, self.convolutions = CASES[name]
        rng, kernel = np.random.default_rng(0), [1] * (len(w) - 2)
        given = {"x": x, "k": (w[0], x[1], *kernel), "w": w, "c": (w[1],), "m": (9, w[1], *kernel)}
        self.feeds: dict[str, Array] = {n: rng.standard_normal(s).astype("f") for n, s in given.items()}
        last = "y = Sigmoid(a)" if w[1] == 1 else "b = Relu(a) d = Mul(a, b) y = Conv(d, m)"
        self.body = f"i = Conv(x, k) j = Relu(i) a = ConvTranspose<{attributes}>(j, w, c) {last}"
        self.output = f"[{','.join('ABCDE'[: len(w)])}] y"

    def inputs(self, dtype: str) -> str:
        return ", ".join(f"{dtype}[{','.join(map(str, v.shape))}] {n}" for n, v in self.feeds.items())

    def expected(self) -> Array:
        text = f"g ({self.inputs('double')}) => (double{self.output}) {{ {self.body} }}"
        made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
        return np.asarray(ReferenceEvaluator(made).run(None, {n: v.astype("d") for n, v in self.feeds.items()})[0])

    def compiled(self, cpu: str | None, precision: str = "highest") -> Compiled:
        constants = {n: v for n, v in self.feeds.items() if n != "x"}
        text = self.body, self.inputs("float"), f"float{self.output}"
        return Compiled(*text, cpu, constants=constants, precision=precision)


def assert_close(got: Array, want: Array, tolerance: float) -> None:
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max())


@pytest.mark.parametrize("name", CASES)
def test_phases_of_a_row_are_one_convolution(name: str) -> None:
    model = Model(name)
    made = model.compiled("skylake-avx512")
    (got,) = made.run([model.feeds["x"]])
    assert_close(got, model.expected(), 1e-5)
    (again,) = made.run([model.feeds["x"]], threads=3, checked=True)
    np.testing.assert_array_equal(again, got)
    assert sum(step.nodes[0].op_type == "ConvTranspose" for step in made.steps) == model.convolutions


def test_convolutions_of_one_image_that_are_put_together() -> None:
    rng = np.random.default_rng(0)
    sizes = {"x": (1, 8, 6, 7), "k": (24, 8, 3, 3), "u": (16, 24, 1, 1), "v": (32, 24, 1, 1), "m": (9, 48, 1, 1)}
    feeds = {n: rng.standard_normal(s).astype("f") for n, s in sizes.items()}
    body = "i = Conv(x, k) a = Conv(i, u) b = Conv(i, v) d = Concat<axis = 1>(a, b) y = Conv(d, m)"
    inputs = ", ".join(f"float[{','.join(map(str, s))}] {n}" for n, s in sizes.items())
    constants = {n: v for n, v in feeds.items() if n != "x"}
    made = Compiled(body, inputs, "float[A,B,C,D] y", "skylake-avx512", constants=constants)
    names = [[v.name for node in step.nodes for v in node.outputs] for step in made.steps]
    assert ["a", "d", "b"] in names, "all of what a step carries out is named"
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (float[A,B,C,D] y) {{ {body} }}'
    (want,) = ReferenceEvaluator(onnx.parser.parse_model(text.replace("float", "double"))).run(
        None, {n: v.astype("d") for n, v in feeds.items()}
    )
    assert_close(made.run([feeds["x"]], threads=2)[0], want, 1e-5)


@pytest.mark.parametrize("cpu", [None, "haswell"])
@pytest.mark.parametrize("name", ["2x2", "2x2, one filter", "one axis", "longer than the kernel"])
def test_other_chips(name: str, cpu: str | None) -> None:
    model = Model(name)
    (got,) = model.compiled(cpu).run([model.feeds["x"]], threads=2)
    assert_close(got, model.expected(), 1e-5)


@pytest.mark.parametrize(("precision", "tolerance"), [("highest", 1e-5), ("high", 1e-4), ("medium", 3e-2)])
def test_on_tiles(precision: str, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    forcing(monkeypatch, "conv.on_tiles")
    model = Model("3x4")
    made = model.compiled("sapphirerapids", precision)
    (got,) = made.run([model.feeds["x"]], threads=2, checked=True)
    assert_close(got, model.expected(), tolerance)
    assert any(s.spec.name == "conv_amx" and s.nodes[0].op_type == "ConvTranspose" for s in made.steps)


def test_weights_that_tiles_do_not_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found out about joined weights holds when the part is compiled anew."""
    forcing(monkeypatch, "conv.on_tiles")
    model = Model("3x4")
    model.feeds["w"][0, 0, 0, 0] = np.inf
    made = model.compiled("sapphirerapids")
    target, unrepresentable = Target(made.isa, policy=made.policy), frozenset[object]()
    for _ in range(2):
        steps = steps_for(made.lowered.groups, target, unrepresentable)
        packed = {ref.storage for s in steps for ref in s.args.values() if isinstance(ref, Ref)}
        found = set()
        for storage in packed:
            try:
                if isinstance(storage, Packed):
                    content(storage)
            except Unrepresentable as why:
                found.add(why.identity)
        unrepresentable |= found
    assert len(unrepresentable) == 1 and not found

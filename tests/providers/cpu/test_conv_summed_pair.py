"""Convolutions whose sums are added to those of another: one step makes both."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.ir.tensor import Tensor
from sardonyx.providers.cpu.kernels.conv import on_tiles, summed_pair
from sardonyx.providers.cpu.program.steps import Unrepresentable
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory

CHIP, BOUND = "sapphirerapids", 0.015

HEAD = "a0 = Conv(x, w0) a = Relu(a0) h0 = Conv<strides = [S, S], pads = [1, 1, 1, 1]>(a, v) h = Relu(h0) "
SUMS = {
    "biases": "s = Conv<strides = [S, S]>(a, p, c) e = Conv(h, w, b) t = Add(e, s) y = Relu(t)",
    "the other way round": "s = Conv<strides = [S, S]>(a, p, c) e = Conv(h, w, b) t = Add(s, e) y = Relu(t)",
    "one bias": "s = Conv<strides = [S, S]>(a, p) e = Conv(h, w, b) t = Add(e, s) y = Relu(t)",
    "the other bias": "s = Conv<strides = [S, S]>(a, p, c) e = Conv(h, w) t = Add(e, s) y = Relu(t)",
    "nothing follows": "s = Conv<strides = [S, S]>(a, p) e = Conv(h, w) y = Add(e, s)",
    "more follows": "s = Conv<strides = [S, S]>(a, p, c) e = Conv(h, w, b) t = Add(e, s) g = Sigmoid(t) y = Mul(t, g)",
    "read again": "s = Conv<strides = [S, S]>(a, p, c) e = Conv(h, w, b) t = Add(e, s) u = Relu(t) f = Conv(u, q) "
    "y = Add(f, u)",
    "read by 3 x 3 taps": "s = Conv<strides = [S, S]>(a, p, c) e = Conv(h, w, b) t = Add(e, s) u = Relu(t) "
    "y = Conv<pads = [1, 1, 1, 1]>(u, m)",
    "and a residual": "g = Conv(h, z) j = Relu(g) s = Conv<strides = [S, S]>(a, p, c) e = Conv(h, w, b) k = Add(e, s) "
    "t = Add(k, j) u = Relu(t) y = Conv(u, q)",
    "the input itself": "s = Conv<strides = [S, S]>(x, p, c) e = Conv(h, w, b) t = Add(e, s) y = Relu(t)",
}
APART = {
    "read by another": "s = Conv<strides = [S, S]>(a, p, c) e = Conv(h, w, b) t = Add(e, s) y = Mul(t, s)",
    "rectified before": "r = Conv<strides = [S, S]>(a, p, c) s = Relu(r) e = Conv(h, w, b) y = Add(e, s)",
    "added to what is rectified": "s = Conv<strides = [S, S]>(a, p, c) r = Conv(h, w, b) e = Relu(r) y = Add(e, s)",
    "multiplied": "s = Conv<strides = [S, S]>(a, p, c) e = Conv(h, w, b) y = Mul(e, s)",
    "twice": "s = Conv<strides = [S, S]>(a, p, c) e = Conv(h, w, b) t = Add(e, s) y = Add(t, s)",
}


@pytest.fixture(autouse=True)
def _wherever_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are used whether they pay or not; memory is full of NaN."""
    for name in ("LEAST_SHARE", "LEAST_GAIN", "LEAST_ROWS"):
        monkeypatch.setattr(on_tiles, name, dict.fromkeys((1, 2, 3), 0))
    monkeypatch.setattr(Memory, "garbage", b"\xff")


class Block:
    """The first of some residual blocks."""

    def __init__(
        self, rest: str, stride: int = 2, size: tuple[int, int] = (14, 14), batch: int = 2, dynamic: bool = False,
        channels: int = 64, odd: str | None = None,
    ) -> None:  # fmt: skip
        """``odd``: weights of which one is infinite."""
        self.body = (HEAD + rest).replace("[S, S]", f"[{stride}, {stride}]")
        n = channels
        sizes = {"x": (batch, n, *size), "w0": (n, n, 1, 1), "v": (32, n, 3, 3), "p": (96, n, 1, 1), "c": (96,)}
        sizes |= {"w": (96, 32, 1, 1), "b": (96,), "q": (96, 96, 1, 1), "m": (64, 96, 3, 3), "z": (96, 32, 1, 1)}
        used = set(re.split(r"\W+", self.body))
        sizes = {k: s for k, s in sizes.items() if k in used}
        rng = np.random.default_rng(0)
        self.feeds = {
            k: (rng.standard_normal(s) / (1 if len(s) == 1 or k == "x" else np.prod(s[1:]) ** 0.5)).astype("f")
            for k, s in sizes.items()
        }
        if odd is not None:
            self.feeds[odd][7, 5] = np.inf
        weights = {k: v for k, v in self.feeds.items() if k != "x"}
        self.inputs = ", ".join(f"float[{','.join(map(str, s))}] {k}" for k, s in sizes.items())
        if dynamic:
            self.inputs = self.inputs.replace(f"float[{batch},64", "float[n,64", 1)
        self.compiled = Compiled(
            self.body, self.inputs, "float[A,B,C,D] y", CHIP, precision="medium", constants=weights
        )

    @property
    def convolutions(self) -> list[bool]:
        """For each convolution on tiles, whether it is a summed pair."""
        steps = [step.spec for step in self.compiled.steps if step.spec.name == "conv_amx"]
        return [dict(spec.statics)["has_second"] for spec in steps]

    def run(self, **options: Any) -> Array:
        return self.compiled.run([self.feeds["x"]], **options)[0]

    def expected(self) -> Array:
        text = f'<ir_version: 10, opset_import: ["" : 21]> g ({self.inputs}) => (float[A,B,C,D] y) {{ {self.body} }}'
        model = ReferenceEvaluator(onnx.parser.parse_model(text.replace("float", "double")))
        return np.asarray(model.run(None, {k: v.astype(np.float64) for k, v in self.feeds.items()})[0])


def error(got: Array, want: Array) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.sliced(2)
@pytest.mark.parametrize(
    ("name", "stride", "size", "batch"),
    [
        ("biases", 1, (14, 14), 2), ("biases", 2, (14, 14), 2), ("biases", 2, (28, 26), 1), ("biases", 2, (27, 57), 2),
        ("biases", 3, (20, 31), 1), ("the other way round", 2, (28, 28), 2),
        ("the other way round", 2, (14, 14), 2), ("the other way round", 1, (14, 14), 1), ("one bias", 2, (28, 28), 1),
        ("the other bias", 1, (9, 11), 2), ("nothing follows", 2, (13, 14), 3), ("nothing follows", 1, (7, 7), 1),
        ("more follows", 2, (28, 28), 1), ("more follows", 1, (14, 14), 1), ("read again", 2, (28, 28), 2),
        ("read again", 1, (14, 14), 1), ("the input itself", 2, (28, 28), 2), ("the input itself", 1, (10, 10), 2),
    ],
)  # fmt: skip
def test_sums_of_two_are_one_product(
    name: str, stride: int, size: tuple[int, int], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = Block(SUMS[name], stride, size, batch)
    assert block.convolutions.count(True) == 1 and len(block.convolutions) == block.body.count("Conv") - 1
    got = block.run(checked=True)
    assert error(got, block.expected()) < BOUND
    np.testing.assert_array_equal(block.run(threads=3), got)
    monkeypatch.setattr(summed_pair, "summed_pairs", lambda *_: {})
    apart = Block(SUMS[name], stride, size, batch)
    assert True not in apart.convolutions
    assert error(got, block.expected()) <= 1.02 * error(apart.run(), block.expected())
    for odd in (np.inf, np.nan):
        for one in (block, apart):
            one.feeds["x"][-1, 7, 4, 4] = odd
        np.testing.assert_array_equal(np.isfinite(block.run()), np.isfinite(apart.run()))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", ["read again", "read by 3 x 3 taps", "and a residual"])
@pytest.mark.parametrize("channels", [32, 96])
def test_results_go_on_to_convolutions(name: str, stride: int, channels: int) -> None:
    """Of two steps, too, whose weights would stay in tiles."""
    block = Block(SUMS[name], stride, (20, 28), channels=channels)
    assert block.convolutions.count(True) == 1
    got = block.run(checked=True)
    assert error(got, block.expected()) < BOUND
    np.testing.assert_array_equal(block.run(threads=3), got)


@pytest.mark.parametrize("name", ["p", "w"])
def test_non_finite_weights_are_detected(name: str) -> None:
    block = Block(SUMS["biases"], odd=name)
    assert block.convolutions.count(True) == 1
    with pytest.raises(Unrepresentable) as found:
        block.run()
    assert isinstance(found.value.identity, Tensor) and not np.isfinite(found.value.identity.peek()).all()


@pytest.mark.parametrize("name", APART)
def test_pairs_that_do_not_match_are_not_merged(name: str) -> None:
    block = Block(APART[name])
    assert True not in block.convolutions
    assert error(block.run(), block.expected()) < BOUND


def test_any_number_of_images() -> None:
    block = Block(SUMS["biases"], size=(28, 28), dynamic=True)
    assert block.convolutions.count(True) == 1
    want = block.expected()
    for count in (0, 1, 3):
        (got,) = block.compiled.run([np.resize(block.feeds["x"], (count, 64, 28, 28))], threads=2, checked=True)
        assert got.shape == (count, 96, 14, 14)
        np.testing.assert_allclose(got, np.resize(want, got.shape), atol=0.1)

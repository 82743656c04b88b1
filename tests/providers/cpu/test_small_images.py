"""Batches of images of few pixels, taken together: one convolution after the other, by onnx in float64."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from sardonyx.providers.cpu.kernels.common.epilogue import UNIT
from sardonyx.providers.cpu.layout import nhwc
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array

PADS = "pads = [1, 1]"
CASES: dict[str, tuple[str, tuple[int, ...], dict[str, tuple[int, ...]]]] = {
    "sequences": (
        f"a = Conv<{PADS}>(x, u, b) c = Relu(a) y = Conv<{PADS}, strides = [2]>(c, v)",
        (20, 12, 5), {"u": (40, 12, 3), "b": (40,), "v": (33, 40, 3)},
    ),
    "single pixels": (
        f"a = Conv(x, u) c = Sigmoid(a) d = Mul(a, c) y = Conv<{PADS}>(d, v)",
        (17, 48, 1), {"u": (64, 48, 1), "v": (70, 64, 3)},
    ),
    "planes": (
        "a = Conv<pads = [1,1,1,1], strides = [2,2]>(x, u) c = Relu(a) d = Conv<pads = [1,1,1,1]>(c, v) y = Add(a, d)",
        (7, 32, 6, 5), {"u": (32, 32, 3, 3), "v": (32, 32, 3, 3)},
    ),
    "every other pixel": (
        "a = Conv<pads = [1,1,1,1]>(x, u) c = Conv<strides = [2,2]>(a, w) d = Relu(c) y = Conv<pads = [1,1,1,1]>(d, v)",
        (5, 32, 8, 8), {"u": (64, 32, 3, 3), "v": (40, 256, 3, 3), "w": (256, 64, 1, 1)},
    ),
    "enlarged and added": (
        """a = Conv<strides = [2,2]>(x, u) s = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>()
        c = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(a, , s)
        d = Conv(x, v) e = Add(d, c) f = Relu(e) y = Conv(f, w)""",
        (3, 32, 6, 8), {"u": (40, 32, 1, 1), "v": (40, 32, 1, 1), "w": (33, 40, 1, 1)},
    ),
    "few rows": ("y = Conv(x, u)", (3, 40, 2), {"u": (34, 40, 1)}),
    "few channels": (f"y = Conv<{PADS}>(x, u)", (9, 2, 6), {"u": (20, 2, 3)}),
    "no image": (f"y = Conv<{PADS}>(x, u)", (0, 40, 4), {"u": (34, 40, 3)}),
}  # fmt: skip


def given(name: str) -> tuple[Array, dict[str, Array]]:
    rng = np.random.default_rng(5)
    _, x, weights = CASES[name]
    made = {k: (rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32) for k, s in weights.items()}
    return rng.standard_normal(x).astype(np.float32), made


def compiled(name: str, cpu: str | None, weights: dict[str, Array], batch: str) -> Compiled:
    body, shape, _ = CASES[name]
    inputs = [f"float[{','.join([batch, *map(str, shape[1:])])}] x"]
    inputs += [f"float[{','.join(map(str, w.shape))}] {k}" for k, w in weights.items()]
    return Compiled(body, ", ".join(inputs), f"float[{','.join('ABCD'[: len(shape)])}] y", cpu, constants=weights)


def expected(name: str, feeds: dict[str, Array]) -> Array:
    body, shape, _ = CASES[name]
    wide = {k: v.astype(np.float64) for k, v in feeds.items()}
    inputs = ", ".join(f"double[{','.join(map(str, v.shape))}] {k}" for k, v in wide.items())
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (double[{",".join("ABCD"[: len(shape)])}] y)'
    (y,) = ReferenceEvaluator(onnx.parser.parse_model(f"{text} {{ {body} }}")).run(None, wide)
    return np.asarray(y)


@pytest.mark.parametrize("cpu", [None, "skylake-avx512", "sapphirerapids"])
@pytest.mark.parametrize("name", CASES)
def test_small_images(name: str, cpu: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nhwc, "MIN_NHWC_LANES", 1)
    x, weights = given(name)
    made = compiled(name, cpu, weights, "n" if len(x) % 2 else str(len(x)))
    (got,) = made.run([x], checked=True)
    if x.size:
        np.testing.assert_allclose(got, expected(name, {"x": x, **weights}), rtol=2e-5, atol=2e-5)
    for threads in (2, 3):
        np.testing.assert_array_equal(made.run([x], threads=threads, checked=True)[0], got)


def test_a_batch_becomes_the_depth_axis() -> None:
    made = compiled("single pixels", "skylake-avx512", given("single pixels")[1], "n")
    batches = [step.args["batch"] for step in made.steps if step.spec.name == "conv_nhwc"]
    assert batches == [1, 1]


def test_residuals_have_the_layout_of_the_output() -> None:
    made = compiled("enlarged and added", "skylake-avx512", given("enlarged and added")[1], "n")
    added = [x for step in made.steps if (e := dict(step.spec.statics).get("epilogue")) for x in e.extra]
    assert [x.columns for x in added] == [UNIT]


@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_no_images_at_all_on_tiles(precision: str) -> None:
    """The images of a batch become planes of one image, of which there may be none."""
    body = "a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Relu(a) c = Conv<strides = [4, 4]>(b, v) d = Relu(c) y = Conv(d, u)"
    rng, shapes = np.random.default_rng(0), {"w": (64, 32, 3, 3), "v": (64, 64, 2, 2), "u": (32, 64, 1, 1)}
    weights = {k: rng.standard_normal(s).astype("f") for k, s in shapes.items()}
    inputs = ["float[n,32,11,11] x", *(f"float[{','.join(map(str, s))}] {k}" for k, s in shapes.items())]
    made = Compiled(
        body, ", ".join(inputs), "float[A,B,C,D] y", "sapphirerapids", precision=precision, constants=weights
    )
    for count in (0, 3):
        x = rng.standard_normal((count, 32, 11, 11)).astype("f")
        for threads in (1, 2):
            (y,) = made.run([x], threads=threads, checked=True)
            assert y.shape == (count, 32, 3, 3) and np.isfinite(y).all()

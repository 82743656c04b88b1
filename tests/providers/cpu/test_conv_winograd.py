"""Winograd convolutions of NCHW and NHWC images: geometries, epilogues, special numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as sx
from sardonyx.providers.cpu.kernels.common.window import MIN_NHWC_LANES
from sardonyx.providers.cpu.machine import isa
from tests.providers.cpu.compiled import NHWC_VARIANTS, Compiled, forbidding, forcing
from tests.providers.cpu.running import Array, Memory

CHIPS = [chip for chip in (None, "skylake-avx512") if isa.named(chip).registers >= 32 and not isa.named(chip).amx]
EPS = 2.0**-24


NAMES = {"NCHW": "conv_winograd_nchw", "NHWC": "conv_winograd_nhwc"}


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How images lie, even where it does not pay; scratch memory is not zero. Gives the kernel's name."""
    forcing(monkeypatch, f"conv.winograd_{request.param.lower()}")
    if request.param == "NHWC" and isa.named(None).lanes < MIN_NHWC_LANES:
        pytest.skip("images are NCHW where vectors are short")
    monkeypatch.setattr(Memory, "garbage", b"\xff")
    return NAMES[request.param]


def random(*shape: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(shape).standard_normal(shape) * scale).astype(np.float32)


def exact(x: Array, w: Array, pads: tuple[int, ...]) -> tuple[Array, Array]:
    """The convolution in float64, and the same of sizes."""
    top, left, bottom, right = pads
    wide, weights = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right))), w.astype(np.float64)
    seen = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    with np.errstate(all="ignore"):
        return tuple(
            np.einsum("bcyxij,fcij->bfyx", a, b, optimize=True)
            for a, b in ((seen, weights), (np.abs(seen), np.abs(weights)))
        )


def compiled(
    w: Array, size: tuple[object, ...], pads: tuple[int, ...], chip: str | None, then: str = "y = Relu(z)"
) -> Compiled:
    batch, high, wide = size
    filters, channels = w.shape[:2]
    inputs = f"float[{batch},{channels},{high},{wide}] x, float[{filters},{channels},3,3] w, float[{filters}] b"
    inputs += ", float[B,F,Y,X] r" if "r" in then.replace("Relu", "") else ""
    body = f"z = Conv<pads = [{', '.join(map(str, pads))}]>(x, w, b) {then}"
    constants = {"w": w, "b": random(filters)}
    return Compiled(body, inputs, "float[B,F,Y,X] y", chip, constants=constants)


def kinds(found: Compiled) -> Counter[str]:
    return Counter(step.spec.name for step in found.steps)


SAME = (1, 1, 1, 1)
GEOMETRIES = [
    # channels, filters, batch, high, wide, pads
    (16, 16, 1, 8, 8, SAME),
    (64, 24, 1, 14, 14, SAME),
    (33, 70, 2, 13, 19, (0, 0, 0, 0)),
    (130, 17, 1, 7, 7, SAME),
    (16, 20, 1, 9, 160, (2, 2, 2, 2)),
    (200, 130, 1, 9, 9, SAME),
    (17, 70, 3, 40, 3, SAME),
    (20, 33, 1, 5, 700, (1, 0, 1, 2)),
    (64, 8 * 40, 1, 6, 6, (0, 2, 1, 0)),
    (24, 48, 2, 50, 2, SAME),
    (400, 64, 1, 15, 17, SAME),
]


@pytest.mark.parametrize("chip", CHIPS, ids=str)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_kernel(geometry: tuple[int, int, int, int, int, tuple[int, ...]], chip: str | None, name: str) -> None:
    channels, filters, batch, high, wide, pads = geometry
    w, x = random(filters, channels, 3, 3, scale=(9 * channels) ** -0.5), random(batch, channels, high, wide)
    found = compiled(w, (batch, high, wide), pads, chip)
    assert kinds(found)[name] == 1
    results = [found.run([x], threads=threads, checked=threads == 2)[0] for threads in (1, 2, 3)]
    assert all(np.array_equal(y, results[0]) for y in results)
    true, size = exact(x, w, pads)
    bias = random(filters)[:, None, None]
    assert np.all(np.abs(results[0] - np.maximum(true + bias, 0)) <= 8 * EPS * (size + np.abs(bias)))
    off = results[0] - np.maximum(true + bias, 0)
    assert np.linalg.norm(off) <= 3e-7 * np.linalg.norm(true)


@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_epilogue_and_dynamic_sizes(chip: str | None, name: str) -> None:
    w = random(24, 16, 3, 3, scale=0.1)
    found = compiled(w, ("N", "H", "W"), SAME, chip, "s = Add(z, r) y = Sigmoid(s)")
    assert kinds(found)[name] == 1
    for shape in ((1, 16, 9, 9), (2, 16, 30, 17), (1, 16, 1, 1), (0, 16, 5, 5)):
        x, r = random(*shape), random(shape[0], 24, *shape[2:])
        want = 1 / (1 + np.exp(-(exact(x, w, SAME)[0] + random(24)[:, None, None] + r)))
        np.testing.assert_allclose(found.run([x, r], threads=2, checked=True)[0], want, rtol=2e-6)


@pytest.mark.parametrize("chip", CHIPS, ids=str)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, np.finfo(np.float32).max, 1e-41])
def test_numbers_outside_the_representable_range(bad: float, chip: str | None, name: str) -> None:
    w, x = random(20, 16, 3, 3, scale=0.1), random(2, 16, 11, 13)
    x[1, 3, 4, 5] = x[1, 2, 0, 0] = bad
    found = compiled(w, (2, 11, 13), SAME, chip, "y = Identity(z)")
    assert kinds(found)[name] == 1
    y = found.run([x], threads=2, checked=True)[0]
    true = exact(x, w, SAME)[0] + random(20)[:, None, None]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(true))
    there = np.isfinite(true)
    np.testing.assert_array_equal(y[~there], true[~there].astype(np.float32))
    scale = np.abs(true[there]).max()
    np.testing.assert_allclose(y[there] / scale, true[there] / scale, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("name")
@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_large_numbers_elsewhere_do_not_matter(chip: str | None) -> None:
    """Outputs that do not see a number of another size are as near as without it."""
    w, x = random(16, 16, 3, 3, scale=0.1), random(1, 16, 12, 12)
    found = compiled(w, (1, 12, 12), SAME, chip, "y = Identity(z)")
    for row in range(2, 6):
        for column in range(2, 6):
            large = x.copy()
            large[0, :, row, column] = 1e6
            y = found.run([large])[0]
            true, size = exact(large, w, SAME)
            far = np.ones((12, 12), bool)
            far[row - 1 : row + 2, column - 1 : column + 2] = False
            off = np.abs(y - true - random(16)[:, None, None])
            assert np.all(off[..., far] <= 8 * EPS * (size[..., far] + 3))


@pytest.mark.parametrize("chip", CHIPS, ids=str)
@pytest.mark.parametrize("geometry", [(16, 16, 4, 10), (123, 17, 5, 34), (35, 29, 16, 3)], ids=str)
def test_initial_scratch_does_not_matter(
    geometry: tuple[int, int, int, int], chip: str | None, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are not whole vectors: lanes beyond the last output do not trigger the fallback."""
    channels, filters, *size = geometry
    found, x = compiled(random(filters, channels, 3, 3, scale=0.1), (1, *size), SAME, chip), random(1, channels, *size)
    assert kinds(found)[name] == 1
    results = []
    for garbage in (b"\0", b"\xff"):
        monkeypatch.setattr(Memory, "garbage", garbage)
        results += found.run([x])
    np.testing.assert_array_equal(*results)


@pytest.mark.usefixtures("name")
@pytest.mark.parametrize("bad", [np.inf, np.nan, 3e38])
def test_weights_outside_the_representable_range(bad: float) -> None:
    """All nine of a filter and channel."""
    w, x = random(16, 16, 3, 3, scale=0.1), np.abs(random(1, 16, 13, 13)) / 64
    w[5, 3] = bad
    given = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = helper.make_model(given, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    want = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    np.testing.assert_allclose(sx.InferenceSession(model).run(None, {"x": x})[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chip", CHIPS, ids=str)
@pytest.mark.parametrize(
    "attributes", ["strides = [2, 2]", "dilations = [2, 2], pads = [2, 2, 2, 2]", "group = 2", "kernel_shape = [1, 3]"]
)
def test_other_windows_are_not_transformed(attributes: str, chip: str | None, name: str) -> None:
    shape = (32, 16, 3, 3) if "group" in attributes else (32, 32, *((1, 3) if "kernel" in attributes else (3, 3)))
    w = random(*shape)
    inputs = f"float[1,32,12,12] x, float[{','.join(map(str, shape))}] w"
    found = Compiled(f"y = Conv<{attributes}>(x, w)", inputs, "float[B,F,Y,X] y", chip, constants={"w": w})
    assert name not in kinds(found)


@pytest.mark.parametrize("chip", CHIPS, ids=str)
def test_few_channels_and_narrow_images_do_not_pay(chip: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    forbidding(monkeypatch, *NHWC_VARIANTS)
    for channels, wide, pays in ((7, 40, 0), (64, 1, 0), (64, 40, 1)):
        found = compiled(random(64, channels, 3, 3), (1, 40, wide), SAME, chip)
        assert kinds(found)[NAMES["NCHW"]] == pays

"""Convolutions in slices, on emulated tiles: as exact as those of f32, over every geometry and whatever numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from sardonyx.providers.cpu import pipeline
from sardonyx.providers.cpu.kernels.conv import on_tiles
from sardonyx.providers.cpu.program.analysis import Target
from sardonyx.providers.cpu.program.steps import Unrepresentable
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory

CHIP = "sapphirerapids"
EPS = 2.0**-24


@pytest.fixture(autouse=True)
def _all_fill_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "garbage", b"\xff")
    monkeypatch.setattr(on_tiles, "LEAST_GAIN", dict.fromkeys((1, 2, 3), 0))


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    return (np.random.default_rng((seed, *shape)).standard_normal(shape) * scale).astype(np.float32)


def exact(x: Array, w: Array, stride: int, pad: int, dilation: int = 1) -> tuple[Array, Array]:
    """The convolution in float64, and the same of sizes."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    kernel = w.shape[2]
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    reach = (kernel - 1) * dilation + 1
    seen = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), (2, 3))
    seen = seen[:, :, ::stride, ::stride, ::dilation, ::dilation]
    with np.errstate(all="ignore"):
        return tuple(np.einsum("bcyxij,fcij->bfyx", a, b, optimize=True) for a, b in ((seen, w), (abs(seen), abs(w))))


class Problem:
    """A convolution after one that writes the image in NHWC, or after ``before``."""

    def __init__(
        self, w: Array, size: tuple[int, int, int], *, stride: int = 1, pad: int = 0, dilation: int = 1,
        before: str = "t = MaxPool<kernel_shape = [1, 1]>(x)",
    ) -> None:  # fmt: skip
        batch, high, wide = size
        filters, channels, kernel, _ = w.shape
        self.w, self.stride, self.pad, self.dilation = w, stride, pad, dilation
        attributes = f"strides = [{stride}, {stride}], pads = [{', '.join([str(pad)] * 4)}], "
        attributes += f"dilations = [{dilation}, {dilation}]"
        inputs = f"float[{batch},{channels},{high},{wide}] x, "
        inputs += f"float[{filters},{channels},{kernel},{kernel}] w, float[{filters}] b"
        body = f"{before} z = Conv<{attributes}>(t, w, b) y = Relu(z)"
        self.bias = random(filters)
        constants = {"w": w, "b": self.bias}
        self.compiled = Compiled(body, inputs, "float[B,F,Y,X] y", CHIP, constants=constants)

    @property
    def kinds(self) -> Counter[str]:
        return Counter(step.spec.name for step in self.compiled.steps)

    def run(self, x: Array, **how: Any) -> Array:
        return self.compiled.run([x], **how)[0]

    def check(self, y: Array, x: Array, times: float = 4) -> None:
        """Next to the sizes that are summed, and the largest of the image next to the largest weights."""
        true, size = exact(x, self.w, self.stride, self.pad, self.dilation)
        true, size = true + self.bias[:, None, None], size + np.abs(self.bias)[:, None, None]
        reach = np.abs(self.w).reshape(len(self.w), -1)
        largest = np.abs(x).reshape(len(x), -1).max(axis=1)[:, None] * reach.max(axis=1) * np.sqrt(reach.shape[1])
        off = np.abs(y - np.maximum(true, 0))
        assert np.all(off <= times * EPS * (size + largest[:, :, None, None]))


GEOMETRIES = [
    # channels, filters, kernel, batch, high, wide, stride, pad, dilation
    (64, 64, 3, 1, 20, 20, 1, 1, 1),
    (256, 96, 1, 1, 14, 14, 1, 0, 1),
    (128, 70, 3, 2, 15, 17, 2, 1, 1),
    (64, 200, 3, 1, 7, 7, 1, 1, 1),
    (50, 48, 3, 1, 9, 30, 1, 2, 2),
    (320, 16, 1, 3, 5, 33, 1, 0, 1),
    (64, 40, 5, 1, 12, 18, 3, 2, 1),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_kernel(geometry: tuple[int, ...]) -> None:
    channels, filters, kernel, batch, high, wide, stride, pad, dilation = geometry
    w = random(filters, channels, kernel, kernel, scale=(channels * kernel**2) ** -0.5)
    problem = Problem(w, (batch, high, wide), stride=stride, pad=pad, dilation=dilation)
    assert (
        problem.kinds["conv_int8_slices"]
        == 1
        == problem.kinds["image_magnitudes"]
        == problem.kinds["pack_image_int8_slices"]
    )
    x = random(batch, channels, high, wide)
    results = [problem.run(x, threads=threads, checked=threads == 2) for threads in (1, 2, 3)]
    assert all(np.array_equal(y, results[0]) for y in results)
    problem.check(results[0], x, 1)


def test_sums_are_nearer_to_the_truth_than_those_of_f32() -> None:
    w, x = random(64, 128, 3, 3, scale=0.03), random(1, 128, 16, 16)
    true = np.maximum(exact(x, w, 1, 1)[0] + (problem := Problem(w, (1, 16, 16), pad=1)).bias[:, None, None], 0)
    assert np.linalg.norm(problem.run(x) - true) <= 2e-7 * np.linalg.norm(true)


RECTIFIED = "p = MaxPool<kernel_shape = [1, 1]>(x) t = Relu(p)"


@pytest.mark.parametrize("large", [None, 50.0, 3e4, 1e12])
def test_images_without_negative_numbers(large: float | None) -> None:
    """First slices without a sign, with a fourth slice and without, and where numbers are multiplied as they are."""
    w, x = random(70, 128, 3, 3, scale=0.03), np.abs(random(2, 128, 9, 16))
    if large is not None:
        x[0, 5, 2, 3] = large
    problem = Problem(w, (2, 9, 16), pad=1, before=RECTIFIED)
    assert problem.kinds["conv_int8_slices"] == 1
    results = [problem.run(x, threads=threads, checked=threads == 2) for threads in (1, 2)]
    np.testing.assert_array_equal(*results)
    problem.check(results[0], x, 1)


def test_the_bit_that_signs_leave_is_used() -> None:
    w, x = random(64, 128, 3, 3, scale=0.03), np.maximum(random(1, 128, 16, 16), 0)
    signed, unsigned = Problem(w, (1, 16, 16), pad=1), Problem(w, (1, 16, 16), pad=1, before=RECTIFIED)
    true = np.maximum(exact(x, w, 1, 1)[0] + signed.bias[:, None, None], 0)
    off, off_unsigned = (np.linalg.norm(problem.run(x) - true) for problem in (signed, unsigned))
    assert off_unsigned < 0.85 * off


def test_images_of_a_batch_have_scales_of_their_own() -> None:
    w, x = random(64, 64, 3, 3), random(3, 64, 8, 8)
    x *= np.array([1e-6, 1, 1e6], np.float32)[:, None, None, None]
    y = Problem(w, (3, 8, 8), pad=1).run(x)
    for i in range(3):
        np.testing.assert_array_equal(y[i], Problem(w, (1, 8, 8), pad=1).run(x[i : i + 1])[0])


@pytest.mark.parametrize("large", [50.0, 3e4, 1e12])
@pytest.mark.parametrize("size", [7, 16])
def test_numbers_that_stand_out_take_nothing_from_the_others(large: float, size: int) -> None:
    """What does not see them is as exact as without them; nor does it matter how few the others are."""
    w, x = random(64, 64, 3, 3, scale=0.04), random(1, 64, size, size)
    plain = Problem(w, (1, size, size), pad=1)
    x[0, 5, 2, 3] = large
    y = plain.run(x, threads=2)
    plain.check(y, x)
    true, sizes = exact(x, w, 1, 1)
    far = np.s_[:, :, 5:, 5:]
    off = np.abs(y - np.maximum(true + plain.bias[:, None, None], 0))
    assert np.all(off[far] <= 4 * EPS * (sizes[far] + 1))


def test_fourth_slices_that_are_not_needed_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that nobody writes to is not there."""
    x = random(2, 64, 6, 40)
    problem = Problem(random(64, 64, 3, 3, scale=0.04), (2, 6, 40), pad=1)
    (packing,) = (step for step in problem.compiled.steps if step.spec.name == "pack_image_int8_slices")
    tiles, fourth = packing.args["y"].storage.number, packing.args["more"]
    memories: list[Memory] = []
    monkeypatch.setattr(
        Memory, "run", lambda self, *a, run=Memory.run, **how: memories.append(self) or run(self, *a, **how)
    )
    for size, is_written in ((1.0, False), (100.0, True)):
        x[1, 5, 2, 3] = size
        problem.run(x, threads=2)
        assert bool((memories[-1]._flat[tiles].view(np.uint8)[fourth:] != 0xFF).any()) == is_written


@pytest.mark.parametrize("bright", [50.0, 1e3])
def test_dark_areas_lose_nothing_to_bright_ones(bright: float) -> None:
    w, x = random(64, 64, 3, 3, scale=0.04), random(2, 64, 6, 40)
    problem = Problem(w, (2, 6, 40), pad=1)
    x[1, :, :, :20] *= np.float32(bright)
    true, sizes = exact(x, w, 1, 1)
    off = np.abs(problem.run(x, threads=2, checked=True) - np.maximum(true + problem.bias[:, None, None], 0))
    far = np.s_[:, :, :, 22:]
    assert np.all(off[far] <= 8 * EPS * (sizes[far] + 1))


@pytest.mark.parametrize("kind", ["infinite", "nan", "largest", "denormal", "zero"])
def test_numbers_that_a_scale_does_not_carry(kind: str) -> None:
    w, x = random(40, 64, 3, 3, scale=0.04), random(2, 64, 9, 11)
    if kind == "infinite":
        x[0, 3, 4, 5], x[0, 4, 8, 10] = np.inf, -np.inf
    elif kind == "nan":
        x[0, 3, 4, 5] = np.nan
    elif kind == "largest":
        x[0, 3, 4, 5] = np.finfo(np.float32).max
    elif kind == "denormal":
        x[0] = 1e-41
    else:
        x[0] = 0
    for stride in (1, 2):
        problem = Problem(w, (2, 9, 11), stride=stride, pad=1)
        y = problem.run(x, threads=2, checked=True)
        true = exact(x, w, stride, 1)[0] + problem.bias[:, None, None]
        np.testing.assert_array_equal(np.isnan(y), np.isnan(true))
        there = np.isfinite(true)
        assert np.all(np.isposinf(y[np.isposinf(true)])) and np.all(y[np.isneginf(true)] == 0)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(y[there], np.maximum(true, 0)[there], rtol=1e-4, atol=1e-5)


def test_weights_of_several_kinds_are_not_sliced() -> None:
    w = random(64, 64, 3, 3)
    w[:, 7] *= np.float32(1e-5)
    problem = Problem(w, (1, 8, 8), pad=1)
    with pytest.raises(Unrepresentable) as found:
        problem.run(random(1, 64, 8, 8))
    compiled, unrepresentable = problem.compiled, frozenset({found.value.identity})
    steps = pipeline.steps_for(compiled.lowered.groups, Target(compiled.isa), unrepresentable)
    assert "conv_amx" in {step.spec.name for step in steps}

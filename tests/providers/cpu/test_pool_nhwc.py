"""Pooling of NHWC images, against the operators' own meanings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from sardonyx import dtypes
from sardonyx.lower.groups import Expression, Pool, Window
from sardonyx.ops.pool import average_pool, max_pool
from sardonyx.providers.cpu import select
from sardonyx.providers.cpu.kernels.image.pool_nhwc import MIN_SEPARABLE_SUM_TAPS, MIN_SEPARABLE_TAPS
from sardonyx.providers.cpu.language.values import register_dtype
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from tests.providers.cpu.running import Array, Memory, by_pixel


@dataclass(frozen=True)
class Case:
    """An image under a window; pads are ONNX's: all begins, then all ends."""

    x: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    dtype: Any = np.float32

    @property
    def attributes(self) -> dict[str, Any]:
        axes = len(self.kernel)
        pads, dilations = list(self.pads or (0,) * 2 * axes), list(self.dilations or (1,) * axes)
        return {"kernel_shape": list(self.kernel), "strides": list(self.strides), "pads": pads, "dilations": dilations}


CASES = {
    "2x2, stride 2": Case((2, 19, 8, 10), (2, 2), (2, 2)),
    "3x3, stride 2, padded": Case((1, 35, 13, 14), (3, 3), (2, 2), (1, 1, 1, 1)),
    "3x3, stride 1": Case((1, 16, 9, 17), (3, 3), (1, 1), (1, 1, 1, 1)),
    "uneven pads": Case((1, 5, 7, 9), (3, 4), (1, 2), (0, 2, 1, 1)),
    "dilation": Case((1, 18, 11, 12), (3, 3), (1, 1), (2, 1, 0, 2), (2, 3)),
    "5x5, stride 2": Case((1, 20, 11, 12), (5, 5), (2, 2), (2, 2, 2, 2)),
    "all of it": Case((2, 40, 7, 7), (7, 7), (1, 1)),
    "all of a long row": Case((1, 20, 2, 30), (2, 30), (1, 1)),
    "1 axis": Case((2, 19, 30), (4,), (3,), (1, 2)),
    "larger than the image": Case((1, 18, 20, 21), (90, 95), (3, 4), (70, 72, 33, 35)),
    "large, of half precision": Case((1, 9, 40, 41), (32, 33), (3, 2), (9, 3, 8, 7), dtype=np.float16),
    "long rows, dilated": Case((1, 18, 1, 40), (1, 15), (1, 2), (0, 9, 0, 8), (1, 3)),
    "3 axes, large": Case((1, 17, 5, 6, 70), (6, 7, 60), (1, 2, 3), (3, 2, 9, 2, 3, 8)),
    "3 axes": Case((1, 17, 5, 6, 7), (2, 3, 2), (1, 2, 2), (0, 1, 0, 1, 1, 1)),
    "double": Case((1, 9, 6, 7), (3, 3), (2, 2), (1, 1, 1, 1), dtype=np.float64),
    "half": Case((1, 9, 6, 7), (3, 3), (2, 2), (1, 1, 1, 1), dtype=np.float16),
}
KINDS = ("max", "mean", "mean with pads")


def expected(case: Case, kind: str, x: Array) -> Array:
    if kind == "max":
        return np.asarray(max_pool(x, **case.attributes))
    return np.asarray(average_pool(x, count_include_pad=int(kind.endswith("pads")), **case.attributes))


def run(
    case: Case, kind: str, x: Array, cpu: str | None = None, *, is_nchw: bool = False, is_one: bool = False,
    **options: Any,
) -> Array:  # fmt: skip
    """``is_nchw``: outputs are NCHW. ``is_one``: a large window is pooled in one pass."""
    memory, axes = Memory(), len(case.kernel)
    shape = expected(case, kind, x).shape
    y = memory.output(shape, x.dtype, order=None if is_nchw else (0, *range(2, 2 + axes), 1))
    attributes = case.attributes
    window = Window(case.kernel, case.strides, tuple(attributes["dilations"]), tuple(attributes["pads"][:axes]))
    image = memory.input(by_pixel(x, room=3))
    image = replace(image, strides=(image.strides[0], 1, *image.strides[2:]))
    ends = tuple(attributes["pads"][axes:]) if kind.endswith("pads") else None
    epilogue = Expression((register_dtype(dtypes.of_numpy(x.dtype)),), (), (0,))
    group = Pool((), epilogue, (), (y,), kind.split(maxsplit=1)[0], image, window, ends)
    steps = select.steps_of(group, Analysis(Target(isa.named(cpu))))
    assert [step.spec.name for step in steps] == ["pool_nhwc"] * (1 + (_is_large(case, kind) and not is_one))
    memory.run(steps, isa=isa.named(cpu), **options)
    return memory.array(y).copy()


def _is_large(case: Case, kind: str) -> bool:
    return float(np.prod(case.kernel)) >= (MIN_SEPARABLE_TAPS if kind == "max" else MIN_SEPARABLE_SUM_TAPS)


def feed(case: Case) -> Array:
    return np.random.default_rng(sum(case.x)).standard_normal(case.x).astype(case.dtype)


def assert_close(got: Array, want: Array) -> None:
    tolerance = 2e-3 if got.dtype == np.float16 else 1e-6
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_against_meaning(name: str, kind: str) -> None:
    case = CASES[name]
    x = feed(case)
    got = run(case, kind, x)
    assert_close(got, expected(case, kind, x))
    np.testing.assert_array_equal(run(case, kind, x, threads=3), got)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_nchw_outputs(name: str, kind: str) -> None:
    case = CASES[name]
    x = feed(case)
    got = run(case, kind, x, is_nchw=True, checked=True)
    np.testing.assert_array_equal(got, run(case, kind, x))
    np.testing.assert_array_equal(run(case, kind, x, is_nchw=True, threads=3), got)


def test_a_large_window_with_nchw_outputs_one_wide() -> None:
    """What its second half would read is no image whose rows lie apart; no half may be left out."""
    case = Case((2, 17, 12, 4), (5, 5), (2, 2), (2, 1, 0, 1))
    x = feed(case)
    np.testing.assert_array_equal(run(case, "max", x, is_nchw=True, is_one=True), expected(case, "max", x))


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_other_chips(kind: str, cpu: str) -> None:
    case = CASES["3x3, stride 2, padded"]
    x = feed(case)
    assert_close(run(case, kind, x, cpu), expected(case, kind, x))


@pytest.mark.parametrize("name", ["3 axes", "all of a long row"])
def test_every_address_is_inside(name: str) -> None:
    case = CASES[name]
    x = feed(case)
    assert_close(run(case, "mean", x, checked=True), expected(case, "mean", x))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_integers(dtype: type) -> None:
    case = CASES["3x3, stride 2, padded"]
    x = np.random.default_rng(0).integers(0, 120, case.x).astype(dtype)
    np.testing.assert_array_equal(run(case, "max", x), expected(case, "max", x))


def test_nan_is_the_largest_in_its_windows_only() -> None:
    case = CASES["3x3, stride 1"]
    x = feed(case)
    x[0, 0, 4, 7], x[0, 1, 0, 0], x[0, 2, 8, 16] = np.nan, np.inf, -np.inf
    for kind in KINDS[:2]:
        np.testing.assert_array_equal(np.isnan(run(case, kind, x)), np.isnan(expected(case, kind, x)))
    np.testing.assert_array_equal(run(case, "max", x, "haswell"), expected(case, "max", x))

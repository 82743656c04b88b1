"""Activations that fade, on emulated tiles: numbers of 1e-20, denormals and what is not finite, in one tile or layer
by layer.
"""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.providers.cpu.kernels.conv import on_tiles
from sardonyx.providers.cpu.program.steps import Ref
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory

CHIP = "sapphirerapids"
EPS, LEAST = 2.0**-24, 2.0**-149
FADED = [1e-15, 1e-20, 1e-25, 1e-32, 1e-37, 1e-40]


@pytest.fixture(autouse=True)
def _all_fill_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "garbage", b"\xff")
    for limit in ("LEAST_GAIN", "LEAST_SHARE"):
        monkeypatch.setattr(on_tiles, limit, dict.fromkeys((1, 2, 3), 0))


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    return (np.random.default_rng((seed, *shape)).standard_normal(shape) * scale).astype(np.float32)


def raised_flags(found: Compiled, x: Array, monkeypatch: pytest.MonkeyPatch) -> tuple[Array, int]:
    """The result, and how many flags of operands were raised."""
    ran: list[Memory] = []

    def run(memory: Memory, steps: object, **options: object) -> None:
        ran.append(memory)
        original(memory, steps, **options)  # type: ignore[arg-type]

    original = Memory.run
    monkeypatch.setattr(Memory, "run", run)
    (y,) = found.run([x], threads=2)
    refs = [ref for step in found.steps for name, ref in step.args.items() if name.endswith("flags")]
    return y, sum(int(np.count_nonzero(ran[0]._flat[ref.storage.number])) for ref in refs if isinstance(ref, Ref))


@pytest.mark.parametrize("faded", FADED)
def test_products_of_faded_rows_are_in_slices(faded: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As exact as f32 sums, whether all rows have faded or each in its own way."""
    w = random(320, 64, scale=320**-0.5)
    found = Compiled("y = MatMul(x, w)", "float[48,320] x, float[320,64] w", "float[48,64] y", CHIP, constants={"w": w})
    assert found.steps[-1].spec.name == "gemm_int8_slices"
    for factors in (np.full(48, faded), np.geomspace(1, faded, 48)):
        x = (random(48, 320) * factors[:, None]).astype(np.float32)
        y, flags = raised_flags(found, x, monkeypatch)
        wide, right = x.astype(np.float64), w.astype(np.float64)
        assert flags == 0
        assert np.all(np.abs(y - wide @ right) <= 2 * EPS * (np.abs(wide) @ np.abs(right)) + 2 * LEAST)


@pytest.mark.parametrize("faded", FADED)
def test_convolutions_of_faded_images_are_in_slices(faded: float, monkeypatch: pytest.MonkeyPatch) -> None:
    w = random(40, 64, 3, 3, scale=0.04)
    found = Compiled(
        "t = MaxPool<kernel_shape = [1, 1]>(x) y = Conv(t, w)", "float[2,64,9,11] x, float[40,64,3,3] w",
        "float[2,40,7,9] y", CHIP, constants={"w": w},
    )  # fmt: skip
    assert "conv_int8_slices" in {step.spec.name for step in found.steps}
    x = random(2, 64, 9, 11)
    x[0] *= np.float32(faded)
    y, flags = raised_flags(found, x, monkeypatch)
    seen = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    true, size = (
        np.einsum("bcyxij,fcij->bfyx", a, b, optimize=True)
        for a, b in ((seen, w.astype(np.float64)), (np.abs(seen), np.abs(w).astype(np.float64)))
    )
    assert flags == 0
    assert np.all(np.abs(y - true) <= 2 * EPS * size + 4 * LEAST)


def mixed(rows: int, *more: int) -> Array:
    """Rows of every kind: usual ones, faded ones, denormals, outliers, infinities and NaN."""
    x = random(rows, *more)
    flat = x.reshape(rows, -1)
    flat[1::7] *= np.float32(1e-20)
    flat[2::7] *= np.float32(1e-38)
    flat[3::21, ::50] = 1e6
    if rows > 70:
        flat[70, 3], flat[75, 1], flat[76, -1] = np.inf, np.nan, -np.inf
    return x


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("kind", ["constant", "of a run", "transposed", "packed"])
def test_tiles_of_mixed_magnitudes(kind: str, precision: str) -> None:
    """Each row is as exact as if there were no others; what is not finite stays in its row."""
    one, (x, w) = np.eye(64, dtype=np.float32), (mixed(100, 600), random(600, 70, scale=600**-0.5))
    sizes = "float[100,600] x, float[600,70] w"
    if kind == "constant":
        found = Compiled("y = MatMul(x, w)", sizes, "float[100,70] y", CHIP, constants={"w": w}, precision=precision)
        given = [x]
    elif kind == "packed":  # by the product before, with the identity
        x, w = mixed(100, 64), random(64, 70, scale=0.1)
        found = Compiled(
            "t = MatMul(x, i) y = MatMul(t, w)", "float[100,64] x, float[64,64] i, float[64,70] w", "float[100,70] y",
            CHIP, constants={"i": one, "w": w}, precision=precision,
        )  # fmt: skip
        given = [x]
    else:
        body = "y = MatMul(x, w)" if kind == "of a run" else "t = Transpose(w) y = MatMul(x, t)"
        inputs = sizes if kind == "of a run" else "float[100,600] x, float[70,600] w"
        found = Compiled(body, inputs, "float[100,70] y", CHIP, precision=precision)
        given = [x, w if kind == "of a run" else np.ascontiguousarray(w.T)]
    (y,) = found.run(given, threads=2, checked=True)
    with np.errstate(all="ignore"):
        wide, right = x.astype(np.float64), w.astype(np.float64)
        true, size = wide @ right, np.abs(wide) @ np.abs(right)
        narrow = (x @ one if kind == "packed" else x) @ w
        off = np.abs(y - true)
    is_whole = np.isfinite(x).all(axis=1)
    np.testing.assert_array_equal(np.isnan(y[is_whole]), False)
    if precision == "highest":
        np.testing.assert_array_equal(np.isnan(y), np.isnan(narrow))
    share = {"highest": 8 * EPS, "high": 2.0**-14, "medium": 2.0**-6}[precision]
    least = 700 * LEAST if precision == "highest" else 700 * 2.0**-126
    assert np.all(off[is_whole] <= share * size[is_whole] + least)


@pytest.mark.parametrize("channels", [64, 40])
@pytest.mark.parametrize("kind", ["", "faded", "outlier", "infinite", "nan"])
def test_images_of_mixed_magnitudes(kind: str, channels: int) -> None:
    """Of 64 channels in slices, of 40 in bf16 terms; strided, dilated and padded, with several K-blocks."""
    w, x = random(40, channels, 3, 3, scale=0.04), random(3, channels, 9, 21)
    if kind == "faded":
        x[1, :, 2:] *= np.float32(1e-36)
    elif kind == "outlier":
        x[1, 5, 4, 4] = 1e9
    elif kind:
        x[1, 5, 4, 4] = np.inf if kind == "infinite" else np.nan
    for stride, dilation in ((1, 1), (2, 1), (1, 2)):
        attributes = f"strides = [{stride}, {stride}], dilations = [{dilation}, {dilation}], pads = [1, 1, 1, 1]"
        found = Compiled(
            f"t = MaxPool<kernel_shape = [1, 1]>(x) y = Conv<{attributes}>(t, w)",
            f"float[3,{channels},9,21] x, float[40,{channels},3,3] w", "float[A,B,C,D] y", CHIP, constants={"w": w},
        )  # fmt: skip
        on_tiles_ = {"conv_int8_slices", "conv_amx"} & {step.spec.name for step in found.steps}
        assert on_tiles_ == {"conv_int8_slices" if channels == 64 else "conv_amx"}
        (y,) = found.run([x], threads=2, checked=True)
        padded, reach = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1))), 2 * dilation + 1
        seen = np.lib.stride_tricks.sliding_window_view(padded, (reach, reach), (2, 3))
        seen = seen[:, :, ::stride, ::stride, ::dilation, ::dilation]
        with np.errstate(all="ignore"):
            wide = w.astype(np.float64)
            all_largest = np.full_like(wide, np.abs(wide).max())  # to which slices keep weights
            true, size, most = (
                np.einsum("bcyxij,fcij->bfyx", a, b, optimize=True)
                for a, b in ((seen, wide), (np.abs(seen), np.abs(wide)), (np.abs(seen), all_largest))
            )
            off = np.abs(y - true)
        np.testing.assert_array_equal(np.isfinite(y), np.isfinite(true))
        near = np.isfinite(true)
        largest = np.abs(x).reshape(3, -1).max(axis=1)[:, None, None, None] * EPS if kind == "faded" else 0
        assert np.max((off / (8 * EPS * size + EPS * most + largest + 600 * LEAST))[near]) <= 1

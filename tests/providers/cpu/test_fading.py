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
    monkeypatch.setattr(on_tiles, "LEAST_GAIN", dict.fromkeys((1, 2, 3), 0))


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

"""The loops that measure the machine's limits do the work that they are timed for."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.dtypes import DType, f32, f64
from sardonyx.providers.cpu.codegen import machine_limits
from sardonyx.providers.cpu.codegen.jit import call
from sardonyx.providers.cpu.machine import isa


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_every_multiply_add_counts(dtype: DType) -> None:
    x = np.arange(machine_limits.CHAINS * isa.current().lanes * 32 // dtype.bits).astype(dtype.numpy)
    lanes = x.size // machine_limits.CHAINS
    expected = x + 5 * np.tile(x[:lanes] * x[lanes : 2 * lanes], machine_limits.CHAINS)
    call(machine_limits.multiply_add(dtype=dtype), x.ctypes.data, 5)
    np.testing.assert_array_equal(x, expected)


def test_every_product_of_tiles_counts() -> None:
    chip = isa.named("sapphirerapids")
    x, sums = machine_limits.tiles_of_numbers(), np.zeros((4, 16, 16), np.float32)
    tiles = x.astype(np.float64).reshape(4, 16, 16, 2)
    call(machine_limits.multiply_tiles(), x.ctypes.data, sums.ctypes.data, 3, isa=chip)
    expected = [3 * np.einsum("mji,jni->mn", tiles[i // 2], tiles[2 + i % 2]) for i in range(4)]
    np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-4)


def test_every_element_is_read() -> None:
    lanes = isa.current().lanes // 2
    for at in range(16 * lanes):
        x, out = np.zeros(16 * lanes, np.int64), np.zeros(8 * lanes, np.int64)
        x[at] = 1
        call(machine_limits.read(), x.ctypes.data, out.ctypes.data, x.size, 2)
        assert out.sum() == 1


def test_limits_are_rates() -> None:
    assert machine_limits.peak_flops(f32, threads=2, pick=machine_limits.MIDDLE) > 0
    assert machine_limits.read_bandwidth(1 << 16, threads=2) > 0
    assert machine_limits.fetch_bandwidth(np.ones(1 << 13, np.int64), threads=2) > 0
    assert machine_limits.peak_tile_flops(isa=isa.CPUS["haswell"]) is None


@pytest.mark.parametrize("is_non_temporal", [False, True])
def test_a_copy_is_one(is_non_temporal: bool) -> None:
    nbytes = 4096
    memory = np.zeros(3 * nbytes, np.uint8)
    start = -memory.ctypes.data % machine_limits.LINE_NBYTES
    x, y = (memory[start + i * nbytes : start + (i + 1) * nbytes] for i in range(2))
    x[:] = np.random.default_rng(0).integers(0, 256, nbytes)
    call(machine_limits.copy(is_non_temporal=is_non_temporal), x.ctypes.data, y.ctypes.data, nbytes // 8)
    np.testing.assert_array_equal(y, x)
    assert machine_limits.copy_bandwidth(1 << 16, threads=2, is_non_temporal=is_non_temporal) > 0

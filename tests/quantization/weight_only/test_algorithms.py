"""Each algorithm's codes: layouts, and errors on weights and on products with correlated inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import RuntimeException
from sardonyx.quantization.weight_only import gptq, pack, rtn
from sardonyx.quantization.weight_only.gptq import GptqOptions
from sardonyx.quantization.weight_only.hqq import hqq
from sardonyx.quantization.weight_only.k_quant import k_quant
from sardonyx.quantization.weight_only.pack import Blocked, Blocks

RNG = np.random.default_rng(0)
K, N = 96, 40
WEIGHTS = {
    "normal": RNG.standard_normal((K, N)).astype(np.float32),
    "heavy tails": RNG.standard_t(4, (K, N)).astype(np.float32),
    "half": RNG.standard_normal((K, N)).astype(np.float16),
}
MIXED = RNG.standard_normal((K, K)) * np.exp(-np.arange(K) / 20)[:, None]
INPUTS, UNSEEN = ((RNG.standard_normal((rows, K)) @ MIXED).astype(np.float32) for rows in (800, 300))
ALGORITHMS: dict[str, Any] = {
    "default": rtn.nearest,
    "rows": rtn.nearest_rows,
    "rtn": rtn.rtn,
    "k_quant": k_quant,
    "hqq": hqq,
}


def error(w: Any, found: Blocked, x: Any = None) -> float:
    off = found.dequantized() - w.astype(np.float32)
    return float(np.linalg.norm(off if x is None else x @ off))


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [16, 64])
def test_weights_are_within_their_steps(kind: str, symmetric: bool, bits: int, size: int) -> None:
    w = WEIGHTS[kind]
    for name, quantize in ALGORITHMS.items():
        if name == "hqq" and symmetric:
            continue
        found = quantize(w, Blocks(bits, size, symmetric))
        assert found.scales.dtype == w.dtype and found.codes.dtype == np.uint8
        assert found.codes.shape == (-(-K // size), size, N) and found.dequantized().shape == (K, N)
        steps = np.repeat(np.abs(found.scales.astype(np.float32)), size, axis=0)[:K]
        off = np.abs(found.dequantized() - w.astype(np.float32)) / steps
        # a symmetric code lacks half a step at one end, and fitted ranges clip
        assert np.quantile(off, 0.9) <= 0.51 and off.max() <= (8 if name in ("k_quant", "hqq") else 1.1), name


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("bits", [4, 8])
def test_searches_beat_rounding(kind: str, bits: int) -> None:
    w, blocks = WEIGHTS[kind], Blocks(bits, 32, False)
    plain = error(w, rtn.rtn(w, blocks))
    assert error(w, k_quant(w, blocks)) < plain
    assert error(w, hqq(w, blocks)) < plain
    symmetric = Blocks(bits, 32, True)
    assert error(w, k_quant(w, symmetric)) < error(w, rtn.rtn(w, symmetric))


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    "options",
    [GptqOptions(), GptqOptions(by_activation=True), GptqOptions(mse=True), GptqOptions(rows=16)],
    ids=["default", "actorder", "mse", "short"],
)
def test_gptq_beats_rounding_on_correlated_inputs(kind: str, symmetric: bool, options: GptqOptions) -> None:
    w = WEIGHTS[kind]
    for bits in (4, 8):
        blocks = Blocks(bits, 32, symmetric)
        found = gptq.gptq(w, INPUTS.T @ INPUTS, blocks, options)
        assert error(w, found, UNSEEN) < 0.6 * error(w, rtn.rtn(w, blocks), UNSEEN)


def test_gptq_without_correlation_rounds() -> None:
    """With the Hessian of independent inputs no error is spread."""
    w, blocks = WEIGHTS["normal"], Blocks(4, 32, False)
    found = gptq.gptq(w, np.eye(K), blocks, GptqOptions())
    assert error(w, found) == pytest.approx(error(w, rtn.rtn(w, blocks)), rel=1e-3)
    assert len(np.unique(gptq.gptq(w, np.eye(K), blocks, GptqOptions(per_channel=False)).scales)) == K // 32


def test_gptq_inputs_that_are_always_zero() -> None:
    w, x = WEIGHTS["normal"], INPUTS.copy()
    x[:, 5] = 0
    found = gptq.gptq(w, x.T @ x, Blocks(4, 32, False), GptqOptions())
    assert np.abs(found.dequantized()[5] - w[5]).max() <= found.scales[0].max()
    assert gptq.gptq(w, np.zeros((K, K)), Blocks(4, 32, False), GptqOptions()).codes.size
    with pytest.raises(RuntimeException, match="not finite"):
        gptq.gptq(w, np.full((K, K), np.nan), Blocks(4, 32, False), GptqOptions())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_packing(bits: int) -> None:
    codes = RNG.integers(0, 2**bits, (3, 5, 16)).astype(np.uint8)
    shifts = np.arange(0, 8, bits)
    unpacked = (pack.pack(codes, bits)[..., None] >> shifts & (2**bits - 1)).reshape(codes.shape)
    np.testing.assert_array_equal(unpacked, codes)
    zeros = codes[:, :3, 0]
    made = Blocked(codes, zeros.astype(np.float32), zeros, 40, Blocks(bits, 5, False))
    rows = (made.packed_zeros()[..., None] >> shifts & (2**bits - 1)).reshape(3, -1)
    np.testing.assert_array_equal(rows[:, :3], zeros.T)
    assert (rows[:, 3:] == 2 ** (bits - 1)).all()


def test_columns_are_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    w, blocks = WEIGHTS["normal"], Blocks(4, 32, False)
    whole = pack.by_columns(w, lambda part: hqq(part, blocks))
    monkeypatch.setattr(pack, "CHUNK", 7 * K)
    for a, b in ((whole, pack.by_columns(w, lambda part: hqq(part, blocks))),):
        np.testing.assert_array_equal(a.codes, b.codes)
        np.testing.assert_array_equal(a.zeros, b.zeros)


def test_ranges_without_zero_keep_their_values() -> None:
    w = np.linspace(5, 6, 32 * 3, dtype=np.float32).reshape(32, 3)
    for quantize in ALGORITHMS.values():
        found = quantize(w, Blocks(8, 32, False))
        assert np.abs(found.dequantized() - w).max() < 0.02

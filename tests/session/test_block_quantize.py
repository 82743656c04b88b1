"""Block-wise quantization of weights, code for code as onnxruntime does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.capi import onnxruntime_pybind11_state as ours
from sardonyx.errors import InvalidArgument, NotImplemented

SIZES = [(64, 8), (70, 5), (17, 4), (128, 33), (31, 1)]


@pytest.fixture(scope="module")
def theirs() -> Any:
    pytest.importorskip("onnxruntime")
    from onnxruntime.capi import _pybind_state

    return _pybind_state


def weights(k: int, n: int, dtype: Any) -> Any:
    w = np.random.default_rng(k * n).standard_normal((k, n)).astype(dtype)
    if n > 2:
        w[:, 1], w[:, 2] = 0, np.abs(w[:, 2])
    return w


def fields(packed: Any, bits: int) -> Any:
    return (packed[..., None] >> np.arange(0, 8, bits)) & (2**bits - 1)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_columns(theirs: Any, bits: int, dtype: Any, symmetric: bool) -> None:
    for k, n in SIZES:
        for block in (16, 64):
            w, blocks, per_byte = np.pad(weights(k, n, dtype), ((0, -k % block), (0, 0))), -(-k // block), 8 // bits
            results = []
            for module in (ours, theirs):
                codes = np.zeros((n, blocks, block // per_byte), np.uint8)
                scales, points = np.zeros((n, blocks), dtype), np.zeros((n, -(-blocks // per_byte)), np.uint8)
                quantize = getattr(module, f"quantize_matmul_{bits}bits")
                assert quantize(codes, w, scales, points, block, n, k, symmetric) is None
                # the last byte beyond the last row is undefined
                results.append((fields(codes, bits).reshape(n, -1)[:, :k], scales, points))
            for mine, other in zip(*results, strict=True):
                np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows(theirs: Any, dtype: Any, symmetric: bool) -> None:
    for k, n in SIZES:
        for block in (16, 64):
            w, blocks = weights(k, n, dtype), -(-k // block)
            results = []
            for module in (ours, theirs):
                codes, points = np.zeros(-(-k * n // 2), np.uint8), np.zeros(-(-blocks * n // 2), np.uint8)
                scales = np.zeros((blocks, n), dtype)
                signed = module.quantize_qdq_matmul_4bits(codes, w, scales, points, block, n, k, symmetric)
                results.append((signed, codes, scales, points))
            for mine, other in zip(*results, strict=True):
                np.testing.assert_array_equal(mine, other)


def test_rows_of_two_bits_stand_for_the_weights() -> None:
    """onnxruntime writes four bits here, beyond the array's end: there is nothing to compare with."""
    w = weights(64, 8, np.float32)
    codes, points, scales = (
        np.zeros(64 * 8 // 4, np.uint8),
        np.zeros(4 * 8 // 4, np.uint8),
        np.zeros((4, 8), np.float32),
    )
    assert not ours.quantize_qdq_matmul_2bits(codes, w, scales, points, 16, 8, 64, False)
    real = fields(codes, 2).reshape(4, 16, 8) - fields(points, 2).reshape(4, 1, 8).astype(np.float32)
    assert (np.abs(real * scales[:, None] - w.reshape(4, 16, 8)) <= np.abs(scales[:, None]) * 1.01).all()


@pytest.mark.parametrize("quant_type", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bnb4(theirs: Any, dtype: Any, quant_type: int) -> None:
    for k, n in SIZES:
        for block in (16, 64):
            w = weights(k, n, dtype).T.copy()
            results = []
            for module in (ours, theirs):
                codes, largest = np.zeros(-(-k * n // 2), np.uint8), np.zeros(-(-k * n // block), dtype)
                module.quantize_matmul_bnb4(codes, w, largest, block, quant_type, n, k)
                results.append((codes, largest))
            for mine, other in zip(*results, strict=True):
                np.testing.assert_array_equal(mine, other)


def test_wrong_uses() -> None:
    w, codes = np.ones((32, 4), np.float32), np.zeros((4, 2, 8), np.uint8)
    scales, points = np.zeros((4, 2), np.float32), np.zeros((4, 1), np.uint8)
    for block, n, k in ((0, 4, 32), (16, 5, 32), (16, 4, 33)):
        with pytest.raises(InvalidArgument, match="stated size"):
            ours.quantize_matmul_4bits(codes, w, scales, points, block, n, k, True)
    with pytest.raises(InvalidArgument, match="contiguous"):
        ours.quantize_matmul_4bits(codes[:, :, ::2], w, scales, points, 16, 4, 32, True)
    with pytest.raises(InvalidArgument, match="quant_type"):
        ours.quantize_matmul_bnb4(codes, w, scales, 16, 2, 4, 32)
    with pytest.raises(NotImplemented, match="CUDA"):
        ours.pack_fp4_weights_for_cuda_moe_gemm()

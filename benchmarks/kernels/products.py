"""Matrix products with a constant right operand, of floats and of bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from benchmarks.kernels.case import Case, fixed, integers, normal

SIZES = (
    (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (128, 3072, 3072), (1, 768, 768), (1, 3072, 3072),
    (8, 768, 768), (1024, 768, 768),
)  # fmt: skip
BYTE_SIZES = tuple((m, n, k) for m in (1, 128) for n, k in ((768, 768), (3072, 768), (768, 3072), (3072, 3072)))


def product(m: int, n: int, k: int) -> Case:
    return Case(f"{m}x{n}x{k}", "y = MatMul(x, w)", {"x": normal(m, k)}, {"w": normal(k, n)}, flops=2.0 * m * n * k)


def product_gelu(m: int, n: int, k: int) -> Case:
    """With what should cost next to nothing behind it."""
    nodes = "p = MatMul(x, w) h = Add(p, b) y = Gelu(h)"
    constants = {"w": normal(k, n, scale=k**-0.5), "b": normal(n)}
    return Case(f"{m}x{n}x{k}, bias, Gelu", nodes, {"x": normal(m, k)}, constants, flops=2.0 * m * n * k)


def integer_product(m: int, n: int, k: int) -> Case:
    constants = {"w": integers(-127, 128, k, n, dtype=np.int8), "p": fixed(3, dtype=np.uint8)}
    return Case(
        f"MatMulInteger uint8 {m}x{n}x{k}", "y = MatMulInteger(x, w, p)",
        {"x": integers(0, 128, m, k, dtype=np.uint8)}, constants, {"y": "int32"}, flops=2.0 * m * n * k,
        has_limit=False,
    )  # fmt: skip


def quantized_product(m: int, n: int, k: int, dtype: type) -> Case:
    kind = np.dtype(dtype).name
    constants = {
        "s": fixed(0.01), "p": fixed(3, dtype=dtype), "w": integers(-127, 128, k, n, dtype=np.int8), "t": fixed(0.02),
        "q": fixed(0, dtype=np.int8), "u": fixed(5.0), "z": fixed(7, dtype=dtype),
    }  # fmt: skip
    return Case(
        f"QLinearMatMul {kind} {m}x{n}x{k}", "y = QLinearMatMul(x, s, p, w, t, q, u, z)",
        {"x": integers(0, 128, m, k, dtype=dtype)}, constants, {"y": kind}, flops=2.0 * m * n * k, has_limit=False,
    )  # fmt: skip


def weight_only(m: int, n: int, k: int, bits: int, block: int) -> Case:
    """A weight of integers with a scale and a zero point for each block."""
    high = 1 << bits
    kind = ml_dtypes.uint4 if bits == 4 else np.uint8
    constants = {
        "w": integers(0, high, k, n, dtype=kind), "z": integers(0, high, k // block, n, dtype=kind),
        "s": normal(k // block, n, scale=0.01),
    }  # fmt: skip
    return Case(
        f"{bits}-bit weight, blocks of {block}, {m}x{n}x{k}",
        f"d = DequantizeLinear<axis = 0, block_size = {block}>(w, s, z) y = MatMul(x, d)",
        {"x": normal(m, k)}, constants, flops=2.0 * m * n * k, has_limit=False,
    )  # fmt: skip


GEMM = (*(product(*size) for size in SIZES), *(product_gelu(*size) for size in SIZES[:4]))
QUANTIZED = (
    *(integer_product(*size) for size in BYTE_SIZES),
    *(weight_only(*size, bits, block) for size in BYTE_SIZES for bits, block in ((4, 32), (4, 128), (8, 32))),
    *(quantized_product(*size, dtype) for size in BYTE_SIZES for dtype in (np.uint8, np.int8)),
)

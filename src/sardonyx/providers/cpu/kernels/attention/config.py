"""What every attention kernel is given: memory, extents, strides and the mask; and how scores become weights."""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.math import functions
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, bf16, f32, i32, i64

AXES = "bhs"
"""The axes of q, k, v and out that have a stride; the last has neighbours."""
STRIDES = tuple(f"{name}_{axis}" for name in "qkvo" for axis in AXES)
MASK_STRIDES = ("mask_b", "mask_h", "mask_q", "mask_k")
LEAST = -100
"""Weights below 2^LEAST, where a row's largest is 1, are 0: the others have bf16 terms that are normal numbers, as are
their products with all but the smallest values. An infinite value of such a key makes NaN, as one that is hidden does.
"""


def params(
    *, dtypes: tuple[DType, ...], mask: str, mask_dtype: DType, packed_terms: int = 0, has_unpacked: bool = True,
    **_: object,
) -> dict[str, object]:  # fmt: skip
    q, k, v, o = dtypes
    numbers = ("batch", "heads", "shared", "rows", "keys", "width", "value_width", "past", *STRIDES)
    found: dict[str, object] = {"q": (q,), "k_": (k,), "v": (v,), **dict.fromkeys(numbers, i64)}
    if has_unpacked:
        found |= {"out": (o,)}
    if packed_terms:
        found |= {"tiles": (bf16,), "flags": (i32,)}
    if mask != "none":
        found |= {"mask_": (mask_dtype,), **dict.fromkeys(MASK_STRIDES, i64)}
    return found | {"scale": f32}


def weight(k: Kernel, x: Val) -> Val:
    """exp of a score less the largest, or of how much that has grown."""
    return functions.exp_nonpositive(k, x, LEAST)

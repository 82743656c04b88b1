"""What the attention kernels share: parameters, the mask, and the exponential of the softmax."""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.math import functions
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, bf16, f32, i32, i64

AXES = "bhs"
"""The axes of q, k, v and out that have a stride: batch, head, sequence. The last axis is contiguous."""
STRIDES = tuple(f"{name}_{axis}" for name in "qkvo" for axis in AXES)
MASK_STRIDES = ("mask_b", "mask_h", "mask_q", "mask_k")
MIN_EXPONENT = -100
"""Weights below 2^MIN_EXPONENT, relative to the row's largest, are 0. All others have bf16 terms that are normal
numbers, as are their products with all but the smallest values. An infinite value of a key with weight 0 gives NaN, as
with a masked key.
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


def softmax_exp(k: Kernel, x: Val) -> Val:
    """exp(x) for x <= 0: of a score minus the row's maximum, or of an old maximum minus the new one."""
    return functions.exp_nonpositive(k, x, MIN_EXPONENT)

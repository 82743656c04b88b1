"""What the attention kernels share: parameters, the mask, and the exponential of the softmax."""

from __future__ import annotations

from dataclasses import field
from functools import reduce
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.math import functions
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Kernel, Params
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, f32, i32, i64

MIN_EXPONENT = -100
"""Weights below 2^MIN_EXPONENT, relative to the row's largest, are 0. All others have bf16 terms that are normal
numbers, as are their products with all but the smallest values. An infinite value of a key with weight 0 gives NaN, as
with a masked key.
"""


class HeadStrides(Arguments[M, N]):
    """The strides of q, k, v or the result; the last axis is contiguous."""

    b: N
    h: N
    s: N
    """Along the sequence."""

    def at(self: HeadStrides[Buf, Val], memory: Buf, *indices: Val) -> Buf:
        """The address of the element at these indices: batch, head and, if given, position."""
        places = (index * stride for index, stride in zip(indices, (self.b, self.h, self.s), strict=False))
        return memory.at(reduce(Val.__add__, places))


class MaskArgs(Arguments[M, N]):
    """The parameters of a mask."""

    memory: M = field(metadata=named("{}_"))
    b: N
    h: N
    q: N
    k: N


class AttentionArgs(Arguments[M, N]):
    """The parameters of both attention kernels."""

    is_inline: ClassVar[bool] = True
    q: M
    k: M = field(metadata=named("k_"))
    v: M
    batch: N
    heads: N
    shared: N
    """Heads of q that share one of k and v."""
    rows: N
    keys: N
    width: N
    value_width: N
    past: N
    q_strides: HeadStrides[M, N] = field(metadata=named("q"))
    k_strides: HeadStrides[M, N] = field(metadata=named("k"))
    v_strides: HeadStrides[M, N] = field(metadata=named("v"))
    out_strides: HeadStrides[M, N] = field(metadata=named("o"))
    out: M | None
    tiles: M | None
    flags: M | None
    """The result in the packed layout of the product that reads it, with a flag for each row and head."""
    mask: MaskArgs[M, N] | None
    scale: N


def params(
    *, dtypes: tuple[DType, ...], mask: str, mask_dtype: DType, packed_terms: int = 0, has_unpacked: bool = True,
    **_: object,
) -> Params:  # fmt: skip
    q, k, v, o = map(Memory, dtypes)
    strides = HeadStrides[Memory, DType](i64, i64, i64)
    tiles, flags = (Memory(bf16), Memory(i32)) if packed_terms else (None, None)
    out = o if has_unpacked else None
    masked = None if mask == "none" else MaskArgs(Memory(mask_dtype), i64, i64, i64, i64)
    sizes = i64, i64, i64, i64, i64, i64, i64, i64
    each = strides, strides, strides, strides
    return {"args": AttentionArgs[Memory, DType](q, k, v, *sizes, *each, out, tiles, flags, masked, f32)}


def softmax_exp(k: Kernel, x: Val) -> Val:
    """exp(x) for x <= 0: of a score minus the row's maximum, or of an old maximum minus the new one."""
    return functions.exp_nonpositive(k, x, MIN_EXPONENT)

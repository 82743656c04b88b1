"""Weights of 2, 4 or 8 bits, packed in bytes, with a scale for each block.

Packed constants become constants of the 2- or 4-bit type with the same bytes, for ai.onnx's blocked DequantizeLinear.
Packed values computed at run time are unpacked to u8 by shifts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.microsoft.body import (
    MICROSOFT,
    dim,
    like,
    rank_of,
    refuse,
    slice_axis,
    sum_given,
)
from sardonyx.normalize.registry import expand

UNSIGNED = {2: "u2", 4: "u4", 8: "u8"}

# The sixteen values of bitsandbytes' codes: 4-bit floats, and quantiles of the normal distribution.
FP4 = (0.0, 0.005208333333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip


def unpack(op: Builder, packed: Value, bits: int, rows: int, *, narrow: bool) -> Any:
    """(rows, numbers) from bytes in any shape that starts with ``rows``; ``narrow``: as a constant of ``bits`` bits."""
    if narrow:
        tensor = packed.const
        assert tensor is not None
        size = tensor.size * 8 // bits
        return op.const(tensor.seen_as(dtypes.of_name(UNSIGNED[bits]), (rows, size // rows)))
    flat = op.Reshape(packed, op.const([rows, -1]))
    if bits == 8:
        return flat
    shifts = op.const(np.arange(0, 8, bits, dtype=np.uint8))
    shifted = op.BitShift(op.Unsqueeze(flat, op.const([-1])), shifts, direction="RIGHT")
    return op.Reshape(op.BitwiseAnd(shifted, op.const(np.uint8(2**bits - 1))), op.const([rows, -1]))


def shaped(op: Builder, x: Value, shape: list[int]) -> Any:
    """``x`` under another shape; a constant stays one."""
    if x.const is not None and x.is_const and x.const.size == np.prod(shape, dtype=np.int64):
        return op.const(x.const.seen_as(x.const.dtype, tuple(shape)))
    return op.Reshape(x, op.const(shape))


@expand("MatMulNBits", domain=MICROSOFT)
def mat_mul_n_bits(op: Builder, node: Node) -> Any:
    """A W', where W of N rows and K columns is given in blocks along K; zero points default to half the range.

    Constant groups of one block each are blocks of the permuted W, with the columns of A permuted as well.
    """
    a, packed, scales, zeros, groups, bias = (node.input(i) for i in range(6))
    n, k, block = (required_attribute(node, name) for name in ("N", "K", "block_size"))
    bits = node.attrs.get("bits", 4)
    if bits not in UNSIGNED or node.attrs.get("weight_prepacked", 0):
        raise refuse(node, f"bits={bits}" if bits not in UNSIGNED else "weight_prepacked")
    if a is None or packed is None or scales is None:
        raise InvalidGraph("A, B and scales are required", where=node.label)
    if min(n, k, block) < 1 or block * bits % 8:
        raise InvalidGraph("N, K and block_size are positive, and blocks are whole bytes", where=node.label)
    blocks = -(-k // block)
    _require_elements(node, packed, n * blocks * block * bits // 8)
    scales = shaped(op, scales, [n, blocks])
    real_zeros = zeros is not None and zeros.dtype is not dtypes.u8 and zeros.dtype is not None
    narrow = packed.is_const and (zeros is None or real_zeros or zeros.is_const)
    if zeros is not None:
        _require_elements(node, zeros, n * (blocks if real_zeros else -(-blocks * bits // 8)))
    weight = unpack(op, packed, bits, n, narrow=narrow)
    if zeros is None:
        kind = dtypes.of_name(UNSIGNED[bits]) if narrow else dtypes.u8
        points: Any = op.const(np.full((n, blocks), 2 ** (bits - 1)).astype(kind.numpy))
    elif real_zeros:
        points = shaped(op, zeros, [n, blocks])
    else:
        points = slice_axis(op, unpack(op, zeros, bits, n, narrow=narrow), 0, blocks, 1)
    if groups is not None and (order := _order(groups, k, block)) is not None:
        groups = None
        if (order != np.arange(k)).any():
            whole = np.concatenate([order, np.arange(k, blocks * block)])
            weight = _permuted(op, weight, whole) if narrow else op.Gather(weight, op.const(whole), axis=1)
            a = op.Gather(a, op.const(order), axis=-1)
    if groups is not None:
        dense = by_group(op, weight, scales, points, slice_axis(op, groups, 0, k, 0), k)
    elif real_zeros:
        codes = op.DequantizeLinear(weight, like(op, 1.0, scales)) if narrow else op.CastLike(weight, scales)
        apart = op.Reshape(codes, op.const([n, blocks, block]))
        points, steps = (shaped(op, v, [n, blocks, 1]) for v in (points, scales))
        dense = op.Reshape(op.Mul(op.Sub(apart, points), steps), op.const([n, blocks * block]))
    else:
        dense = op.DequantizeLinear(weight, scales, points, axis=1, block_size=block)
    if blocks * block != k and groups is None:
        dense = slice_axis(op, dense, 0, k, 1)
    return sum_given(op, op.MatMul(a, op.Transpose(dense, perm=[1, 0])), bias)


def _require_elements(node: Node, value: Value, count: int) -> None:
    if value.is_const and value.const is not None and value.const.size != count:
        raise InvalidGraph(f"{value.name!r} does not fit N, K and block_size", where=node.label, expected=count,
                           got=value.const.size)  # fmt: skip


def _order(groups: Value, k: int, block: int) -> Any:
    """The order of columns in which groups are blocks, if groups are constant and as long as blocks."""
    if not groups.is_const or groups.const is None or groups.const.size < k:
        return None
    given = groups.const.numpy().reshape(-1)[:k]
    order = np.argsort(given, kind="stable")
    return order if np.array_equal(given[order], np.arange(k) // block) else None


def _permuted(op: Builder, weight: Value, order: Any) -> Any:
    """A constant with its columns in another order."""
    tensor = weight.const
    assert tensor is not None
    return op.const(
        Tensor(tensor.dtype, tensor.shape, lambda: np.ascontiguousarray(tensor.peek()[:, order]), name=tensor.name)
    )


def by_group(op: Builder, weight: Value, scales: Value, points: Value, groups: Value, k: int) -> Any:
    """W where column j belongs to block ``groups[j]``."""
    steps, offsets = (op.Gather(v, groups, axis=1) for v in (scales, op.CastLike(points, scales)))
    return op.Mul(op.Sub(op.CastLike(slice_axis(op, weight, 0, k, 1), scales), offsets), steps)


@expand("MatMulBnb4", domain=MICROSOFT)
def mat_mul_bnb4(op: Builder, node: Node) -> Any:
    """A W' (or A W), where W's elements are looked up in a table of sixteen and scaled by their block's maximum."""
    a, packed, scales = required_input(node, 0), required_input(node, 1), required_input(node, 2)
    n, k, block = (required_attribute(node, name) for name in ("N", "K", "block_size"))
    table = np.array(NF4 if required_attribute(node, "quant_type") else [*FP4, *(-v for v in FP4)], np.float32)
    flat = op.Reshape(packed, op.const([-1, 1]))
    pair = op.BitwiseAnd(
        op.BitShift(flat, op.const(np.array([4, 0], np.uint8)), direction="RIGHT"), op.const(np.uint8(15))
    )
    codes = slice_axis(op, op.Reshape(op.Cast(pair, to=dtypes.i64.onnx), op.const([-1])), 0, n * k, 0)
    steps = op.Gather(scales, op.const(np.arange(n * k) // block))
    values = op.Mul(op.CastLike(op.Gather(op.const(table), codes), scales), steps)
    dense = op.Reshape(values, op.const([n, k]))
    return op.MatMul(a, op.Transpose(dense, perm=[1, 0]) if node.attrs.get("transB", 1) else dense)


@expand("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(op: Builder, node: Node) -> Any:
    """Gather from a blockwise quantized table: the gathered rows are dequantized, not the whole table.

    An index out of range gathers zeros and is no error.
    """
    data, indices, scales, zeros = (
        required_input(node, 0),
        required_input(node, 1),
        required_input(node, 2),
        node.input(3),
    )
    rank = rank_of(node, 0)
    along, across = (node.attrs.get(name, d) % rank for name, d in (("gather_axis", 0), ("quantize_axis", 1)))
    block = node.attrs.get("block_size", 128)
    bits = node.attrs.get("bits", 4)
    if data.dtype is None or not data.dtype.is_integer:
        raise refuse(node, f"data of type {data.dtype}")
    packed, is_signed = data.dtype is dtypes.u8, data.dtype.kind == "int"
    pairs = None if along in (across, rank - 1) else bytes_of(data)
    size = op.CastLike(dim(op, data, along), indices)
    inside = op.And(op.Less(indices, size), op.GreaterOrEqual(indices, op.Neg(size)))
    safe = op.Where(inside, indices, op.CastLike(op.const(0), indices))

    def gathered(x: Value) -> Any:
        return op.Gather(x, safe, axis=along)

    def numbers(x: Value) -> Any:
        return unpack_last(op, x, bits) if packed and bits < 8 else x

    if pairs is not None:
        zeros = points_as_bytes(op, zeros, scales, is_signed=is_signed)
    elif zeros is None and packed:
        zeros = op.Expand(op.const(np.uint8(2 ** (bits - 1))), op.Shape(scales))
    elif zeros is not None and packed:
        zeros = trimmed(op, numbers(zeros), scales)
    if along == across:
        y = gathered(op.DequantizeLinear(numbers(data), scales, zeros, axis=across, block_size=block))
    else:
        axis = across if across < along else across - rank
        points = None if zeros is None else gathered(zeros)
        if pairs is None:
            rows = numbers(gathered(data))
        else:
            rows = unpack_last(op, gathered(op.const(pairs)), 4)
            rows = op.BitwiseXor(rows, op.const(np.uint8(8))) if is_signed else rows
        y = op.DequantizeLinear(rows, gathered(scales), points, axis=axis, block_size=block)
    after = list(range(along + 1 - rank, 0))
    return op.Where(op.Unsqueeze(inside, op.const(after)) if after else inside, y, like(op, 0.0, scales))


def bytes_of(table: Value) -> Tensor | None:
    """The bytes that hold a constant's numbers of 4 bits, if its rows are whole bytes: a table stays as small as it is.

    Signed numbers are there in two's complement: unsigned ones that differ by 8, after their highest bit is flipped.
    """
    known = table.const
    if known is None or known.packed is None or known.dtype.bits != 4 or not known.shape or known.shape[-1] % 2:
        return None
    return known.packed.seen_as(dtypes.u8, (*known.shape[:-1], known.shape[-1] // 2))


def points_as_bytes(op: Builder, zeros: Value | None, scales: Value, *, is_signed: bool) -> Any:
    """Zero points as bytes; those of signed numbers are moved by 8, as the numbers are."""
    if not is_signed:
        return None if zeros is None else op.Cast(zeros, to=dtypes.u8.onnx)
    eight = op.const(np.int32(8))
    moved = op.Expand(eight, op.Shape(scales)) if zeros is None else op.Add(op.Cast(zeros, to=dtypes.i32.onnx), eight)
    return op.Cast(moved, to=dtypes.u8.onnx)


def unpack_last(op: Builder, x: Value, bits: int) -> Any:
    """The numbers packed in bytes along the last axis."""
    shifts = op.const(np.arange(0, 8, bits, dtype=np.uint8))
    shifted = op.BitShift(op.Unsqueeze(x, op.const([-1])), shifts, direction="RIGHT")
    apart = op.BitwiseAnd(shifted, op.const(np.uint8(2**bits - 1)))
    lead = op.Shape(x, end=-1)
    return op.Reshape(apart, op.Concat(lead, op.const([-1]), axis=0))


def trimmed(op: Builder, x: Value, scales: Value) -> Any:
    """Zero points without the padding in the last byte of a row."""
    return op.Slice(x, op.const([0]), op.Shape(scales, start=-1), op.const([-1]))

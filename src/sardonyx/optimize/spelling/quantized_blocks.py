"""MatMulNBits: a product with a constant matrix of 4 or 8 bits whose scales stand for blocks of a column."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import Array, constant, lazy
from sardonyx.optimize.pattern import Match, attribute
from sardonyx.optimize.spelling import MICROSOFT

BITS = {"u4": 4, "i4": 4, "u8": 8, "i8": 8}
LEAST_BLOCK = 16
REALS = (dtypes.f32, dtypes.f16)


@fusion
class SpellMatMulNBits(Fusion):
    """MatMul(x, DequantizeLinear(w) in blocks of its rows), or the transpose of one in blocks of its columns
    ->  MatMulNBits(x, w), repacked."""

    def pattern(self, op: Any, x: Any, w: Any, s: Any) -> Any:
        dense = op.DequantizeLinear(w, s, op.optional("z"), block_size=bool, name="dense")
        return op.MatMul(x, dense), op.MatMul(x, op.Transpose(dense, perm=[1, 0], name="transpose"))

    def rewrite(self, op: Builder, m: Match) -> Any:
        dense = m.node("dense")
        turned = any(node.op_type == "Transpose" for node in m.nodes.values())
        block = int(attribute(dense, "block_size"))
        weight, scales = constant(m.w, "the weight"), constant(m.s, "the scale")
        zeros = None if m.z is None else constant(m.z, "the zero point")
        require(m.x.dtype in REALS and scales.dtype is m.x.dtype, "onnxruntime has no kernel for the reals", m.x)
        require(weight.dtype.name in BITS and len(weight.shape) == 2, "no matrix of 4 or 8 bits", m.w)
        require(block >= LEAST_BLOCK and block & (block - 1) == 0, "the blocks are no power of two from 16 on", m.s)
        axis = 1 if turned else 0
        require(attribute(dense, "axis") % 2 == axis, "the blocks lie across the columns", m.s)
        k, n = weight.shape[axis], weight.shape[1 - axis]
        bits, blocks = BITS[weight.dtype.name], -(-k // block)
        require(m.x.rank is not None and m.x.rank >= 2, "the left side is no matrix", m.x)

        def rows(stored: Array) -> Array:
            return stored if turned else stored.T

        def unsigned(stored: Array) -> Array:
            """Signed numbers from half the range on, rows first."""
            offset = 2 ** (bits - 1) if weight.dtype.kind == "int" else 0
            return (rows(stored).astype(np.int16) + offset).astype(np.uint8)

        packed = lazy(
            dtypes.u8,
            (n, blocks, block * bits // 8),
            lambda: pack(pad(unsigned(weight.numpy()), blocks * block), bits).reshape(n, blocks, -1),
            m.w.name,
        )
        steps = lazy(scales.dtype, (n * blocks,), lambda: rows(scales.numpy()).reshape(-1), m.s.name)
        points = None
        if zeros is not None:
            points = op.const(pack(pad(unsigned(zeros.numpy()), -(-blocks * bits // 8) * 8 // bits), bits).reshape(-1))
        elif weight.dtype.kind == "uint":
            points = op.const(np.zeros(n * -(-blocks * bits // 8), np.uint8))
        inputs = (m.x, op.const(packed), op.const(steps), points)
        return op.call(MICROSOFT, "MatMulNBits", *inputs, K=k, N=n, bits=bits, block_size=block)


def pad(rows: Array, width: int) -> Array:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])))


def pack(rows: Array, bits: int) -> Array:
    """Numbers of a few bits in bytes, low bits first, along the last axis."""
    if bits == 8:
        return rows
    return rows[:, 0::2] | (rows[:, 1::2] << np.uint8(4))

"""MatMulNBits: a product with a constant matrix of 4 or 8 bits with a scale for each block of a column."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.tensor import Tensor
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import Array, constant, lazy
from sardonyx.optimize.fusions.checks import sizes
from sardonyx.optimize.pattern import Match, attribute
from sardonyx.optimize.spelling import MICROSOFT
from sardonyx.records import Record

BITS = {"u4": 4, "i4": 4, "u8": 8, "i8": 8}
LEAST_BLOCK = 16
REALS = (dtypes.f32, dtypes.f16)


@fusion
class SpellMatMulNBits(Fusion):
    """MatMul(x, DequantizeLinear(w))  ->  MatMulNBits(x, w), repacked; also for Gemm, with its bias.

    The blocks of w lie along its columns, or along its rows if w is transposed.
    """

    def pattern(self, op: Any, x: Any, w: Any, s: Any) -> Any:
        dense = op.DequantizeLinear(w, s, op.optional("z"), block_size=bool, name="dense")
        cut = op.either(dense, op.Slice(dense, starts=[0], axes=[1], steps=None))
        transposed = op.Transpose(cut, perm=[1, 0])
        gemm = op.Gemm(x, cut, op.optional("bias"), transA=0, alpha=1.0, beta=1.0, name="product")
        return op.MatMul(x, dense, name="product"), op.MatMul(x, transposed, name="product"), gemm

    def rewrite(self, op: Builder, m: Match) -> Any:
        dense, product, bias = m.node("dense"), m.node("product"), m.values.get("bias")
        by_rows = any(n.onnx_op == "Transpose" for n in m.nodes.values()) or product.attrs.get("transB", 0) == 1
        axis = 1 if by_rows else 0
        weight, scales = constant(m.w, "the weight"), constant(m.s, "the scale")
        zeros = None if m.z is None else constant(m.z, "the zero point")
        block = int(attribute(dense, "block_size"))
        require(m.x.dtype in REALS and scales.dtype is m.x.dtype, "onnxruntime has no kernel for the reals", m.x)
        require(m.x.rank is not None and m.x.rank >= 2, "the left side is no matrix", m.x)
        require(weight.dtype.name in BITS and len(weight.shape) == 2, "no matrix of 4 or 8 bits", m.w)
        require(block >= LEAST_BLOCK and block & (block - 1) == 0, "the blocks are no power of two from 16 on", m.s)
        require(attribute(dense, "axis") % 2 == axis, "the blocks lie across the columns", m.s)
        real = next((n.output for n in m.nodes.values() if n.onnx_op == "Slice"), dense.output)
        require(real is dense.output or by_rows, "the columns are cut", real)
        shape = sizes(real, 0)
        require(shape is not None, "the shape is not known", real)
        assert shape is not None
        blocks = Blocks(weight, scales, zeros, by_rows, k=shape[axis], n=shape[1 - axis], block=block)
        require(scales.shape[axis] == blocks.count, "the matrix is cut by whole blocks", real)
        require(bias is None or bias.shape == (blocks.n,), "the addend is no bias of the columns", bias)
        inputs = (m.x, op.const(blocks.packed()), op.const(blocks.steps()), blocks.points(), None, bias)
        attrs = {"K": blocks.k, "N": blocks.n, "bits": blocks.bits, "block_size": block}
        return op.call(MICROSOFT, "MatMulNBits", *inputs, **attrs)


class Blocks(Record):
    """A matrix of ``k`` rows and ``n`` columns in blocks along k; with ``by_rows``, k is the last axis."""

    weight: Tensor
    scales: Tensor
    zeros: Tensor | None
    by_rows: bool
    k: int
    n: int
    block: int

    @property
    def bits(self) -> int:
        return BITS[self.weight.dtype.name]

    @property
    def count(self) -> int:
        """Blocks of a column."""
        return -(-self.k // self.block)

    def packed(self) -> Tensor:
        shape = (self.n, self.count, self.block * self.bits // 8)
        return lazy(dtypes.u8, shape, lambda: self._bytes(self.weight, self.k, self.block).reshape(shape), "packed")

    def steps(self) -> Tensor:
        shape = (self.n * self.count,)
        return lazy(self.scales.dtype, shape, lambda: self._transposed(self.scales).reshape(-1), "scales")

    def points(self) -> Array | None:
        """Zero points; omitted ones are half of the range, a signed 0."""
        if self.zeros is not None:
            return self._bytes(self.zeros, self.count, 8 // self.bits).reshape(-1)
        if self.weight.dtype.kind == "uint":
            return np.zeros(self.n * -(-self.count * self.bits // 8), np.uint8)
        return None

    def _transposed(self, tensor: Tensor) -> Array:
        """The tensor with one row for each column."""
        return tensor.numpy() if self.by_rows else tensor.numpy().T

    def _bytes(self, tensor: Tensor, width: int, multiple: int) -> Array:
        """Unsigned numbers, ``width`` per row, padded to a multiple, packed in bytes with low bits first."""
        offset = 2 ** (self.bits - 1) if tensor.dtype.kind == "int" else 0
        rows = (self._transposed(tensor)[:, :width].astype(np.int16) + offset).astype(np.uint8)
        rows = np.pad(rows, ((0, 0), (0, -width % multiple)))
        return rows if self.bits == 8 else np.asarray(rows[:, 0::2] | (rows[:, 1::2] << np.uint8(4)))

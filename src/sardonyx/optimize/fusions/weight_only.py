"""Quantized constants that are not multiplied by integers: spellings of a weight in blocks, and tables of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.quantized import Quantized
from sardonyx.ir.tensor import Tensor
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import constant
from sardonyx.optimize.pattern import Match, attribute

LARGE = 1 << 16
"""Elements from which a table stays quantized; smaller ones are dequantized once."""


@fusion
class FoldRealZeroPoints(Fusion):
    """(DequantizeLinear(w) - z) * s in blocks along rows, of constants  ->  a constant, computed on first use."""

    def pattern(self, op: Any, w: Any, one: Any, z: Any, s: Any, apart: Any, whole: Any) -> Any:
        return op.Reshape((op.Reshape(op.DequantizeLinear(w, one), apart) - z) * s, whole)

    def rewrite(self, op: Builder, m: Match) -> Any:
        w, z, s, apart, whole = (constant(v, "an operand") for v in (m.w, m.z, m.s, m.apart, m.whole))
        require(m.one.is_scalar_const and m.one.item() == 1, "the integers are scaled", m.one)
        require(w.dtype.is_integer and w.dtype.bits <= 8 and len(w.shape) == 2, "no matrix of small integers", m.w)
        require(len(s.shape) == 3 and s.shape == z.shape and s.shape[2] == 1, "no number for each block", m.s)
        n, blocks, _ = s.shape
        require(w.shape[0] == n and w.shape[1] % blocks == 0, "the blocks do not divide the rows", m.w)
        block, dtype = w.shape[1] // blocks, s.dtype
        shape = list(w.shape)
        require(whole.numpy().tolist() == shape, "the result has another shape", m.whole)
        require(apart.numpy().tolist() == [n, blocks, block], "the rows are cut in another way", m.apart)

        def compute() -> Any:
            codes = w.peek().astype(np.float32).reshape(n, blocks, block)
            found = (codes - z.peek().astype(np.float32)) * s.peek().astype(np.float32)
            return np.asarray(found.reshape(shape), dtype.numpy, order="C")

        scale, zero = (t.seen_as(t.dtype, (n, blocks)) for t in (s, z))
        known = Quantized(w, scale, zero, 1, block)
        return op.const(Tensor(dtype, w.shape, compute, name=m.w.name, view=compute, quantized=known))


@fusion
class GatherQuantized(Fusion):
    """Gather(DequantizeLinear(w), i)  ->  DequantizeLinear(Gather(w, i)), of a large constant.

    Only what is gathered is dequantized, and the table stays as small as it is.
    """

    shares = True

    def pattern(self, op: Any, w: Any, s: Any, i: Any) -> Any:
        return op.Gather(op.DequantizeLinear(w, s, op.optional("z"), name="dense"), i, name="gather")

    def rewrite(self, op: Builder, m: Match) -> Any:
        dense = m.node("dense")
        table, scale = constant(m.w, "the table"), constant(m.s, "the scale")
        require(table.size >= LARGE, "so small a table is dequantized once", m.w)
        rank = len(table.shape)
        along, across = (attribute(node, "axis") % rank for node in (m.node("gather"), dense))
        attrs = {name: value for name, value in dense.attrs.items() if name == "output_dtype"}
        block = attribute(dense, "block_size")
        axis = across if across < along else across - rank
        found = op.Gather(m.w, m.i, axis=along)
        factors: list[Any] = [m.s, m.z]
        if scale.size > 1 and block:
            require(across != along, "the blocks lie along the gathered axis", m.s)
            factors = [v if v is None else op.Gather(v, m.i, axis=along) for v in factors]
            attrs["block_size"] = block
        elif scale.size > 1 and across == along:
            require(rank == 2 and along == 0, "there is a scale for each row of no matrix", m.s)
            gathered = (v if v is None else op.Gather(v, m.i, axis=0) for v in factors)
            factors = [v if v is None else op.Unsqueeze(v, op.const([-1])) for v in gathered]
            axis, attrs["block_size"] = -1, table.shape[1]
        return op.DequantizeLinear(found, *factors, axis=axis, **attrs)

"""How a constant of real numbers is quantized: integers with scales and zero points, of the tensor, of slices, or of
blocks along one axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.records import Record

if TYPE_CHECKING:
    from sardonyx.ir.tensor import Tensor


class Quantized(Record, eq=False):
    """(q - zero) * scale, as ai.onnx's DequantizeLinear computes it; zero points may be reals, too."""

    q: Tensor
    """Integers of 2, 4 or 8 bits, of the shape of the constant."""
    scale: Tensor
    """One number, one for each index of ``axis``, or one for each block of that axis at each index of the others."""
    zero: Tensor | None
    """Of the shape of ``scale``."""
    axis: int
    block: int
    """Elements of a block along ``axis``; 0 without blocks."""

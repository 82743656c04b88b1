"""Scalar expressions that groups evaluate for each element."""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.ir.scalar import Program
from sardonyx.records import Record


class Apply(Record):
    """A pointwise program on operands or earlier results, by number."""

    program: Program
    args: tuple[int, ...]
    dtype: DType
    """The type of the result in the graph. Intermediate narrow floats are not rounded; only stores round."""


class Reduce(Record):
    """One number for each row: ``sum``, ``max``, ``min``, ``prod``, ``argmax`` or ``argmin`` over the reduced axes.

    Sums of floats narrower than 64 bits are kept in f32, of integers in their own type. ``argmax`` and ``argmin`` give
    the index along the one reduced axis; ``is_last`` takes the last of equal elements. NaN is handled as in ONNX's
    numpy reference. An argument that is constant along a row counts once for each element of the row.
    """

    kind: str
    arg: int
    dtype: DType
    is_last: bool = False
    is_loose: bool = False
    """``max`` or ``min`` may ignore NaN: the row's results see the NaN through another operand."""


class Count(Record):
    """The number of elements of the reduced axes, as ``dtype``."""

    dtype: DType


class Expression(Record):
    """Scalar code.

    Values are numbered: first the operands, then one per step; ``results`` are the numbers of the stored ones.
    """

    operands: tuple[DType, ...]
    steps: tuple[Apply | Reduce | Count, ...]
    results: tuple[int, ...]

    @property
    def types(self) -> tuple[DType, ...]:
        """The types of the operands, then those of the results."""
        return (*self.operands, *map(self.dtype_of, self.results))

    def dtype_of(self, number: int) -> DType:
        n = len(self.operands)
        return self.operands[number] if number < n else self.steps[number - n].dtype

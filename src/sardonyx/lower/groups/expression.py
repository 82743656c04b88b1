"""Scalar code that groups compute element by element."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.dtypes import DType
from sardonyx.ir.scalar import Program


@dataclass(frozen=True)
class Apply:
    """A pointwise program on operands or earlier results, by number."""

    program: Program
    args: tuple[int, ...]
    dtype: DType
    """Of the result, as the graph types it. Narrow floats are rounded where they are stored, not in between."""


@dataclass(frozen=True)
class Reduce:
    """One number for each row: ``sum``, ``max``, ``min``, ``prod``, ``argmax`` or ``argmin`` over the reduced axes.

    Sums of floats narrower than 64 bits are kept in f32, of integers in their own type. ``argmax`` and ``argmin`` give
    the index along the one reduced axis; ``is_last`` picks the last of equals. NaN is taken as ONNX's numpy meaning
    does. What is reduced may itself be one number for each row: it counts as often as the row has elements.
    """

    kind: str
    arg: int
    dtype: DType
    is_last: bool = False
    is_loose: bool = False
    """NaN may be left out of ``max`` or ``min``: what comes of the row meets it otherwise."""


@dataclass(frozen=True)
class Count:
    """How many elements the reduced axes have, as a number of type ``dtype``."""

    dtype: DType


@dataclass(frozen=True)
class Expression:
    """Scalar code: values 0 .. len(operands)-1 are the operands; each step adds one; ``results`` are what is stored."""

    operands: tuple[DType, ...]
    steps: tuple[Apply | Reduce | Count, ...]
    results: tuple[int, ...]

    @property
    def types(self) -> tuple[DType, ...]:
        """Of operands and results."""
        return (*self.operands, *map(self.dtype_of, self.results))

    def dtype_of(self, number: int) -> DType:
        n = len(self.operands)
        return self.operands[number] if number < n else self.steps[number - n].dtype

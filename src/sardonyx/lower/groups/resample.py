"""Separable resampling: along each axis, an output is a short weighted sum of neighbouring inputs."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.epilogue import EpilogueGroup
from sardonyx.records import Record


class TapTable(Record):
    """Output p is the sum over taps t of input ``firsts[p] + t`` times ``weights[t, p]``, from tables in memory.

    Inputs outside of the axis equal its nearest element. Firsts are i64, from 1 - taps to the last index of the axis.
    The number of taps is even; without weights, output p is input ``firsts[p]``, which lies inside the axis.
    """

    firsts: View
    weights: View | None

    @property
    def taps(self) -> Known:
        return 1 if self.weights is None else self.weights.shape[0]


class PolyphaseFilter(Record):
    """Upsampling by an integer factor: output q * factor + p is the sum over t of input q + firsts[p] + t times
    weights[p][t].

    Inputs outside of the axis equal its nearest element. Without weights, the output is the one input.
    """

    factor: int
    firsts: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...] | None

    @property
    def taps(self) -> int:
        return 1 if self.weights is None else len(self.weights[0])


class Resample(EpilogueGroup):
    """out = epilogue(x resampled along the axes of ``along``, extra operands).

    ``x`` has the axes of the outputs, and their sizes along axes that are not resampled. Operand 0 of the epilogue is
    f32 or f64 if any axis has weights, else of x's type, narrow floats widened to f32.
    """

    x: View
    along: tuple[tuple[int, TapTable | PolyphaseFilter], ...]
    """The resampled axes in ascending order, each with its filter."""

    @property
    def operands(self) -> tuple[View, ...]:
        tables = (v for _, a in self.along if isinstance(a, TapTable) for v in (a.firsts, a.weights) if v is not None)
        return (self.x, *tables)

    @property
    def is_weighted(self) -> bool:
        return any(a.weights is not None for _, a in self.along)

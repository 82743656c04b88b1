"""Images read at other places than whole steps: along each axis a short weighted sum."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.finished import Finished


@dataclass(frozen=True)
class Table:
    """Position p is the sum over taps t of element ``firsts[p] + t`` times ``weights[t, p]``.

    Beside the axis lie its first and its last element. Firsts are i64, from 1 - taps to the last index of the axis.
    Taps are even in number; without weights there is one, inside the axis, and it is taken as it is.
    """

    firsts: View
    weights: View | None

    @property
    def taps(self) -> Known:
        return 1 if self.weights is None else self.weights.shape[0]


@dataclass(frozen=True)
class Phases:
    """Position q * factor + p is the sum over taps t of element q + firsts[p] + t times weights[p][t].

    Beside the axis lie its first and its last element. Without weights there is one tap, and it is taken as it is. The
    result is ``factor`` times as long as the axis.
    """

    factor: int
    firsts: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...] | None

    @property
    def taps(self) -> int:
        return 1 if self.weights is None else len(self.weights[0])


@dataclass(frozen=True)
class Resample(Finished):
    """out[.., p, ..] = epilogue(x at the sums that stand for p along some axes, further operands).

    ``x`` has the axes of the outputs, and their sizes along those that are not in ``along``. Operand 0 of the epilogue
    is f32 or f64 where something is weighted, and otherwise has x's type, a narrow float widened to f32.
    """

    x: View
    along: tuple[tuple[int, Table | Phases], ...]
    """By axis, in order."""

    @property
    def operands(self) -> tuple[View, ...]:
        tables = (v for _, a in self.along if isinstance(a, Table) for v in (a.firsts, a.weights) if v is not None)
        return (self.x, *tables)

    @property
    def is_weighted(self) -> bool:
        return any(a.weights is not None for _, a in self.along)

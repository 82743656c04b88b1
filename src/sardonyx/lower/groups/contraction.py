"""Matrix products."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.epilogue import EpilogueGroup


class Contraction(EpilogueGroup):
    """out[..., m, n] = epilogue(sum over k of a[..., m, k] * b[..., k, n], further operands).

    The sum is in f32 (or f64, or i32 for 8-bit integers).
    """

    batch: tuple[Known, ...]
    m: Known
    n: Known
    k: Known
    a: View
    b: View

    @property
    def box(self) -> tuple[Known, ...]:
        """The axes of the epilogue."""
        return (*self.batch, self.m, self.n)

    @property
    def operands(self) -> tuple[View, ...]:
        return self.a, self.b

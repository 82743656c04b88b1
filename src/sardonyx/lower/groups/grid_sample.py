"""Interpolation of images at positions given by data."""

from __future__ import annotations

from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.epilogue import EpilogueGroup


class GridSample(EpilogueGroup):
    """out[b, c, p] = epilogue(sum over taps t.. of x[b, c, i0, i1, ..] * w0 * w1 .., further operands).

    Along axis a, i is ``indices[a][t, b, p]`` and w is ``weights[a][t, b, p]``. Indices are i64 and inside the image,
    or -1 for padding, which contributes 0 even if its weight is not finite. ``x`` is (batch, channels, *spatial), and
    the outputs are (batch, channels, points). Without weights each axis has one tap. Operand 0 of the epilogue is f32
    or f64 where there are weights, and otherwise has x's type, a narrow float widened to f32.
    """

    x: View
    indices: tuple[View, ...]
    weights: tuple[View, ...]

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.x, *self.indices, *self.weights)

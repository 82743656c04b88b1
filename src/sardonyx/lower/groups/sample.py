"""Images read at places that data name."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.finished import Finished


@dataclass(frozen=True)
class Sample(Finished):
    """out[b, c, p] = epilogue(sum over taps t.. of x[b, c, i0, i1, ..] * w0 * w1 .., further operands).

    Along axis a, i is ``indices[a][t, b, p]`` and w is ``weights[a][t, b, p]``. Indices are i64 and inside the image,
    or -1, which stands for 0 however large its weight. ``x`` is (batch, channels, *spatial), and the outputs are
    (batch, channels, points). Without weights each axis has one tap. Operand 0 of the epilogue is f32 or f64 where
    there are weights, and otherwise has x's type, a narrow float widened to f32.
    """

    x: View
    indices: tuple[View, ...]
    weights: tuple[View, ...]

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.x, *self.indices, *self.weights)

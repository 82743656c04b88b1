"""Convolutions of bytes in f32."""

from __future__ import annotations

from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.image import Convolution


class CentredConvolution(Convolution):
    """A convolution of bytes minus their zero point with f32 weights, in f32. Padding is 0.

    ``zero`` is one element of the image's type. The weights are whole numbers, and sums so short that they are exact.
    """

    zero: View

    @property
    def operands(self) -> tuple[View, ...]:
        return self.x, self.w, self.zero

"""Convolutions of 8-bit integers."""

from __future__ import annotations

from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.image import Convolution


class IntegerConvolution(Convolution):
    """A convolution of signed or unsigned bytes with signed ones, in i32.

    Padding is ``zero``, one element of the image's type.
    """

    zero: View

    @property
    def operands(self) -> tuple[View, ...]:
        return self.x, self.w, self.zero

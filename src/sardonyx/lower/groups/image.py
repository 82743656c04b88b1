"""Sliding windows over images: convolution and pooling."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.epilogue import EpilogueGroup
from sardonyx.records import Record


class Window(Record):
    """Output p reads input p * stride + tap * dilation - pad along each spatial axis.

    Inputs outside of the image are padding. ``pads`` are those before the image; the sizes determine those after it. A
    negative pad crops the image.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[Known, ...]


class Convolution(EpilogueGroup):
    """out[b, c, p..] = epilogue(sum over i and taps t.. of x[b, g * I + i, p.. at t..] * w[c, i, t..], further
    operands).

    ``x``: (batch, channels, *spatial); ``w``: (filters, I, *kernel), where I is channels / groups, and filter c is of
    group g = c / (filters / groups). Padding is 0. Operand 0 of the epilogue is the sum, in f32 (or f64); ``extra`` and
    ``outputs`` have the axes (batch, filters, *spatial of the result).
    """

    x: View
    w: View
    window: Window
    groups: int

    @property
    def operands(self) -> tuple[View, ...]:
        return self.x, self.w


class Pool(EpilogueGroup):
    """out[b, c, p..] = epilogue(the max, mean or sum of x[b, c, p.. at t..] over the taps t.., further
    operands).

    ``ends`` are the pads after the image if a mean counts padding; if None, a mean counts only elements of the image.
    Positions after these pads never count. The max of an empty window is -Inf (or the lowest integer), its mean NaN.
    Operand 0 of the epilogue is the result, a narrow float widened to f32; the axes are those of ``Convolution``.
    """

    kind: str
    """``max``, ``mean`` or ``sum``."""
    x: View
    window: Window
    ends: tuple[Known, ...] | None

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.x,)

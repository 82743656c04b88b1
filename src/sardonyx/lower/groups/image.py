"""What slides a window over an image."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.finished import Finished


@dataclass(frozen=True)
class Window:
    """What an output sees of an image: at p, along each spatial axis, elements p * stride + tap * dilation - pad.

    Elements that the image does not have are padding. How much of it lies behind the image follows from the sizes. A
    pad below 0 leaves out elements of the image.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[Known, ...]


@dataclass(frozen=True)
class Convolution(Finished):
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


@dataclass(frozen=True)
class Pool(Finished):
    """out[b, c, p..] = epilogue(the largest, the mean or the sum of x[b, c, p.. at t..] over the taps t.., further
    operands).

    ``ends`` are the pads behind the image if means count padding; otherwise it is None, and they count what is in the
    image. What lies behind these pads never counts. A window without a single element has -Inf (the lowest integer) as
    its largest and NaN as its mean. Operand 0 of the epilogue is the result, a narrow float widened to f32; the axes
    are those of ``Convolution``.
    """

    kind: str
    """``max``, ``mean`` or ``sum``."""
    x: View
    window: Window
    ends: tuple[Known, ...] | None

    @property
    def operands(self) -> tuple[View, ...]:
        return (self.x,)

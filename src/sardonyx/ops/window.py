"""Sliding windows over spatial axes: geometry, and views of tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from sardonyx import errors
from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import Array, require
from sardonyx.records import Record

Ints = Sequence[int]


def trailing(index: Iterable[slice | int]) -> tuple[Any, ...]:
    """An index of the last axes, after an ellipsis."""
    return (..., *index)


def along(axis: int, index: slice | Array) -> tuple[Any, ...]:
    """An index of one axis, with full slices for the others."""
    return (*(slice(None),) * axis, index)


class Window(Record):
    """Kernel, stride, dilation and padding of every spatial axis, and the resulting output size."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def taps(self) -> int:
        return math.prod(self.kernel)

    @property
    def positions(self) -> int:
        return math.prod(self.output)

    @property
    def is_pointwise(self) -> bool:
        """Whether the window has one tap and reads no padding."""
        return self.taps == 1 and not any(self.begin) and not any(self.end)

    def clipped(self) -> Window:
        """The same window without the taps that read padding alone, whichever the output. ``begin`` may become
        negative, which crops the image.
        """
        axes = zip(self.size, self.kernel, self.strides, self.dilations, self.begin, self.output, strict=True)
        first, kernel = zip(*(touching_taps(*axis) for axis in axes), strict=True)
        begin = tuple(b - t * d for b, t, d in zip(self.begin, first, self.dilations, strict=True))
        return replace(self, kernel=kernel, begin=begin)

    def taps_in(self, low: Ints, high: Ints) -> Array:
        """For each output, how many taps lie from ``low`` up to ``high`` along all axes; 0 is the image's first
        element.
        """
        counts = []
        for axis, limits in enumerate(zip(low, high, strict=True)):
            starts = np.arange(self.output[axis]) * self.strides[axis] - self.begin[axis]
            before = [np.clip(-((starts - p) // self.dilations[axis]), 0, self.kernel[axis]) for p in limits]
            counts.append(before[1] - before[0])
        return np.asarray(reduce(np.multiply.outer, counts))

    def pad(self, x: Array, value: Any = 0) -> Array:
        """``x`` padded with ``value``, and cropped, so that every window lies inside."""
        x = x[trailing(slice(max(-b, 0), None) for b in self.begin)]
        before = [max(b, 0) for b in self.begin]
        after = [
            max(0, (o - 1) * s + d * (k - 1) + 1 - b - n)
            for o, s, d, k, b, n in zip(
                self.output, self.strides, self.dilations, self.kernel, self.begin, self.size, strict=True
            )
        ]
        if not any(before) and not any(after):
            return x
        size = x.shape[2:]
        shape = tuple(b + n + a for b, n, a in zip(before, size, after, strict=True))
        check_elements(math.prod(x.shape[:2] + shape), x.dtype, "padded input")
        padded = np.full(x.shape[:2] + shape, value, x.dtype)
        padded[trailing(slice(b, b + n) for b, n in zip(before, size, strict=True))] = x
        return padded

    def tap_slice(self, axis: int, tap: int) -> slice:
        """The slice of a padded axis that one tap reads, over all output positions."""
        start, stride = tap * self.dilations[axis], self.strides[axis]
        return slice(start, start + (self.output[axis] - 1) * stride + 1, stride)

    def tap(self, padded: Array, position: Ints) -> Array:
        """The view of the padded tensor that one kernel position reads: (..., *output)."""
        return np.asarray(padded[trailing(self.tap_slice(a, t) for a, t in enumerate(position))])

    def view(self, padded: Array) -> Array:
        """All windows at once, without copying: (N, C, *kernel, *output).

        A stride that leads nowhere, along an axis of one element, may be more than numpy can hold, and is left out.
        """
        spatial = padded.strides[2:]
        steps = tuple(s * d if k > 1 else s for s, d, k in zip(spatial, self.dilations, self.kernel, strict=True))
        strides = tuple(s * t if n > 1 else s for s, t, n in zip(spatial, self.strides, self.output, strict=True))
        return np.lib.stride_tricks.as_strided(
            padded, padded.shape[:2] + self.kernel + self.output, padded.strides[:2] + steps + strides, writeable=False
        )


def touching_taps(size: int, kernel: int, stride: int, dilation: int, begin: int, output: int) -> tuple[int, int]:
    """Along an axis, the first tap that reads an element of the image for some output, and how many there are up to the
    last such tap. Where no tap reads any: tap 0 alone.
    """
    farthest = (output - 1) * stride
    first = max(-((farthest - begin) // dilation), 0)
    stop = min((begin + size - 1) // dilation + 1, kernel)
    return (first, stop - first) if size > 0 and output > 0 and first < stop else (0, 1)


def per_axis(what: str, name: str, values: Ints | None, rank: int, default: int, least: int) -> tuple[int, ...]:
    """An attribute with one integer for each spatial axis."""
    if not values:
        return (default,) * rank
    require(len(values) == rank, f"{what}: {name} needs one value per spatial axis", expected=rank, got=list(values))
    require(all(v >= least for v in values), f"{what}: {name} out of range", expected=f">= {least}", got=list(values))
    return tuple(int(v) for v in values)


def split_pads(what: str, pads: Ints | None, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """ONNX's pads (all begins, then all ends) as two tuples."""
    both = per_axis(what, "pads", pads, 2 * rank, 0, 0)
    return both[:rank], both[rank:]


def same_pads(total: int, auto_pad: str) -> tuple[int, int]:
    """A total padding split in halves; the odd element goes to the end for SAME_UPPER."""
    small, large = total // 2, total - total // 2
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def make_window(
    what: str,
    size: Ints,
    kernel: Ints,
    strides: Ints | None,
    dilations: Ints | None,
    pads: Ints | None,
    auto_pad: str,
    ceil_mode: bool = False,
) -> Window:
    """The window of a convolution or pooling over an input of this spatial size."""
    rank = len(size)
    kernel = per_axis(what, "kernel_shape", kernel, rank, 1, 1)
    step = per_axis(what, "strides", strides, rank, 1, 1)
    dilation = per_axis(what, "dilations", dilations, rank, 1, 1)
    extent = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output = tuple(-(-n // s) for n, s in zip(size, step, strict=True))
        totals = [max(0, (o - 1) * s + e - n) for o, s, e, n in zip(output, step, extent, size, strict=True)]
        halves = [same_pads(t, auto_pad) for t in totals]
        begin, end = tuple(b for b, _ in halves), tuple(e for _, e in halves)
        return Window(tuple(size), kernel, step, dilation, begin, end, output)
    if auto_pad not in ("NOTSET", "VALID", ""):
        raise errors.InvalidArgument(f"{what}: unknown auto_pad", got=auto_pad)
    begin, end = split_pads(what, None if auto_pad == "VALID" else pads, rank)
    sizes = []
    for n, b, e, x, s in zip(size, begin, end, extent, step, strict=True):
        room, over = n + b + e - x, s - 1 if ceil_mode else 0
        most = n + b + e + over
        require(x <= most, f"{what}: the window is larger than the padded input", expected=f"<= {most}", got=x)
        count = (-(-room // s) if ceil_mode else room // s) + 1
        # A window that starts in the end padding would read no input.
        sizes.append(count - 1 if ceil_mode and (count - 1) * s >= n + b else count)
    return Window(tuple(size), kernel, step, dilation, begin, end, tuple(sizes))

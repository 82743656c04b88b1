"""What convolutions over images that lie pixel by pixel know about a block of results: where each of its pixels looks.

Taps lie at fixed distances from the first. For each pixel of the result there is the place of its first tap and, where
windows reach over the image, a word with one bit for each tap that the image has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

from sardonyx.ir import dims
from sardonyx.providers.cpu.dsl import Kernel
from sardonyx.providers.cpu.kernels.frame import AXES, Frame, Taps, sizes
from sardonyx.providers.cpu.kernels.matrices import number
from sardonyx.providers.cpu.values import Operand, Val, i64

MOST_TAPS, MOST_PADDED = 256, 64
"""Taps whose distances are kept; and those whose bits fill a word, where windows reach over the image."""
TAPS = tuple(f"{what}_{axis}" for what in ("kernel", "dilation", "stride") for axis in AXES)
"""The numbers of ``taps_args``."""


def taps_args(taps: Taps) -> dict[str, int]:
    given = {"kernel": taps.kernel, "dilation": taps.dilations, "stride": taps.strides}
    return {f"{what}_{a}": n for what, ns in given.items() for a, n in zip(AXES, ns, strict=True)}


def is_inside(frame: Frame) -> bool:
    """Whether no window reaches over the image, as far as can be told."""
    window = frame.window
    for i in range(3):
        reach = (window.kernel[i] - 1) * window.dilations[i]
        last = dims.add(dims.mul(dims.sub(frame.size[i], 1), window.strides[i]), reach)
        behind = dims.known(dims.sub(dims.sub(frame.x.shape[2 + i], 1), last))
        if window.pads[i] != 0 or not (isinstance(behind, int) and behind >= 0):
            return False
    return True


def has_room(frame: Frame) -> bool:
    """Whether a block can hold what there is to know of the window's taps."""
    return frame.taps.count <= (MOST_TAPS if is_inside(frame) else MOST_PADDED)


class Block:
    """Where the pixels of a block are, and which taps of each are in the image."""

    def __init__(self, k: Kernel, memory: Any, most: int) -> None:
        """In the first ``nbytes(most)`` of scratch memory, for up to ``most`` pixels."""
        self.k, self.memory = k, memory
        self.distances, self.places = k.scratch(i64), k.scratch(i64, MOST_TAPS * 8)
        self.bits = self.places.at(most)

    @staticmethod
    def nbytes(most: int) -> int:
        return (MOST_TAPS + 2 * most) * 8

    def _n(self, name: str) -> Val:
        return number(self.memory, name)

    @property
    def taps(self) -> Val:
        return self._n("kernel_z") * self._n("kernel_y") * self._n("kernel_x")

    def has(self, row: Val, tap: Val) -> Val:
        """Whether the image has what a tap of a pixel sees."""
        return ((self.bits.load(row) >> tap) & 1).ne(0)

    def measure(self) -> None:
        """How far each tap is from the first."""
        k, at = self.k, self.k.var(0)
        with k.loop(0, self._n("kernel_z")) as z, k.loop(0, self._n("kernel_y")) as y:
            row = z * self._n("dilation_z") * self._n("x_z") + y * self._n("dilation_y") * self._n("x_y")
            with k.loop(0, self._n("kernel_x")) as x:
                self.distances.store(at.get(), row + x * self._n("dilation_x") * self._n("x_x"))
                at += 1

    def locate(self, image: Val, first: Val, count: Val, last: Val, is_padded: bool) -> None:
        """``count`` pixels of an image's result from ``first`` on; behind the ``last`` of it, that one again."""
        k, (_, high, wide) = self.k, sizes(self.memory, "out")
        base, steps = image * self._n("x_b"), [self._n(f"stride_{a}") for a in AXES]
        index = [k.var(n) for n in (first // (high * wide), first // wide % high, first % wide)]
        with k.loop(0, count) as i:
            starts = [n.get() * s - self._n(f"pad_{a}") for n, s, a in zip(index, steps, AXES, strict=True)]
            place = base
            for start, a in zip(starts, AXES, strict=True):
                place = place + start * self._n(f"x_{a}")
            self.places.store(i, place)
            if is_padded:
                self.bits.store(i, self._inside(starts))
            with k.when(first + i < last):
                z, y, x = (n.get() for n in index)
                is_row, is_plane = (x + 1).eq(wide), (x + 1).eq(wide) & (y + 1).eq(high)
                index[2].set(k.select(is_row, 0, x + 1))
                index[1].set(k.select(is_plane, 0, y + k.cast(is_row, i64)))
                index[0].set(z + k.cast(is_plane, i64))

    def _inside(self, starts: Sequence[Val]) -> Val:
        """A bit for each tap: whether the image has what it sees. Most pixels see nothing else."""
        k, found, at = self.k, self.k.var(-1), self.k.var(0)
        z, y, x = starts

        def is_in(start: Val, tap: Operand, axis: str) -> Val:
            place = start + self._n(f"dilation_{axis}") * tap
            return (place >= 0) & (place < self._n(f"in_{axis}"))

        ends = [
            is_in(start, tap, a)
            for start, a in zip(starts, AXES, strict=True)
            for tap in (0, self._n(f"kernel_{a}") - 1)
        ]
        with k.when(~reduce(and_, ends), likely=False):
            found.set(0)
            with k.loop(0, self._n("kernel_z")) as tz, k.loop(0, self._n("kernel_y")) as ty:
                has_row = is_in(z, tz, "z") & is_in(y, ty, "y")
                with k.loop(0, self._n("kernel_x")) as tx:
                    found.set(found.get() | (k.cast(has_row & is_in(x, tx, "x"), i64) << at.get()))
                    at += 1
        return found.get()

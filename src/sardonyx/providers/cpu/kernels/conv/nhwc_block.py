"""What convolutions over images that lie pixel by pixel know about a block of results: where each of its pixels looks.

Taps lie at fixed distances from the first. For each pixel of the result there is the place of its first tap and, where
windows reach over the image, a word with one bit for each tap that the image has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.ir import dims
from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.common.window import AXES, Taps, WindowGeometry, sizes
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64, u8, u16, u32, u64

MOST_TAPS, MOST_PADDED = 256, 64
"""Taps whose distances are kept; and those whose bits fill a word, where windows reach over the image."""
REACH = 12
"""Neighbours that are read from one address."""
EDGE = 1
"""Pixels at both ends of neighbours that may each lie beside the image."""
TAPS = tuple(f"{what}_{axis}" for what in ("kernel", "dilation", "stride") for axis in AXES)
"""The numbers of ``taps_args``."""


def taps_args(taps: Taps) -> dict[str, int]:
    given = {"kernel": taps.kernel, "dilation": taps.dilations, "stride": taps.strides}
    return {f"{what}_{a}": n for what, ns in given.items() for a, n in zip(AXES, ns, strict=True)}


def is_inside(geometry: WindowGeometry) -> bool:
    """Whether no window reaches over the image, as far as can be told."""
    window = geometry.window
    for i in range(3):
        reach = (window.kernel[i] - 1) * window.dilations[i]
        last = dims.add(dims.mul(dims.sub(geometry.size[i], 1), window.strides[i]), reach)
        behind = dims.known(dims.sub(dims.sub(geometry.x.shape[2 + i], 1), last))
        if window.pads[i] != 0 or not (isinstance(behind, int) and behind >= 0):
            return False
    return True


def has_room(geometry: WindowGeometry) -> bool:
    """Whether a block can hold what there is to know of the window's taps."""
    return geometry.taps.count <= (MOST_TAPS if is_inside(geometry) else MOST_PADDED)


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
        """``count`` pixels of an image's result from ``first`` on; behind the ``last`` of it, that one again.

        Row by row: what is asked for every pixel takes as long as the sums of a few channels.
        """
        k, (_, high, wide) = self.k, sizes(self.memory, "out")
        step, move = self._n("stride_x"), self._n("stride_x") * self._n("x_x")
        done, there = k.var(0), k.min(count, last + 1 - first)
        with k.loop_while(lambda: done.get() < there):
            at = done.get()
            line, left = (first + at) // wide, (first + at) % wide
            starts = [
                n * self._n(f"stride_{a}") - self._n(f"pad_{a}")
                for n, a in zip((line // high, line % high, left), AXES, strict=True)
            ]
            place = image * self._n("x_b")
            for start, a in zip(starts, AXES, strict=True):
                place = place + start * self._n(f"x_{a}")
            lines = self._lines(starts) if is_padded else None
            many = k.min(there - at, wide - left)
            with k.loop(0, many) as i:
                self.places.store(at + i, place + i * move)
                if lines is not None:
                    self.bits.store(at + i, lines * self._columns(starts[2] + i * step))
            done.set(at + many)
        with k.loop(there, count) as i:
            self.places.store(i, self.places.load(there - 1))
            if is_padded:
                self.bits.store(i, self.bits.load(there - 1))

    def _lines(self, starts: Sequence[Val]) -> Val:
        """A bit for the first tap of each row of taps that the image has."""
        k, found, at = self.k, self.k.var(0), self.k.var(0)
        z, y, _ = starts
        with k.loop(0, self._n("kernel_z")) as tz, k.loop(0, self._n("kernel_y")) as ty:
            found.set(found.get() | (self._is_in(z, tz, "z") & self._is_in(y, ty, "y")) << at.get())
            at += self._n("kernel_x")
        return found.get()

    def _columns(self, x: Val) -> Val:
        """A bit for each tap of a row that the image has; times ``_lines``, for each tap. Most pixels have them all."""
        k, taps = self.k, self._n("kernel_x")
        found = k.var(k.cast(k.cast(k.const(-1), u64) >> k.cast(k.const(64) - taps, u64), i64))
        is_edge = (x < 0) | (x + (taps - 1) * self._n("dilation_x") >= self._n("in_x"))
        with k.when(is_edge, likely=False):
            found.set(0)
            with k.loop(0, taps) as t:
                found.set(found.get() | self._is_in(x, t, "x") << t)
        return found.get()

    def _is_in(self, start: Val, tap: Val, axis: str) -> Val:
        """1 where the image has what a tap sees along an axis, else 0."""
        place = start + tap * self._n(f"dilation_{axis}")
        return self.k.cast((place >= 0) & (place < self._n(f"in_{axis}")), i64)


@dataclass(frozen=True)
class Channels:
    """What a tap sees of the pixels of a tile, of one channel after the other."""

    read: Callable[[Val, Sequence[Buf]], Iterator[Val]]
    """Reads a channel, by its number and where ``moving`` then is. One pixel after the other: all of them at once would
    fill the registers."""
    moving: Sequence[Buf] = ()


class TilePixels:
    """Some pixels of a block, as taps see them.

    Neighbours of a row have one address between them. Where a tile goes round the end of a row, and where a tap has
    more than the outermost pixels beside the image, each has its own.
    """

    def __init__(
        self, source: Buf, zeros: Buf | None, block: Block, first: Val, count: int, even: Val | int | None
    ) -> None:
        """``zeros`` stand for what lies beside the image, if anything does; neighbours are ``even`` elements apart, if
        they are asked for.
        """
        self.k, self.source, self.zeros, self.block, self.even = source.k, source, zeros, block, even
        self.rows = [first + r for r in range(count)]
        self._even_taps = None if even is None else self._are_even(even)

    def _are_even(self, even: Val | int) -> Val:
        """A bit for each tap for which ``neighbours`` are those it sees; where nothing lies beside the image, all bits
        are alike."""
        k, count = self.k, len(self.rows)
        places = self.block.places.load(self.rows[0], count)
        expected = k.splat(self.block.places.load(self.rows[0]), count) + k.iota(i64, count) * (
            even if isinstance(even, int) else k.splat(even, count)
        )
        seen = k.const(-1)
        for row in self.rows[EDGE:-EDGE] if self.zeros is not None else []:
            seen = seen & self.block.bits.load(row)
        return k.select(places.ne(expected).any(), 0, seen)

    def is_even(self, tap: Val) -> Val | None:
        """Whether ``neighbours`` are those that a tap sees; None where they never are."""
        taps = self._even_taps
        if taps is None or self.zeros is None:  # then there may be more taps than bits
            return None if taps is None else taps.ne(0)
        return ((taps >> tap) & 1).ne(0)

    def at(self, tap: Val) -> Channels:
        """What a tap sees, each pixel from its own address."""
        distance, places = self.block.distances.load(tap), self.block.places
        found = [self._or_zeros(row, tap, self.source.at(places.load(row) + distance)) for row in self.rows]
        return Channels(lambda c, _: (pixel.load(c) for pixel in found))

    def neighbours(self, tap: Val) -> Channels:
        """The same, from the address of the first, or of every ``REACH`` where their distance is not known here. Odd
        multiples of it are then held, one of which a processor adds, times a power of two, for nothing.
        """
        k, count, even = self.k, len(self.rows), self.even
        assert even is not None
        first = self.source.at(self.block.places.load(self.rows[0]) + self.block.distances.load(tap))
        reach = count if isinstance(even, int) else REACH
        firsts, nbytes = [first.at(even * r) for r in range(0, count, reach)], first.dtype.bits // 8
        odd = {} if isinstance(even, int) else {n: k.opaque(even * (n * nbytes)) for n in range(1, REACH, 2)}
        edges = {
            r: self._or_zeros(self.rows[r], tap, first.at(even * r))
            for r in ((*range(EDGE), *range(count - EDGE, count)) if self.zeros is not None else ())
        }

        def read(c: Val, here: Sequence[Buf]) -> Iterator[Val]:
            for r in range(count):
                if r in edges:
                    yield edges[r].load(c)
                elif isinstance(even, int):
                    yield here[0].load(even * r)
                else:
                    yield _beside(here[r // REACH], odd, r % REACH)

        return Channels(read, firsts)

    def _or_zeros(self, row: Val, tap: Val, pixel: Buf) -> Buf:
        return pixel if self.zeros is None else self.k.choose(self.block.has(row, tap), pixel, self.zeros)


def _beside(pixel: Buf, odd: Mapping[int, Val], n: int) -> Val:
    """An element of the n-th neighbour of a pixel, by odd multiples of their distance in bytes."""
    if n == 0:
        return pixel.load()
    scale = n & -n
    unit = {1: u8, 2: u16, 4: u32, 8: u64}[scale]
    return pixel.as_type(unit).at(odd[n // scale]).as_type(pixel.dtype).load()

"""Address tables of a block of output pixels, for convolutions of NHWC images.

Taps have fixed offsets from the first tap. For each output pixel the tables hold the address of its first tap and,
where windows read padding, a bit mask of the taps that are inside the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from sardonyx.ir import dims
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.window import TapsArgs, WindowArgs, WindowGeometry
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64, u8, u16, u32, u64
from sardonyx.records import Record

MOST_TAPS, MOST_PADDED = 256, 64
"""Taps of a window, at most; and those of a window that reads padding, whose masks are one word."""
REACH = 12
"""Pixels that are read relative to one address."""
EDGE = 1
"""Pixels at either end of a tile that may be padding while the tile still shares an address."""


def is_inside(geometry: WindowGeometry) -> bool:
    """Whether no window reads padding, as far as the known sizes tell."""
    window = geometry.window
    for i in range(3):
        reach = (window.kernel[i] - 1) * window.dilations[i]
        last = dims.add(dims.mul(dims.sub(geometry.size[i], 1), window.strides[i]), reach)
        left = dims.known(dims.sub(dims.sub(geometry.x.shape[2 + i], 1), last))
        if window.pads[i] != 0 or not (isinstance(left, int) and left >= 0):
            return False
    return True


def fits_tables(group: Convolution, *, by_row: bool = False) -> bool:
    """Whether the window has few enough taps for the tables: rows of taps if they are channels of a padded image."""
    if by_row:
        return math.prod(group.window.kernel[:-1]) <= MOST_TAPS
    taps = math.prod(group.window.kernel)
    return taps <= MOST_PADDED or (taps <= MOST_TAPS and is_inside(WindowGeometry.of(group, collapse=False)))


class Block:
    """The address tables of a block of output pixels."""

    def __init__(self, k: Kernel, window: WindowArgs[Buf, Val], taps: TapsArgs[Buf, Val], most: int) -> None:
        """The tables take the first ``nbytes(most)`` bytes of scratch memory and hold up to ``most`` pixels."""
        self.k, self.window, self.taps = k, window, taps
        self.distances, self.places = k.scratch(i64), k.scratch(i64, MOST_TAPS * 8)
        self.bits = self.places.at(most)

    @staticmethod
    def nbytes(most: int) -> int:
        return (MOST_TAPS + 2 * most) * 8

    def has(self, row: Val, tap: Val) -> Val:
        """Whether tap ``tap`` of pixel ``row`` is inside the image."""
        return ((self.bits.load(row) >> tap) & 1).ne(0)

    def fill_tap_offsets(self) -> None:
        """Store the offset of each tap from the first tap."""
        k, at, strides = self.k, self.k.var(0), self.window.strides
        kernel, dilation = self.taps.kernel, self.taps.dilation
        with k.loop(0, kernel.z) as z, k.loop(0, kernel.y) as y:
            row = z * dilation.z * strides.z + y * dilation.y * strides.y
            with k.loop(0, kernel.x) as x:
                self.distances.store(at.get(), row + x * dilation.x * strides.x)
                at += 1

    def locate(self, image: Val, first: Val, count: Val, last: Val, is_padded: bool) -> None:
        """Fill the tables for ``count`` output pixels of an image, from pixel ``first`` on. After pixel ``last``, its
        entry is repeated.

        The tables are filled row by row, because work per pixel costs as much as the products of a few channels.
        """
        k, strides, (_, high, wide) = self.k, self.window.strides, self.window.out
        step, move = self.taps.stride.x, self.taps.stride.x * strides.x
        done, there = k.var(0), k.min(count, last + 1 - first)
        with k.loop_while(lambda: done.get() < there):
            at = done.get()
            line, left = (first + at) // wide, (first + at) % wide
            indices = (line // high, line % high, left)
            starts = [n * s - pad for n, s, pad in zip(indices, self.taps.stride.each, self.window.pad, strict=True)]
            place = image * strides.b
            for start, stride in zip(starts, strides.axes, strict=True):
                place = place + start * stride
            lines = self._lines(starts) if is_padded else None
            in_row = k.min(there - at, wide - left)
            with k.loop(0, in_row) as i:
                self.places.store(at + i, place + i * move)
                if lines is not None:
                    self.bits.store(at + i, lines * self._columns(starts[2] + i * step))
            done.set(at + in_row)
        with k.loop(there, count) as i:
            self.places.store(i, self.places.load(there - 1))
            if is_padded:
                self.bits.store(i, self.bits.load(there - 1))

    def _lines(self, starts: Sequence[Val]) -> Val:
        """A bit mask with the first tap of each row of taps that is inside the image."""
        k, found, at, kernel = self.k, self.k.var(0), self.k.var(0), self.taps.kernel
        z, y, _ = starts
        with k.loop(0, kernel.z) as tz, k.loop(0, kernel.y) as ty:
            found.set(found.get() | (self._is_in(z, tz, 0) & self._is_in(y, ty, 1)) << at.get())
            at += kernel.x
        return found.get()

    def _columns(self, x: Val) -> Val:
        """A mask of a row's taps that are inside the image; times ``_lines``, the mask of all taps."""
        k, taps = self.k, self.taps.kernel.x
        found = k.var(k.cast(k.cast(k.const(-1), u64) >> k.cast(k.const(64) - taps, u64), i64))
        is_edge = (x < 0) | (x + (taps - 1) * self.taps.dilation.x >= self.window.axes.x.size)
        with k.when(is_edge, likely=False):
            found.set(0)
            with k.loop(0, taps) as t:
                found.set(found.get() | self._is_in(x, t, 2) << t)
        return found.get()

    def _is_in(self, start: Val, tap: Val, axis: int) -> Val:
        """1 where a tap is inside the image along an axis, else 0."""
        place = start + tap * self.taps.dilation.each[axis]
        return self.k.cast((place >= 0) & (place < self.window.size[axis]), i64)


class Channels(Record):
    """The input of one tap of a tile's pixels, channel by channel."""

    read: Callable[[Val, Sequence[Buf]], Iterator[Val]]
    """Reads a channel, given its number and the current ``moving`` addresses. Pixel by pixel, to keep few registers
    live."""
    moving: Sequence[Buf] = ()


class TilePixels:
    """The input pixels of a tile of outputs.

    Neighbours in a row share one address. Each pixel has its own where a tile crosses the end of a row, or where more
    than the outermost pixels of a tap are padding.
    """

    def __init__(
        self, source: Buf, zeros: Buf | None, block: Block, first: Val, count: int, even: Val | int | None
    ) -> None:
        """``zeros``: the pixel that replaces padding, None if there is none. ``even``: the stride of neighbouring
        pixels, None if they do not share addresses.
        """
        self.k, self.source, self.zeros, self.block, self.even = source.k, source, zeros, block, even
        self.rows = [first + r for r in range(count)]
        self._even_taps = None if even is None else self._are_even(even)

    def _are_even(self, even: Val | int) -> Val:
        """A mask of the taps for which pixels may share addresses; without padding, all bits are equal."""
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
        """Whether the pixels of a tap may share addresses; None where they never do."""
        taps = self._even_taps
        if taps is None or self.zeros is None:  # without padding there may be more taps than bits
            return None if taps is None else taps.ne(0)
        return ((taps >> tap) & 1).ne(0)

    def at(self, tap: Val) -> Channels:
        """The input of a tap at all pixels of the tile, each pixel read from its own address."""
        distance, places = self.block.distances.load(tap), self.block.places
        found = [
            self.moving(self._or_zeros(row, tap, self.source.at(places.load(row) + distance))) for row in self.rows
        ]
        return Channels(lambda c, _: (self.load(pixel.at(c)) for pixel in found))

    def neighbours(self, tap: Val) -> Channels:
        """The input of a tap at all pixels of the tile, read from shared addresses; only where ``is_even(tap)`` holds.

        One address serves all pixels or, where the pixel stride is a run-time number, ``REACH`` of them. Odd multiples
        of the stride are then kept in registers; the addressing mode scales them by a power of two for free.
        """
        k, count, even = self.k, len(self.rows), self.even
        assert even is not None
        first = self.source.at(self.block.places.load(self.rows[0]) + self.block.distances.load(tap))
        reach = count if isinstance(even, int) else REACH
        firsts = [self.moving(first.at(even * r)) for r in range(0, count, reach)]
        nbytes, unit = first.dtype.bits // 8, first.dtype
        odd = {} if isinstance(even, int) else {n: k.opaque(even * (n * nbytes)) for n in range(1, REACH, 2)}
        edges = {
            r: self.moving(self._or_zeros(self.rows[r], tap, first.at(even * r)))
            for r in ((*range(EDGE), *range(count - EDGE, count)) if self.zeros is not None else ())
        }

        def read(c: Val, here: Sequence[Buf]) -> Iterator[Val]:
            for r in range(count):
                if r in edges:
                    yield self.load(edges[r].at(c))
                elif isinstance(even, int):
                    yield self.load(here[0].as_type(unit).at(even * r))
                else:
                    yield self.load(_neighbour(here[r // REACH], odd, r % REACH))

        return Channels(read, firsts)

    def moving(self, pixel: Buf) -> Buf:
        """A pixel as memory of what is read at a time."""
        return pixel

    def load(self, at: Buf) -> Val:
        """What is read at a time."""
        return at.load()

    def _or_zeros(self, row: Val, tap: Val, pixel: Buf) -> Buf:
        return pixel if self.zeros is None else self.k.choose(self.block.has(row, tap), pixel, self.zeros)


def _neighbour(pixel: Buf, odd: Mapping[int, Val], n: int) -> Buf:
    """An element of the n-th neighbour of a pixel, by odd multiples of the pixel stride in bytes."""
    if n == 0:
        return pixel
    scale = n & -n
    unit = {1: u8, 2: u16, 4: u32, 8: u64}[scale]
    return pixel.as_type(unit).at(odd[n // scale]).as_type(pixel.dtype)

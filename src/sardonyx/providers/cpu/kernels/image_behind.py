"""Squares of a convolution that are finished pixel by pixel between the products of the next (``conv_tiles``).

The chip takes in instructions in order, and a tile instruction waits there for a free tile register. So what is written
behind the products of a square is begun when they end, and the next ones wait for it: both times add up. (A square of 8
steps, a residual and a Relu, all in L1: 253 cycles of products, 128 of the rest, 409 in all. Written between the
products, two pixels a step, 266.) With one part, where products are few, each step finishes some pixels of the square
before, so many that the steps of a run finish all of them: a number that the kernel is written for.

A step has no time to find out where pixels lie, in rows of an image with padding between them. That is the same for
all filters: a table has, for each pixel of a group that exists, which of its tile's it is, and where it lies in each
operand and result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sardonyx.providers.cpu.dsl import Kernel
from sardonyx.providers.cpu.kernels.conv_tiles import GROUP, Grid
from sardonyx.providers.cpu.kernels.epilogue import SAME, UNIT, Epilogue
from sardonyx.providers.cpu.kernels.image_epilogue import SPLIT, ImageFinish
from sardonyx.providers.cpu.kernels.matrices import number
from sardonyx.providers.cpu.kernels.split import HALF, PANEL
from sardonyx.providers.cpu.values import Buf, Operand, Tile, Val, i64

MOST = {False: 16, True: 4}
"""Pixels of a step, at most, where what follows is short and where it is long, which is much to write."""
HEAD, SLOTS = 8, 2 * HALF
"""Words of a tile in the table: those before its pixels, the first being how many exist, and those for each thing that
is known of them. Pixels are written 16 at a time, however few a row has, and the next row's go over what is too much.
"""


def pace_of(epilogue: Epilogue, steps: int, *, is_full: bool) -> int:
    """Pixels that each of ``steps`` steps finishes, a power of two; 0 where squares are finished behind each other.

    What is short must be lines of images and 32 filters each: where results are longer or there are fewer, it is the
    stores that take the time. (MobileNetV2, results in f32: 1.1 of the time.)
    """
    if epilogue.is_long:
        is_apart = all(x.columns in (UNIT, SPLIT) or (x.columns == SAME and not x.is_flat) for _, x in epilogue.names)
    else:
        is_apart = is_full and all(x.columns == SPLIT or (x.columns == UNIT and x.is_flat) for _, x in epilogue.names)
    least = -(-HALF // max(steps, 1))
    return min(1 << (least - 1).bit_length(), MOST[epilogue.is_long]) if is_apart else 0


def is_one_for_images(epilogue: Epilogue, args: Mapping[str, Any]) -> bool:
    """Whether what has one number for a filter in a row of pixels has the same in all rows of an image, and so in a
    tile. Of a batch that is taken for the planes of one image it has others in each.
    """
    names = [name for name, x in epilogue.names if x.is_flat and x.columns == UNIT]
    return all(args[f"{name}_batch{axis}"] == 0 for name in names for axis in (1, 2))


def table_nbytes(epilogue: Epilogue) -> int:
    return GROUP * _tile_words(epilogue) * 8


def _tile_words(epilogue: Epilogue) -> int:
    """How many pixels exist; of each which it is, and where it lies."""
    return HEAD + SLOTS * (1 + len(epilogue.names))


class PixelsBehind:
    """The pixels of the square before which are not finished yet."""

    def __init__(
        self, k: Kernel, epilogue: Epilogue, memory: Any, grid: Grid, table: Buf, pace: int, *, is_full: bool
    ) -> None:
        self.k, self.memory, self.grid, self.pace, self.is_full = k, memory, grid, pace, is_full
        self.filters = number(memory, "filters")
        self.finish = _PixelFinish(k, epilogue, memory, self.filters, [k.const(0)] * 3, grid.sums, 1)
        self.names = [name for name, _ in epilogue.names]
        self.width = PANEL if self.finish.is_wide else HALF
        """Filters that are finished at a time."""
        self._table, self._tile_words = table, _tile_words(epilogue)
        self._next, self._left, self._slot, self._column = (k.var(0) for _ in range(4))

    def locate(self, rows: Val) -> None:
        """Write the table of a group of ``rows`` tiles."""
        k = self.k
        with k.loop(0, rows) as tile:
            here, found = self._table.at(tile * self._tile_words), k.var(0)
            with self.grid.image_rows(tile) as (first, place, x, many):
                self._write(here.at(HEAD + found.get()), first, place, x)
                found += many
            here.store(0, found.get())

    def _write(self, to: Buf, first: Val, place: list[Val], x: Val) -> None:
        """Pixels ``first`` and on of a tile are those of an image's row from ``x`` on."""
        k, lanes = self.k, HALF // 2
        counted = [(first * PANEL, k.const(PANEL))]
        for name in self.names:
            terms = (index * number(self.memory, f"{name}_batch{i}") for i, index in enumerate(place))
            row = number(self.memory, f"{name}_row")
            counted.append((sum(terms, x * row), row))
        for word, (start, step) in enumerate(counted):
            values = k.iota(i64, lanes) * step + start
            to.store(word * SLOTS, values)
            to.store(word * SLOTS + lanes, values + step * lanes)

    def take(self, tile: Val, slot: Val, column: Val) -> None:
        """The sums of a tile and a column of 32 filters are complete, in the square at element ``slot``."""
        start = tile * self._tile_words
        for var, value in (
            (self._next, start + HEAD), (self._left, self._table.load(start)), (self._slot, slot),
            (self._column, column),
        ):  # fmt: skip
            var.set(value)

    def woven_steps(self, many: Val) -> Val:
        """How many of ``many`` steps finish as many pixels as the kernel is written for."""
        k, ready = self.k, self.k.min(many, self._left.get() >> (self.pace.bit_length() - 1))
        return ready if self.is_full else k.select(self.filters - self._column.get() * PANEL >= PANEL, ready, 0)

    def each_step(self) -> Callable[[Val], list[Callable[[], None]]]:
        """Gives what one of those steps has to do, pixel by pixel."""
        begin, pixel = self._next.get(), self._pixel_of(self._next.get())

        def of_step(step: Val) -> list[Callable[[], None]]:
            return [partial(pixel, begin + (step * self.pace + i)) for i in range(self.pace)]

        return of_step

    def went(self, steps: Val) -> None:
        """Some steps have done so."""
        self._next += steps * self.pace
        self._left += -steps * self.pace

    def rest(self) -> None:
        """Finish what is left."""
        k, begin = self.k, self._next.get()
        with k.when(self._left.get() > 0):
            end = begin + self._left.get()
            if self.is_full:
                pixel = self._pixel_of(begin)
                with k.loop(begin, end) as at:
                    pixel(at)
            else:
                slot, first = self.grid.sums.at(self._slot.get()), self._column.get() * PANEL
                with k.loop(begin, end) as at, k.loop(0, PANEL, HALF) as half:
                    sums = self._enter(slot, at)
                    t = Tile(first + half, HALF, k.mask(self.filters - first - half, HALF))
                    self.finish.put(0, t, sums.load(half, HALF))
        self._left.set(0)

    def _pixel_of(self, begin: Val) -> Callable[[Val], None]:
        """Gives what finishes a pixel and 32 filters, which is at a word of the table; one of the tile's pixels is at
        ``begin``.
        """
        slot, first = self.grid.sums.at(self._slot.get()), self._column.get() * PANEL
        tiles = [Tile(first + at, self.width, None) for at in range(0, PANEL, self.width)]
        self._enter(slot, begin)  # a tile is of one image, and what is held is the same in all of it
        held = [self.finish.of_columns(t) for t in tiles]

        def pixel(at: Val) -> None:
            sums = self._enter(slot, at, *held)
            for i, (t, finish) in enumerate(zip(tiles, held, strict=True)):
                finish.put(0, t, sums.load(i * self.width, self.width))

        return pixel

    def _enter(self, slot: Buf, at: Val, *held: _PixelFinish) -> Buf:
        """The sums of the pixel at a word of the table; what follows them learns its places."""
        entry = self._table.at(at)
        places = {name: entry.load(word * SLOTS) for word, name in enumerate(self.names, 1)}
        for finish in (self.finish, *held):
            finish.places = places
        return slot.at(entry.load(0))


class _PixelFinish(ImageFinish):
    """What follows the sums of one pixel, whose place in each operand is known."""

    places: dict[str, Val]

    def _row(self, name: str, row: Operand, *, is_flat: bool = False) -> Buf:
        return self._at[name].at(self.places[name])

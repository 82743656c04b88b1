"""Squares of a convolution that are finished pixel by pixel between the products of the next (``conv_tiles``).

The chip looks ahead by a step or two of tile products. What is written behind those of a square is begun when they end,
and the next ones wait for it: with one part, where products are few, both times add up. So what is long is done in each
step for a few pixels of the square before. (YOLOv8n, 3 x 3 convolutions of 32 and 64 channels: 0.82 of the time. What
is short, as in ResNet-50, gains nothing.)

A step has no time to find out where pixels lie, in rows of an image with padding between them. That is the same for
all filters: a table has, for each pixel of a group that exists, which of its tile's it is, and where it lies in each
operand and result.
"""

from __future__ import annotations

from typing import Any

from sardonyx.providers.cpu.dsl import Kernel
from sardonyx.providers.cpu.kernels.conv_tiles import GROUP, Grid
from sardonyx.providers.cpu.kernels.epilogue import SAME, Epilogue
from sardonyx.providers.cpu.kernels.image_epilogue import PLANES, ImageFinish
from sardonyx.providers.cpu.kernels.matrices import number
from sardonyx.providers.cpu.kernels.split import HALF, PANEL
from sardonyx.providers.cpu.values import Buf, Operand, Tile, Val, i64


def pays_between(epilogue: Epilogue) -> bool:
    """Whether what follows is long, and every pixel is finished by itself with nothing that is one for a whole row."""
    is_apart = not any(x.columns == PLANES or (x.is_flat and x.columns == SAME) for _, x in epilogue.names)
    return is_apart and epilogue.is_long


def table_nbytes(epilogue: Epilogue) -> int:
    return GROUP * _tile_words(epilogue) * 8


def _tile_words(epilogue: Epilogue) -> int:
    """How many pixels exist, and for each which it is, and where it lies."""
    return 1 + HALF * _pixel_words(epilogue)


def _pixel_words(epilogue: Epilogue) -> int:
    return 1 + len(epilogue.names)


class PixelsBehind:
    """The pixels of the square before which are not finished yet."""

    def __init__(self, k: Kernel, epilogue: Epilogue, memory: Any, grid: Grid, table: Buf, parts: int) -> None:
        self.k, self.memory, self.grid, self.filters = k, memory, grid, number(memory, "filters")
        self.finish = _PixelFinish(k, epilogue, memory, self.filters, [k.const(0)] * 3, grid.sums, parts)
        self.names, self.words = [name for name, _ in epilogue.names], _pixel_words(epilogue)
        self._table, self._tile_words = table, _tile_words(epilogue)
        self._next, self._end, self._slot = (k.var(0) for _ in range(3))

    def locate(self, rows: Val) -> None:
        """Write the table of a group of ``rows`` tiles."""
        k = self.k
        with k.loop(0, rows) as tile:
            here, found = self._table.at(tile * self._tile_words), k.var(0)
            with self.grid.image_rows(tile) as (first, place, x, many):
                self._write(here.at(1 + found.get() * self.words), first, place, x, many)
                found += many
            here.store(0, found.get())

    def _write(self, to: Buf, first: Val, place: list[Val], x: Val, many: Val) -> None:
        """Pixels ``first`` and on of a tile are ``many`` of an image's row from ``x`` on."""
        starts = []
        for name in self.names:
            terms = (index * number(self.memory, f"{name}_batch{i}") for i, index in enumerate(place))
            starts.append(sum(terms, x * number(self.memory, f"{name}_row")))
        with self.k.loop(0, many) as i:
            entry = to.at(i * self.words)
            entry.store(0, (first + i) * PANEL)
            for word, (name, start) in enumerate(zip(self.names, starts, strict=True), 1):
                entry.store(word, start + i * number(self.memory, f"{name}_row"))

    def take(self, tile: Val, slot: Val) -> None:
        """The sums of a tile are complete, in the square at element ``slot``."""
        start = tile * self._tile_words
        self._next.set(start + 1)
        self._end.set(start + 1 + self._table.load(start) * self.words)
        self._slot.set(slot)

    def some(self, pixels: Operand, column: Val) -> None:
        """Finish the next few, or what is left, of a column of 32 filters."""
        k, first, slot = self.k, column * PANEL, self.grid.sums.at(self._slot.get())
        begin = self._next.get()
        end = k.min(begin + k.value(pixels, i64) * self.words, self._end.get())
        with k.loop(begin, end, self.words) as at:
            entry = self._table.at(at)
            sums = slot.at(entry.load(0))
            self.finish.places = {name: entry.load(word) for word, name in enumerate(self.names, 1)}
            for half in range(0, PANEL, HALF):
                t = Tile(first + half, HALF, k.mask(self.filters - first - half, HALF))
                self.finish.put(0, t, sums.load(half, HALF))
        self._next.set(end)

    def rest(self, column: Val) -> None:
        self.some(HALF, column)


class _PixelFinish(ImageFinish):
    """What follows the sums of one pixel, whose place in each operand is known."""

    places: dict[str, Val]

    def _row(self, name: str, row: Operand, *, is_flat: bool = False) -> Buf:
        return self._at[name].at(self.places[name])

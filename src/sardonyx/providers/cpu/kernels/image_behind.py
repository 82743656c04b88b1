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
from sardonyx.providers.cpu.kernels.epilogue import SAME, Epilogue
from sardonyx.providers.cpu.kernels.image_epilogue import PLANES, ImageFinish
from sardonyx.providers.cpu.kernels.matrices import number
from sardonyx.providers.cpu.kernels.split import HALF, PANEL
from sardonyx.providers.cpu.values import Buf, Operand, Tile, Val


def pays_between(epilogue: Epilogue) -> bool:
    """Whether what follows is long, and every pixel is finished by itself with nothing that is one for a whole row."""
    is_apart = not any(x.columns == PLANES or (x.is_flat and x.columns == SAME) for _, x in epilogue.names)
    return is_apart and epilogue.is_long


def table_words(epilogue: Epilogue) -> int:
    """For each pixel."""
    return 1 + len(epilogue.names)


class PixelsBehind:
    """The pixels of the square before which are not finished yet."""

    def __init__(self, k: Kernel, epilogue: Epilogue, memory: Any, n: Val, table: Buf, sums: Buf, parts: int) -> None:
        """Of ``n`` filters in all; ``table`` and ``sums`` are of a group of tiles."""
        self.k, self.memory, self.n, self.table, self.sums = k, memory, n, table, sums
        self.finish = _PixelFinish(k, epilogue, memory, n, [k.const(0)] * 3, sums, parts)
        self.names, self.words = [name for name, _ in epilogue.names], table_words(epilogue)
        self._next, self._end, self._slot = (k.var(0) for _ in range(3))

    def place(self, entry: Val, tile_row: Val, place: list[Val], x: Val, many: Val) -> None:
        """Pixels ``tile_row`` and on of a tile are ``many`` of an image's row from ``x`` on: these go to ``entry``."""
        starts = []
        for name in self.names:
            terms = (index * number(self.memory, f"{name}_batch{i}") for i, index in enumerate(place))
            starts.append(sum(terms, x * number(self.memory, f"{name}_row")))
        with self.k.loop(0, many) as i:
            to = self.table.at((entry + i) * self.words)
            to.store(0, (tile_row + i) * PANEL)
            for word, (name, start) in enumerate(zip(self.names, starts, strict=True), 1):
                to.store(word, start + i * number(self.memory, f"{name}_row"))

    def take(self, entry: Val, many: Val, slot: Val) -> None:
        """The sums of the pixels from ``entry`` on are complete, in the square at element ``slot``."""
        for var, value in ((self._next, entry), (self._end, entry + many), (self._slot, slot)):
            var.set(value)

    def some(self, pixels: Operand, column: Val) -> None:
        """Finish the next few, or what is left, of a column of 32 filters."""
        k, first, slot = self.k, column * PANEL, self.sums.at(self._slot.get())
        begin = self._next.get()
        end = k.min(begin + pixels, self._end.get())
        with k.loop(begin, end) as at:
            entry = self.table.at(at * self.words)
            sums = slot.at(entry.load(0))
            self.finish.places = {name: entry.load(word) for word, name in enumerate(self.names, 1)}
            for half in range(0, PANEL, HALF):
                t = Tile(first + half, HALF, k.mask(self.n - first - half, HALF))
                self.finish.put(0, t, sums.load(half, HALF))
        self._next.set(end)

    def rest(self, column: Val) -> None:
        self.some(HALF, column)


class _PixelFinish(ImageFinish):
    """What follows the sums of one pixel, whose place in each operand is known."""

    places: dict[str, Val]

    def _row(self, name: str, row: Operand, *, is_flat: bool = False) -> Buf:
        return self._at[name].at(self.places[name])

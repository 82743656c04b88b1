"""Epilogues over images: operands and results in NCHW, or in packed images of bf16 terms.

These two layouts come on top of the stride classes of ``common.epilogue``. Packed numbers are decoded when they are
loaded and encoded when they are stored, in the layout that the next convolution on AMX reads (``conv.packed_image``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from sardonyx.providers.cpu.kernels.common.epilogue import Access, BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.conv.packed_image import BLOCK, decode_terms, encode_terms, layout_params
from sardonyx.providers.cpu.kernels.math.transpose import transposed
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL
from sardonyx.providers.cpu.language.dsl import Kernel, Params
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, bf16, f32, i64, u16

NCHW, PACKED = "nchw", "packed"
"""Stride classes besides those of ``Access``: an NCHW operand, and a packed image."""
MICRO_TILE = HALF * PANEL
"""Sums of 16 pixels and 32 filters."""


def packed_params(epilogue: Epilogue) -> Params:
    """The parameters of an epilogue, and of the packed image that it writes for the next convolution."""
    image = {"image": (bf16,), **layout_params("image")} if packs_image(epilogue) else {}
    terms = {f"{name}_term": i64 for name, x in epilogue.names if x.columns == PACKED}
    return {**image, **epilogue.params, **terms}


def packs_image(epilogue: Epilogue) -> bool:
    """Whether a result is packed for the convolution that reads it."""
    return any(y.columns == PACKED for y in epilogue.outputs)


class ImageEpilogue(BoundEpilogue):
    """The epilogue of pixels of one image row; a matrix row is a pixel. NCHW operands pass through a micro-tile of
    scratch memory and are transposed in registers.
    """

    here: Val
    """The offset of the current numbers in such a micro-tile."""

    def __init__(
        self, k: Kernel, epilogue: Epilogue, memory: Any, n: Val, place: list[Val], spare: Buf, terms: int
    ) -> None:
        super().__init__(k, epilogue, memory, n, place)
        self.terms, self._memory = terms, memory
        names = [name for name, x in epilogue.names if x.columns == NCHW]
        self.is_wide = not names and not epilogue.is_expensive
        """Whether 32 filters are finished at a time."""
        self.micro_tiles = {name: spare.at(i * MICRO_TILE) for i, name in enumerate(names)}
        self.staging = k.local(f32, HALF * HALF)

    def prefetch(self, row: Operand, column: Operand, width: int) -> None:
        super().prefetch(row, column, width)
        for name, y in self.epilogue.names:
            if y.columns == PACKED:
                at = self._row(name, row).at(self.k.value(column, i64) // BLOCK * self._number(name, "col"))
                for term in range(self.terms):
                    at.prefetch(self._number(name, "term") * term, write=name.startswith("y"))

    def _number(self, name: str, what: str) -> Val:
        return number(self._memory, f"{name}_{what}")

    def pixels(self, sums: Buf, half: Val, x: Val, many: Val, t: Tile) -> None:
        """Apply the epilogue to ``many`` pixels from ``x`` on, whose sums are a panel apart, ``half`` columns from its
        start. Expensive results are split into terms in a loop of their own: in one loop, the core would not look far
        enough ahead.
        """
        k, outputs = self.k, self.epilogue.names[len(self.epilogue.extra) :]
        is_long = self.terms > 1 and self.epilogue.is_expensive
        later = [output for output in outputs if output[1].columns == PACKED][: int(is_long)]
        with k.loop(0, many) as i:
            self.here = i * PANEL + half
            for output, result in zip(outputs, self.results(x + i, t, sums.load(i * PANEL, HALF)), strict=True):
                if output in later:
                    sums.store(i * PANEL, result)
                else:
                    self._store(*output, x + i, t, result)
        for output in later:
            with k.loop(0, many) as i:
                self._store(*output, x + i, t, sums.load(i * PANEL, HALF))

    def panel(self, sums: Buf, x: Val, many: Val, first: Val) -> None:
        """Finish ``many`` pixels from ``x`` on and 32 filters: in one term, a line of an image at a time."""
        self.rows(sums, PANEL, x, many, Tile(first, PANEL, None))

    def transpose_in(self, x: Val, many: Val, first: Val) -> None:
        """Transpose NCHW operands into scratch memory."""
        k, mask = self.k, self.k.mask(many, HALF)
        for name in (name for name in self.micro_tiles if name.startswith("x")):
            for at, sixteen, filters in self._sixteen(name, x, first):
                with k.loop(0, sixteen) as i:
                    self.staging.store(i * HALF, filters(i).load(0, HALF, mask))
                rows = transposed([self.staging.load(n * HALF, HALF) for n in range(HALF)])
                for n, row in enumerate(rows):
                    self.micro_tiles[name].store(at + n * PANEL, row)

    def transpose_out(self, x: Val, many: Val, first: Val) -> None:
        """Transpose results from scratch memory to NCHW."""
        k, mask = self.k, self.k.mask(many, HALF)
        for name in (name for name in self.micro_tiles if name.startswith("y")):
            for at, sixteen, filters in self._sixteen(name, x, first):
                rows = [self.micro_tiles[name].load(at + n * PANEL, HALF) for n in range(HALF)]
                for n, row in enumerate(transposed(rows)):
                    self.staging.store(n * HALF, row)
                with k.loop(0, sixteen) as i:
                    filters(i).store(0, self.staging.load(i * HALF, HALF), mask=mask)

    def _sixteen(self, name: str, x: Val, first: Val) -> Iterator[tuple[Val, Val, Callable[[Val], Buf]]]:
        """For 16 filters at a time: their column in the micro-tile, how many exist, and the address of each."""
        k, pixel = self.k, self._at[name].at(x * self._number(name, "row"))
        with k.loop(0, PANEL, HALF) as at:
            start = pixel.at((first + at) * self._number(name, "col"))
            yield at, k.min(self.n - (first + at), HALF), lambda i: start.at(i * self._number(name, "col"))

    def _load(self, name: str, x: Access, row: Operand, t: Tile) -> Val:
        if x.columns == NCHW:
            return self.micro_tiles[name].load(self.here, HALF)
        if x.columns == PACKED:
            return load_terms(self._row(name, row), self._memory, name, t, self.terms)
        return super()._load(name, x, row, t)

    def _store(self, name: str, y: Access, row: Operand, t: Tile, value: Val) -> None:
        if y.columns == NCHW:
            self.micro_tiles[name].store(self.here, value)
        elif y.columns == PACKED:
            store_terms(self._row(name, row), self._memory, name, t, value, self.terms)
        else:
            super()._store(name, y, row, t, value)


def load_terms(pixel: Buf, memory: Any, name: str, t: Tile, terms: int) -> Val:
    """Load channels of a pixel of a packed image."""
    block, term = number(memory, f"{name}_col"), number(memory, f"{name}_term")
    return decode_terms(pixel.k, pixel.at(t.index // BLOCK * block + t.index % BLOCK), term, terms, t.lanes)


def store_terms(pixel: Buf, memory: Any, name: str, t: Tile, value: Val, terms: int) -> Buf:
    """Store a block of channels of a packed pixel, or 16 of it. Returns where they are."""
    k, block, term = pixel.k, number(memory, f"{name}_col"), number(memory, f"{name}_term")
    at = pixel.at(t.index // BLOCK * block + t.index % BLOCK).as_type(u16)
    there = None if t.lanes == BLOCK else k.mask(number(memory, "image_room") - t.index, HALF)
    for i, head in enumerate(encode_terms(k, t.keep(value, 0.0), terms)):
        at.store(term * i, k.cast(head >> 16, u16), there)
    return at

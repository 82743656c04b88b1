"""The AMX micro-kernel of int8 slices, for matrix products and convolutions.

Three slices of A times three of B are nine products. The last, 2^-32 of the first, is left out. The other eight fall
into four levels of significance, 256 apart, whose i32 sums are kept separately: 16 x 16 results at a time, in two
rounds over a K-block. Each round uses four tiles, an even and an odd level of sums and one tile of each operand
(``split.bf16_micro_kernel`` explains why not more).

With K-blocks of 256 numbers, 16 columns take 12 KiB of L1, 16 rows as much, and the sums of four levels 4 KiB. The
sums stay below 2^24, also where the leading slices of A are unsigned, so converting them to f32 is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import SUMS, A, B, zeroed_sums
from sardonyx.providers.cpu.kernels.split.deferred_accumulation import DeferredAccumulation
from sardonyx.providers.cpu.kernels.split.int8_slices import SLICES, TILE
from sardonyx.providers.cpu.language.amx import ROW_NBYTES, Tiles
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Val, f32, i8, i64

ROUNDS = ((2, ((0, 2), (1, 2), (1, 1), (2, 1), (2, 0))), (0, ((1, 0), (0, 0), (0, 1))))
"""For each round its lower level, and which slices of A and B are multiplied; consecutive products share one tile."""
PRODUCTS = sum(len(products) for _, products in ROUNDS)
LEVELS = 4
MICRO_TILE = HALF * PANEL
"""Sums of 16 rows and 32 columns, two sides."""
SIDES, SIDE = 2, HALF * HALF


def level_sums(tiles: Tiles, levels: Buf, level: int) -> AbstractContextManager[None]:
    """A context around the products of a round: its sums begin at zero, and are stored in ``levels`` at the end, as
    ``SliceAccumulator`` reads them.
    """
    return zeroed_sums(tiles, [levels.at((level + t) * SIDE) for t in SUMS], HALF * 4)


def multiply(
    tiles: Tiles, a: Sequence[Buf], b: Buf, products: Sequence[tuple[int, int]], stride: Operand = ROW_NBYTES,
    *, first: DType = i8,
) -> None:  # fmt: skip
    """One step of a round: ``a`` has the slices of 16 rows, ``stride`` bytes apart; ``b`` those of 16 columns. The
    ``first`` slices of A are bytes of that type.
    """
    held: dict[int, int] = {}
    for i, j in products:
        if held.get(A) != i:
            tiles.load(A, a[i], stride)
        if held.get(B) != j:
            tiles.load(B, b.at(j * 2 * TILE))
        held = {A: i, B: j}
        tiles.dot_bytes(SUMS[(i + j) % 2], A, B, i8 if i else first, i8)


def multiply_fourth(tiles: Tiles, a: Buf, b: Buf, stride: Operand = ROW_NBYTES) -> None:
    """The product of a fourth slice of A with the first of B, in the round that has its weight."""
    tiles.load(A, a, stride)
    tiles.load(B, b)
    tiles.dot_bytes(SUMS[SLICES % 2], A, B, i8, i8)


class SliceAccumulator(DeferredAccumulation):
    """Combines the level sums of 16 x 16 results, multiplies them by the scales of rows and columns, and adds them to
    the totals. The level sums stay valid until the first round of the next products ends.
    """

    def __init__(self, k: Kernel, levels: Buf, sums: Buf, left: Callable[[Val, Val], Val], right: Buf) -> None:
        """``left`` returns the scale of a row of A, given the offset of its scales; ``right`` has the scales of B."""
        super().__init__(k)
        self.levels, self.sums, self.left, self.right = levels, sums, left, right
        self._rows_at, self._columns_at, self._is_first = (k.var(0) for _ in range(3))

    def start(self, slot: Val, rows_at: Val, columns_at: Val, is_first: Val) -> None:
        """Begin with the sums just stored, and their scales; the ``first`` K-block overwrites the totals."""
        self._open(slot)
        self._rows_at.set(rows_at)
        self._columns_at.set(columns_at)
        self._is_first.set(self.k.cast(is_first, i64))

    def _add(self, begin: Val, end: Val, slot: Val) -> None:
        k, to = self.k, self.sums.at(slot)
        first, right = k.splat(self._is_first.get().ne(0), HALF), self.right.load(self._columns_at.get(), HALF)
        with k.loop(begin, end) as r:
            total = k.zeros(f32, HALF)
            for level in reversed(range(LEVELS)):
                total = k.fma(total, 1 / 256, k.cast(self.levels.load(level * SIDE + r * HALF, HALF), f32))
            before = k.select(first, 0.0, to.load(r * PANEL, HALF))
            to.store(r * PANEL, k.fma(total * k.splat(self.left(self._rows_at.get(), r), HALF), right, before))

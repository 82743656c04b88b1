"""The innermost loop of products of digits on tiles (``digits``), for matrix products and convolutions.

Of the nine products of three digits with three the last, 2^-32 of the first, is left out. The others are sums of four
weights, 256 times each other, which are kept apart: 16 x 16 results at a time, in two rounds along a run of steps, each
with two tiles of sums and one tile of each operand. (Four tiles of sums and one round take the same time on a core of
its own, and more where the other hardware thread has tiles in use, too: ``tile_loop``.)

With runs of 256 numbers, 16 columns take 12 KiB of L1, 16 rows as much, and their sums of four weights 4. These sums
are below 2^24, also where first digits of A have no sign: f32 holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.amx import ROW_NBYTES, Tiles
from sardonyx.providers.cpu.dsl import Kernel
from sardonyx.providers.cpu.kernels.digits import DIGITS, TILE
from sardonyx.providers.cpu.kernels.split import HALF, PANEL
from sardonyx.providers.cpu.values import Buf, Operand, Val, f32, i8

ROUNDS = ((2, ((0, 2), (1, 2), (1, 1), (2, 1), (2, 0))), (0, ((1, 0), (0, 0), (0, 1))))
"""Which digit of A meets which of B, each round with its lower weight: one of the two digits stays from each product to
the next."""
PRODUCTS = sum(len(products) for _, products in ROUNDS)
WEIGHTS = 4
SQUARE = HALF * PANEL
"""Sums of 16 rows and 32 columns, two sides."""
SIDES, SIDE = 2, HALF * HALF
SUMS, A, B = (0, 1), 2, 3
"""The tiles: sums of the even and of the odd weight of a round, and one of each operand."""


@contextmanager
def summed(tiles: Tiles, levels: Buf, weight: int) -> Iterator[None]:
    """Around the products of a round: its sums begin at zero, and are stored as ``put_together`` reads them."""
    for t in SUMS:
        tiles.zero(t)
    yield
    for t in SUMS:
        tiles.store(t, levels.at((weight + t) * SIDE), HALF * 4)


def multiply(
    tiles: Tiles, a: Sequence[Buf], b: Buf, products: Sequence[tuple[int, int]], stride: Operand = ROW_NBYTES,
    *, first: DType = i8,
) -> None:  # fmt: skip
    """One step of a round: ``a`` has the digits of 16 rows, ``stride`` bytes apart; ``b`` those of 16 columns. The
    ``first`` digits of A are bytes of that type.
    """
    held: dict[int, int] = {}
    for i, j in products:
        if held.get(A) != i:
            tiles.load(A, a[i], stride)
        if held.get(B) != j:
            tiles.load(B, b.at(j * 2 * TILE))
        held = {A: i, B: j}
        tiles.dot_bytes(SUMS[(i + j) % 2], A, B, i8 if i else first, i8)


def fourth(tiles: Tiles, a: Buf, b: Buf, stride: Operand = ROW_NBYTES) -> None:
    """The product of a fourth digit of A with the first of B, in the round that has its weight."""
    tiles.load(A, a, stride)
    tiles.load(B, b)
    tiles.dot_bytes(SUMS[DIGITS % 2], A, B, i8, i8)


def put_together(k: Kernel, levels: Buf, sums: Buf, left: Callable[[Val], Val], right: Val, is_first: Val) -> None:
    """Add sums of digits, times the scales of rows and columns, to those of the runs before: a side of a square."""
    first = k.splat(is_first, HALF)
    with k.loop(0, HALF) as r:
        total = k.zeros(f32, HALF)
        for weight in reversed(range(WEIGHTS)):
            total = k.fma(total, 1 / 256, k.cast(levels.load(weight * SIDE + r * HALF, HALF), f32))
        before = k.select(first, 0.0, sums.load(r * PANEL, HALF))
        sums.store(r * PANEL, k.fma(total * k.splat(left(r), HALF), right, before))

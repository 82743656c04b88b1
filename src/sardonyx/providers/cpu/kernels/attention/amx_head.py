"""The keys and values of a head, packed in a thread's scratch memory (``attention.amx``)."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.attention.config import AttentionArgs
from sardonyx.providers.cpu.kernels.gemm.macro_tile import MICRO_TILE_NBYTES
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.math.transpose import transposed
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    PANEL,
    STEP,
    TILE,
    is_representable,
    lift_of,
    split_terms,
    step_elements,
)
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, Var, bf16, f32, i8, i64, u32
from sardonyx.providers.cpu.program.sizes import expressible

KEYS = 128
"""Keys of a block: 16 KiB of scores and 8 KiB of each term of p fit L1 together."""
_PER_ROW = HALF + 3
"""f32 numbers stored for each row: sixteen partial sums of p, row_max, safe_max and correction."""
_HIGH_HALF, _ABS = 0xFFFF_0000, 0x7FFF_FFFF


def scratch_nbytes(terms: int, keys: Known, width: Known, value_width: Known) -> Known:
    size = step_elements(terms) * 2
    key_steps, steps, panels = (expressible(dims.ceildiv(d, PANEL)) for d in (keys, width, value_width))
    fixed = PANEL * (_PER_ROW + KEYS) * 4 + MICRO_TILE_NBYTES + KEYS // STEP * size
    tiled = dims.mul(size, dims.add(steps, dims.mul(key_steps, dims.add(steps, panels))))
    return expressible(dims.total((fixed, tiled, dims.mul(panels, MICRO_TILE_NBYTES))))


def paired_words(k: Kernel, left: Val, right: Val, terms: int, magnitude: Var | None = None) -> list[Val]:
    """Two vectors as one row of a tile, for each term: pairs of their elements in 32-bit words."""
    sides = (split_terms(k, v, terms, magnitude) for v in (left, right))
    return [(even >> 16) | (odd & _HIGH_HALF) for even, odd in zip(*sides, strict=True)]


class Lifted:
    """Splits an operand and, if it has numbers too small for terms, splits it again, multiplied by a power of two."""

    def __init__(self, k: Kernel) -> None:
        self.k, self._lift, self._magnitude = k, k.var(k.const(1.0, f32)), k.var(k.zeros(u32, HALF))

    @property
    def by(self) -> Val:
        """The power of two that the operand was multiplied by: 1 unless its numbers are too small."""
        return self._lift.get()

    @property
    def magnitude(self) -> Val:
        """The magnitudes that the last split recorded, for ``is_representable``."""
        return self._magnitude.get()

    def split(self, split: Callable[[Var], None], largest: Callable[[], Val]) -> None:
        """Split the operand, and once more with another ``by`` if its numbers are too small for terms.

        ``split`` splits the operand times ``by``, and records magnitudes in the variable that it is given
        (``split_terms``). ``largest`` returns the operand's largest magnitude in each lane, as bits.
        """
        k, is_open = self.k, self.k.var(1)
        self._lift.set(k.const(1.0, f32))
        with k.loop_while(lambda: is_open.get().ne(0)):
            is_open.set(0)
            self._magnitude.set(k.zeros(u32, HALF))
            split(self._magnitude)
            with k.when(self.by.eq(1.0) & ~is_representable(self.magnitude), likely=False):
                self._lift.set(lift_of(k, largest().max()))
                is_open.set(k.cast(self.by.ne(1.0), i64))


def largest_of(k: Kernel, rows: Val, row_of: Callable[[Val], Buf], width: Val, factor: Val | None = None) -> Val:
    """The largest magnitudes of rows, as bits, in each lane."""
    found = k.var(k.zeros(u32, HALF))
    with k.loop(0, rows) as r:
        row = row_of(r)
        for t in k.tiles(width, HALF):
            v = t.keep(row.load(t), 0.0)
            found.set(k.max(found.get(), k.bitcast(v if factor is None else v * factor, u32) & _ABS))
    return found.get()


class AmxHead:
    """The packed keys and values of a head, and the layout of a thread's scratch memory."""

    def __init__(self, k: Kernel, tiles: Tiles, args: AttentionArgs[Buf, Val], terms: int) -> None:
        self.k, self.tiles, self.keys, self.terms, self.args = k, tiles, args.keys, terms, args
        self.size = step_elements(terms)
        self.width, self.value_width = args.width, args.value_width
        self.steps, self.panels, self.key_steps = (ceil_div(d, STEP) for d in (self.width, self.value_width, args.keys))
        self.lifted_keys, self.lifted_values = Lifted(k), Lifted(k)
        at = k.scratch(i8)

        def allocate(nbytes: Val | int, dtype: DType) -> Buf:
            nonlocal at
            here, at = at.as_type(dtype), at.at(nbytes)
            return here

        tiled = self.size * 2
        self.total = allocate(PANEL * HALF * 4, f32)
        self.row_max, self.safe_max, self.correction = (allocate(PANEL * 4, f32) for _ in range(3))
        self.scores = allocate(PANEL * KEYS * 4, f32)
        self.product = allocate(MICRO_TILE_NBYTES, f32)
        self.p = allocate(KEYS // STEP * tiled, bf16)
        self.q = allocate(self.steps * tiled, bf16)
        self.keys_tiled = allocate(self.key_steps * self.steps * tiled, bf16)
        self.values_tiled = allocate(self.key_steps * self.panels * tiled, bf16)
        self.out_sums = allocate(self.panels * MICRO_TILE_NBYTES, f32)

    def locate(self, b: Val, head: Val) -> None:
        self.keys_at, self.values_at = self.operands(b, head)

    def operands(self, b: Val, head: Val) -> tuple[Buf, Buf]:
        """The keys and values of a head."""
        n = self.args
        return n.k_strides.at(n.k, b, head), n.v_strides.at(n.v, b, head)

    def rows_of(self, b: Val, h: Val, first: Val) -> Buf:
        return self.args.q_strides.at(self.args.q, b, h, first)

    @property
    def magnitude(self) -> Val:
        """The recorded magnitudes of keys and values, for ``is_representable``."""
        return self.k.max(self.lifted_keys.magnitude, self.lifted_values.magnitude)

    def split(self) -> None:
        k, n = self.k, self.args

        def key(r: Val) -> Buf:
            return self.keys_at.at(r * n.k_strides.s)

        def value(r: Val) -> Buf:
            return self.values_at.at(r * n.v_strides.s)

        self.lifted_keys.split(self._split_keys, lambda: largest_of(k, self.keys, key, self.width))
        self.lifted_values.split(self._split_values, lambda: largest_of(k, self.keys, value, self.value_width))

    def masks(self, size: Val, first: Val) -> list[Val]:
        """Masks of the two vectors of 32 numbers from ``first`` on."""
        return [self.k.mask(size - first - side * HALF, HALF) for side in range(2)]

    def _split_keys(self, magnitude: Var) -> None:
        """Pack the keys as the columns of B. Keys beyond the end repeat the last one: their scores are not used."""
        k, terms, lift = self.k, self.terms, self.lifted_keys.by
        stage = k.local(u32, terms * HALF * HALF)
        with k.loop(0, self.key_steps) as panel, k.loop(0, self.steps) as step, k.loop(0, 2) as half:
            masks = self.masks(self.width, step * STEP)
            with k.loop(0, HALF) as r:
                key = k.min(panel * PANEL + half * HALF + r, self.keys - 1)
                row = self.keys_at.at(key * self.args.k_strides.s + step * STEP)
                left, right = (row.load(i * HALF, HALF, mask) * lift for i, mask in enumerate(masks))
                for i, words in enumerate(paired_words(k, left, right, terms, magnitude)):
                    stage.store((i * HALF + r) * HALF, words)
            to = self.keys_tiled.at((panel * self.steps + step) * self.size + half * TILE).as_type(u32)
            with k.loop(0, terms) as term:
                transposed_words = transposed([stage.load((term * HALF + line) * HALF, HALF) for line in range(HALF)])
                for j, words in enumerate(transposed_words):
                    to.store(term * TILE + j * HALF, words)

    def _split_values(self, magnitude: Var) -> None:
        """Pack the values as B, with keys along k. Values beyond the end repeat the last one: their weights are 0."""
        k, lift = self.k, self.lifted_values.by
        with k.loop(0, self.panels) as panel, k.loop(0, self.key_steps) as step, k.loop(0, 2) as half:
            column = panel * PANEL + half * HALF
            there = k.mask(self.value_width - column, HALF)
            to = self.values_tiled.at((panel * self.key_steps + step) * self.size + half * TILE).as_type(u32)
            with k.loop(0, HALF) as pair:
                keys = (k.min(step * STEP + pair + i * HALF, self.keys - 1) for i in range(2))
                rows = (self.values_at.at(key * self.args.v_strides.s + column) for key in keys)
                even, odd = (row.load(0, HALF, there) * lift for row in rows)
                for term, words in enumerate(paired_words(k, even, odd, self.terms, magnitude)):
                    to.store(pair * HALF + term * TILE, words)

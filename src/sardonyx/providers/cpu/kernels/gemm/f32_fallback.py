"""The f32 fallback of AMX matrix products: K-blocks of flagged micro-tiles are multiplied with f32 multiply-adds.

Flags mark panels with numbers that bf16 terms or int8 slices cannot represent (``split``). They are rare, so a kernel
first asks once whether any flag is set, and looks at the flags of single micro-tiles only then.

A flagged K-block costs what it costs in ``gemm.vector``: 8 rows by 32 columns of sums are in registers. B is decoded
into scratch memory once for all micro-tiles of a column that follow each other, A only if it exists in tiles alone.
With three terms, or slices, that takes the place of the tile products; with fewer, whose loops have no time for one
more branch, it follows them.
"""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.providers.cpu.kernels.common.matrices import MatrixArgs
from sardonyx.providers.cpu.kernels.conv.packed_image import decode_terms
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import TERM_STRIDE, place_of
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    PANEL,
    STEP,
    TILE,
    FlagsArgs,
    lift_of_left,
    load_pair,
    step_elements,
)
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, Var, f32, i32, i64
from sardonyx.records import Record

ROWS = 8
"""Rows that are multiplied at a time: 16 vector registers of sums."""
DEPTH = 256
"""Numbers along k of a K-block, at most."""
KC = 128
"""Numbers along k that are summed from zero, as in ``gemm.vector``; their 32 columns take half of the smallest L1."""
SCRATCH_NBYTES = 2 * DEPTH * PANEL * 4
"""Scratch bytes: a K-block of a panel of B in f32, and one of A."""


def any_flag_set(k: Kernel, operands: Iterable[tuple[Buf, Val]]) -> Val:
    """Whether any flag of several operands is set. An operand is given by its flags and their number."""
    found = k.var(k.zeros(i32, HALF))
    for flags, count in operands:
        for t in k.tiles(count, HALF):
            found.set(found.get() | flags.load(t))
    return found.get().ne(0).any()


class Rows(Record):
    """A matrix whose columns are numbers along k: the address of element (0, 0), and the strides."""

    memory: Buf
    row: Val
    column: Val


def decoded_rows(k: Kernel, memory: Buf) -> Rows:
    """A K-block of decoded rows, which lie ``DEPTH`` elements apart in scratch memory."""
    return Rows(memory, k.const(DEPTH), k.const(1))


def multiply_rows(k: Kernel, rows: Val, left: Rows, b: Buf, length: Val, sums: Buf, is_first: Val) -> None:
    """Add the products of ``rows`` rows and a K-block of 32 columns to ``sums``; the first K-block (``is_first``)
    overwrites them.

    ``b`` holds 32 columns for each of the ``length`` positions along k.
    """
    with k.loop(0, k.max(length, 1), KC) as first, k.loop(0, rows, ROWS) as i:
        existing = [k.min(i + r, rows - 1) for r in range(ROWS)]
        totals = [[k.var(k.zeros(f32, HALF)) for _ in range(2)] for _ in existing]
        given = [left.memory.at(r * left.row + first * left.column) for r in existing]
        panel = b.at(first * PANEL)
        with k.paced(0, k.min(length - first, KC), [PANEL, left.column]) as ((_, place, at), _):
            columns = [panel.at(place).load(half * HALF, HALF) for half in range(2)]
            for numbers, pair in zip(given, totals, strict=True):
                x = k.splat(numbers.load(at), HALF)
                for total, y in zip(pair, columns, strict=True):
                    total.set(k.fma(x, y, total))
        places = [sums.at(r * PANEL + half * HALF) for r in existing for half in range(2)]
        each = [total for pair in totals for total in pair]
        with k.when(~(is_first & first.eq(0))):
            for total, to in zip(each, places, strict=True):
                total.set(to.load(0, HALF) + total)
        for total, to in zip(each, places, strict=True):
            to.store(0, total.get())


class ProductOperands(Record):
    """The operands of one matrix product: packed, their flags, and the unpacked matrices, None where none is stored."""

    a: Buf
    a_flags: FlagsArgs[Buf, Val] | None
    b: Buf
    b_flags: FlagsArgs[Buf, Val] | None
    a_source: MatrixArgs[Buf, Val] | None
    b_source: MatrixArgs[Buf, Val] | None


class F32Fallback(Record):
    """The fallback of one matrix product inside a kernel."""

    k: Kernel
    at: ProductOperands
    m: Val
    n: Val
    depth: Val
    steps: Val
    terms: int
    is_in_panels: bool
    """B exists as f32 panels."""
    scratch: Buf
    """f32 scratch memory of ``SCRATCH_NBYTES`` bytes."""
    held: Var
    """The column panel and step of the K-block of B that is in scratch memory; -1: none of this product."""
    unit: int
    """Numbers along k of a step."""

    def forget(self) -> None:
        """Called when another product begins: the decoded K-block of B is not one of its own."""
        self.held.set(-1)

    def recompute_flagged(self, sums: Buf, row: Val, column: Val) -> Val:
        """Recompute the sums of a micro-tile if one of its flags is set. Returns whether one is."""
        k, most, is_flagged = self.k, DEPTH // self.unit, self.is_flagged(row, column)
        with k.when(is_flagged, likely=False), k.loop(0, k.max(self.steps, 1), most) as step:
            self.multiply(sums, row, column, step, k.min(self.steps - step, most))
        return is_flagged

    def is_flagged(self, row: Val, column: Val) -> Val:
        """Whether one of the flags of a micro-tile is set."""
        k = self.k
        found = k.var(k.zeros(i32))
        for flags, panel in ((self.at.a_flags, row), (self.at.b_flags, column)):
            if flags is not None:
                with k.loop(panel * flags.panel, k.min((panel + 1) * flags.panel, flags.count)) as i:
                    found.set(found.get() | flags.memory.load(i))
        return found.get().ne(0)

    def multiply(self, sums: Buf, row: Val, column: Val, step: Val, count: Val) -> None:
        """Multiply a K-block, ``count`` steps from ``step`` on, of the micro-tile at row panel ``row`` and column panel
        ``column``. Its products are added to ``sums``, which those of step 0 overwrite.
        """
        k, first, top = self.k, step * self.unit, row * PANEL
        length, high = k.min(count * self.unit, self.depth - first), k.min(self.m - top, PANEL)
        if self.is_in_panels:
            b = self.at.b.at(column * PANEL * self.depth + first * PANEL)
        else:
            b, which = self.scratch, column * self.steps + step
            with k.when(self.held.get().ne(which)):
                self.held.set(which)
                self._decode_columns(b, column, step, count, length)
        multiply_rows(k, high, self._rows(row, high, step, count), b, length, sums, step.eq(0))

    def _rows(self, row: Val, high: Val, step: Val, count: Val) -> Rows:
        """A K-block of ``high`` rows of row panel ``row`` in f32, decoded if A is stored in tiles only."""
        k, source, top = self.k, self.at.a_source, row * PANEL
        if source is not None:
            corner = source.memory.at(top * source.row + step * self.unit * source.col)
            return Rows(corner, source.row, source.col)
        rows, size, lift = self.scratch.at(DEPTH * PANEL), self.terms * TERM_STRIDE, lift_of_left(self.terms)
        with k.loop(0, high) as r, k.loop(0, count) as s:
            tiles = self.at.a.at(place_of(top + r, self.steps * size) + (step + s) * size)
            for half in range(STEP // HALF):
                numbers = decode_terms(k, tiles.at(half * HALF), k.const(TERM_STRIDE), self.terms, HALF, lift)
                rows.store(r * DEPTH + s * STEP + half * HALF, numbers)
        return decoded_rows(k, rows)

    def _decode_columns(self, to: Buf, column: Val, step: Val, count: Val, length: Val) -> None:
        """Store a K-block of a panel of B in f32: 32 columns for each position."""
        k, b, source, left = self.k, self.at.b, self.at.b_source, column * PANEL
        if source is None:
            tiles = b.at((column * self.steps + step) * step_elements(self.terms))
            with k.loop(0, count) as s, k.loop(0, STEP // 2) as pair:
                for half in range(2):
                    words = tiles.at(s * step_elements(self.terms) + half * TILE)
                    for odd, numbers in enumerate(load_pair(k, words, self.terms, pair)):
                        to.store(((s * STEP + pair * 2) + odd) * PANEL + half * HALF, numbers)
            return
        rows = source.memory.at(step * self.unit * source.row)
        with k.either(source.col.eq(1)) as (close, apart):
            with close, k.loop(0, length) as j:
                for half in range(2):
                    there = k.mask(self.n - left - half * HALF, HALF)
                    to.store(j * PANEL + half * HALF, rows.at(j * source.row + left).load(half * HALF, HALF, there))
            with apart, k.loop(0, length) as j:
                for half in range(2):
                    lane = k.min(k.iota(i64, HALF) + (left + half * HALF), self.n - 1)
                    to.store(j * PANEL + half * HALF, rows.at(j * source.row).gather(lane * source.col))

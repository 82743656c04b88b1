"""Epilogues that pack results as the A operand of the matrix product that reads them (``split.bf16``).

32 columns of a result row are one step along k of the next product: a cache line for each term, stored as soon as it
is computed. A matrix product has one flag for each panel and step, other producers one for each row or head. Columns
beyond the last are zero, since every sum contains them; rows beyond the last are undefined. Results that would be f16
or bf16 are not rounded to that type before they are split.

**Representable range.** A number out of range sets its flag, and its terms hold its bits (``conv.packed_image``), from
which the f32 fallback of the consumer restores it. One term is the number rounded to bf16, finite if the number is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage, View
from sardonyx.providers.cpu.kernels.common.epilogue import (
    PACKED,
    Access,
    BoundEpilogue,
    Epilogue,
    EpilogueArgs,
    FlaggedArgs,
)
from sardonyx.providers.cpu.kernels.common.matrices import Matrix
from sardonyx.providers.cpu.kernels.conv.packed_image import HIGH_HALF, NAN, encode_terms
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    PANEL,
    STEP,
    TILE,
    PackedOperand,
    is_too_large,
    is_unrepresentable,
    lift_of_left,
    split_terms,
    step_elements,
)
from sardonyx.providers.cpu.kernels.split.deferred_accumulation import rows_per_step
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, i64, u16, u32
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref

_SHIFT = PANEL.bit_length() - 1
TERM_STRIDE = 2 * TILE
"""Elements from term to term."""
_ABS, _INFINITY = 0x7FFF_FFFF, 0x7F80_0000


class Panels(Matrix):
    """An output in tiles: ``row`` is the distance of panels, and ``column`` that of steps."""

    flags: Storage
    flags_panel: Known

    stride_class: ClassVar[str] = PACKED

    @staticmethod
    def over(packed: PackedOperand) -> Panels:
        tiled = packed.tiled
        assert tiled.flags is not None
        size, steps = step_elements(packed.terms), tiled.flags_panel
        return Panels(tiled.tiles, 0, (), expressible(dims.mul(steps, size)), size, tiled.flags, steps)

    @property
    def operand(self) -> FlaggedArgs[Ref, Known]:
        return FlaggedArgs(
            Ref(self.storage, self.offset), self.row, self.column, self.batch, Ref(self.flags), self.flags_panel
        )


class PackedRows(View):
    """An output of a loop over rows, packed in tiles: strides count rows, and the stride along a row is 0."""

    flags: Storage = field(kw_only=True)
    terms: int = field(kw_only=True)


class TileEpilogue(BoundEpilogue):
    """The epilogue of micro-tiles of 32 rows and columns."""

    def __init__(
        self, k: Kernel, epilogue: Epilogue, operands: EpilogueArgs[Buf, Val], n: Val, batch: Sequence[Val], terms: int
    ) -> None:
        super().__init__(k, epilogue, operands, n, batch)
        self.terms = terms
        self.factors: Buf | None = None
        """What the sums of each micro-tile of scratch memory are multiplied by first."""

    def begin(self, panel: Val, step: Val) -> None:
        """Clear the flag of a micro-tile before any of its rows is finished."""
        for name in self.epilogue.packed_outputs:
            self._flag(name, panel, step).store(0, 0)

    def fetch_some(self, panel: Val, half: Val | int, column: Val, m: Val, k_block: Val, rows: Val) -> None:
        """Prefetch what the epilogue touches at ``rows`` rows of half a micro-tile.

        Each K-block, numbered ``k_block``, takes the next rows.
        """
        if not self.epilogue.prefetchable:
            return
        k, top = self.k, panel * PANEL + half * HALF
        with k.loop(k_block * rows, k.min(k.min((k_block + 1) * rows, HALF), m - top)) as i:
            self.prefetch(top + i, column * PANEL, PANEL)

    def micro_tile(self, sums: Buf, row: Val, rows: Val, column: Val, slot: Val) -> None:
        """Apply the epilogue to contiguous rows of a micro-tile, whose sums lie at or after ``slot`` in scratch
        memory.
        """
        k, columns = self.k, self.n - column
        if self.factors is not None:
            self.factor = self.factors.load(slot // (PANEL * PANEL))
        if not self.epilogue.packed_outputs:
            self.tile(sums, PANEL, row, rows, column, k.min(columns, PANEL), width=PANEL)
            return
        with k.either(columns >= PANEL) as (full, edge):
            with full:
                self.rows(sums, PANEL, row, rows, Tile(column, PANEL, None))
            with edge, k.loop(0, rows) as i, k.loop(0, PANEL, k.lanes) as j:
                t = Tile(column + j, k.lanes, k.mask(columns - j))
                self.put(row + i, t, sums.load(i * PANEL + j, k.lanes))

    def half(self, scratch: Buf, slot: Val, panel: Val, half: int, column: Val, m: Val) -> None:
        """Apply the epilogue to the upper or lower 16 rows of a micro-tile whose sums begin at ``slot``; the matrix has
        ``m`` rows.
        """
        top = panel * PANEL + half * HALF
        self.micro_tile(scratch.at(slot + half * HALF * PANEL), top, self.k.min(m - top, HALF), column * PANEL, slot)

    def _place(self, name: str, row: Val, column: Val) -> Buf:
        y = self._operands[name]
        at = place_of(row, y.row) + column // STEP * y.col + column % STEP
        return self._at[name].at(at)

    def _flag(self, name: str, panel: Val, step: Val) -> Buf:
        y = self._operands[name]
        assert isinstance(y, FlaggedArgs)
        flags: Buf = y.flags
        return flags.at(panel * y.flags_panel + step)

    def _store(self, name: str, y: Access, row: Operand, t: Tile, value: Val) -> None:
        if y.columns != PACKED:
            super()._store(name, y, row, t, value)
            return
        line = self.k.value(row, i64)
        flag = self._flag(name, line >> _SHIFT, t.index // STEP)
        store_step(self._place(name, line, t.index), t.keep(value, 0.0), self.terms, flag)


def rows_to_fetch(k: Kernel, m: Val, n: Val, k_blocks: Val) -> Val:
    """Rows of half a micro-tile to prefetch in each K-block; none where a single thread finds the results in
    its own cache.
    """
    is_far = (k.threads > 1) | (m * n > k.isa.l2_nbytes // 4)
    return k.select(is_far, rows_per_step(k, k_blocks), 0)


def place_of(row: Val, panel: Val) -> Val:
    """The element at which a row begins in tiles, whose panels are ``panel`` elements apart."""
    return (row >> _SHIFT) * panel + (row & (PANEL - 1)) * STEP


def store_step(to: Buf, v: Val, terms: int, flag: Buf) -> None:
    """Store up to 32 numbers of a row, one step along k, as terms; set the flag if one is not representable."""
    k, lift = to.k, lift_of_left(terms)
    _put(to, split_terms(k, v if terms == 1 else v * lift, terms))
    odd = is_unrepresentable(k, v) if terms == 1 else is_too_large(k, v)
    with k.when(odd.any(), likely=False):
        _put(to, encode_terms(k, v, terms, lift, odd) if terms > 1 else [_rounded(k, v)])
        flag.store(0, 1)


def _put(to: Buf, heads: Sequence[Val]) -> None:
    for term, bits in enumerate(heads):
        to.as_type(u16).store(term * TERM_STRIDE, to.k.bitcast(bits, u16).shuffle(range(1, 2 * bits.lanes, 2)))


def _rounded(k: Kernel, v: Val) -> Val:
    """f32 numbers rounded to bf16, in the upper halves of words. A finite number stays finite."""
    bits, (head,) = k.bitcast(v, u32), split_terms(k, v, 1)
    is_last = ((bits & _ABS) < _INFINITY) & (head & _ABS).eq(_INFINITY)
    return k.select(v.ne(v), NAN, k.select(is_last, bits & HIGH_HALF, head))

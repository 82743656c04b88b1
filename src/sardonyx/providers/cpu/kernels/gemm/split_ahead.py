"""A constant B kept in f32, split into three bf16 terms one K-block ahead of its products.

Three terms take 6 bytes for a number of 4, and products of few rows are limited by memory. So the constant stays in
the f32 panels that multiply-adds read too, [batch][n / 32][k][32]. Each thread has room for two K-blocks in tiles:
while one is multiplied with the row panels of a macro-tile, the next is split into the other, a few lines in each
step, on vector units that tile products leave idle.

The terms are bit-identical to those of ``split.bf16``. Where k ends within a step, the last row is repeated: the zeros
of A cancel it. The representable range is checked when the constant is packed.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.codegen.launch import Launch, code_for_one_call
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem
from sardonyx.providers.cpu.kernels.gemm.pack import packed_b
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import (
    HALF,
    PANEL,
    STEP,
    TILE,
    is_representable,
    limit_of,
    split_terms,
    step_elements,
    vnni_pairs,
)
from sardonyx.providers.cpu.kernels.split.bf16 import PAIRS as IN_PAIRS
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, i32, i64, u32
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity, once
from sardonyx.providers.cpu.program.steps import Packed, Unrepresentable
from sardonyx.records import replace

Array = np.ndarray[Any, Any]
_Number = TypeVar("_Number", int, Val)

TERMS = 3
PAGE_NBYTES = 4096
PAIRS = STEP // 2
"""Pairs of rows of B in a step: each becomes a line of two tiles, for every term."""


APART = 33 * LINE_NBYTES // bf16.itemsize
"""Elements between the two K-blocks: at a multiple of 4 KiB, stores to one would delay loads of the other."""


def scratch_nbytes(k_block: _Number) -> _Number:
    """Scratch bytes of two K-blocks."""
    return k_block * (2 * step_elements(TERMS) * bf16.itemsize) + PAGE_NBYTES


class Ahead:
    """Two K-blocks of one thread: one that is multiplied, one that is being split."""

    def __init__(self, k: Kernel, b: Buf, depth: Val, steps: Val, k_block: Val) -> None:
        """``k_block``: most steps of a K-block."""
        self.k, self.b, self.depth, self.steps, self.k_block = k, b, depth, steps, k_block
        self._memory = k.scratch(bf16)
        self._now, self._other = k.var(0), k.var(k_block * step_elements(TERMS) + APART)
        self._panel, self._row, self._pair, self._stop, self._pace = (k.var(0) for _ in range(5))

    def begin(self, panel: Val) -> None:
        """Begin to split the first K-block of the panel at element ``panel`` of B."""
        self._aim(panel, self.k.const(0), self.steps)

    def enter(self, panel: Val, columns: Val, following: Val, is_followed: Val, halves: Val) -> None:
        """Enter a macro-tile of ``columns`` panels, whose K-blocks are multiplied with ``halves`` half row panels.

        It begins at element ``panel`` of B, and the next one, if there is one, at ``following``.
        """
        self.panel, self.columns, self.following, self.is_followed = panel, columns, following, is_followed
        self.halves = halves

    def next_k_block(self, step: Val, column: Val) -> Buf:
        """The tiles of the K-block that starts at ``step``, in column panel ``column`` of the macro-tile.

        From this call on, ``advance`` splits the K-block after it.
        """
        k, later = self.k, step + self.k_block
        self._split_until(self._stop.get())
        now, other = self._now.get(), self._other.get()
        self._now.set(other)
        self._other.set(now)
        has_next_column, is_later = column + 1 < self.columns, later < self.steps
        next_column = self.panel + (column + 1) * self.depth * PANEL
        panel = k.select(has_next_column, next_column, k.select(is_later, self.panel, self.following))
        first = k.select(has_next_column, step, k.select(is_later, later, 0))
        self._aim(panel, first, k.select(has_next_column | is_later | self.is_followed, self.steps - first, 0))
        self._pace.set(ceil_div(self._stop.get(), k.max(k.min(self.k_block, self.steps - step) * self.halves, 1)))
        return self._memory.at(other)

    def _aim(self, panel: Val, step: Val, steps_left: Val) -> None:
        stop = self.k.min(steps_left, self.k_block) * PAIRS
        for var, value in ((self._panel, panel), (self._row, step * STEP), (self._pair, 0), (self._stop, stop)):
            var.set(value)

    def advance(self, steps: int) -> None:
        """Split the lines that are due in ``steps`` steps of products."""
        self._split_until(self.k.min(self._pair.get() + self._pace.get() * steps, self._stop.get()))

    def _split_until(self, stop: Val) -> None:
        k, first = self.k, self._pair.get()
        panel, row = self.b.at(self._panel.get()), self._row.get()
        to = self._memory.at(self._other.get()).as_type(u32)
        with k.loop(first, stop) as pair:
            at = row + pair * 2
            rows = [panel.at(k.min(i, self.depth - 1) * PANEL) for i in (at, at + 1)]
            ahead = panel.at((at + self.k_block * STEP) * PANEL)
            for line in range(0, 2 * PANEL, LINE_NBYTES // self.b.dtype.itemsize):
                ahead.prefetch(line, locality=2)
            lines = to.at((pair >> 4) * (step_elements(TERMS) // 2) + (pair & (PAIRS - 1)) * HALF)
            for half in range(2):
                sides = (split_terms(k, x.load(half * HALF, HALF), TERMS) for x in rows)
                for term, (even, odd) in enumerate(zip(*sides, strict=True)):
                    lines.store(term * TILE + half * (TILE // 2), vnni_pairs(even, odd))
        self._pair.set(stop)


# -- what contractions ask for


def panels(p: Problem, analysis: Analysis) -> Matrix:
    """A constant B in the f32 panels of ``gemm.vector``; ``Unrepresentable`` if bf16 terms cannot represent it."""
    tensor, isa = p.weight, analysis.isa
    assert tensor is not None
    _, b = packed_b(p, p.b.dtype, PANEL, isa)
    packed, name = b.storage, identity(tensor)
    assert isinstance(packed, Packed)

    def make() -> Array:
        made: Array = once(packed.key, packed.make)
        found = np.zeros(1, np.int32)
        spec = find_special(source=p.b.dtype)
        Launch(spec, {"x": made, "found": found, "n": made.size}, at=code_for_one_call(spec, isa, made.nbytes))()
        if found.any():
            raise Unrepresentable(name)
        return made

    key = ("plain", *packed.key)
    if key not in analysis.panels:
        analysis.panels[key] = Packed(
            "constant", packed.dtype, packed.elements, packed.value, key=key, make=make, packing=packed.packing
        )
    return replace(b, storage=analysis.panels[key])


def _params(source: DType) -> Params:
    return {"x": (source,), "found": (i32,), "n": i64}


@kernel(_params)
def find_special(k: Kernel, x: Buf, found: Buf, n: Val, *, source: DType) -> None:
    """Set ``found`` if any of ``n`` numbers is not representable; ``n`` is a multiple of a panel's columns."""
    worst = [k.var(k.zeros(u32, HALF)) for _ in range(PANEL // HALF)]
    with k.loop(0, n, PANEL) as i:
        for j, size in enumerate(worst):
            split_terms(k, x.load(i + j * HALF, HALF), 0, size)
    found.store(0, k.cast(~is_representable(k.max(*worst), limit_of(IN_PAIRS, TERMS)), i32))

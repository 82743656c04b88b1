"""What is constant about a resampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import PolyphaseFilter, TapTable

PIECE = 4096
"""Elements of a row that stays as it is which are made at a time."""
ROWS = 8
"""Rows that are blended in one pass; more are added one after the other."""
STAGED, STAGE = 4, 64
"""Rows in scratch memory that are blended before the first is read along; vectors that they may have together."""
SLACK = 5
"""Vectors behind a row in scratch memory, most of which may be read. A row is whole vectors."""
SHORTEST = 8
"""Lanes from which on a vector saves more than the masked ones at the end of a row cost."""
WRITTEN = 16
"""Vectors of a row of the result, at most, that are written out."""
MANY = 0
"""The taps of a table that has more than are written out."""


@dataclass(frozen=True)
class Tabled:
    """The constant part of a table: how many taps, and whether they have weights."""

    taps: int
    is_weighted: bool


@dataclass(frozen=True)
class ResizeConfig:
    """How the axes are read, the innermost of the result and the others; None: as they are."""

    x: DType
    work: DType
    outer: tuple[PolyphaseFilter | Tabled | None, ...]
    inner: PolyphaseFilter | Tabled | None
    is_unit: bool
    """Neighbours along the innermost axis are neighbours in memory."""
    is_copy: bool
    """Nothing is computed: elements are bits."""
    reach: int = 1
    """Vectors that one of results is picked out of, by a table: one or two."""
    vectors: int = 0
    """Of a row of the image, all whole, that are written out one behind the other; 0 where there is a loop."""

    @property
    def rows(self) -> int:
        """Rows of the image that stand for one of the result; 0 where they are not written out."""
        count = math.prod(r.taps for r in self.outer if r is not None)
        return count if count <= ROWS else MANY

    @property
    def repeated(self) -> int:
        """How often each row is repeated along the next axis, where that is all there is to it; else 0."""
        read = self.outer[-1]
        if self.inner is not None or self.rows == MANY or len(self.outer) < 2 or not isinstance(read, PolyphaseFilter):
            return 0
        return read.factor if read.weights is None and not any(read.firsts) else 0

    @property
    def is_direct(self) -> bool:
        """Whether rows are read where they lie."""
        plain = self.rows == 1 and not any(is_weighted(r) for r in (*self.outer, self.inner))
        return plain and not (isinstance(self.inner, PolyphaseFilter) and (any(self.inner.firsts) or not self.is_unit))

    @property
    def is_staged(self) -> bool:
        """Whether rows are made in scratch memory, and then read along."""
        return self.inner is not None and not self.is_direct

    def is_streamed(self, machine: int) -> bool:
        """Whether rows that would be made in scratch memory are made in registers instead."""
        is_near = isinstance(self.inner, PolyphaseFilter) and self.inner.factor in (2, 4, 8)
        lanes = self.lanes(machine)
        is_near = is_near and lanes >= SHORTEST and max(self.halo) <= lanes
        return self.is_staged and is_near and self.is_unit and self.rows != MANY

    def written(self, length: Known, machine: int) -> ResizeConfig:
        """For rows of this length: to begin and end a loop over a few vectors takes as long as those."""
        lanes = self.lanes(machine)
        if not self.is_streamed(machine) or not isinstance(length, int) or length % lanes:
            return self
        assert isinstance(self.inner, PolyphaseFilter)
        return replace(self, vectors=length // lanes) if length * self.inner.factor <= WRITTEN * lanes else self

    @property
    def is_paired(self) -> bool:
        """Whether rows 2i - 1 and 2i of the result are made of the same rows of the image."""
        read = self.outer[-1]
        return isinstance(read, PolyphaseFilter) and read.factor == 2 and read.firsts[1] == read.firsts[0] + 1

    def lanes(self, machine: int) -> int:
        """Of a vector, where the machine has so many of f32."""
        return machine * 32 // (self.work.bits if self.is_copy else max(self.work.bits, 32))

    @property
    def halo(self) -> tuple[int, int]:
        """Elements in front of the row in scratch memory, and behind it; of a table there are as many as taps."""
        if not isinstance(self.inner, PolyphaseFilter):
            return 0, 0
        return max(0, -min(self.inner.firsts)), max(0, max(self.inner.firsts) + self.inner.taps - 1)


def is_weighted(read: PolyphaseFilter | Tabled | None) -> bool:
    return read.weights is not None if isinstance(read, PolyphaseFilter) else read is not None and read.is_weighted


def read_of(along: TapTable | PolyphaseFilter) -> PolyphaseFilter | Tabled:
    if isinstance(along, PolyphaseFilter):
        return along
    taps = along.taps
    return Tabled(taps if isinstance(taps, int) and taps <= ROWS else MANY, along.weights is not None)

"""The compile-time configuration of the resize kernel."""

from __future__ import annotations

import math
from dataclasses import field
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import PolyphaseFilter, TapTable
from sardonyx.providers.cpu.kernels.common.epilogue import EpilogueArgs
from sardonyx.providers.cpu.language.arguments import Arguments, M, N, named
from sardonyx.records import Record, replace

COLUMN_BLOCK = 4096
"""Columns that are computed at a time where the innermost axis is not resampled."""
MAX_UNROLLED_TAPS = 8
"""Taps of a table, and input rows of an output row, up to which they are unrolled."""
MAX_STAGED_ROWS, MAX_STAGED_VECTORS = 4, 64
"""Rows that are staged in scratch memory before the first is read, at most, and their vectors together."""
SLACK_VECTORS = 5
"""Vectors after a staged row. A row is written in whole vectors, and read beyond its end."""
MIN_LANES = 8
"""With fewer lanes, the masked vectors at the end of a row cost more than registers save."""
MAX_UNROLLED_VECTORS = 16
"""Vectors of an output row up to which it is unrolled."""
RUNTIME_TAPS = 0
"""In place of a number of taps: too many to unroll, or known only at run time."""


class TapTableConfig(Record):
    """The compile-time part of a ``TapTable``."""

    taps: int
    is_weighted: bool


class TapTableArgs(Arguments[M, N]):
    """The parameters of a ``TapTable``; they are numbered by axis."""

    firsts: M = field(metadata=named("i{}"))
    """For each output the index of its first tap."""
    taps: N = field(metadata=named("taps{}"))
    weights: M | None = field(metadata=named("w{}"))


class ResizeArgs(Arguments[M, N]):
    """The parameters of ``resize``."""

    is_inline: ClassVar[bool] = True
    x: M
    sizes: tuple[N, ...] = field(metadata=named("n"))
    """The sizes of the result."""
    source_sizes: tuple[N, ...] = field(metadata=named("in"))
    strides: tuple[N, ...] = field(metadata=named("s"))
    tables: tuple[TapTableArgs[M, N] | None, ...] = field(metadata=named(""))
    epilogue: EpilogueArgs[M, N]

    def table(self, axis: int) -> TapTableArgs[M, N]:
        found = self.tables[axis]
        assert found is not None, "the axis is resampled by a table"
        return found


class ResizeConfig(Record):
    """How each axis is resampled, the innermost one of the result and the outer ones; None: not at all."""

    x: DType
    work: DType
    outer: tuple[PolyphaseFilter | TapTableConfig | None, ...]
    inner: PolyphaseFilter | TapTableConfig | None
    has_unit_stride: bool
    """The elements of an input row are adjacent in memory."""
    is_copy: bool
    """Nothing is computed: elements are copied as bits."""
    source_vectors: int = 1
    """Vectors that hold all elements that a vector of outputs reads by a table: one or two."""
    unrolled_vectors: int = 0
    """Vectors of an input row, all whole, where rows are unrolled; 0: a loop."""

    @property
    def rows(self) -> int:
        """Input rows that are blended into one output row, or ``RUNTIME_TAPS``."""
        count = math.prod(r.taps for r in self.outer if r is not None)
        return count if count <= MAX_UNROLLED_TAPS else RUNTIME_TAPS

    @property
    def repeats(self) -> int:
        """How often each row is repeated along the next outer axis, if nothing else is computed; else 0."""
        read = self.outer[-1]
        is_other = self.inner is not None or self.rows == RUNTIME_TAPS or len(self.outer) < 2
        if is_other or not isinstance(read, PolyphaseFilter):
            return 0
        return read.factor if read.weights is None and not any(read.firsts) else 0

    @property
    def reads_in_place(self) -> bool:
        """Whether outputs are copies of elements of one input row, which is read without staging."""
        is_copy = self.rows == 1 and not any(is_weighted(r) for r in (*self.outer, self.inner))
        is_shifted = isinstance(self.inner, PolyphaseFilter) and (any(self.inner.firsts) or not self.has_unit_stride)
        return is_copy and not is_shifted

    @property
    def is_staged(self) -> bool:
        """Whether input rows are blended into a row in scratch memory, which is then resampled along its axis."""
        return self.inner is not None and not self.reads_in_place

    def stays_in_registers(self, f32_lanes: int) -> bool:
        """Whether rows that would be staged can stay in registers instead."""
        is_near = isinstance(self.inner, PolyphaseFilter) and self.inner.factor in (2, 4, 8)
        lanes = self.lanes(f32_lanes)
        is_near = is_near and lanes >= MIN_LANES and max(self.halo) <= lanes
        return self.is_staged and is_near and self.has_unit_stride and self.rows != RUNTIME_TAPS

    def with_unrolled_rows(self, length: Known, f32_lanes: int) -> ResizeConfig:
        """This configuration, with rows unrolled if they are short: the ends of a loop would dominate."""
        lanes = self.lanes(f32_lanes)
        if not self.stays_in_registers(f32_lanes) or not isinstance(length, int) or length % lanes:
            return self
        assert isinstance(self.inner, PolyphaseFilter)
        is_short = length * self.inner.factor <= MAX_UNROLLED_VECTORS * lanes
        return replace(self, unrolled_vectors=length // lanes) if is_short else self

    @property
    def is_paired(self) -> bool:
        """Whether output rows 2i - 1 and 2i read the same input rows."""
        read = self.outer[-1]
        return isinstance(read, PolyphaseFilter) and read.factor == 2 and read.firsts[1] == read.firsts[0] + 1

    def lanes(self, f32_lanes: int) -> int:
        """Lanes of a vector, where one of f32 has ``f32_lanes``."""
        return f32_lanes * 32 // (self.work.bits if self.is_copy else max(self.work.bits, 32))

    @property
    def halo(self) -> tuple[int, int]:
        """Elements that outputs read before a row and after it. For a table they are as many as its taps."""
        if not isinstance(self.inner, PolyphaseFilter):
            return 0, 0
        return max(0, -min(self.inner.firsts)), max(0, max(self.inner.firsts) + self.inner.taps - 1)


def is_weighted(read: PolyphaseFilter | TapTableConfig | None) -> bool:
    return read.weights is not None if isinstance(read, PolyphaseFilter) else read is not None and read.is_weighted


def axis_config(along: TapTable | PolyphaseFilter) -> PolyphaseFilter | TapTableConfig:
    """The compile-time part of how an axis is resampled."""
    if isinstance(along, PolyphaseFilter):
        return along
    taps = along.taps
    is_unrolled = isinstance(taps, int) and taps <= MAX_UNROLLED_TAPS
    return TapTableConfig(taps if isinstance(taps, int) and is_unrolled else RUNTIME_TAPS, along.weights is not None)

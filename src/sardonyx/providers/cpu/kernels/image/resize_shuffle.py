"""Resampling by a table whose neighbouring outputs read nearby elements: shuffles instead of element loads.

All elements that a vector of outputs reads for one tap are permuted out of one or two vectors of the row. Whether the
table allows that is found at run time, once for each step.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import PolyphaseFilter
from sardonyx.providers.cpu.kernels.image.resize_config import (
    MIN_LANES,
    RUNTIME_TAPS,
    ResizeArgs,
    ResizeConfig,
    TapTableConfig,
)
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i32, i64
from sardonyx.providers.cpu.program.sizes import expressible


def may_shuffle(config: ResizeConfig, f32_lanes: int) -> bool:
    """Whether the kernel has code for shuffles; the table decides at run time whether that code is taken."""
    inner = config.inner
    is_short = isinstance(inner, TapTableConfig) and inner.is_weighted and RUNTIME_TAPS not in (inner.taps, config.rows)
    return is_short and config.has_unit_stride and config.work is f32 and config.lanes(f32_lanes) >= MIN_LANES


def source_vectors_of(read: PolyphaseFilter | TapTableConfig | None, image: Known, result: Known, lanes: int) -> int:
    """``ResizeConfig.source_vectors``: one where a row is known to be enlarged enough."""
    if not isinstance(read, TapTableConfig):
        return 1
    if not isinstance(image, int) or not isinstance(result, int):
        return 2
    return 1 if (lanes - 1) * image + (read.taps + 1) * result <= lanes * result else 2


class ShuffleTable:
    """In scratch memory: where the source vectors of each vector of outputs begin, and for each output and tap the
    lane it reads in them. ``are_near``: whether all these lanes exist.
    """

    def __init__(self, k: Kernel, config: ResizeConfig, args: ResizeArgs[Buf, Val], count: Val) -> None:
        assert isinstance(config.inner, TapTableConfig)
        last = len(config.outer)
        self.k, self.taps, self.lanes = k, config.inner.taps, config.lanes(k.lanes)
        self.firsts, self.size, self.table = args.table(last).firsts, args.source_sizes[last], k.scratch(i32)
        self.pitch, self.width = count + self.lanes, config.source_vectors * self.lanes
        near = k.var(1)
        for t in k.tiles(count, self.lanes):
            start, places = self._first_start(t.index), self.firsts.load(t)
            self.table.store(self.pitch * self.taps + t.index, k.cast(start, i32))
            for tap in range(self.taps):
                lane = t.keep(k.cast(self._clamped(places + tap) - start, i32), 0)
                self.table.store(self.pitch * tap + t.index, lane)
                near.set(k.select(((lane < 0) | (lane >= self.width)).any(), 0, near.get()))
        self.are_near = near.get().ne(0)

    @staticmethod
    def scratch_nbytes(config: ResizeConfig, count: Known, f32_lanes: int) -> Known:
        assert isinstance(config.inner, TapTableConfig)
        return expressible(dims.mul(4 * (config.inner.taps + 1), dims.add(count, config.lanes(f32_lanes))))

    def _clamped(self, place: Val) -> Val:
        """Elements outside of the axis equal its nearest one."""
        return self.k.min(self.k.max(place, 0), self.size - 1)

    def _first_start(self, index: Val) -> Val:
        """Source vectors lie inside the row, unless it is shorter than they are."""
        return self.k.max(self.k.min(self.firsts.load(index), self.size - self.width), 0)

    def start(self, index: Val) -> Val:
        """Where the source vectors of the outputs from ``index`` on begin."""
        return self.k.cast(self.table.load(self.pitch * self.taps + index), i64)

    def lanes_read(self, tap: int, index: Val) -> Val:
        """The lanes that the outputs from ``index`` on read for a tap."""
        return self.table.load(self.pitch * tap + index, self.lanes)


def permuted(k: Kernel, vectors: Sequence[Val], at: Val) -> Val:
    """The elements of one or two vectors of f32 at lanes that are run-time numbers."""
    lanes, is_one = at.lanes, len(vectors) == 1
    if not k.isa.is_emulated and k.isa.name in ("amx", "avx512") and lanes == 16:
        if is_one:
            return k.intrinsic("llvm.x86.avx512.permvar.sf.512", [*vectors, at], f32, lanes)
        return k.intrinsic("llvm.x86.avx512.vpermi2var.ps.512", [vectors[0], at, vectors[1]], f32, lanes)
    if not k.isa.is_emulated and k.isa.name == "avx2" and lanes == 8:
        found = [k.intrinsic("llvm.x86.avx2.permps", [v, at], f32, lanes) for v in vectors]
        return found[0] if is_one else k.select(at < lanes, *found)
    local = k.local(f32, len(vectors) * lanes)
    for i, v in enumerate(vectors):
        local.store(i * lanes, v)
    return local.gather(at)

"""Tables whose neighbours read near each other: what a vector of results reads is picked out of one or two vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import PolyphaseFilter
from sardonyx.providers.cpu.kernels.common.loop_nest import known
from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.image.resize_config import MANY, SHORTEST, ResizeConfig, Tabled
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Val, f32, i32, i64


def may_pick(config: ResizeConfig, machine: int) -> bool:
    """Whether the kernel is written for it; the run tells whether the table allows it."""
    is_short = (
        isinstance(config.inner, Tabled) and config.inner.is_weighted and MANY not in (config.inner.taps, config.rows)
    )
    return is_short and config.is_unit and config.work is f32 and config.lanes(machine) >= SHORTEST


def reach_of(read: PolyphaseFilter | Tabled | None, image: Known, result: Known, lanes: int) -> int:
    """How many vectors: one where a row is known to grow so much that what a vector of results reads lies in it."""
    if not isinstance(read, Tabled):
        return 1
    if not isinstance(image, int) or not isinstance(result, int):
        return 2
    return 1 if (lanes - 1) * image + (read.taps + 1) * result <= lanes * result else 2


class Picks:
    """Where the vectors begin; for each result and tap, how far behind that it reads; whether all are near."""

    def __init__(self, k: Kernel, config: ResizeConfig, memory: dict[str, Any], count: Val) -> None:
        assert isinstance(config.inner, Tabled)
        last = len(config.outer)
        self.k, self.taps, self.lanes = k, config.inner.taps, config.lanes(k.lanes)
        self.firsts, self.size, self.place = memory[f"i{last}"], number(memory, f"in{last}"), k.scratch(i32)
        self.pitch, self.width = count + self.lanes, config.reach * self.lanes
        near = k.var(1)
        for t in k.tiles(count, self.lanes):
            start, places = self._start(t.index), self.firsts.load(t)
            self.place.store(self.pitch * self.taps + t.index, k.cast(start, i32))
            for tap in range(self.taps):
                behind = t.keep(k.cast(self._inside(places + tap) - start, i32), 0)
                self.place.store(self.pitch * tap + t.index, behind)
                near.set(k.select(((behind < 0) | (behind >= self.width)).any(), 0, near.get()))
        self.are_near = near.get().ne(0)

    @staticmethod
    def scratch_nbytes(config: ResizeConfig, count: Known, machine: int) -> Known:
        assert isinstance(config.inner, Tabled)
        return known(dims.mul(4 * (config.inner.taps + 1), dims.add(count, config.lanes(machine))))

    def _inside(self, place: Val) -> Val:
        """Beside the axis lie its first and its last element."""
        return self.k.min(self.k.max(place, 0), self.size - 1)

    def _start(self, index: Val) -> Val:
        """They lie inside the row, unless it is shorter."""
        return self.k.max(self.k.min(self.firsts.load(index), self.size - self.width), 0)

    def start(self, index: Val) -> Val:
        """Where the vectors for the results from ``index`` on begin."""
        return self.k.cast(self.place.load(self.pitch * self.taps + index), i64)

    def behind(self, tap: int, index: Val) -> Val:
        return self.place.load(self.pitch * tap + index, self.lanes)


def picked(k: Kernel, vectors: Sequence[Val], at: Val) -> Val:
    """The elements of one or two vectors of f32 at places that are numbers of the run."""
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

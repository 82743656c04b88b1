"""Tables whose neighbours read near each other: what a vector of results reads is picked out of two vectors."""

from __future__ import annotations

from typing import Any

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.dsl import Kernel
from sardonyx.providers.cpu.kernels.matrices import number
from sardonyx.providers.cpu.kernels.nest import known
from sardonyx.providers.cpu.kernels.resample_form import MANY, SHORTEST, Form, Tabled
from sardonyx.providers.cpu.values import Val, f32, i32


def may_pick(form: Form, machine: int) -> bool:
    """Whether the kernel is written for it; the run tells whether the table allows it."""
    is_short = isinstance(form.inner, Tabled) and form.inner.is_weighted and MANY not in (form.inner.taps, form.rows)
    return is_short and form.is_unit and form.work is f32 and form.lanes(machine) >= SHORTEST


class Picks:
    """For each result and tap, how far behind the first element of its vector it reads; whether all are near."""

    def __init__(self, k: Kernel, form: Form, memory: dict[str, Any], count: Val) -> None:
        assert isinstance(form.inner, Tabled)
        last = len(form.outer)
        self.k, self.taps, self.lanes = k, form.inner.taps, form.lanes(k.lanes)
        self.firsts, self.size, self.place = memory[f"i{last}"], number(memory, f"in{last}"), k.scratch(i32)
        self.pitch = count + self.lanes
        near = k.var(1)
        for t in k.tiles(count, self.lanes):
            start, places = self.first(t.index), self.firsts.load(t)
            for tap in range(self.taps):
                behind = t.keep(k.cast(self._inside(places + tap) - start, i32), 0)
                self.place.store(self.pitch * tap + t.index, behind)
                near.set(k.select(((behind < 0) | (behind >= 2 * self.lanes)).any(), 0, near.get()))
        self.are_near = near.get().ne(0)

    @staticmethod
    def scratch_nbytes(form: Form, count: Known, machine: int) -> Known:
        assert isinstance(form.inner, Tabled)
        return known(dims.mul(4 * form.inner.taps, dims.add(count, form.lanes(machine))))

    def _inside(self, place: Val) -> Val:
        """Beside the axis lie its first and its last element."""
        return self.k.min(self.k.max(place, 0), self.size - 1)

    def first(self, index: Val) -> Val:
        """Where the vector of results from ``index`` on begins to read."""
        return self._inside(self.firsts.load(index))

    def behind(self, tap: int, index: Val) -> Val:
        return self.place.load(self.pitch * tap + index, self.lanes)


def picked(k: Kernel, a: Val, b: Val, at: Val) -> Val:
    """The elements of two vectors of f32 at places that are numbers of the run."""
    lanes = a.lanes
    if not k.isa.is_emulated and k.isa.name in ("amx", "avx512") and lanes == 16:
        return k.intrinsic("llvm.x86.avx512.vpermi2var.ps.512", [a, at, b], f32, lanes)
    if not k.isa.is_emulated and k.isa.name == "avx2" and lanes == 8:
        low, high = (k.intrinsic("llvm.x86.avx2.permps", [v, at], f32, lanes) for v in (a, b))
        return k.select(at < lanes, low, high)
    both = k.local(f32, 2 * lanes)
    both.store(0, a)
    both.store(lanes, b)
    return both.gather(at)

"""Tables whose neighbours read near each other: what a vector of results reads is picked out of two vectors."""

from __future__ import annotations

from sardonyx.providers.cpu.dsl import Kernel
from sardonyx.providers.cpu.kernels.resample_form import MANY, SHORTEST, Form, Tabled
from sardonyx.providers.cpu.values import Buf, Tile, Val, f32, i32


def may_pick(form: Form, machine: int) -> bool:
    """Whether the kernel is written for it; the run tells whether the table allows it."""
    is_short = isinstance(form.inner, Tabled) and form.inner.is_weighted and form.inner.taps != MANY
    return is_short and form.work is f32 and form.lanes(machine) >= SHORTEST


class Picks:
    """For each result, how far behind the first of its vector it reads; and whether all are near enough."""

    def __init__(self, k: Kernel, firsts: Buf, count: Val, place: Buf, lanes: int) -> None:
        """``place`` has room for ``count`` numbers and a vector."""
        self.k, self.firsts, self.place, self.lanes = k, firsts, place, lanes
        near = k.var(1)
        for t in k.tiles(count, lanes):
            behind = t.keep(k.cast(firsts.load(t) - firsts.load(t.index), i32), 0)
            place.store(t.index, behind)
            near.set(k.select(((behind < 0) | (behind >= 2 * lanes)).any(), 0, near.get()))
        self.are_near = near.get().ne(0)

    def load(self, row: Buf, t: Tile, taps: int) -> list[Val]:
        """What a vector of results reads, tap by tap."""
        first, at = self.firsts.load(t.index), self.place.load(t.index, self.lanes)
        lanes, starts = self.lanes, (first + tap for tap in range(taps))
        return [picked(self.k, row.load(i, lanes), row.load(i + lanes, lanes), at) for i in starts]


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

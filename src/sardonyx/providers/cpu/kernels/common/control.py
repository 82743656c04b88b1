"""Control-flow steps of loops and branches. One thread executes each while all others wait.

They change the state of a run only: a loop counter, the base addresses of memory that moves from iteration to
iteration, and the index of the next step. Distances are counted in steps of the table.
"""

from __future__ import annotations

from sardonyx.providers.cpu.language.context import PAUSED, Code, Context
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.scheduler import clear_counters
from sardonyx.providers.cpu.language.system import ticks
from sardonyx.providers.cpu.language.values import Buf, Val, i64, u8


def _addresses(k: Kernel) -> Buf:
    return k.memory(k.context().load(Context.BASES), i64)


@kernel(m=(u8,), slot=i64)
def set_base(k: Kernel, m: Buf, slot: Val) -> None:
    """Set a base address to ``m``."""
    _addresses(k).store(slot, m.address())


@kernel(slot=i64, nbytes=i64)
def advance_base(k: Kernel, slot: Val, nbytes: Val) -> None:
    """Advance a base address by some bytes."""
    at = _addresses(k).at(slot)
    at.store(0, at.load() + nbytes)


@kernel(one=i64, two=i64)
def swap_bases(k: Kernel, one: Val, two: Val) -> None:
    """Exchange two base addresses."""
    addresses = _addresses(k)
    first, second = addresses.load(one), addresses.load(two)
    addresses.store(one, second)
    addresses.store(two, first)


@kernel(flag=(u8,), skip=i64, may_do=i64, may_skip=i64)
def skip_unless(k: Kernel, flag: Buf, skip: Val, may_do: Val, may_skip: Val) -> None:
    """Skip ``skip`` steps unless the flag is set; an error where ``may_do`` or ``may_skip`` forbids the branch."""
    holds = flag.load().ne(0)
    with k.when(k.select(holds, may_do, may_skip).eq(0), likely=False):
        k.fail(Code.SIZES, skip)
    with k.when(~holds):
        k.context().store(Context.NEXT, k.step() + skip + 1)


@kernel(skip=i64)
def jump(k: Kernel, skip: Val) -> None:
    """Skip ``skip`` steps."""
    k.context().store(Context.NEXT, k.step() + skip + 1)


@kernel(count=(i64,), limit=(i64,), flag=(u8,), most=i64, skip=i64)
def enter_loop(k: Kernel, count: Buf, limit: Buf, flag: Buf, most: Val, skip: Val) -> None:
    """Enter a loop, or skip its ``skip`` steps if it has no iterations; more than ``most`` iterations are an error."""
    trips = limit.load()
    count.store(0, 0)
    with k.when((trips > most) & flag.load().ne(0), likely=False):
        k.fail(Code.ENDLESS, trips)
    with k.when((trips <= 0) | (trips > most) | flag.load().eq(0)):
        k.context().store(Context.NEXT, k.step() + skip + 1)


@kernel(count=(i64,), limit=(i64,), flag=(u8,), most=i64, repeats=i64)
def next_iteration(k: Kernel, count: Buf, limit: Buf, flag: Buf, most: Val, repeats: Val) -> None:
    """At the end of an iteration: go back over ``repeats`` steps and reset their tile counters, or leave the loop.

    There is room for ``most`` iterations.
    """
    context, step = k.context(), k.step()
    trip = count.load() + 1
    count.store(0, trip)
    clear_counters(k, context, step - repeats, step)
    with k.when((trip < limit.load()) & flag.load().ne(0)):
        with k.when(trip >= most, likely=False):
            k.fail(Code.FULL, trip)
        pause_at = context.load(Context.PAUSE_AT)
        is_due = pause_at.ne(0) & (ticks(k) > pause_at)
        context.store(Context.NEXT, step - repeats + k.select(is_due, k.const(PAUSED), k.const(0)))

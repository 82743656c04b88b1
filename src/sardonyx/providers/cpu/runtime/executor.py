"""The native executor: every thread of a team goes through the same step table.

A row of the table holds a kernel's address, the offset of its argument block, whether a barrier comes before it, and
whether all threads carry it out or the first alone (``team_size``). At a barrier the last thread to record checks for
errors, cancellation and the deadline; if one is found, all threads leave there. (How they wait: ``spin_park``.)

A control step (If, Loop) decides which step comes next. Threads meet at a barrier in front of it, and the last to
record carries it out, with the control steps that follow it, before it releases the others. What a control step changes
(trip counts, addresses of loop-carried values) is in the run's memory, never in the table.

A worker waits in ``worker`` for its mailbox to be filled. A caller (``run``) claims idle workers, up to the number that
the plan wants, numbers them, executes as thread 0 and waits until all of them are idle again. Both call ``execute``.
"""

from __future__ import annotations

from sardonyx.providers.cpu.language.context import (  # fmt: skip
    ALL,
    CONTROL,
    MAX_WORKERS,
    NONE,
    ONE,
    PAUSED,
    Code,
    Context,
    Mailbox,
    Row,
    Stamp,
)
from sardonyx.providers.cpu.language.dsl import Kernel, function
from sardonyx.providers.cpu.language.polling import look
from sardonyx.providers.cpu.language.scheduler import clear_counters
from sardonyx.providers.cpu.language.spin_park import TeamCpus, wait_while, wake_waiters
from sardonyx.providers.cpu.language.system import ticks
from sardonyx.providers.cpu.language.values import Buf, Val, i32, i64
from sardonyx.providers.cpu.memory.pages import C_CONTIGUOUS, TO_DTYPE, TO_FLAGS
from sardonyx.providers.cpu.runtime.shape_program import write_sizes

IDLE, CLAIMED, READY, STOPPED = range(4)
"""States of a worker. ``STARTED`` and ``ENDED`` count its runs: it may be claimed again before a caller has looked."""


def _judge(k: Kernel, context: Buf) -> None:
    """Stop the run if it has an error, was cancelled or is late."""
    with k.when(look(k, context), likely=False):
        context.store_atomic(Context.STOP, 1)


def _cross(k: Kernel, context: Buf, step: Val) -> None:
    """What the last thread at a barrier does: check whether to go on, and carry out control steps."""
    table, args = k.memory(context.load(Context.STEPS), i64), context.load(Context.ARGS)
    at, more = k.var(step), k.var(1)
    with k.loop_while(lambda: more.get().ne(0)):
        more.set(0)
        _judge(k, context)
        row = table.at(at.get() * Row.WORDS)
        with k.when(row.load(Row.BARRIER).eq(CONTROL) & context.load_atomic(Context.STOP).eq(0)):
            context.store(Context.NEXT, at.get() + 1)
            block = args + row.load(Row.ARGS)
            k.call_address(row.load(Row.KERNEL), block.pointer(), context.ptr, k.const(0).ir, k.const(1).ir)
            at.set(context.load(Context.NEXT))
            with k.when(context.load_atomic(Context.ERROR).ne(0), likely=False):
                context.store_atomic(Context.STOP, 1)
            with k.when(at.get() < context.load(Context.LAST)):
                more.set(k.select(table.load(at.get() * Row.WORDS + Row.BARRIER).eq(CONTROL), k.const(1), k.const(0)))


def _barrier(k: Kernel, context: Buf, team_cpus: TeamCpus, threads: Val, step: Val) -> None:
    generation, sleepers = context.at(Context.GENERATION), context.at(Context.SLEEPERS)
    now = generation.load_atomic()
    arrived = context.add_atomic(Context.ARRIVED, 1)
    with k.either(arrived.eq(threads - 1)) as (last, others):
        with last:
            _cross(k, context, step)
            context.store_atomic(Context.ARRIVED, 0, "monotonic")
            generation.store_atomic(0, now + 1, "seq_cst")
            wake_waiters(k, generation, sleepers)
        with others:
            wait_while(k, generation, now.eq, context.load(Context.SPIN), sleepers, team_cpus)


def _stamp(k: Kernel, context: Buf, row: Val, thread: Val) -> Buf:
    """The time stamps of a thread in a row of the profile."""
    place = row * context.load(Context.PROFILE_THREADS) + thread
    return k.memory(context.load(Context.PROFILE) + place * (Stamp.WORDS * 8), i64)


def _meet(k: Kernel, context: Buf, team_cpus: TeamCpus, threads: Val, step: Val, thread: Val) -> None:
    """The barrier in front of a step, with its time if the run is profiled."""
    profile = context.load(Context.PROFILE)
    begun = k.var(0)
    with k.when(profile.ne(0), likely=False):
        begun.set(ticks(k))
    _barrier(k, context, team_cpus, threads, step)
    with k.when(profile.ne(0), likely=False):
        stamp = _stamp(k, context, step, thread)
        stamp.store(Stamp.WAITED, stamp.load(Stamp.WAITED) + (ticks(k) - begun.get()))


def _carry_out(k: Kernel, context: Buf, step: Val, thread: Val, threads: Val) -> None:
    """Carry out this thread's share of a step, with time stamps if the run is profiled."""
    row = k.memory(context.load(Context.STEPS), i64).at(step * Row.WORDS)
    profile = context.load(Context.PROFILE)
    slot = k.var(0)
    with k.when(profile.ne(0), likely=False):
        stamp = _stamp(k, context, step, thread)
        slot.set(stamp.address())
        stamp.store(Stamp.NOW, ticks(k))
        with k.when(stamp.load(Stamp.FIRST).eq(0)):
            stamp.store(Stamp.FIRST, stamp.load(Stamp.NOW))
    block = context.load(Context.ARGS) + row.load(Row.ARGS)
    k.call_address(row.load(Row.KERNEL), block.pointer(), context.ptr, thread.ir, threads.ir)
    with k.when(profile.ne(0), likely=False):
        stamp = k.memory(slot.get(), i64)
        stamp.store(Stamp.TOTAL, stamp.load(Stamp.TOTAL) + (ticks(k) - stamp.load(Stamp.NOW)))


@function(context=(i64,), thread=i64, threads=i64)
def execute(k: Kernel, context: Buf, thread: Val, threads: Val) -> None:
    """Execute this thread's share of the steps."""
    table, team_cpus = k.memory(context.load(Context.STEPS), i64), TeamCpus(k, context, thread)
    with k.when(threads > 1):
        team_cpus.record()
    step = k.var(context.load(Context.FIRST))
    last = context.load(Context.LAST)
    with k.loop_while(lambda: step.get() < last):
        row = table.at(step.get() * Row.WORDS)
        barrier = row.load(Row.BARRIER)
        with k.when(barrier.ne(NONE)), k.either(threads > 1) as (team, alone):
            with team:
                _meet(k, context, team_cpus, threads, step.get(), thread)
            with alone:
                _cross(k, context, step.get())
        with k.either((barrier.eq(CONTROL)) | context.load_atomic(Context.STOP).ne(0)) as (jump, go):
            with jump:
                step.set(k.select(context.load_atomic(Context.STOP).ne(0), last, context.load(Context.NEXT)))
            with go:
                who = row.load(Row.WHO)
                is_all, is_mine = who.eq(ALL), who.eq(ONE) & thread.eq(0)
                with k.when(is_all | (is_mine & context.load_atomic(Context.ERROR).eq(0))):
                    _carry_out(k, context, step.get(), thread, k.select(is_all, threads, 1))
                step += 1
    with k.when(thread.eq(0)):
        context.store(Context.REACHED, step.get() & (PAUSED - 1))


def _elements_at(k: Kernel, array: Val, data_offset: int) -> Val:
    """The data pointer of a numpy array object."""
    return k.memory(array + data_offset, i64).load()


def _take_arrays(k: Kernel, context: Buf, data_offset: int) -> None:
    """Store the data pointers of inputs and outputs as bases. An input of another dtype or with strides is an error."""
    objects, dtypes = (k.memory(context.load(slot), i64) for slot in (Context.OBJECTS, Context.DTYPES))
    bases = k.memory(context.load(Context.BASES), i64).at(context.load(Context.OBJECT_BASE))
    with k.loop(0, context.load(Context.OBJECT_COUNT)) as i:
        bases.store(i, _elements_at(k, objects.load(i), data_offset))
    with k.loop(0, context.load(Context.INPUT_COUNT)) as i:
        array = objects.load(i)
        dtype = k.memory(array + data_offset + TO_DTYPE, i64).load()
        flags = k.memory(array + data_offset + TO_FLAGS, i32).load()
        with k.when(dtype.ne(dtypes.load(i)) | (flags & C_CONTIGUOUS).eq(0), likely=False):
            context.store(Context.ERROR, Code.ARRAY)
            k.b.leave()


def _execute(k: Kernel, box: Buf, context: Buf, thread: Val, threads: Val) -> None:
    """Call ``execute``. A call, because a worker never leaves its loop: better code that replaces what is called
    reaches it all the same."""
    k.call_address(box.load(Mailbox.EXECUTE), context.ptr, thread.ir, threads.ir)


class _ClaimedWorkers:
    """Idle workers of the team that this run has taken for itself, at most as many as it wants."""

    def __init__(self, k: Kernel, context: Buf) -> None:
        self._k, self._context = k, context
        team = k.memory(context.load(Context.TEAM), i64)
        workers, wanted = team.load_atomic(Mailbox.COUNT), context.load(Context.WANTED)
        self._boxes = team.at(Mailbox.WORDS)
        self.count = k.var(0)
        self._numbers = k.local(i64, 2 * MAX_WORKERS)
        """Which workers, and the number of the run that each begins."""
        with k.loop(0, workers) as w, k.when(self.count.get() < wanted):
            box = self._boxes.at(w * Mailbox.WORDS)
            with k.when(box.swap_atomic(Mailbox.STATE, IDLE, CLAIMED)):
                started = box.load(Mailbox.STARTED) + 1
                box.store(Mailbox.STARTED, started)
                self._numbers.store(self.count.get() * 2, w)
                self._numbers.store(self.count.get() * 2 + 1, started)
                with k.when(context.load(Context.PROFILE).ne(0), likely=False):
                    _stamp(k, context, k.const(-1), self.count.get() + 1).store(Stamp.WORKER, w + 1)
                self.count += 1

    def start(self, threads: Val) -> None:
        """Number them from 1 on, and let them execute the steps."""
        k = self._k
        with k.loop(0, self.count.get()) as c:
            box = self._box(c)
            box.store(Mailbox.CONTEXT, self._context.address())
            box.store(Mailbox.THREAD, c + 1)
            box.store(Mailbox.THREADS, threads)
            box.store_atomic(Mailbox.STATE, READY, "seq_cst")
            wake_waiters(k, box.at(Mailbox.STATE), box.at(Mailbox.SLEEPERS))

    def wait(self, team_cpus: TeamCpus) -> None:
        """Wait until each of them has ended this run."""
        k, spin = self._k, self._context.load(Context.SPIN)
        with k.loop(0, self.count.get()) as c:
            box = self._box(c)
            ended, is_running = box.at(Mailbox.ENDED), self._numbers.load(c * 2 + 1).__gt__
            wait_while(k, ended, is_running, spin, box.at(Mailbox.WAITERS), team_cpus)

    def _box(self, c: Val) -> Buf:
        return self._boxes.at(self._numbers.load(c * 2) * Mailbox.WORDS)


def _look_when_due(k: Kernel, context: Buf) -> None:
    """After as many runs as the context says, ask Python to look at the choice of threads again."""
    left = context.load(Context.LEFT)
    with k.when(left > 0):
        context.store(Context.LEFT, left - 1)
        with k.when(left.eq(1), likely=False):
            context.swap_atomic(Context.ERROR, 0, Code.LOOK)


@function(context=(i64,))
def run(k: Kernel, context: Buf, *, data_offset: int) -> None:
    """Execute the step table with the idle workers of the team, as many as are wanted. The context holds everything:
    each argument of a ctypes call would cost as much as a small step.

    The context's objects are numpy arrays; their data pointers become the bases from ``OBJECT_BASE`` on. They are read
    from the array objects, ``data_offset`` bytes in, since asking numpy takes longer than a small run.
    """
    _take_arrays(k, context, data_offset)
    with k.when(context.load(Context.IS_NEW).ne(0), likely=False):
        write_sizes(k, context)
    context.store(Context.STEPS, _elements_at(k, context.load(Context.ROWS), data_offset))
    clear_counters(k, context, context.load(Context.FIRST), context.load(Context.LAST))
    claimed = _ClaimedWorkers(k, context)
    threads, team_cpus = claimed.count.get() + 1, TeamCpus(k, context, k.const(0))
    with k.when(threads > 1):
        team_cpus.clear()
    claimed.start(threads)
    _execute(k, k.memory(context.load(Context.TEAM), i64), context, k.const(0), threads)
    claimed.wait(team_cpus)
    _look_when_due(k, context)


@function(mailbox=(i64,), spin=i64)
def worker(k: Kernel, mailbox: Buf, spin: Val) -> None:
    """The loop of a worker: execute what the mailbox asks for, until it says stop."""
    state = mailbox.at(Mailbox.STATE)
    living = k.var(1)
    with k.loop_while(lambda: living.get().ne(0)):
        wait_while(k, state, lambda now: now < READY, spin, mailbox.at(Mailbox.SLEEPERS))
        with k.either(state.load_atomic().eq(STOPPED)) as (stop, go):
            with stop:
                living.set(0)
            with go:
                context = k.memory(mailbox.load(Mailbox.CONTEXT), i64)
                _execute(k, mailbox, context, mailbox.load(Mailbox.THREAD), mailbox.load(Mailbox.THREADS))
                state.store_atomic(0, IDLE, "seq_cst")
                mailbox.add_atomic(Mailbox.ENDED, 1, "seq_cst")
                wake_waiters(k, mailbox.at(Mailbox.ENDED), mailbox.at(Mailbox.WAITERS))

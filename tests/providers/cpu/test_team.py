"""The team: shares, barriers, callers at once, forks, errors, cancelling, deadlines."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.language.context import COUNTERS, Code, Context, Row
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.machine.isa import KNOWS_CPU
from sardonyx.providers.cpu.memory.allocator import Pool, address, allocate
from sardonyx.providers.cpu.runtime import team as runtime_team

THREADS = 16


@kernel(x=(i64,), n=i64, fail_at=i64)
def shift(k: Kernel, x: Buf, n: Val, fail_at: Val) -> None:
    """Each element becomes its left neighbour's double of the other half plus one: reads cross the threads' shares."""
    half = x.load(n * 2)
    with k.share(n) as i:
        source, target = half * n, (1 - half) * n
        x.store(target + i, x.load(source + (i + n - 1) % n) + 1)
        with k.when(i.eq(fail_at)):
            k.fail(Code.INDEX, i)


@kernel(x=(i64,), n=i64)
def turn(k: Kernel, x: Buf, n: Val) -> None:
    with k.when(k.thread.eq(0)):
        x.store(n * 2, 1 - x.load(n * 2))


@kernel(order=(i64,), seen=(i64,), n=i64, own=i64)
def count_up(k: Kernel, order: Buf, seen: Buf, n: Val, own: Val) -> None:
    with k.share(n, own) as i:
        order.store(i, order.load(i) + seen.add_atomic(0, 1))


@pytest.mark.parametrize("thread", range(3))
@pytest.mark.parametrize("own", (0, 1, 3))
@pytest.mark.parametrize("n", (0, 1, 2, 3, 10, 100))
def test_a_thread_takes_its_own_stretch_first_and_then_others_from_their_ends(thread: int, own: int, n: int) -> None:
    order, seen = np.full(max(n, 1), 1000), np.ones(1, np.int64)
    alone = Launch(count_up(), {"order": order, "seen": seen, "n": n, "own": own}, threads=3)
    alone.run_thread(thread)
    wanted = list(range(n * thread // 3, n * (thread + 1) // 3))
    for other in ((thread + 1) % 3, (thread + 2) % 3):
        first, last = n * other // 3 + own, n * (other + 1) // 3
        while last > first:
            many = (last - first + 1) // 2
            wanted += range(last - many, last)
            last -= many
    assert sorted(np.flatnonzero(order > 1000).tolist(), key=lambda i: order[i]) == wanted
    for other in range(3):  # these do what is left, all of it once
        alone.run_thread(other)
    assert seen[0] == n + 1 and sorted(order[:n].tolist()) == list(range(1001, n + 1001))


class StepTable:
    """Steps that pass values around a ring."""

    def __init__(self, rounds: int, n: int = 64, fail_at: int = -1) -> None:
        team = runtime_team.team_for(runtime_team.Settings())
        self.team, self.rounds, self.n = team, rounds, n
        self.x = np.zeros(2 * n + 1, np.int64)
        self.x[:n] = np.arange(n)
        self.bases = np.array([address(self.x)])
        shifts = [[2 * r, 0, 0, self.x.nbytes, 0, n, fail_at] for r in range(rounds)]
        turns = [[2 * r + 1, 0, 0, self.x.nbytes, 0, n] for r in range(rounds)]
        self.args = np.array([shift + turn for shift, turn in zip(shifts, turns, strict=True)])
        self.rows = np.zeros((2 * rounds, Row.WORDS), np.int64)
        starts = np.arange(rounds) * self.args.strides[0]
        self.rows[0::2, 0], self.rows[0::2, 1], self.rows[0::2, 2] = linker.address(shift()), starts, 1
        self.rows[1::2, 0], self.rows[1::2, 1], self.rows[1::2, 2] = linker.address(turn()), starts + 7 * 8, 1
        self.slots = runtime_team.new_context(team)
        self.slots[Context.BASES], self.slots[Context.ROWS] = address(self.bases), id(self.rows)
        self.slots[Context.ARGS], self.slots[Context.LAST] = address(self.args), 2 * rounds
        self.counters = np.zeros(2 * rounds * COUNTERS * THREADS, np.int64)
        self.slots[Context.COUNTER_NBYTES] = 8 * THREADS
        self.slots[Context.COUNTERS] = address(self.counters)

    def run(self, count: int) -> None:
        self.slots[Context.TEAM], self.slots[Context.WANTED] = self.team.at, self.team.workers(count)
        self.team.execute(address(self.slots))

    def check(self) -> None:
        start = self.n * int(self.x[-1])
        expected = np.roll(np.arange(self.n), self.rounds) + self.rounds
        np.testing.assert_array_equal(self.x[start : start + self.n], expected)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("rounds", [1, 2, 50])
def test_barriers_hold(rounds: int, count: int) -> None:
    table = StepTable(rounds)
    table.run(count)
    table.check()


def test_threads_on_one_cpu_see_each_other_and_come_to_an_end() -> None:
    table = StepTable(50)
    table.run(3)
    before = os.sched_getaffinity(0)

    def move(cpus: set[int]) -> None:
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(task), cpus)

    try:
        move({min(before)})
        table = StepTable(50)
        table.slots[Context.CPUS :][: Context.CPU_WORDS] = 7  # of a run with more threads
        table.run(3)
        table.check()
        cpus = table.slots[Context.CPUS :][: Context.CPU_WORDS]
        assert len(set(cpus[:3])) == 1 and not cpus[3:].any()
        assert bool(cpus[0]) is KNOWS_CPU
    finally:
        move(before)


def test_callers_at_once_share_the_team() -> None:
    errors: list[BaseException] = []

    def caller() -> None:
        try:
            for _ in range(40):
                table = StepTable(10)
                table.run(2)
                table.check()
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join(60)
    assert not errors and not any(c.is_alive() for c in callers)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_rebuilds_the_team() -> None:
    before = StepTable(5)
    before.run(2)
    child = os.fork()
    if child == 0:
        try:
            table = StepTable(7)
            table.run(2)
            table.check()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    after = StepTable(5)
    after.run(2)
    after.check()


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_stops_the_executor_and_names_its_step(count: int) -> None:
    table = StepTable(5, fail_at=3)
    table.run(count)
    assert table.slots[Context.ERROR] == Code.INDEX and table.slots[Context.ERROR_VALUE] == 3
    assert table.x[-1] == 0, "no step ran after the one that failed"
    table.slots[Context.ERROR] = table.slots[Context.STOP] = 0
    table.args[:, 6] = -1
    table.run(count)
    assert table.slots[Context.ERROR] == 0


def test_a_cancelled_run_ends() -> None:
    table = StepTable(2_000_000 // 64, n=512)
    ender = threading.Timer(0.05, lambda: table.slots.__setitem__(Context.CANCEL, 1))
    ender.start()
    start = time.monotonic()
    table.run(2)
    ender.cancel()
    assert table.slots[Context.ERROR] in (0, Code.CANCELLED)
    assert table.slots[Context.ERROR] == Code.CANCELLED or time.monotonic() - start < 0.5


def test_a_deadline_ends_a_run() -> None:
    table = StepTable(10)
    table.slots[Context.DEADLINE] = runtime_team.now() - 1
    table.run(2)
    assert table.slots[Context.ERROR] == Code.LATE


def test_a_refusal_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    free = runtime_team.limit()
    assert free.threads >= 1 and "CPUs" in free.reason
    monkeypatch.setattr(runtime_team, "quota", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert runtime_team.limit() == runtime_team.Limit(1, "the cgroup's quota is 1 of 3 CPUs")


def test_memory_is_aligned_and_zero() -> None:
    for nbytes in (1, 100, 40_000, 5 << 20, 40 << 20):
        memory: Any = allocate(nbytes)
        assert address(memory) % 64 == 0 and memory.nbytes == nbytes and not memory.any()


def test_blocks_do_not_overlap_and_outlive_each_other() -> None:
    blocks = [allocate(50_000 + i) for i in range(50)]
    for i, block in enumerate(blocks):
        block[:] = i
    kept = blocks[::7]
    del blocks, block
    assert all((block == 7 * i).all() for i, block in enumerate(kept))


def test_memory_of_dead_outputs_is_reused() -> None:
    pool = Pool(most_nbytes=3 << 20)
    first = pool.empty((1024, 256), np.dtype("f"), 1 << 20)
    at, part = address(first), first[3:5]
    del first
    second = pool.empty((1024, 256), np.dtype("f"), 1 << 20)
    assert address(second) != at, "a view of the first array is still there"
    del part
    third = pool.empty((256, 1024), np.dtype("f"), 1 << 20)
    assert address(third) == at

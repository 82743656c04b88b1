"""Plans and frames: a step table with its sizes, and with memory to run in.

A ``Plan`` is immutable and serves a bucket of shapes: where each intermediate lies does not change inside it. A
``Frame`` is one run's memory: arena, scratch, argument blocks and context. Frames go back to their plan when a run is
over; a frame that last ran another shape of the bucket refreshes the words that hold sizes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import forks
from sardonyx.ops.limits import FREE_NBYTES, check_nbytes
from sardonyx.plan.arena import Block, lower_bound, place
from sardonyx.plan.buckets import bucket
from sardonyx.providers.cpu import memory
from sardonyx.providers.cpu.context import ARENA, COUNTERS, NOBODY, Context, Row
from sardonyx.providers.cpu.memory import PADDING, address, allocate
from sardonyx.providers.cpu.sharing import Trial, Way
from sardonyx.providers.cpu.threads import Team, new_context

if TYPE_CHECKING:
    from sardonyx.providers.cpu.table import Table

Array = np.ndarray[Any, Any]

FLOPS_PER_SECOND, BYTES_PER_SECOND = 4e10, 1e10
"""A modest core, for the choice of threads and of slices: only orders of magnitude matter."""
ALONE_S = 15e-6
"""A run expected to take less is not worth waking a team for."""
MEETING_S = 2e-6
"""What it takes a team to meet, with those that are late."""
FIRST_LOOK, FACTOR, LAST_LOOK = 64, 8, 1 << 15
"""Runs of a shape after which the choice of threads is looked at again, more and more rarely."""
MAX_PLANS = 64
KEPT_PLANS = 3
"""Plans whose memory is kept for their next run; the others keep what they know."""
SLICE_S = 0.1
"""Python looks for signals about this often."""


class Plan:
    """Where every intermediate lies, for all shapes of a bucket."""

    def __init__(self, table: Table, numbers: tuple[int, ...]) -> None:
        """``numbers`` are the values of the table's expressions for one of the shapes."""
        self.table = table
        buckets = {i: bucket(numbers[i]) for i in (*table.nbytes.tolist(), table.scratch)}
        nbytes = (buckets[i][1] for i in table.nbytes.tolist())
        blocks = [Block(n, *life) for n, life in zip(nbytes, table.lives, strict=True)]
        placement = place(blocks)
        self.arena_nbytes = placement.nbytes
        self.live_nbytes = lower_bound(blocks)
        """No placement needs less than this."""
        self.scratch_nbytes = buckets[table.scratch][1]
        self.key = tuple(top for _, top in buckets.values())
        self._bounds = [(i, *of) for i, of in buckets.items()]
        self.words = table.words.copy()
        if len(table.placed_at):
            self.words[table.placed_at] += np.array(placement.offsets, np.int64)[table.placed_by]
        self.sized = np.column_stack([table.sized_at, table.sized_by, self.words[table.sized_at]])
        """Rows of ``Sized``."""
        self.frames: list[Frame] = []
        self.used = 0
        """When it was last turned to, in a count of the turns to any plan of the table."""
        self.manners: dict[tuple[bytes, int], tuple[int, list[int], Trial | None]] = {}
        """By which of the table's steps shapes carry out, and how much that is: threads that are worth it, slices of a
        run, and what finds out who takes part in each step."""

    def fits(self, numbers: tuple[int, ...]) -> bool:
        """Whether these values of the table's expressions are of its bucket."""
        for i, low, high in self._bounds:  # noqa: SIM110 a generator costs twice as much with cold caches
            if not low < numbers[i] <= high:
                return False
        return True


class Plans:
    """Those of a table."""

    def __init__(self) -> None:
        self._all: tuple[Plan, ...] = ()
        """Replaced, never changed: who looks for a plan needs no lock."""
        self._last: Plan | None = None
        """The one last turned to; the order of all is left alone then, since a new tuple takes 14 us after a run."""
        self._lock = forks.lock()

    def __len__(self) -> int:
        return len(self._all)

    def find(self, numbers: tuple[int, ...]) -> Plan | None:
        """The plan of the bucket that these values of the table's expressions fall into, if there is one."""
        last = self._last
        if last is not None and last.fits(numbers):
            return last
        for plan in self._all:
            if plan.fits(numbers):
                self._use(plan)
                return plan
        return None

    def add(self, plan: Plan) -> None:
        with self._lock:
            others = sorted((p for p in self._all if p.key != plan.key), key=lambda p: p.used, reverse=True)
            self._all = (plan, *others[: MAX_PLANS - 1])
            for older in self._all[KEPT_PLANS:]:
                older.frames.clear()
            self._use(plan)

    def _use(self, plan: Plan) -> None:
        plan.used, self._last = 1 + (self._last.used if self._last is not None else 0), plan


class Shape:
    """What one set of input shapes needs beside its plan."""

    def __init__(
        self, plan: Plan, sizes: tuple[int, ...], numbers: tuple[int, ...], values: Array, threads: int
    ) -> None:
        """``numbers`` and ``values`` are the values of the table's expressions, as a tuple and as an array."""
        table = plan.table
        self.plan, self.sizes, self.values = plan, sizes, values
        self.trial: Trial | None = None
        """Of the quick runs; None when it is over."""
        self._last_trial: Trial | None = None
        self.holds = [(at, int(all(c.holds(numbers) for c in of))) for at, of in table.holds] if table.holds else []
        """Words that tell whether conditions hold, and what they tell."""
        self.outputs: list[tuple[tuple[int, ...], np.dtype[Any], int]] = []
        """The shape, type and bytes of each."""
        self._pooled = False
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        for shape, dtype in table.outputs:
            dims = known.get(shape)
            if dims is None:
                dims = known[shape] = tuple([numbers[i] for i in shape])
            nbytes = dtype.itemsize
            for d in dims:
                nbytes *= d
            if nbytes >= memory.POOLED_FROM:
                self._pooled = True
                if nbytes > FREE_NBYTES:
                    check_nbytes(nbytes, f"an output would be {dtype}{list(dims)}")
            self.outputs.append((dims, dtype, nbytes))
        self.rows = _rows(table, numbers) if table.only else table.rows
        done = (self.rows[:, Row.WHO] != NOBODY).tobytes() if table.only else b""
        # Where nothing lies between steps, buckets do not tell how much the largest does.
        kind = done, numbers[table.work].bit_length()
        manner = plan.manners.get(kind) or plan.manners.setdefault(kind, self._manner(threads))
        self.threads, self.ends, trial = manner
        """``ends``: steps up to which it runs without Python looking for signals."""
        self.runs_left = 0 if trial is None else FIRST_LOOK
        """Until the next look; 0 where there is none."""
        if trial is not None:
            self._follow(trial)
        self.is_quick = len(self.ends) == 1 and table.is_bounded

    def _manner(self, threads: int) -> tuple[int, list[int], Trial | None]:
        """How this shape is run, and those of its plan that do as much."""
        plan, table, is_there = self.plan, self.plan.table, self.rows[:, Row.WHO] != NOBODY
        values = self.values
        flops, traffic = values[table.flops] * is_there, values[table.traffic] * is_there
        seconds = flops * (1 / FLOPS_PER_SECOND) + traffic * (1 / BYTES_PER_SECOND)
        # Sizes too long to be written down count nothing: then the memory that is filled tells the work at least.
        total = max(float(seconds.sum()), plan.arena_nbytes / BYTES_PER_SECOND)
        if table.has_loops and threads > 1:
            # What a team saves, less what it takes to meet in every trip.
            total -= float(values[table.meetings].sum()) * MEETING_S * threads / (threads - 1)
        turns = np.maximum(values[table.turns], 1)
        trial = Trial(table, self.rows, turns, threads, total) if threads > 1 else None
        ends = _slices(seconds) if total > SLICE_S else [len(table.steps)]
        return (threads if total > ALONE_S else 1), ends, trial

    def learn(self, trial: Trial, way: Way, took: float, steps: Array) -> None:
        """How long a run took, and each of its steps, of all threads."""
        trial.take(way, took, steps)
        self._follow(trial)

    def look_again(self) -> None:
        """Try once more who takes part in which step: the moment of the last trial may have been a busy one."""
        if self._last_trial is not None:
            self.runs_left = min(self.runs_left * FACTOR, LAST_LOOK)
            self._last_trial.begin()
            self._follow(self._last_trial)

    def _follow(self, trial: Trial) -> None:
        self.trial = self._last_trial = trial
        if trial.is_over:
            (self.threads, self.rows), self.trial = trial.choice, None

    def new_outputs(self) -> list[Array]:
        """Arrays for the results of a run."""
        if not self._pooled:
            made = []
            for dims, dtype, _ in self.outputs:
                made.append(np.empty(dims, dtype))
            return made
        return [_new(output) for output in self.outputs]

    def outputs_in(self, places: Mapping[int, Array]) -> list[Array]:
        """The same, of which some are given."""
        return [places[i] if i in places else _new(output) for i, output in enumerate(self.outputs)]


def _rows(table: Table, numbers: tuple[int, ...]) -> Array:
    """The table's rows, without the steps that are not for these sizes."""
    rows: Array = table.rows.copy()
    for i, only, size in table.only:
        if not only.holds(numbers[size]):
            rows[i, Row.WHO] = NOBODY
    return rows


def _new(output: tuple[tuple[int, ...], np.dtype[Any], int]) -> Array:
    dims, dtype, nbytes = output
    return memory.outputs.empty(dims, dtype, nbytes) if nbytes >= memory.POOLED_FROM else np.empty(dims, dtype)


def _slices(seconds: Array) -> list[int]:
    """The ends of runs of steps that take about ``SLICE_S``."""
    total = np.cumsum(seconds)
    cuts = np.flatnonzero(np.diff(total // SLICE_S)) + 1
    return [*cuts.tolist(), len(total)]


class Frame:
    """One run's memory."""

    def __init__(self, plan: Plan, team: Team, threads: int, constants: Array) -> None:
        """``constants`` are the addresses of the table's constants."""
        table = plan.table
        check_nbytes(plan.arena_nbytes, f"the intermediates would take {plan.arena_nbytes} bytes")
        self.plan, self.team = plan, team
        self.shape: Shape | None = None
        self.rows: Array | None = None
        """Those of the shape when it was taken, which ``slots`` knows."""
        context = new_context(team)
        self.at = address(context)
        self.slots = (ctypes.c_int64 * Context.SLOTS).from_buffer(context)
        self.error = ctypes.c_int64.from_address(self.at + 8 * Context.ERROR)
        self.words = plan.words.copy()
        self.bases = (ctypes.c_int64 * table.base_count)()
        self._arena = allocate(plan.arena_nbytes)
        self._scratch = allocate(plan.scratch_nbytes * threads + PADDING)
        count = table.given_count
        self.objects = (ctypes.c_int64 * count)()
        """The arrays of a run: inputs, then outputs."""
        self.bases[ARENA] = address(self._arena)
        self.bases[1 : 1 + len(constants)] = constants.tolist()
        slots = self.slots
        slots[Context.BASES] = ctypes.addressof(self.bases)
        slots[Context.SCRATCH] = address(self._scratch)
        slots[Context.SCRATCH_STRIDE] = plan.scratch_nbytes
        slots[Context.ARGS] = address(self.words)
        slots[Context.SIZED], slots[Context.SIZED_COUNT] = address(plan.sized), len(plan.sized)
        slots[Context.LAST] = len(table.steps)
        slots[Context.COUNTER_NBYTES] = 8 * threads
        self._counters = allocate(len(table.steps) * COUNTERS * 8 * threads)
        slots[Context.COUNTERS] = address(self._counters)
        slots[Context.OBJECTS] = ctypes.addressof(self.objects)
        slots[Context.OBJECT_COUNT], slots[Context.OBJECT_BASE] = count, table.first_input

    def take(self, shape: Shape, team: Team) -> None:
        """Make ready for a shape of the plan's bucket, and for a team."""
        slots, rows, self.shape = self.slots, shape.rows, None  # until it is ready: signals may raise in between
        team.serve(slots, shape.threads)
        for at, holds in shape.holds:
            self.words[at] = holds
        slots[Context.VALUES], slots[Context.ROWS], slots[Context.LEFT] = id(shape.values), id(rows), shape.runs_left
        self.shape, self.rows, self.team = shape, rows, team

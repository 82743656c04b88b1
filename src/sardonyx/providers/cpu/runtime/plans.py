"""Plans and frames: the memory plan of a step table for a bucket of shapes, and the state of its runs.

A ``Plan`` is immutable: the offset of each intermediate in the arena is the same for all shapes of its bucket. A
``Frame`` holds the argument blocks and the context that runs of a plan in one arena write. A run takes an idle arena of
the session and the frame that its plan has for it. If the frame last ran another shape, the words that hold sizes are
written again (``shape_program``).

Plans and their frames are an LRU cache bounded in bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sardonyx import forks
from sardonyx.ops.limits import FREE_NBYTES, check_empty, check_nbytes
from sardonyx.plan.arena import Block, lower_bound, place
from sardonyx.plan.buckets import bucket
from sardonyx.plan.sizes import SizesDiffer
from sardonyx.providers.cpu.language.context import ARENA, COUNTERS, NOBODY, Context, Row
from sardonyx.providers.cpu.memory import allocator, guard_pages
from sardonyx.providers.cpu.memory.allocator import PADDING, POOLED_FROM, address, aligned
from sardonyx.providers.cpu.runtime.arenas import Arena
from sardonyx.providers.cpu.runtime.team import Team, new_context
from sardonyx.providers.cpu.runtime.team_size import BARRIERS, ThreadChoice, Trial

if TYPE_CHECKING:
    from sardonyx.providers.cpu.runtime.shape_sizes import ShapeSizes
    from sardonyx.providers.cpu.runtime.step_table import StepTable

Array = np.ndarray[Any, Any]

FLOPS_PER_SECOND, BYTES_PER_SECOND = 4e10, 1e10
"""Rates of a modest core, to estimate runs for the choice of threads and slices; only orders of magnitude matter."""
ALONE_S = 15e-6
"""Runs estimated to take less use one thread."""
BARRIER_S = 2e-6
"""Seconds of a barrier, with threads that arrive late."""
FIRST_LOOK, FACTOR, LAST_LOOK = 64, 8, 1 << 15
"""Runs of a shape after which the choice of threads is tried again: the first, the growth factor, and the largest."""
SOON_LOOK = FIRST_LOOK * FACTOR
"""Runs after which it is tried again if one thread was chosen though the team promised more; ``FIRST_LOOK`` if much
more."""
MAX_PLANS = 64
PLANS_NBYTES = 1 << 24
"""Bytes of the plans and frames of a step table; the most recently used plan is kept in any case."""
SLICE_S = 0.1
"""Long runs return to Python about this often, to handle signals. Slices are cut by estimated times; once a whole run
turns out shorter than a slice, it is not cut any more, since each return costs microseconds."""


def values_of(table: StepTable, sizes: tuple[int, ...]) -> Array:
    """The values of all expressions, by number. Raises SizesDiffer if the sizes violate a check."""
    try:
        return np.array(table.evaluate(sizes), np.int64)
    except OverflowError:
        raise SizesDiffer("a size has more than 64 bits") from None


class Plan:
    """The memory plan for all shapes of a bucket."""

    def __init__(self, table: StepTable, sizes: tuple[int, ...], threads: int) -> None:
        """``sizes`` of one of the shapes; ``threads`` is the most that a run uses."""
        self.table = table
        values = values_of(table, sizes).tolist()
        nbytes = (bucket(values[i])[1] for i in table.nbytes.tolist())
        blocks = [Block(n, *life) for n, life in zip(nbytes, table.lives, strict=True)]
        placement = place(blocks)
        self.arena_nbytes = placement.nbytes
        self.live_nbytes = lower_bound(blocks)
        """The lower bound of any placement: the most bytes that are alive at once."""
        self.scratch_nbytes = bucket(values[table.scratch])[1]
        """Per thread."""
        self.threads = threads
        self.scratch_at = aligned(self.arena_nbytes + PADDING)
        self.counters_at = self.scratch_at + aligned(self.scratch_nbytes * threads + PADDING)
        self.run_nbytes = self.counters_at + len(table.steps) * COUNTERS * 8 * threads
        """Bytes of the arena: intermediates, scratch of all threads, and the tile counters of the steps."""
        bounds: dict[int, tuple[int, int]] = {}
        for i, extent, times in table.bounded:
            low, high = (n // times for n in bucket(values[i]))
            least, most = bounds.get(extent, (low, high))
            bounds[extent] = max(low, least), min(high, most)
        self.bounds = tuple((extent, low, high) for extent, (low, high) in bounds.items())
        """For each extent of the table, the bounds of the bucket: low < extent <= high."""
        self.words = table.words.copy()
        if len(table.placed_at):
            self.words[table.placed_at] += np.array(placement.offsets, np.int64)[table.placed_by]
        self.sized = np.column_stack([table.sized_at, table.sized_by, self.words[table.sized_at]])
        """Rows of ``Sized``: which argument words hold sizes."""
        self.frames: dict[Arena | None, Frame] = {}
        """The plan's frames by arena."""
        self.frame_nbytes: int = self.words.nbytes + 8 * (Context.SLOTS + len(table.program) + table.base_count)
        self.is_used = True
        """Set by runs, cleared when the cache is trimmed."""
        self.used = 0
        """The trim before which it was last used."""
        self.is_allowed = False
        """Whether its memory passed the check against the size of the model and its inputs."""
        self.schedules: dict[tuple[int, tuple[bool, ...]], Schedule] = {}
        """Schedules by the amount of work (its number of bits) and by which conditional steps run."""

    @property
    def nbytes(self) -> int:
        """Bytes of the plan and its frames."""
        rows: int = sum(schedule.nbytes for schedule in tuple(self.schedules.values()))
        return int(self.sized.nbytes + self.words.nbytes) + self.frame_nbytes * len(self.frames) + rows

    def fits(self, extents: tuple[int, ...]) -> bool:
        """Whether the extents of a shape are in its bucket."""
        for i, low, high in self.bounds:  # noqa: SIM110 a generator costs twice as much with cold caches
            if not low < extents[i] <= high:
                return False
        return True


class Plans:
    """The plans of a step table: an LRU cache in bytes."""

    def __init__(self) -> None:
        self._all: tuple[Plan, ...] = ()
        """Replaced, never mutated, so that lookups need no lock."""
        self._last: Plan | None = None
        """The most recently used."""
        self._looks = 0
        self._lock = forks.lock()

    def __len__(self) -> int:
        return len(self._all)

    @property
    def nbytes(self) -> int:
        return sum(plan.nbytes for plan in self._all)

    def find(self, extents: tuple[int, ...]) -> Plan | None:
        """The plan whose bucket the extents of a shape are in, if there is one."""
        last = self._last
        if last is not None and last.fits(extents):
            return last
        for plan in self._all:
            if plan.fits(extents):
                self._last = plan
                return plan
        return None

    def add(self, plan: Plan) -> list[Plan]:
        """Add a plan; returns the plans that were evicted."""
        with self._lock:
            self._all = (plan, *(p for p in self._all if p.bounds != plan.bounds))
            self._last = plan
        return self.trim(plan)

    def trim(self, plan: Plan) -> list[Plan]:
        """Evict plans to make room for another frame of this one; returns those evicted."""
        with self._lock:
            self._looks += 1
            for known in self._all:
                if known.is_used:
                    known.is_used, known.used = False, self._looks
            others = sorted((p for p in self._all if p is not plan), key=lambda p: p.used, reverse=True)
            for arena in tuple(plan.frames):
                if arena is not None and arena.nbytes < 0:
                    plan.frames.pop(arena, None)
            nbytes, kept = plan.nbytes + plan.frame_nbytes, list[Plan]()
            for other in others:
                nbytes += other.nbytes
                if len(kept) + 1 == MAX_PLANS or nbytes > PLANS_NBYTES:
                    break
                kept.append(other)
            gone = others[len(kept) :]
            if gone:
                self._all = tuple(p for p in self._all if p not in gone)
                self._last = plan
        for other in gone:
            other.frames.clear()
        return gone


class Schedule(NamedTuple):
    """How shapes of a plan are run. Shapes that carry out the same steps and about as much work share one."""

    threads: int
    """The number estimated to pay."""
    rows: Array
    ends: list[int]
    """The last step of each slice; Python handles signals between slices."""
    is_quick: bool
    """Whether there is one slice, whose work is bounded."""
    trial: Trial | None
    """The measurement that chooses between team and single thread for each step."""

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes * (1 if self.trial is None else 1 + len(BARRIERS))


class Shape:
    """One set of input shapes: its sizes, outputs and schedule."""

    def __init__(self, plan: Plan, measured: ShapeSizes, threads: int) -> None:
        self.plan = plan
        self.sizes, _, work, met, self.outputs, most_nbytes = measured
        self._guard = guard_pages.mode()
        self._pooled = most_nbytes >= POOLED_FROM or self._guard is not None
        if most_nbytes > FREE_NBYTES:
            for dims, dtype, nbytes in self.outputs:
                check_nbytes(nbytes, f"an output would be {dtype}{list(dims)}")
        for dims, dtype, nbytes in self.outputs:
            if not nbytes:
                check_empty(dims, dtype, f"an output would be {dtype}{list(dims)}")
        # Without intermediates, the bucket does not tell the amount of work.
        kind = work.bit_length(), met
        schedule = plan.schedules.get(kind) or plan.schedules.setdefault(kind, self._schedule(met, threads))
        self.threads, self.rows, self.ends, self.is_quick, trial = schedule
        self.trial = self._last_trial = trial
        """``trial`` is None once it is decided."""
        self.runs_left = 0
        """Until the trial is repeated; 0 for never."""
        if trial is not None:
            self.runs_left = FIRST_LOOK
            if trial.is_over:
                (self.threads, self.rows), self.trial = trial.choice, None

    def _schedule(self, met: tuple[bool, ...], threads: int) -> Schedule:
        """The schedule of this shape, and of those of its plan with as much work."""
        plan, table, rows = self.plan, self.plan.table, _rows(self.plan.table, met)
        is_there, values = rows[:, Row.WHO] != NOBODY, values_of(table, self.sizes)
        flops, traffic = values[table.flops] * is_there, values[table.traffic] * is_there
        seconds = flops * (1 / FLOPS_PER_SECOND) + traffic * (1 / BYTES_PER_SECOND)
        # Work whose expression is too long counts as 0: then the memory that is written is a lower bound.
        total = max(float(seconds.sum()), plan.arena_nbytes / BYTES_PER_SECOND)
        if table.has_loops and threads > 1:
            # What a team saves, less the barriers of every trip.
            total -= float(values[table.meetings].sum()) * BARRIER_S * threads / (threads - 1)
        executions = np.maximum(values[table.executions], 1)
        trial = Trial(table, rows, executions, threads, total) if threads > 1 else None
        ends = _slices(seconds) if total > SLICE_S else [len(table.steps)]
        is_quick = len(ends) == 1 and table.is_bounded
        return Schedule(threads if total > ALONE_S else 1, rows, ends, is_quick, trial)

    def took(self, seconds: float) -> None:
        """Record the time of a run that was cut into slices.

        If it took less than one slice, later runs are not cut, unless control flow may make them longer.
        """
        table = self.plan.table
        if seconds < SLICE_S and not any(step.is_control for step in table.steps):
            self.ends, self.is_quick = [len(table.steps)], table.is_bounded

    def learn(self, trial: Trial, way: ThreadChoice, took: float, steps: Array) -> None:
        """Record the time of a run and of its steps, summed over threads."""
        trial.take(way, took, steps)
        self._follow(trial)

    def look_again(self) -> None:
        """Repeat the trial: the machine may have been busy during the last one."""
        if self._last_trial is not None:
            later = min(self.runs_left * FACTOR, LAST_LOOK)
            if self._last_trial.is_doubtful:
                later = FIRST_LOOK if self._last_trial.promises_much else SOON_LOOK
            self.runs_left = later
            self._last_trial.begin()
            self._follow(self._last_trial)

    def _follow(self, trial: Trial) -> None:
        self.trial = self._last_trial = trial
        if trial.is_over:
            (self.threads, self.rows), self.trial = trial.choice, None

    def new_outputs(self) -> list[Array]:
        """New arrays for the outputs of a run."""
        if not self._pooled:
            made = []
            for dims, dtype, _ in self.outputs:
                made.append(np.empty(dims, dtype))
            return made
        return [self._new(output) for output in self.outputs]

    def outputs_for(self, args: Sequence[Array], places: Mapping[int, Array]) -> list[Array]:
        """Arrays for the outputs of a run: those in ``places`` that fit and overlap no input, and new ones."""
        usable = {}
        for i, given in places.items():
            dims, dtype, _ = self.outputs[i]
            flags = given.flags
            is_alike = given.shape == dims and given.dtype == dtype and flags.c_contiguous
            if is_alike and flags.writeable and flags.aligned and not any(np.may_share_memory(given, a) for a in args):
                usable[i] = given
        return self.outputs_in(usable) if usable else self.new_outputs()

    def outputs_in(self, places: Mapping[int, Array]) -> list[Array]:
        """Arrays for the outputs of a run: those in ``places``, by number, and new ones for the others."""
        return [places[i] if i in places else self._new(output) for i, output in enumerate(self.outputs)]

    def _new(self, output: tuple[tuple[int, ...], np.dtype[Any], int]) -> Array:
        dims, dtype, nbytes = output
        if self._guard is not None:
            return guard_pages.empty(dims, dtype, self._guard)
        return allocator.outputs.empty(dims, dtype, nbytes) if nbytes >= POOLED_FROM else np.empty(dims, dtype)


def _rows(table: StepTable, met: tuple[bool, ...]) -> Array:
    """The table's rows, without the steps whose conditions are not met."""
    if all(met):
        return table.rows
    rows: Array = table.rows.copy()
    for i, condition in table.conditional:
        if not met[condition]:
            rows[i, Row.WHO] = NOBODY
    return rows


def _slices(seconds: Array) -> list[int]:
    """The ends of slices that take about ``SLICE_S``."""
    total = np.cumsum(seconds)
    cuts = np.flatnonzero(np.diff(total // SLICE_S)) + 1
    return [*cuts.tolist(), len(total)]


class Frame:
    """Context and argument blocks for the runs of a plan in one arena, one run at a time."""

    def __init__(self, plan: Plan, arena: Arena, team: Team, constants: Array) -> None:
        """``constants`` holds the addresses of the table's constants."""
        table = plan.table
        self.arena, self.team = arena, team
        self.shape: Shape | None = None
        self.rows: Array | None = None
        """The shape's rows when ``take`` was called; the context holds their address."""
        names, program = len(table.binding.names), table.program
        context = new_context(team, names + len(program))
        self.at = address(context)
        self.slots = (ctypes.c_int64 * len(context)).from_buffer(context)
        self._taken = slice(Context.TEAM, Context.SLOTS + names)
        self.error = ctypes.c_int64.from_address(self.at + 8 * Context.ERROR)
        self.words = plan.words.copy()
        self.bases = (ctypes.c_int64 * table.base_count)()
        count = table.given_count
        self.objects = (ctypes.c_int64 * count)()
        """Addresses of the array objects of a run: inputs, then outputs."""
        self.bases[1 : 1 + len(constants)] = constants.tolist()
        slots = self.slots
        slots[Context.BASES] = ctypes.addressof(self.bases)
        slots[Context.SCRATCH_STRIDE] = plan.scratch_nbytes
        slots[Context.ARGS] = address(self.words)
        slots[Context.SIZED], slots[Context.SIZED_COUNT] = address(plan.sized), len(plan.sized)
        slots[Context.NAME_COUNT] = names
        slots[Context.PROGRAM], slots[Context.PROGRAM_COUNT] = address(program), len(program)
        slots[Context.LAST] = len(table.steps)
        slots[Context.COUNTER_NBYTES] = 8 * plan.threads
        slots[Context.OBJECTS] = ctypes.addressof(self.objects)
        slots[Context.OBJECT_COUNT], slots[Context.OBJECT_BASE] = count, table.first_input
        self._dtypes = np.array([id(dtype) for dtype in table.inputs], np.int64)
        slots[Context.DTYPES], slots[Context.INPUT_COUNT] = address(self._dtypes), len(table.inputs)
        self.bases[ARENA], slots[Context.SCRATCH], slots[Context.COUNTERS] = arena.places(plan)

    def take(self, shape: Shape, team: Team) -> None:
        """Prepare for a shape of the plan's bucket, and for a team."""
        self.shape, rows = None, shape.rows  # None while the slots are inconsistent: a signal handler may raise
        wanted = team.workers(shape.threads)
        self.slots[self._taken] = [team.at, wanted, shape.runs_left, id(rows), 1, *shape.sizes]
        self.shape, self.rows, self.team = shape, rows, team

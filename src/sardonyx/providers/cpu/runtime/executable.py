"""A compiled part: finds the plan of the input shapes, makes one native call, reports errors with the node's name."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import forks, limits
from sardonyx.errors import Fail, NotImplemented, OutOfBudget
from sardonyx.forks import cached_property
from sardonyx.interpret.context import Held, RunContext
from sardonyx.ops.limits import check_nbytes
from sardonyx.partition.provider import Memory, Planned, StepRow
from sardonyx.plan.sizes import SizesDiffer, Unplannable
from sardonyx.providers.cpu.language.context import Code, Context
from sardonyx.providers.cpu.memory import guard_pages
from sardonyx.providers.cpu.memory.allocator import address
from sardonyx.providers.cpu.runtime import slices
from sardonyx.providers.cpu.runtime import team as runtime_team
from sardonyx.providers.cpu.runtime.arenas import Arena, Arenas
from sardonyx.providers.cpu.runtime.deferred import MAX_SPECIALIZATIONS, DeferredExecutable
from sardonyx.providers.cpu.runtime.plans import Frame, Plan, Plans, Shape
from sardonyx.providers.cpu.runtime.room import NeedsRoom, Room
from sardonyx.providers.cpu.runtime.team import Settings, Team, team_for
from sardonyx.providers.cpu.runtime.team_size import Trial

if TYPE_CHECKING:
    from logging import Logger

    from sardonyx.ir.graph import Value
    from sardonyx.lower.groups import View
    from sardonyx.lower.states import State
    from sardonyx.partition.provider import Executable, Part
    from sardonyx.providers.cpu.runtime.profile import Recorder
    from sardonyx.providers.cpu.runtime.step_table import StepTable
    from sardonyx.providers.cpu.runtime.tier_up import TierUp

Array = np.ndarray[Any, Any]

StatesKey = tuple[tuple[int, int, int, int], ...]
"""States that are appended to in place: input, output, axis and capacity of each."""

MAX_SHAPES = 256
"""Input shapes whose sizes are cached."""
MAX_APPENDING = 8
"""Sets of states (KV caches, by capacity) for which a version of the part is kept that appends to them in place."""

_compiling = forks.rlock()
"""Held for the seconds that compiling for further sizes takes."""


class CpuExecutable:
    """Runs a part by its step table."""

    def __init__(
        self,
        part: Part,
        table: StepTable,
        constants: list[Array],
        views: Mapping[Value, View],
        settings: Settings,
        count: int,
        max_memory: int | None = None,
        recompile: Callable[[Sequence[State]], CpuExecutable] | None = None,
        otherwise: Callable[[], Executable] | None = None,
        arenas: Arenas | None = None,
        by_shape: Callable[[], DeferredExecutable] | None = None,
        is_guarded: bool = False,
        said: set[str] | None = None,
        tier_up: TierUp | None = None,
        on_numpy: dict[str, str] | None = None,
    ) -> None:
        """``constants`` are the table's; ``count`` is the most threads of a run; ``arenas`` are the session's.

        ``max_memory`` limits the bytes of a run, constants included.
        ``recompile`` compiles the part with states updated in place; ``otherwise`` compiles it for sizes that are no
        multiples. ``by_shape`` compiles it anew for each set of shapes that this one cannot run: at once if
        ``is_guarded``, because sizes may select another branch of an If, else after a run on numpy has shown that the
        shapes are not wrong. ``said`` are the warnings that the session has logged.
        ``tier_up`` replaces baseline code of the table's kernels. ``on_numpy`` is where the provider notes nodes that
        numpy runs, and why.
        """
        self.part, self.table, self._views, self._max_memory = part, table, views, max_memory
        self._settings, self._threads, self._trim = settings, count, table.trim
        self._generation, self._team = runtime_team.generation, team_for(settings)
        self._guard = guard_pages.mode()
        self.constants = constants if self._guard is None else guard_pages.copies(constants, self._guard)
        self._constants_nbytes = sum(a.nbytes for a in constants)
        self._constants = np.array([address(a) for a in self.constants], np.int64)
        self._shapes: dict[tuple[tuple[int, ...], ...], Shape] = {}
        self._measure, self._plans = table.measure, Plans()
        self._arenas = arenas or Arenas()
        self._idle = self._arenas.idle
        self._lock = forks.lock()
        self._recompile, self._otherwise = recompile, otherwise
        self._other: Executable | None = None
        self._by_shape, self.is_guarded = by_shape, is_guarded
        self._proven: set[tuple[tuple[int, ...], ...]] = set()
        """Shapes without a plan that numpy has run."""
        self._said = set() if said is None else said
        self._tier_up, self._on_numpy = tier_up, {} if on_numpy is None else on_numpy
        self._has_run = False
        """Kept while there is a ``tier_up``."""
        self._room = Room(table.room) if table.room else None
        self._appending: OrderedDict[StatesKey, CpuExecutable | None] = OrderedDict()
        self.keep_appending: Callable[[StatesKey, CpuExecutable | None], object] | None = None
        """Called with each version for states, to write it to the compiled-model cache."""

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        appending = self._for_states(context.held) if context.held else None
        if appending is not None:
            results = appending._run_in_place(args, context)
            if results is not None:
                return results
        given = args if self._room is None else [*args, self._room.array]
        shapes = tuple([a.shape for a in given])
        try:
            shape = self._shapes.get(shapes) or self._bind(shapes)
            if self._guard is None:
                results = shape.outputs_for(args, context.places)
            else:
                given, results = guard_pages.copies(given, self._guard), shape.new_outputs()
            while not self._execute(shape, given, results, context):
                pass
        except NeedsRoom:
            self._grow(shapes)
            return self.run(args, context)
        except SizesDiffer as why:
            other = self._for_others(shapes)
            if other is not None:
                return other.run(args, context)
            results = self._without_plan(args, context)
            self._note_unplanned(shapes, why)
            return results
        return results if self._trim is None else self._trim(shape.sizes, results)

    def _grow(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        """Make more room than a run of these shapes had."""
        self._room.grow(shapes[-1][0])  # type: ignore[union-attr]

    def _for_others(self, shapes: tuple[tuple[int, ...], ...]) -> Executable | None:
        """The executable for shapes that this one cannot run; None if numpy must run them first."""
        if self._otherwise is not None:
            from sardonyx.lower.sizes import Refused

            with _compiling:
                if self._otherwise is not None:
                    try:
                        self._other = self._otherwise()
                    except (Refused, Unplannable, NotImplemented) as why:
                        _logger().info("sizes of another kind are not compiled: %s", why)
                    self._otherwise = None
        if self._other is not None:
            return self._other
        return self.specialized if self.is_guarded or shapes in self._proven else None

    @cached_property
    def specialized(self) -> DeferredExecutable | None:
        """An executable that compiles the part for each set of shapes by itself; None if there is none."""
        return None if self._by_shape is None else self._by_shape()

    def _note_unplanned(self, shapes: tuple[tuple[int, ...], ...], why: SizesDiffer) -> None:
        """Numpy has run shapes that have no plan: the next run of them is compiled, if there were not too many."""
        is_compiled = self._by_shape is not None and len(self._proven) < MAX_SPECIALIZATIONS
        if is_compiled:
            self._proven.add(shapes)
        else:
            reason = f"runs bring shapes that are not compiled for: {why}"
            self._on_numpy.update((node.name or node.outputs[0].name, reason) for node in self.part.nodes)
        said = "shapes that are not compiled for run on numpy, slowly" + (", once" if is_compiled else "")
        if said not in self._said:
            self._said.add(said)
            _logger().warning("%s: %s", said, why)

    def _run_in_place(self, args: Sequence[Any], context: RunContext) -> list[Any] | None:
        """Run with the context's states appended to in place; None for shapes outside the model's dimensions."""
        given = list(args) if self._room is None else [*args, self._room.array]
        shapes = tuple([a.shape for a in given])
        try:
            shape = self._shapes.get(shapes) or self._bind(shapes)
        except SizesDiffer:
            return None
        places: dict[int, Array] = {}
        for held in context.held:
            given[held.input] = held.memory
            places[held.output] = held.window_for(shape.outputs[held.output][0])
        results = shape.outputs_in(places)
        try:
            while not self._execute(shape, given, results, context):
                pass
        except NeedsRoom:
            self._grow(shapes)
            return self.run(args, context)
        except SizesDiffer:
            return None
        return results if self._trim is None else self._trim(shape.sizes, results)

    def _for_states(self, held: tuple[Held, ...]) -> CpuExecutable | None:
        """The version of the part that appends to these states; None where there is none."""
        key = tuple([(h.input, h.output, h.axis, h.memory.shape[h.axis]) for h in held])
        with self._lock:
            if key in self._appending:
                return self._appending[key]
        with _compiling:
            if key in self._appending:
                return self._appending[key]
            made = self._version_for_states(key)
            with self._lock:
                self._appending[key] = made
                if len(self._appending) > MAX_APPENDING:
                    self._appending.popitem(last=False)
        return made

    def _version_for_states(self, key: StatesKey) -> CpuExecutable | None:
        inputs, outputs, made = self.part.inputs, self.part.outputs, None
        if self._recompile is not None:
            from sardonyx.lower.sizes import Refused
            from sardonyx.lower.states import State

            try:
                made = self._recompile([State(inputs[i], outputs[o], axis, room) for i, o, axis, room in key])
            except (Refused, Unplannable, NotImplemented) as why:
                _logger().info("states are copied at each run: %s", why)
        if self.keep_appending is not None:
            self.keep_appending(key, made)
        return made

    def run_planned(self, args: Sequence[Any], places: Mapping[int, Array] | None = None) -> list[Any] | None:
        given, found = args if self._room is None else [*args, self._room.array], []
        for a in given:
            found.append(a.shape)  # noqa: PERF401 a comprehension is a call up to Python 3.11: 0.3 us of 5
        shapes = tuple(found)
        shape = self._shapes.get(shapes)
        if shape is None:
            if isinstance(self._other, CpuExecutable) and shapes in self._other._shapes:
                return self._other.run_planned(args, places)
            shape = self._bind_within(shapes)
        if shape is None or not (shape.is_quick or len(shape.ends) == 1) or self._guard is not None:
            return None
        results = shape.outputs_for(args, places) if places else shape.new_outputs()
        try:
            while not self._execute(shape, given, results, None):
                pass
        except NeedsRoom:
            self._grow(shapes)
            return self.run_planned(args, places)
        except (SizesDiffer, OutOfBudget):
            return None
        return results if self._trim is None else self._trim(shape.sizes, results)

    def run_quick(self, args: Sequence[Any]) -> list[Any] | None:
        """``run_planned`` for shapes whose work is known to be short."""
        return self.run_planned(args) if self.table.is_bounded else None

    def _execute(self, shape: Shape, args: Sequence[Any], results: list[Array], context: RunContext | None) -> bool:
        """Compute the results; False if a stop meant for an earlier run ended this one, which is then repeated."""
        if self._tier_up is not None:
            self._next_tier(self._tier_up, context)
        plan, idle = shape.plan, self._idle
        plan.is_used = True
        team = self._team if self._generation == runtime_team.generation else self._new_team()
        try:
            arena = idle.pop()
        except IndexError:
            arena = None
        frame = plan.frames.get(arena)
        if frame is None:
            frame = self._new_frame(plan, arena, team)
        try:
            if frame.shape is not shape or frame.rows is not shape.rows or frame.team is not team:
                frame.take(shape, team)
            objects, at = frame.objects, 0
            for a in args:
                objects[at] = id(a)
                at += 1
            for a in results:
                objects[at] = id(a)
                at += 1
            if shape.trial is not None and shape.is_quick and (context is None or context.is_unobserved):
                self._execute_tried(frame, shape, shape.trial, context)
            elif context is not None and not (shape.is_quick and context.is_undisturbed):
                self._execute_watched(frame, shape, context)
            elif shape.is_quick:
                team.execute(frame.at)
            else:
                slices.execute_loops(team, self.table, frame)
            is_done = frame.error.value == 0 or self._goes_on(frame, shape, context)
        finally:
            idle.append(frame.arena)
            if len(idle) > 1 and len(idle) > self._arenas.most_idle:
                self._arenas.trim()
        if is_done is None:
            return self._execute(shape, self._as_compiled(args), results, context)
        return is_done

    def _next_tier(self, tier_up: TierUp, context: RunContext | None) -> None:
        """Before the first run, have optimized code made; before any later run, or one that is measured, wait for it.
        A run with a deadline does not wait."""
        tier_up.begin()
        is_measured = context is not None and context.record is not None
        is_limited = context is not None and context.deadline is not None
        if (self._has_run or is_measured) and not is_limited:
            self.settle()
        self._has_run = True

    def settle(self) -> None:
        """Return when all code is optimized."""
        tier_up = self._tier_up
        if tier_up is not None:
            tier_up.finish()
            self._tier_up = None

    @property
    def tier_up(self) -> TierUp | None:
        """What replaces baseline code; None once all code is optimized."""
        return self._tier_up

    def _as_compiled(self, args: Sequence[Array]) -> list[Array]:
        """The inputs as native code expects them: contiguous, with the part's own dtype objects."""
        given = []
        for a, dtype in zip(args, self.table.inputs, strict=True):
            if a.dtype != dtype:
                raise Fail("a value has another type than the part was compiled for", expected=dtype, got=a.dtype)
            given.append(np.ascontiguousarray(a).reshape(a.shape).view(dtype))
        return given

    def _new_frame(self, plan: Plan, arena: Arena | None, team: Team) -> Frame:
        """A frame of the plan in this arena, or in another if this is too small."""
        try:
            if not plan.is_allowed:
                check_nbytes(plan.arena_nbytes, f"the intermediates would take {plan.arena_nbytes} bytes")
                plan.is_allowed = True
            arena = self._arenas.fitting(arena, plan.run_nbytes)
            frame = plan.frames.get(arena)
            if frame is None:
                self._forget(self._plans.trim(plan))
                frame = plan.frames[arena] = Frame(plan, arena, team, self._constants)
        except BaseException:
            self._arenas.put_back(arena)
            raise
        return frame

    def _new_team(self) -> Team:
        """The team of this process: a forked child needs a new one."""
        self._generation = runtime_team.generation
        self._team = team_for(self._settings)
        return self._team

    def _execute_tried(self, frame: Frame, shape: Shape, trial: Trial, context: RunContext | None) -> None:
        """Run with the trial's current choice, and time each step."""
        count, rows = way = trial.choice
        recorder = self._recorder(count, frame.slots)
        frame.shape = None
        frame.slots[Context.ROWS], frame.slots[Context.LEFT] = id(rows), 0
        frame.slots[Context.WANTED] = self._team.workers(count)
        try:
            start = time.perf_counter()
            self._team.execute(frame.at)
            took = time.perf_counter() - start
        finally:
            frame.slots[Context.PROFILE] = 0
        if frame.error.value != Code.ARRAY:
            shape.learn(trial, way, took, recorder.seconds())
            if context is not None and context.record_part is not None:
                recorder.report(context, self._views, shape.sizes, self._team)

    def _execute_watched(self, frame: Frame, shape: Shape, context: RunContext) -> None:
        recorder = None if context.record is None else self._recorder(shape.threads, frame.slots)
        slices.execute_watched(self._team, self.table, frame, shape, context)
        if recorder is not None:
            recorder.report(context, self._views, shape.sizes, self._team)

    def _recorder(self, count: int, slots: Any) -> Recorder:
        from sardonyx.providers.cpu.runtime.profile import Recorder

        return Recorder(self.table, count, slots)

    def _goes_on(self, frame: Frame, shape: Shape, context: RunContext | None) -> bool | None:
        """Raise the error that stopped the run. False if the stop was meant for an earlier run, None if an input has
        strides or another dtype object. ``Code.LOOK`` only asks for the trial of threads to be repeated.
        """
        slots = frame.slots
        code, step, value = (int(slots[i]) for i in (Context.ERROR, Context.ERROR_STEP, Context.ERROR_VALUE))
        slots[Context.ERROR] = slots[Context.STOP] = slots[Context.CANCEL] = 0
        if code == Code.LOOK:
            shape.look_again()
            return True
        if code == Code.ARRAY:
            return None
        if code == Code.FULL:
            raise NeedsRoom
        if code == Code.CANCELLED:
            if context is None or not context.stop:
                return False
            raise Fail("Exiting due to terminate flag being set to true.")
        if code == Code.LATE:
            raise Fail("the run reached its deadline") if context is None else context.deadline_error()
        raise self._error(code, step, value)

    def _error(self, code: int, step: int, value: int) -> Exception:
        """The exception for what a step left in the context."""
        from sardonyx.providers.cpu.runtime.failures import failure

        return failure(code, value, self.table.steps, step)

    def memory(self, shapes: Sequence[tuple[int, ...]]) -> Memory:
        wanted = tuple(tuple(s) for s in shapes)
        try:
            room = () if self._room is None else (self._room.array.shape,)
            return self._memory(self._bind((*wanted, *room), remember=False))
        except SizesDiffer:
            other = self._for_others(wanted)
            if not isinstance(other, Planned):
                raise
            return other.memory(shapes)

    def rows(self) -> list[StepRow]:
        from sardonyx.providers.cpu.runtime.step_table import row_of

        return [row_of(step) for step in self.table.steps]

    @property
    def packed_nbytes(self) -> int:
        """Bytes of prepacked constants: about what a run reads of the weights."""
        from sardonyx.providers.cpu.program.steps import Packed

        return sum(a.nbytes for s, a in zip(self.table.constants, self.constants, strict=True) if isinstance(s, Packed))

    def _memory(self, shape: Shape) -> Memory:
        plan = shape.plan
        outputs = sum(nbytes for _, _, nbytes in shape.outputs)
        scratch = plan.scratch_nbytes * self._threads
        return Memory(self._constants_nbytes, plan.arena_nbytes, plan.live_nbytes, scratch, outputs)

    def _bind(self, shapes: tuple[tuple[int, ...], ...], *, remember: bool = True) -> Shape:
        """Check shapes that are not cached, and find or make their plan."""
        measured = self._measure(shapes)
        plan = self._plans.find(measured[1]) or self._new_plan(measured[0])
        shape = Shape(plan, measured, self._threads)
        return self._remembered(shapes, shape) if remember else shape

    def _bind_within(self, shapes: tuple[tuple[int, ...], ...]) -> Shape | None:
        """The shape for these shapes in a plan that exists; None if there is no such plan, or if a check fails."""
        try:
            measured = self._measure(shapes)
            plan = self._plans.find(measured[1])
            if plan is not None:
                return self._remembered(shapes, Shape(plan, measured, self._threads))
        except (SizesDiffer, OutOfBudget):
            pass
        return None

    def _remembered(self, shapes: tuple[tuple[int, ...], ...], shape: Shape) -> Shape:
        """Cache a shape; raises ``OutOfBudget`` if it exceeds the memory limits."""
        if self._max_memory is not None:
            peak_nbytes = self._memory(shape).peak_nbytes
            if peak_nbytes > self._max_memory:
                raise OutOfBudget(
                    "a run of these shapes needs more than max_memory",
                    expected=f"{self._max_memory} bytes",
                    got=f"{peak_nbytes} bytes",
                )
        budget = limits.current()
        if budget is not None:
            from sardonyx.providers.cpu.runtime import bounds

            bounds.check(shape, self._memory(shape), budget)
        self._shapes[shapes] = shape
        if len(self._shapes) > MAX_SHAPES:
            self._shapes.pop(list(self._shapes)[0], None)  # noqa: RUF015 others may add shapes at this moment
        return shape

    def _new_plan(self, sizes: tuple[int, ...]) -> Plan:
        plan = Plan(self.table, sizes, self._threads)
        self._forget(self._plans.add(plan))
        return plan

    def _forget(self, gone: list[Plan]) -> None:
        """Drop the cached shapes of evicted plans."""
        if gone:
            for shapes, shape in tuple(self._shapes.items()):
                if shape.plan in gone:
                    self._shapes.pop(shapes, None)

    def _without_plan(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        """Run shapes outside the model's dimensions node by node on numpy, which computes or reports what is wrong."""
        from sardonyx.interpret.bind import bind
        from sardonyx.interpret.program import Program

        return Program(self.part.nodes, self.part.inputs, self.part.outputs, bind).run(args, context)


def _logger() -> Logger:
    import logging  # 3 ms of a start that logs nothing

    return logging.getLogger("sardonyx")

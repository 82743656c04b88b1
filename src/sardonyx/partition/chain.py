"""Executables that run one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sardonyx.errors import OutOfBudget
from sardonyx.interpret.context import ModelNeeded
from sardonyx.interpret.live import HeldValues
from sardonyx.partition.provider import Executable, RunContext
from sardonyx.partition.shared import copy_shared

PlannedRun = Callable[[Sequence[Any]], "Sequence[Any] | None"]


class Link(NamedTuple):
    executable: Executable
    takes: tuple[int, ...]
    """The slots of its inputs. A frame holds the chain's inputs, then the outputs of each link in order."""


class _Step(NamedTuple):
    run: Callable[[Sequence[Any], RunContext], list[Any]]
    run_planned: PlannedRun | None
    """See ``RunsPlanned``, or ``Chain.planned_run``; None if the executable has neither."""
    taken: Callable[[Sequence[Any]], Sequence[Any]]
    """Selects the step's inputs from a frame."""
    run_quick: PlannedRun | None
    """``run_planned`` of work that is so short that a cancelled run need not stop it; None for others."""


def _step(link: Link) -> _Step:
    executable = link.executable
    whole: PlannedRun | None = getattr(executable, "run_planned", None)  # isinstance takes 0.1 ms before 3.12
    planned = whole or getattr(executable, "planned_run", None)
    return _Step(executable.run, planned, _taker(link.takes), getattr(executable, "run_quick", None))


def _taker(slots: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that selects these slots of a list, without a loop in Python."""
    first = slots[0] if slots else 0
    if list(slots) == list(range(first, first + len(slots))):
        return itemgetter(slice(first, first + len(slots)))
    return itemgetter(*slots)


class Chain:
    """Links, the number of inputs, and the slots of the results; results that are constants are inserted among them."""

    def __init__(
        self, inputs: int, links: Sequence[Link], gives: Sequence[int], constants: Sequence[tuple[int, Any]] = ()
    ) -> None:
        """``constants`` are the position and the value of each constant result, in order."""
        self.inputs, self.links, self.gives, self.constants = inputs, links, tuple(gives), tuple(constants)
        self._steps = [_step(link) for link in links]
        self._given = _taker(self.gives)
        is_distinct = len(set(self.gives)) == len(self.gives) and all(i >= self.inputs for i in self.gives)
        can_run = not constants and is_distinct and all(step.run_planned is not None for step in self._steps)
        self._can_run_planned = can_run
        self._only = _taker([i - inputs for i in self.gives]) if can_run and len(links) == 1 else None
        """If there is one link: selects the results from its outputs."""

    @property
    def planned_run(self) -> PlannedRun | None:
        """Runs all links without a context; None unless each link can and no result is a constant, an input or another
        result.
        """
        if not self._can_run_planned:
            return None
        whole = self._whole
        return self._run_planned if whole is None else whole.planned_run

    @property
    def _whole(self) -> Chain | None:
        """The chain that is this one's only link, if it has the same inputs and results."""
        inner = getattr(self.links[0].executable, "chain", self.links[0].executable) if self._only else None
        if not isinstance(inner, Chain) or inner.constants or self.links[0].takes != tuple(range(self.inputs)):
            return None
        is_same = inner.inputs == self.inputs and self.gives == tuple(
            range(self.inputs, self.inputs + len(inner.gives))
        )
        return inner if is_same else None

    def _run_planned(self, args: Sequence[Any]) -> Sequence[Any] | None:
        if self._only is not None:
            _, run_planned, taken, _ = self._steps[0]
            made = run_planned(taken(args))  # type: ignore[misc]
            return None if made is None else self._only(made)
        frame = list(args)
        for _, run_planned, taken, _ in self._steps:
            made = run_planned(taken(frame))  # type: ignore[misc]
            if made is None:
                return None
            frame += made
        return self._given(frame)

    @property
    def copied_run(self) -> PlannedRun | None:
        """Runs all links where nobody would miss a context; results that share memory are copied. None if there are
        constants among the results.
        """
        return None if self.constants else self._run_copied

    def _run_copied(self, args: Sequence[Any]) -> Sequence[Any] | None:
        frame, context = list(args), RunContext(is_private=True)
        try:
            for run, run_planned, taken, _ in self._steps:
                given = taken(frame)
                made = None if run_planned is None else run_planned(given)
                frame += run(given, context) if made is None else made
        except (OutOfBudget, ModelNeeded):
            return None
        return copy_shared(self._given(frame), args)

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        may_hurry = context.record is None and context.deadline is None and not context.held and not context.places
        frame = list(args)
        held = None if context.budget is None else HeldValues(context.budget)
        for step in self._steps:
            if context.stop:
                context.check()
            given = step.taken(frame)
            made = step.run_quick(given) if may_hurry and step.run_quick is not None else None
            frame += step.run(given, context) if made is None else made
            if held is not None:
                held.set(frame[self.inputs :])
        if held is not None:
            held.release()
        results = list(self._given(frame))
        for i, value in self.constants:
            results.insert(i, value)
        return results

"""Executables that run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sardonyx.interpret.live import Kept
from sardonyx.partition.provider import Executable, RunContext

Again = Callable[[Sequence[Any]], "Sequence[Any] | None"]


class Link(NamedTuple):
    executable: Executable
    takes: tuple[int, ...]
    """The slots of its inputs. A frame holds those of the chain, and then the outputs of one link after the other."""


class _Step(NamedTuple):
    run: Callable[[Sequence[Any], RunContext], list[Any]]
    run_again: Again | None
    """Without a context, as ``Quick.run_again``."""
    taken: Callable[[list[Any]], Sequence[Any]]
    """Its inputs, out of a frame."""


def _step(link: Link) -> _Step:
    executable = link.executable
    again: Again | None = getattr(executable, "run_again", None)  # ``Quick``; before 3.12 to ask that takes 0.1 ms
    return _Step(executable.run, again, _taker(link.takes))


def _taker(slots: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """Picks these out of a list, without a loop in Python."""
    first = slots[0] if slots else 0
    if list(slots) == list(range(first, first + len(slots))):
        return itemgetter(slice(first, first + len(slots)))
    return itemgetter(*slots)


class Chain:
    """Links between so many inputs and the slots that are given back."""

    def __init__(self, inputs: int, links: Sequence[Link], gives: Sequence[int]) -> None:
        self.inputs, self.links, self.gives = inputs, links, tuple(gives)
        self._steps = [_step(link) for link in links]
        self._given = _taker(self.gives)

    @property
    def again(self) -> Again | None:
        """Runs all links without a context, where each of them can and every result is of its own making."""
        is_distinct = len(set(self.gives)) == len(self.gives) and all(i >= self.inputs for i in self.gives)
        return self._run_again if is_distinct and all(step.run_again is not None for step in self._steps) else None

    def _run_again(self, args: Sequence[Any]) -> Sequence[Any] | None:
        frame = list(args)
        for _, run_again, taken in self._steps:
            made = run_again(taken(frame))  # type: ignore[misc]
            if made is None:
                return None
            frame += made
        return self._given(frame)

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        may_hurry = context.record is None and context.deadline is None and not context.held and not context.places
        frame = list(args)
        kept = None if context.budget is None else Kept(context.budget)
        for step in self._steps:
            if context.stop:
                context.check()
            given = step.taken(frame)
            made = step.run_again(given) if may_hurry and step.run_again is not None else None
            if made is None:
                made = step.run(given, context)
            frame += made
            if kept is not None:
                kept.are(frame[self.inputs :])
        if kept is not None:
            kept.end()
        return list(self._given(frame))

"""The context of a run: cancel flag, deadline, memory budget and profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sardonyx.errors import Fail, InvalidArgument
from sardonyx.limits import Budget

if TYPE_CHECKING:
    from sardonyx.interpret.profile import PartRun


class ModelNeeded(Exception):
    """A run needs more than the compiled-model cache holds: the model must be loaded."""


class Held(NamedTuple):
    """A caller's buffer that holds an input and has room to append along ``axis``; an output is to be written there.

    Input and output are given by index. The input's array is a view of the start of ``memory``. An output that extends
    the input may be written in place and is then returned as such a view.
    """

    input: int
    output: int
    axis: int
    memory: Any

    def window(self, size: int) -> Any:
        """The first ``size`` elements along the axis."""
        return self.memory[(slice(None),) * self.axis + (slice(size),)]

    def window_for(self, shape: tuple[int, ...]) -> Any:
        """The view that an output of this shape occupies; it must fit."""
        room, axis = self.memory.shape, self.axis
        if shape[:axis] != room[:axis] or shape[axis + 1 :] != room[axis + 1 :] or shape[axis] > room[axis]:
            raise InvalidArgument("a state has no room for what is appended", expected=list(room), got=list(shape))
        return self.window(shape[axis])


class RunContext:
    """The context of one run. ``stop`` may be set from another thread; it is checked between steps."""

    __slots__ = ("_stop", "_watched", "budget", "deadline", "held", "is_private", "places", "record", "record_part")

    def __init__(
        self,
        *,
        timeout_s: float | None = None,
        record: Callable[[Any, int, int, Any, Any], None] | None = None,
        budget: Budget | None = None,
        is_private: bool = False,
    ) -> None:
        """``is_private``: no other thread knows of this context."""
        self._stop, self.is_private = False, is_private
        self._watched: tuple[Any, int] | None = None
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.budget: Budget | None = None
        """The limits of an untrusted model; None if the model is trusted."""
        if budget is not None:
            self.bound(budget)
        self.record = record
        """If given, called as ``record(node, start_ns, end_ns, inputs, outputs)`` after each step."""

        self.record_part: Callable[[PartRun], None] | None = None
        """If given, called after each run of a compiled part, whose steps ``record`` is then not told of."""

        self.places: Mapping[int, Any] = {}
        """Caller's arrays that outputs, by index, may be written into; an output written there is returned as that
        array.
        """

        self.held: tuple[Held, ...] = ()
        """States that a run may append to in place."""

    @property
    def stop(self) -> bool:
        return self._stop

    @stop.setter
    def stop(self, value: bool) -> None:
        self._stop = value
        watched = self._watched
        if value and watched is not None:
            watched[0][watched[1]] = 1

    def bound(self, budget: Budget) -> None:
        """Apply a budget to the run."""
        self.budget = budget
        self.deadline = budget.deadline if self.deadline is None else min(self.deadline, budget.deadline)

    @property
    def is_unobserved(self) -> bool:
        """Whether nothing can stop the run between its steps, and nobody is told of them one by one."""
        is_told = self.record is not None and self.record_part is None
        return not is_told and self.deadline is None and not self._stop

    @property
    def is_undisturbed(self) -> bool:
        """Whether nobody is told of the run, and nothing can stop it."""
        return self.is_private and self.record is None and self.deadline is None and not self._stop

    def watch(self, words: Any, i: int) -> None:
        """While native code runs, mirror ``stop`` to a word of memory that the code reads."""
        self._watched = (words, i)
        if self._stop:
            words[i] = 1

    def unwatch(self) -> None:
        self._watched = None

    def check(self) -> None:
        """Raise if the run was cancelled or has passed its deadline."""
        if self.stop:
            raise Fail("Exiting due to terminate flag being set to true.")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise self.deadline_error()

    def deadline_error(self) -> Fail:
        """The error for a passed deadline."""
        return Fail("the run reached its deadline") if self.budget is None else self.budget.deadline_error()

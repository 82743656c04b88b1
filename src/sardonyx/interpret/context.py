"""What one run carries with it: the cancel flag, the deadline, and the profile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sardonyx.errors import Fail, InvalidArgument
from sardonyx.limits import Budget


class Held(NamedTuple):
    """Memory of the caller's that holds an input and has room behind it along ``axis``, where an output is to be.

    Input and output go by their numbers. The input's array is a window of ``memory`` that begins where it does; an
    output that is the input with more behind it may be written in place, and is given back as such a window too.
    """

    input: int
    output: int
    axis: int
    memory: Any

    def window(self, size: int) -> Any:
        """The first ``size`` along the axis."""
        return self.memory[(slice(None),) * self.axis + (slice(size),)]

    def window_for(self, shape: tuple[int, ...]) -> Any:
        """What an output of this shape takes; there must be room for it."""
        room, axis = self.memory.shape, self.axis
        if shape[:axis] != room[:axis] or shape[axis + 1 :] != room[axis + 1 :] or shape[axis] > room[axis]:
            raise InvalidArgument("a state has no room for what is appended", expected=list(room), got=list(shape))
        return self.window(shape[axis])


class RunContext:
    """One caller's run. ``stop`` may be set from another thread; it is looked at between steps."""

    __slots__ = ("_stop", "_watched", "budget", "deadline", "held", "places", "record")

    def __init__(
        self,
        *,
        timeout_s: float | None = None,
        record: Callable[[Any, int, int, Any, Any], None] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._stop = False
        self._watched: tuple[Any, int] | None = None
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.budget: Budget | None = None
        """What an untrusted model has left."""
        if budget is not None:
            self.bound(budget)
        self.record = record
        """Called as ``record(node, start_ns, end_ns, inputs, outputs)`` after each step, when given."""

        self.places: Mapping[int, Any] = {}
        """Arrays of the caller's that outputs, by number, may be written into; whoever does gives back that array."""

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
        """Have a budget bound the run."""
        self.budget = budget
        self.deadline = budget.deadline if self.deadline is None else min(self.deadline, budget.deadline)

    @property
    def is_unobserved(self) -> bool:
        """Whether the run is not profiled, has no deadline and was not cancelled: nothing but its results is asked."""
        return self.record is None and self.deadline is None and not self._stop

    def watch(self, words: Any, i: int) -> None:
        """While native code runs, ``stop`` is told to it through a word of memory."""
        self._watched = (words, i)
        if self._stop:
            words[i] = 1

    def unwatch(self) -> None:
        self._watched = None

    def check(self) -> None:
        """Raise if the run was cancelled or is late."""
        if self.stop:
            raise Fail("Exiting due to terminate flag being set to true.")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise self.deadline_error()

    def deadline_error(self) -> Fail:
        """The error of a run that has passed its deadline."""
        return Fail("the run reached its deadline") if self.budget is None else self.budget.deadline_error()

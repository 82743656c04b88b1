"""Limits of untrusted models: ``Limits``, and ``Budget``, what one build or run has left of them.

Limits are passed down as arguments: options, load, build, engine, run context. Operators' functions and rewrites have
no such argument; for them the budget of the current build or run is a context variable (``current``). Without a budget,
nothing here has an effect.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from sardonyx.errors import InvalidArgument, UntrustedRefusal
from sardonyx.records import Record

TRUSTED, UNTRUSTED = "trusted", "untrusted"


class Limits(Record):
    """The most that an untrusted model may contain and use. Sizes are in bytes, times in seconds of wall-clock time."""

    file_nbytes: int = 64 << 20
    """The model's file."""
    skeleton_nbytes: int = 2 << 20
    """The file without the contents of large tensors: nodes, names, attributes, strings. Parsed, it may take a hundred
    times as much memory.
    """
    nodes: int = 10_000
    """Nodes, including those of subgraphs and inlined functions; rewrites may make four times as many."""
    nesting: int = 8
    """Levels of nested subgraphs."""
    initializers: int = 10_000
    """Stored tensors, those in attributes included."""
    initializer_nbytes: int = 64 << 20
    """The largest tensor, as it is used: a sparse tensor counts as a dense one."""
    memory_nbytes: int = 384 << 20
    """Weights, constants made of them, intermediates and results of one run."""
    build_time_s: float = 1.5
    """Time from the file to a session."""
    run_time_s: float = 0.5
    """Time of one run."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        for name in self.__match_args__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise InvalidArgument(f"the limit {name} is a number that is not negative", got=repr(value))


def refusal(limit: str, what: str, *, allowed: Any, value: Any, where: str | None = None) -> UntrustedRefusal:
    """The error for an exceeded limit."""
    return UntrustedRefusal(
        what,
        limit=limit,
        where=where,
        expected=f"at most {allowed} (limits.{limit})",
        got=value,
        hint=f"the model is untrusted; Limits({limit}=...) allows more",
    )


def forbidden(what: str, *, where: str | None = None, got: Any = None, hint: str | None = None) -> UntrustedRefusal:
    """The error for something that untrusted models may not do at all."""
    return UntrustedRefusal(
        f"an untrusted model may not {what}", where=where, got=got, hint=hint or 'trust="trusted" allows it'
    )


class Budget:
    """The time and memory that one build or run has left."""

    __slots__ = ("_start", "_time_limit", "deadline", "held_nbytes", "limits")

    def __init__(self, limits: Limits, *, time_limit: str) -> None:
        """``time_limit`` names the field of ``Limits`` that bounds the time. A budget within another ends no later than
        that one.
        """
        outer = _current.get()
        self.limits, self._time_limit = limits, time_limit
        self._start = time.monotonic()
        self.deadline: float = self._start + getattr(limits, time_limit)
        self.held_nbytes: int = 0
        if outer is not None:
            self.deadline = min(self.deadline, outer.deadline)
            self.held_nbytes = outer.held_nbytes

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    @property
    def used(self) -> float:
        """The share of the time that has passed."""
        return (time.monotonic() - self._start) / max(self.deadline - self._start, 1e-9)

    def deadline_error(self, where: str | None = None) -> UntrustedRefusal:
        """The error for a passed deadline."""
        allowed = getattr(self.limits, self._time_limit)
        what = "building the session" if self._time_limit == "build_time_s" else "the run"
        return refusal(
            self._time_limit, f"{what} takes too long", allowed=f"{allowed} s", value="a passed deadline", where=where
        )

    def check_time(self, where: str | None = None) -> None:
        if time.monotonic() > self.deadline:
            raise self.deadline_error(where)

    def check_work(self, seconds: float, where: str | None = None) -> None:
        """Refuse work with an estimate longer than the remaining time: it could not be interrupted."""
        left = self.left_s
        if seconds > left:
            raise refusal(
                self._time_limit,
                "an operator would take too long" if left > 0 else "the time is over",
                allowed=f"{getattr(self.limits, self._time_limit)} s, of which {max(left, 0):.2f} are left",
                value=f"about {seconds:.2g} s",
                where=where,
            )

    def check_nbytes(self, nbytes: int, what: str, where: str | None = None) -> None:
        """Refuse memory that does not fit in addition to what is held."""
        if self.held_nbytes + nbytes > self.limits.memory_nbytes:
            raise refusal(
                "memory_nbytes",
                what,
                allowed=f"{self.limits.memory_nbytes} bytes",
                value=f"{nbytes} bytes in addition to {self.held_nbytes}",
                where=where,
            )

    def hold(self, nbytes: int, what: str, where: str | None = None) -> None:
        """Count memory that stays allocated."""
        self.check_nbytes(nbytes, what, where)
        self.held_nbytes += nbytes


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)

current = _current.get
"""The budget of this thread's build or run; None if the model is trusted."""


@contextmanager
def in_force(budget: Budget) -> Iterator[Budget]:
    """Apply a budget to what this thread does inside the block."""
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


def check_time() -> None:
    """Raise if there is a budget and its time is over."""
    budget = _current.get()
    if budget is not None:
        budget.check_time()

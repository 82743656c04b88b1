"""A model under settings: its session, its outputs, and the time of a row."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import field
from statistics import median
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.forks import cached_property
from sardonyx.records import Record
from sardonyx.session.config_file import Config
from sardonyx.session.options import SessionOptions
from sardonyx.session.session import InferenceSession

Feeds = Mapping[str, Any]
Model = str | os.PathLike[str] | bytes
STEPS = 256
"""Runs after which a state that grows starts again."""
SAMPLE_S, MAX_CALLS = 5e-3, 1000
"""A sample is as many calls as take about so long."""


class Setup(Record):
    """Settings of a session and of its calls."""

    options: Mapping[str, Any] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    batch: int = 0
    """Rows of a call, of which the feeds have one; 0 for feeds as they are."""
    is_batched: bool = False
    """Whether the rows are run together."""
    states: tuple[tuple[str, str, int], ...] = ()
    is_contiguous: bool = False

    def plus(self, other: Setup) -> Setup:
        """These settings, and on top of them others."""
        return Setup(
            {**self.options, **other.options},
            {**self.entries, **other.entries},
            other.batch or self.batch,
            other.is_batched or self.is_batched,
            tuple(dict.fromkeys((*self.states, *other.states))),
            self.is_contiguous or other.is_contiguous,
        )

    @property
    def config(self) -> Config:
        """As it is written to a file."""
        calls: dict[str, Any] = {}
        if self.is_batched:
            calls["batch"] = self.batch
        if self.is_contiguous:
            calls["contiguous_inputs"] = True
        if self.states:
            calls["states"] = [list(state) for state in self.states]
        return Config(self.options, self.entries, calls)

    def applied(self, asked: SessionOptions) -> SessionOptions:
        """A copy of options with these settings."""
        options = copy(asked)
        for name, value in self.options.items():
            setattr(options, name, value)
        for key, text in self.entries.items():
            options.add_session_config_entry(key, text)
        return options


class Runner:
    """Runs a model under a setup; sessions are made by ``session_of`` and may be shared."""

    def __init__(self, session: InferenceSession, setup: Setup, feeds: Feeds) -> None:
        self.session, self.setup = session, setup
        given = rows_of(feeds, setup.batch) if setup.batch else [dict(feeds)]
        if setup.is_batched:
            given = [{name: np.concatenate([row[name] for row in given]) for name in feeds}]
        if setup.is_contiguous:
            given = [{name: np.ascontiguousarray(x) for name, x in feed.items()} for feed in given]
        self._feeds = given
        self._binding: Any = None
        self._bound_names: list[str] = []
        """The outputs in the binding's order."""
        self._left = 0

    @property
    def rows(self) -> int:
        return self.setup.batch or 1

    def outputs(self) -> list[Any]:
        """All outputs of all rows."""
        self._left = 0
        found = [self._call(feed) for feed in self._feeds]
        return [_joined(parts) for parts in zip(*found, strict=True)]

    def seconds(self) -> float:
        """The time of a row: the median of a sample of calls."""
        return median(sum(map(self._timed, self._feeds)) for _ in range(self._calls)) / self.rows

    @cached_property
    def _calls(self) -> int:
        each = min(sum(map(self._timed, self._feeds)) for _ in range(3))
        return max(1, min(MAX_CALLS, math.ceil(SAMPLE_S / max(each, 1e-9))))

    def _timed(self, feed: Feeds) -> float:
        binding = self._bound(feed) if self.setup.states else None
        start = time.perf_counter()
        if binding is None:
            self.session.run(None, dict(feed))
        else:
            self.session.run_with_iobinding(binding)
        return time.perf_counter() - start

    def _call(self, feed: Feeds) -> list[Any]:
        if not self.setup.states:
            return self.session.run(None, dict(feed))
        binding = self._bound(feed)
        self.session.run_with_iobinding(binding)
        made = dict(zip(self._bound_names, binding.get_outputs(), strict=True))
        return [made[output.name].numpy() for output in self.session.get_outputs()]

    def _bound(self, feed: Feeds) -> Any:
        """The binding with its states, which starts again when they are full."""
        if not self._left:
            self._left = STEPS
            self._binding = binding = self.session.io_binding()
            states = {given: (made, axis) for given, made, axis in self.setup.states}
            self._bound_names = [states[name][0] for name in feed if name in states]
            for name, x in feed.items():
                if name in states:
                    made, axis = states[name]
                    binding.bind_state(name, made, x, capacity=x.shape[axis] + STEPS, axis=axis)
                else:
                    binding.bind_cpu_input(name, x)
            for output in self.session.get_outputs():
                if output.name not in self._bound_names:
                    self._bound_names.append(output.name)
                    binding.bind_output(output.name)
        self._left -= 1
        return self._binding


def rows_of(feeds: Feeds, count: int) -> list[dict[str, Any]]:
    """So many feeds of one row each, like the first row of ``feeds``; floats differ from row to row."""
    rng = np.random.default_rng(0)
    if not all(isinstance(x, np.ndarray) and x.ndim for x in feeds.values()):
        raise InvalidArgument("inputs without rows cannot be batched")
    found = []
    for _ in range(count):
        row = {name: x[:1].copy() for name, x in feeds.items()}
        for x in row.values():
            if x.dtype.kind == "f":
                x *= 1 + 0.1 * rng.standard_normal(x.shape).astype(x.dtype)
        found.append(row)
    return found


def largest_error(got: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest relative error of an output; infinite where outputs that are no real numbers differ."""
    from sardonyx.bench.statistics import relative_error

    found = 0.0
    for mine, theirs in zip(got, expected, strict=True):
        if isinstance(theirs, np.ndarray) and theirs.dtype.kind == "f" and mine.shape == theirs.shape:
            if not np.array_equal(mine, theirs, equal_nan=True):
                found = max(found, relative_error(mine, theirs))
        elif not _equal(mine, theirs):
            return math.inf
    return found


def _equal(mine: Any, theirs: Any) -> bool:
    if isinstance(theirs, np.ndarray):
        return isinstance(mine, np.ndarray) and mine.shape == theirs.shape and bool(np.array_equal(mine, theirs))
    if isinstance(theirs, list):
        return isinstance(mine, list) and len(mine) == len(theirs) and all(map(_equal, mine, theirs))
    if isinstance(theirs, dict):
        is_alike = isinstance(mine, dict) and mine.keys() == theirs.keys()
        return is_alike and all(_equal(mine[k], theirs[k]) for k in theirs)
    return bool(mine == theirs)


def _joined(parts: Sequence[Any]) -> Any:
    """An output of several calls, as one call with all rows returns it."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, np.ndarray) and part.ndim for part in parts):
        return np.concatenate(parts)
    return [item for part in parts for item in (part if isinstance(part, list) else [part])]

"""``profile_model``: runs of a session that records a trace."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from sardonyx.errors import InvalidArgument
from sardonyx.profile.read import profile_of, read_events
from sardonyx.profile.records import Profile

if TYPE_CHECKING:
    from sardonyx.session.options import SessionOptions
    from sardonyx.session.session import InferenceSession

Feeds = Mapping[str, Any]
Model = str | os.PathLike[str] | bytes
MAX_RUNS = 10_000
LEAST_WARM_RUNS, WARM_RUNS, WARM_S = 2, 16, 1.0
"""Runs that are not counted: so many, unless they take longer than that. The engine chooses numbers of threads in the
first runs."""


def profile_model(
    model: Model,
    feeds: Feeds | None = None,
    *,
    runs: int = 20,
    options: SessionOptions | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    trace: str | os.PathLike[str] | None = None,
    dimensions: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    step: Callable[[str], None] = lambda what: None,
) -> Profile:
    """Profile a model, with these feeds or random ones, of sizes that ``dimensions`` and ``shapes`` give.

    ``trace`` is a file that keeps the trace. ``step`` is called with what is done next.
    """
    given = feeds if feeds is not None else generated(model, dimensions, shapes)
    return profiled(model, given, runs=runs, options=options, providers=providers, trace=trace, step=step)[0]


def profiled(
    model: Model,
    feeds: Feeds,
    *,
    runs: int = 20,
    options: SessionOptions | None = None,
    providers: Sequence[str] = ("CPUExecutionProvider",),
    trace: str | os.PathLike[str] | None = None,
    step: Callable[[str], None] = lambda what: None,
) -> tuple[Profile, InferenceSession]:
    """The profile, and the session that it is of."""
    from sardonyx.session.options import SessionOptions
    from sardonyx.session.session import InferenceSession

    if not 1 <= runs <= MAX_RUNS:
        raise InvalidArgument("the number of runs", expected=f"1 to {MAX_RUNS}", got=runs)
    asked = SessionOptions() if options is None else copy(options)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        asked.enable_profiling, asked.profile_file_prefix = True, os.path.join(made, "trace")
        step("loading the model")
        session = InferenceSession(model, asked, providers=list(providers))
        try:
            step("warming up")
            warm = _warm_up(session, feeds)
            step(f"{runs} runs")
            for _ in range(runs):
                session.run(None, dict(feeds))
            step("reading the trace")
            path = session.end_profiling()
        finally:
            session.end_profiling()  # else the session would write its trace when the folder is gone
        events = read_events(path)
        if trace is not None:
            _keep(path, os.fspath(trace))
    name = os.fspath(model) if not isinstance(model, bytes) else "a model given as bytes"
    return profile_of(events, name, is_own_calls=False, skip=warm), session


def _warm_up(session: InferenceSession, feeds: Feeds) -> int:
    start, count = time.perf_counter(), 0
    while count < LEAST_WARM_RUNS or (count < WARM_RUNS and time.perf_counter() - start < WARM_S):
        session.run(None, dict(feeds))
        count += 1
    return count


def _keep(path: str, to: str) -> None:
    from sardonyx.writing import write_whole

    with open(path, "rb") as file:
        write_whole(to, [file.read()])


def generated(
    model: Model, dimensions: Mapping[str, int] | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Feeds:
    """Random feeds from the types that a model declares."""
    from sardonyx.bench.inputs import generate_inputs

    return generate_inputs(model, dimensions=dimensions, shapes=shapes).feeds

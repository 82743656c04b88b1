"""Runs of a session under observation: how long each fused group takes, and the shapes that values have."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.ir.graph import Graph, Node
from sardonyx.optimize.feeds import candidates, complete
from sardonyx.records import Record
from sardonyx.session.options import SessionOptions
from sardonyx.session.session import InferenceSession

WARM_S, WATCHED_S = 1.0, 2.0
"""How long warm-up and observed runs may take; there are at least two of each."""
MOST_RUNS = 30


class Observed(Record):
    """What observed runs of a session told."""

    run_s: float
    """The median time of runs that were not observed."""
    node_s: dict[Node, float]
    """The median time of each node that steps are named after."""
    types: dict[str, str]
    """The types of values, with the sizes that they had."""


def open_session(model: Any, options: SessionOptions | None, providers: Sequence[Any] | None) -> InferenceSession:
    """A session that is compiled here: one from the cache would lack the graph and the reasons for its kernels."""
    options = SessionOptions() if options is None else options.__copy__()
    options.add_session_config_entry("session.cache", "0")
    return InferenceSession(model, options, providers=list(providers) if providers else ["CPUExecutionProvider"])


def feeds_for(session: InferenceSession, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The given feeds, or generated ones that the model accepts."""
    graph = session._sess.engine.model.graph
    if given is not None:
        return complete(graph, given)
    why: SardonyxError | None = None
    for feeds in candidates(graph):
        try:
            session.run(None, feeds)
            return feeds
        except SardonyxError as error:
            why = why or error
    raise InvalidArgument("the model refuses generated inputs", got=why, hint="give inputs of your own")


def observe(session: InferenceSession, feeds: Mapping[str, Any]) -> Observed:
    """Warm up, time some runs, then watch as many."""
    from sardonyx.interpret.context import RunContext

    native, names = session._sess, [o.name for o in session.get_outputs()]
    _repeat(lambda: session.run(names, feeds), WARM_S)
    times = _repeat(lambda: session.run(names, feeds), WARM_S)
    prepared = native.prepare(feeds)
    runs: list[dict[Node, float]] = []
    types: dict[str, str] = {}

    def watched() -> None:
        seconds: dict[Node, float] = {}

        def record(node: Node, start_ns: int, end_ns: int, inputs: Any, outputs: Any) -> None:
            seconds[node] = seconds.get(node, 0.0) + (end_ns - start_ns) / 1e9
            for value, array in (*zip(node.inputs, inputs), *zip(node.outputs, outputs)):  # noqa: B905 bodies differ
                if value is not None and isinstance(array, np.ndarray):
                    types.setdefault(value.name, array_type(array))

        native.engine.run(prepared, names, RunContext(record=record))
        runs.append(seconds)

    _repeat(watched, WATCHED_S)
    nodes = dict.fromkeys(node for run in runs for node in run)
    return Observed(median(times), {n: median([run.get(n, 0.0) for run in runs]) for n in nodes}, types)


def _repeat(call: Any, seconds: float) -> list[float]:
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < 2 or (len(times) < MOST_RUNS and time.perf_counter() - begun < seconds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def array_type(array: Any) -> str:
    """The type of an array as the graph writes types."""
    return f"{dtypes.of_numpy(array.dtype).name}[{', '.join(map(str, array.shape))}]"


def written_types(graph: Graph) -> dict[str, str]:
    """The texts of all values' types in a graph whose types are inferred."""
    found = {}
    for node in graph.all_nodes():
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.type is not None:
                found[value.name] = str(value.type)
    return found

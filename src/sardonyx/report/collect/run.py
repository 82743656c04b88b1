"""Runs of a session under observation: what each kernel takes, and the shapes that values have."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.profile import PartRun
from sardonyx.ir.graph import Graph, Node
from sardonyx.optimize.feeds import candidates, complete
from sardonyx.profile.read import typical_runs
from sardonyx.records import Record
from sardonyx.session.options import SessionOptions
from sardonyx.session.session import InferenceSession
from sardonyx.session.trace_timeline import wall_ns

WARM_S, WATCHED_S = 1.0, 3.0
"""How long the warm-up, and the runs that count, may take; there are at least two."""
MOST_RUNS = 30


class Work(Record):
    """What one kernel, or one node on the reference provider, did in a run."""

    nodes: tuple[Node, ...]
    kernel: str
    seconds: float
    """What it adds to the time of the run."""
    flops: int = 0
    nbytes: int = 0
    arithmetic: str = "f32"


class Observed(Record):
    """What observed runs of a session told."""

    run_s: float
    """The median time of runs that were not observed."""
    work: tuple[Work, ...]
    """With mean times of typical runs."""
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
    """Warm up; then time a run and watch the next, in turns, so that a busy machine slows both alike."""
    native, names = session._sess, [o.name for o in session.get_outputs()]
    _repeat(lambda: session.run(names, feeds), WARM_S)
    prepared, watches, times = native.prepare(feeds), list[Watch](), list[float]()

    def turn() -> None:
        start = time.perf_counter()
        session.run(names, feeds)
        times.append(time.perf_counter() - start)
        watch = Watch()
        context = RunContext(record=watch.node)
        context.record_part = watch.part
        native.engine.run(prepared, names, context)
        watches.append(watch)

    _repeat(turn, WATCHED_S)
    last = watches[-1]
    alike = [watch for watch in watches if len(watch.work) == len(last.work)]
    typical = typical_runs([sum(w.seconds for w in watch.work) for watch in alike])
    middle = [watch.work for i, watch in enumerate(alike) if i in typical]
    work = [replace(same[0], seconds=fmean(w.seconds for w in same)) for same in zip(*middle, strict=True)]
    return Observed(median(times), tuple(work), last.types)


class Watch:
    """One observed run."""

    def __init__(self) -> None:
        self.work: list[Work] = []
        self.types: dict[str, str] = {}

    def node(self, node: Node, start_ns: int, end_ns: int, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.work.append(Work((node,), "numpy", (end_ns - start_ns) / 1e9))
        self._learn(node, inputs, outputs)

    def part(self, run: PartRun) -> None:
        steps = run.steps()
        for (facts, _), ns in zip(steps, wall_ns(steps, run.has_loops), strict=True):
            self.work.append(Work(facts.nodes, facts.kernel, ns / 1e9, facts.flops, facts.nbytes, facts.arithmetic))
            if facts.node is not None:
                self._learn(facts.node, facts.inputs, facts.outputs)

    def _learn(self, node: Node, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """The sizes that a node's values had."""
        for values, arrays in ((node.inputs, inputs), (node.outputs, outputs)):
            for value, array in zip(values, arrays, strict=False):
                if value is not None and isinstance(array, np.ndarray):
                    self.types.setdefault(value.name, array_type(array))


def _repeat(call: Callable[[], object], seconds: float) -> None:
    count, begun = 0, time.perf_counter()
    while count < 2 or (count < MOST_RUNS and time.perf_counter() - begun < seconds):
        call()
        count += 1


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

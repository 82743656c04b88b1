"""A session's trace in Chrome's format: the events and fields that onnxruntime writes, and each kernel on each thread.

Runs leave behind what they measured; the events are made when the trace is written (``trace_events``). Every line
between the brackets has a finished event; metadata and counters share a line with one, because programs read such files
line by line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from sardonyx import forks, writing
from sardonyx.errors import Fail
from sardonyx.session import trace_events
from sardonyx.session.trace_events import Event, Scribe

if TYPE_CHECKING:
    from sardonyx.interpret.profile import PartRun
    from sardonyx.ir.graph import Node

MAX_EVENTS = 1_000_000
"""About how many events a trace has; runs beyond are counted only."""
SESSION, NODE = "Session", "Node"
"""Categories of events."""


class _Finished(NamedTuple):
    category: str
    name: str
    tid: int
    start_ns: int
    duration_ns: int
    args: dict[str, Any]


class Trace:
    """Events since ``start_ns`` (of ``time.monotonic_ns``), written to a file when closed."""

    def __init__(self, prefix: str, precision: str = "highest") -> None:
        from json import dumps as text

        self._text = text
        self.start_ns = time.monotonic_ns()
        self._scribe = Scribe(time.perf_counter_ns(), precision)
        stamp = datetime.now()
        self.path = f"{prefix}_{stamp:%Y-%m-%d_%H-%M-%S}_{stamp.microsecond // 1000:03}.json"
        self.indices: Mapping[Node, int] = {}
        """The numbers of the session's nodes."""
        self._found: list[_Finished | tuple[PartRun, int]] = []
        """Events, and runs of parts with the threads that called them."""
        self._count = self._left_out = 0
        self._closed = False
        self._lock = forks.lock()

    def add(self, category: str, name: str, start_ns: int, end_ns: int, args: dict[str, Any] | None = None) -> None:
        """One finished event; times are of ``time.perf_counter_ns``."""
        duration = max(0, end_ns - start_ns)
        self._keep(_Finished(category, name, threading.get_native_id(), start_ns, duration, args or {}), 1)

    def session(self, name: str, start_ns: int, end_ns: int, args: dict[str, Any] | None = None) -> None:
        """What the session did, all parts of it together."""
        self.add(SESSION, name, start_ns, end_ns, args)

    def run(self, start_ns: int, end_ns: int, feeds: Mapping[str, Any], results: Sequence[Any]) -> None:
        """A run of the session."""
        self.session("SequentialExecutor::Execute", start_ns, end_ns)
        self.session("model_run", start_ns, end_ns, trace_events.run_args(feeds, results))

    def node(self, node: Node, start_ns: int, end_ns: int, inputs: Any, outputs: Any) -> None:
        """The run of a node on numpy."""
        args = trace_events.node_args(self.indices.get(node, -1), node, inputs, outputs, trace_events.REFERENCE)
        self.add(NODE, trace_events.node_name(node), start_ns, end_ns, args)

    def part(self, run: PartRun) -> None:
        """A run of a compiled part."""
        self._keep((run, threading.get_native_id()), run.step_count * (1 + 2 * len(run.workers)))

    def close(self) -> str:
        """Write the file and return its path; empty if it was written before."""
        with self._lock:
            if self._closed:
                return ""
            self._closed = True
        try:
            writing.write_whole(self.path, [("[\n" + ",\n".join(self._lines()) + "\n]\n").encode()])
        except OSError as error:
            raise Fail(f"the profile cannot be written ({error.strerror})", where=self.path) from None
        return self.path

    def _keep(self, what: Any, count: int) -> None:
        with self._lock:
            if self._count + count > MAX_EVENTS:
                self._left_out += 1
            elif not self._closed:
                self._found.append(what)
                self._count += count

    def _lines(self) -> Iterator[str]:
        scribe, text = self._scribe, self._text
        events: list[Event] = []
        for each in self._found:
            if isinstance(each, _Finished):
                events.append(scribe.event(*each))
            else:
                run, caller = each
                events += scribe.of_part(run, caller, self.indices)
        line = list(scribe.metadata(self._left_out))
        for event in events:
            line.append(event)
            if event["ph"] == "X":
                yield ", ".join(map(text, line))
                line = []

"""What a thread did in the run of a part, laid out in time: kernels, and waits at barriers in front of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sardonyx.interpret.profile import StepRun


class Span(NamedTuple):
    is_wait: bool
    step: int
    """Which of the run's steps; of a wait, the step after which threads waited."""
    start_ns: int
    duration_ns: int


class Timeline:
    """One thread's spans, in order and without overlap.

    Of a step in a loop only the begin of the first trip and the sum of all trips are known: such spans follow one
    another, from the begin of the run on.
    """

    def __init__(self, thread: int, has_loops: bool) -> None:
        self.thread, self._has_loops = thread, has_loops
        self.spans: list[Span] = []
        self.begins: dict[int, int] = {}
        """When the thread began each step that it had a share of."""
        self.end_ns = 0
        self._count = 0

    def add(self, step: StepRun) -> None:
        """The next step of the run."""
        i, times = self._count, step.times[self.thread]
        self._count += 1
        is_placed = bool(times.start_ns) and not (self._has_loops and self.end_ns)
        if times.waited_ns:
            start = times.start_ns - times.waited_ns if is_placed else self.end_ns
            if start > 0:  # else another thread has yet to tell when the run began
                self._append(True, max(i - 1, 0), start, times.waited_ns)
        if times.start_ns:
            self._append(False, i, times.start_ns if is_placed else self.end_ns, times.busy_ns)

    def wait_until(self, end_ns: int) -> None:
        """The caller's wait for the last of its workers."""
        if self.spans and end_ns > self.end_ns:
            self._append(True, self.spans[-1].step, self.end_ns, end_ns - self.end_ns)

    def _append(self, is_wait: bool, step: int, start_ns: int, duration_ns: int) -> None:
        start = max(start_ns, self.end_ns)
        self.spans.append(Span(is_wait, step, start, duration_ns))
        if not is_wait:
            self.begins[step] = start
        self.end_ns = start + duration_ns


def wall_ns(steps: Sequence[StepRun], has_loops: bool) -> list[float]:
    """What each step adds to the time of a run, so that all together are the run of the part.

    Waiting counts. Steps that overlap, because no barrier is between them, share their time as their threads were busy.
    Of steps in loops only the time of their busiest thread is known.
    """
    if has_loops:
        return [float(max((t.busy_ns for t in step.times), default=0)) for step in steps]
    busy = [sum(t.busy_ns for t in step.times) for step in steps]
    found = [0.0] * len(steps)
    overlapping: list[int] = []
    begun = ended = 0

    def share() -> None:
        total = sum(busy[i] for i in overlapping)
        for i in overlapping:
            found[i] = (ended - begun) * (busy[i] / total if total else 1 / len(overlapping))

    for i, step in enumerate(steps):
        spans = [(t.start_ns, t.start_ns + t.busy_ns) for t in step.times if t.start_ns]
        if not spans:
            continue
        start, end = min(s for s, _ in spans), max(e for _, e in spans)
        if start >= ended:
            share()
            overlapping, begun = [], ended or start
        overlapping.append(i)
        ended = max(ended, end)
    share()
    return found

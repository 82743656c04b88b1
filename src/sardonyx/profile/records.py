"""A profile: runs, nodes and kernels, each with its time and its work in a run."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from sardonyx.forks import cached_property
from sardonyx.records import Record

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""By the inputs' names: type, as onnxruntime names it, and shape."""


class RunUse(Record):
    """One run."""

    start_s: float
    """Since the session began to be made."""
    seconds: float
    thread: int
    inputs: Shapes
    input_nbytes: int
    output_nbytes: int
    strided_nbytes: int
    """Of inputs that are not contiguous, which are copied before they are used."""
    nodes_s: float
    """In nodes; the rest is what calling and recording cost."""


class NodeUse(Record):
    """A node, with what is fused into it; times are medians over the runs in which it ran."""

    name: str
    op_type: str
    engine: str
    """``cpu`` where it is compiled, ``reference`` where numpy runs it; in a trace of onnxruntime its provider."""
    seconds: float
    """In a run, without the nodes of its bodies."""
    calls: float
    """In a run."""
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    output_nbytes: int


class KernelUse(Record):
    """A kernel's step; times are medians over the runs in which it ran."""

    part: str
    """A name of the compiled part that it belongs to."""
    step: int
    kernel: str
    variant: str
    op_type: str
    """Of the node that it is named after."""
    operators: tuple[str, ...]
    """Of all nodes that it computes."""
    nodes: tuple[str, ...]
    origins: tuple[str, ...]
    """The nodes of the model's file that these come from."""
    threads: int
    seconds: float
    """What it adds to a run: kernels that overlap share their time, so that all together are the run."""
    busy_s: float
    """Of all threads together."""
    waited_s: float
    """Of all threads together, at the barrier that follows it."""
    flops: int
    nbytes: int
    weight_nbytes: int
    arithmetic: str
    bound: str
    """``memory`` or ``arithmetic``: what the roofline says; empty where it says nothing."""
    roofline_s: float
    """The least that this machine could take; 0 where it is not known."""

    @property
    def roofline_share(self) -> float:
        """Of what the machine could do; above 1 where data came from a nearer cache than their size suggests."""
        return self.roofline_s / self.seconds if self.seconds else 0.0

    @property
    def label(self) -> str:
        return ", ".join(self.nodes[:2]) + (f" and {len(self.nodes) - 2} more" if len(self.nodes) > 2 else "")


class Profile(Record):
    """What a trace tells. ``str()`` is a report for people, ``to_json()`` one for programs."""

    source: str
    """The model's or the trace's file."""
    is_own_calls: bool
    """Whether the runs were made by a program, whose calls can be judged; not by ``profile_model``."""
    settings: Mapping[str, Any]
    """What the session was asked for: threads, precision, level of optimization, providers."""
    rates: tuple[Mapping[str, Any], ...]
    """Of the machine, by number of threads."""
    runs: tuple[RunUse, ...]
    nodes: tuple[NodeUse, ...]
    kernels: tuple[KernelUse, ...]
    peak_nbytes: int
    """The most of the arena that was in use."""
    left_out: int
    """Runs that the trace was too long for."""

    @cached_property
    def seconds(self) -> float:
        """The median time of a run."""
        return median(run.seconds for run in self.runs) if self.runs else 0.0

    @property
    def nodes_share(self) -> float:
        """The share of a run that is in nodes."""
        shares = [run.nodes_s / run.seconds for run in self.runs if run.seconds]
        return median(shares) if shares else 0.0

    @property
    def waited_share(self) -> float:
        """The share of all threads' time that they waited for one another."""
        waited, busy = (sum(getattr(k, name) for k in self.kernels) for name in ("waited_s", "busy_s"))
        return waited / (waited + busy) if waited + busy else 0.0

    @property
    def nbytes(self) -> int:
        """What kernels read and write in a run."""
        return sum(k.nbytes for k in self.kernels)

    @property
    def flops(self) -> int:
        return sum(k.flops for k in self.kernels)

    def share(self, use: KernelUse | NodeUse) -> float:
        """The share of a run."""
        return use.seconds / self.seconds if self.seconds else 0.0

    def hot(self, count: int = 10) -> tuple[KernelUse, ...]:
        """The kernels that take longest."""
        return tuple(sorted(self.kernels, key=lambda k: -k.seconds)[:count])

    def hot_nodes(self, count: int = 10) -> tuple[NodeUse, ...]:
        return tuple(sorted(self.nodes, key=lambda n: -n.seconds)[:count])

    def by_operator(self) -> dict[str, float]:
        """Seconds of a run by operator, the longest first."""
        found: dict[str, float] = {}
        for node in self.nodes:
            found[node.op_type] = found.get(node.op_type, 0.0) + node.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def to_json(self) -> dict[str, Any]:
        """Everything, in JSON's types."""
        from sardonyx.profile.text import as_json

        found: dict[str, Any] = as_json(self)
        return found

    def __str__(self) -> str:
        from sardonyx.profile.text import report

        return report(self)

"""What a provider tells about the run of a compiled part: its steps, and when each thread carried them out.

A provider hands over a ``PartRun`` that holds little more than time stamps, so that profiled runs stay quick; what
they mean is computed when the trace is written.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from sardonyx.ir.graph import Node


class StepFacts(NamedTuple):
    """What is the same in all runs of a step for one set of shapes."""

    part: str
    """A name of the part, the same in all runs."""
    step: int
    """Its number in the step table."""
    kernel: str
    variant: str
    """What the kernel was specialized for."""
    node: Node | None
    """The node that the step is named after; None for steps of the engine's own."""
    nodes: tuple[Node, ...]
    inputs: tuple[Any, ...]
    """Arrays of the shapes and types of the node's inputs, without memory of their own; None where there is none."""
    outputs: tuple[Any, ...]
    flops: int
    nbytes: int
    """Bytes that the step reads and writes."""
    weights_nbytes: int
    """Bytes of the constants among them."""
    arithmetic: str
    """``f32``, ``f64`` or ``i8``."""
    live_nbytes: int
    """Bytes of the arena that hold intermediates while the step runs."""


class ThreadTimes(NamedTuple):
    """What one thread did for a step, in nanoseconds; loops add up their trips."""

    thread: int
    """0 is the caller."""
    start_ns: int
    """When it began first, by ``time.perf_counter_ns``; 0 if it had no share."""
    busy_ns: int
    waited_ns: int
    """At barriers in front of the step."""


class StepRun(NamedTuple):
    facts: StepFacts
    times: tuple[ThreadTimes, ...]


class PartRun(Protocol):
    """One run of a compiled part."""

    has_loops: bool
    """Whether steps may have run several times: then a start is that of the first trip."""
    workers: list[int]
    """For each thread of the run, the system's number of it; 0 where it is the caller."""
    step_count: int

    def steps(self) -> list[StepRun]:
        """The steps that ran, in the order of the step table."""

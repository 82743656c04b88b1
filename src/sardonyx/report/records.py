"""The facts on a report's page, as records. ``plain`` turns them into what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sardonyx.records import Record

MICRO = "µs"
"""Microseconds, as the page writes them."""


class GraphNode(Record):
    """One node of a drawn graph."""

    label: str
    op_type: str
    family: str
    """The kind of work, which chooses the colour: see ``collect.families``."""
    provider: str = ""
    kernel: str = ""
    """The kernel, or kernels, that compute it; empty if it only rearranges memory."""
    reason: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    """Names and types."""
    attributes: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    """The nodes that are fused into it."""
    links: tuple[int, ...] = ()
    """The nodes of the next graph of the report that stand for it."""
    seconds: float | None = None


class DrawnGraph(Record):
    """A graph with its layout."""

    name: str
    about: str
    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[int, int, str], ...]
    """From, to, and the type that flows."""
    x: tuple[float, ...]
    y: tuple[float, ...]
    bends: tuple[tuple[float, ...], ...]
    """For each edge x and y of the points between its ends, flattened."""
    omitted: int = 0
    """Nodes that are not drawn because there are too many."""


class Layer(Record):
    """One kernel, or one node on the reference provider, of a run."""

    name: str
    kernel: str
    family: str
    seconds: float
    flops: float | None = None
    nbytes: float | None = None
    limit_s: float | None = None
    """The least time that the machine's rates allow."""
    bound: str = ""
    """``arithmetic`` or ``memory``: what the limit comes from."""
    node: int | None = None
    """Its number in the graph of kernels."""


class Machine(Record):
    """The machine's measured rates; None where they were not measured."""

    flops_per_s: float | None
    nbytes_per_s: float | None
    threads: int


class Allocation(Record):
    """A block of the arena and the steps during which it is alive, both included."""

    name: str
    nbytes: int
    offset: int
    first: int
    last: int


class MemoryMap(Record):
    """The arena of one compiled part."""

    name: str
    steps: tuple[str, ...]
    """The kernels, by interval: adjacent kernels without a barrier between them share one."""
    arena_nbytes: int
    live_nbytes: int
    constants_nbytes: int
    scratch_nbytes: int
    outputs_nbytes: int
    allocations: tuple[Allocation, ...]


class Measurement(Record):
    """The time of a run of one engine, with its confidence interval."""

    engine: str
    setting: str
    """What varies besides the engine: batch size, threads, precision."""
    median_s: float
    low_s: float
    high_s: float
    p90_s: float | None = None
    p99_s: float | None = None
    throughput: float | None = None
    """Items per second."""
    peak_nbytes: int | None = None


class Table(Record):
    """A table with a title, such as of accuracy or of quantization."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float | int | None, ...], ...]
    about: str = ""


class Finding(Record):
    """Something to change, with its evidence."""

    severity: str
    """``warning``, ``advice``, ``note`` or ``good``."""
    title: str
    evidence: str = ""
    fix: str = ""


class ReportData(Record):
    """A whole report."""

    title: str
    created: str
    summary: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    graphs: tuple[DrawnGraph, ...]
    layers: tuple[Layer, ...]
    run_s: float | None
    """The median time of a run that nobody watched."""
    machine: Machine
    memory: tuple[MemoryMap, ...]
    findings: tuple[Finding, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    verdict: str = ""
    """What the measurements say, in a sentence."""
    tables: tuple[Table, ...] = ()
    rewrites: tuple[tuple[str, int], ...] = ()
    declined: tuple[tuple[str, str, str], ...] = ()


def plain(value: Any) -> Any:
    """Records as dictionaries, tuples as lists, numbers that JSON lacks as None."""
    if isinstance(value, Record):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None

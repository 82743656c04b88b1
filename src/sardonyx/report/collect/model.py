"""All facts about one model: its graphs, a session of it, and observed runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx.inspection.inspect import parameters
from sardonyx.inspection.text import amount, duration
from sardonyx.ir.graph import Graph, Node
from sardonyx.model.load import load
from sardonyx.providers.cpu.codegen.rates import rates
from sardonyx.records import Record
from sardonyx.report.collect.environment import environment, machine
from sardonyx.report.collect.graphs import file_graph, kernel_graph, optimized_graph
from sardonyx.report.collect.groups import Group, groups_of
from sardonyx.report.collect.layers import layers_of
from sardonyx.report.collect.memory import memory_maps
from sardonyx.report.collect.run import Observed, array_type, feeds_for, observe, open_session, written_types
from sardonyx.report.records import MICRO, DrawnGraph, Layer, Machine, MemoryMap

if TYPE_CHECKING:
    from sardonyx.session.options import SessionOptions

MOST_DECLINED = 200
LISTED = 3
"""Inputs that the summary names."""


class Collected(Record):
    """What is known of a model without benchmarks."""

    name: str
    source: Any
    """What sessions open."""
    feeds: Mapping[str, Any]
    summary: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    graphs: tuple[DrawnGraph, ...]
    layers: tuple[Layer, ...]
    run_s: float
    machine: Machine
    memory: tuple[MemoryMap, ...]
    rewrites: tuple[tuple[str, int], ...]
    declined: tuple[tuple[str, str, str], ...]


def collect(
    model: Any,
    options: SessionOptions | None,
    providers: Sequence[Any] | None,
    feeds: Mapping[str, Any] | None,
) -> Collected:
    """Load, compile and run a model."""
    source = model.SerializeToString() if hasattr(model, "SerializeToString") else model
    written = load(source)
    session = open_session(source, options, providers)
    engine = session._sess.engine
    fed = feeds_for(session, feeds)
    seen = observe(session, fed)
    graph, explanation = engine.model.graph, session.explain()
    groups = groups_of(graph, engine.parts.compiled)
    types = {**written_types(written.graph), **written_types(graph), **seen.types}
    threads = max((getattr(e, "_threads", 1) for _, e in engine.parts.compiled), default=1)
    speed = rates(threads)
    layers = layers_of(groups, seen.work, speed, session.get_session_options().precision)
    seconds = {layer.node: layer.seconds for layer in layers if layer.node is not None}
    number = {node: i for i, group in enumerate(groups) for node in group.nodes}
    placed = {node: (p.provider, p.reason) for node, p in explanation.by_node(graph)}
    graphs = (
        file_graph(written.graph, types, _links(graph, number)),
        optimized_graph(graph, types, number, placed),
        kernel_graph(groups, types, seconds),
    )
    memory = tuple(memory_maps(engine.parts.compiled))
    name = os.path.basename(os.fsdecode(model)) if isinstance(model, str | os.PathLike) else written.graph.name
    report = explanation.report
    return Collected(
        name=name or "model",
        source=source,
        feeds=fed,
        summary=tuple(_summary(written.graph, graph, groups, seen, fed, memory)),
        environment=tuple(environment(threads)),
        graphs=graphs,
        layers=tuple(layers),
        run_s=seen.run_s,
        machine=machine(speed),
        memory=memory,
        rewrites=tuple(sorted(report.count().items(), key=lambda item: -item[1])),
        declined=tuple((d.name, d.node, d.reason) for d in report.declined[:MOST_DECLINED]),
    )


def _links(graph: Graph, number: Mapping[Node, int]) -> Any:
    """From a node of the file to the numbers of the groups that stand for it."""
    by_origin: dict[str, dict[int, None]] = {}
    for node in graph.nodes:
        for name in node.origin:
            by_origin.setdefault(name, {})[number[node]] = None

    def links(node: Node) -> list[int]:
        return list(by_origin.get(node.name or next((v.name for v in node.outputs), ""), ()))

    return links


def _summary(
    written: Graph,
    graph: Graph,
    groups: Sequence[Group],
    seen: Observed,
    feeds: Mapping[str, Any],
    memory: Sequence[MemoryMap],
) -> list[tuple[str, str]]:
    kernels = sum(1 for g in groups if g.kernels)
    weights = list(parameters(written))
    count, nbytes = (sum(getattr(t, name) for t in weights) for name in ("size", "nbytes"))
    found = [
        ("time of a run", duration(seen.run_s, MICRO)),
        ("nodes", f"{len(written):,} in the file, {len(graph):,} optimized, {kernels:,} fused groups"),
        ("parameters", f"{count:,} ({amount(nbytes)})"),
        ("inputs", _inputs(feeds)),
    ]
    if memory:
        found.append(("arena", ", ".join(amount(m.arena_nbytes) for m in memory)))
    return found


def _inputs(feeds: Mapping[str, Any]) -> str:
    shown = [f"{name}: {_described(value)}" for name, value in list(feeds.items())[:LISTED]]
    return "; ".join(shown) + (f"; and {len(feeds) - LISTED} more" if len(feeds) > LISTED else "")


def _described(value: Any) -> str:
    return array_type(value) if isinstance(value, np.ndarray) else type(value).__name__

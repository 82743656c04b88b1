"""Runs passes in the order that ``pipelines`` states, and keeps the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TypeAlias

from sardonyx import knobs
from sardonyx.ir.graph import Graph, Node
from sardonyx.ir.spec import verify
from sardonyx.optimize.report import Declined, Report, Rewrite


class Log:
    """How one pass tells what it did."""

    def __init__(self, name: str, report: Report) -> None:
        self.name, self.report, self.changed = name, report, False

    def did(self, node: Node, what: str) -> None:
        self.changed = True
        self.report.rewrites.append(Rewrite(self.name, node.origin, what))

    def declined(self, node: Node, reason: str) -> None:
        self.report.declined.append(Declined(self.name, node.label, reason))


Pass: TypeAlias = Callable[[Graph, Log], None]
"""Rewrites one graph and every subgraph below it."""

PASSES: dict[str, Pass] = {}


def optimization(name: str) -> Callable[[Pass], Pass]:
    """Register a pass under its name."""

    def register(fn: Pass) -> Pass:
        assert name not in PASSES, name
        PASSES[name] = fn
        return fn

    return register


def run(graph: Graph, order: tuple[str, ...], disabled: Collection[str] = ()) -> Report:
    """Run the named passes in order."""
    report, verified = Report(), knobs.VERIFY.get()
    for name in order:
        if name in disabled:
            continue
        start = time.perf_counter()
        PASSES[name](graph, Log(name, report))
        if verified:
            verify(graph, name)
        report.seconds[name] = report.seconds.get(name, 0.0) + time.perf_counter() - start
    return report

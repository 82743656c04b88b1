"""Runs passes in the order of ``pipelines`` and collects the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from sardonyx import knobs
from sardonyx.errors import Reporting
from sardonyx.ir import types
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.spec import verify
from sardonyx.limits import check_time
from sardonyx.optimize.report import Declined, Report, Rewrite

Judge: TypeAlias = Callable[[Sequence[Value], Sequence[Value], Sequence[Node]], "str | None"]
"""Returns how new values, computed by new nodes, differ from those that they replace; None if they do not."""


class Log:
    """A pass's interface to change a graph and report its changes."""

    def __init__(self, name: str, report: Report, judge: Judge | None = None) -> None:
        self.name, self.report, self.judge = name, report, judge

    def replace(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        old: Sequence[Value],
        new: Sequence[Value],
        made: Sequence[Node],
        what: str,
    ) -> bool:
        """Make readers of ``old`` read ``new``, and remove those of ``nodes`` that become unused.

        ``nodes`` are ordered with readers first. If a judge finds a difference, ``made`` is removed instead.
        """
        if self.judge is not None:
            why = self.judge(old, new, made)
            if why is not None:
                for node in reversed(made):
                    graph.remove(node)
                self.report.rolled_back.append(Declined(self.name, nodes[0].label, why))
                return False
        origin = tuple(dict.fromkeys(name for node in reversed(nodes) for name in node.origin))
        for before, after in zip(old, new, strict=True):
            if after.producer is not None:
                after.type = types.merge(after.type, before.type)
            graph.replace_uses(before, after)
        _remove_dead(nodes)
        self.report.rewrites.append(Rewrite(self.name, origin, what))
        return True

    def did(self, node: Node, what: str) -> None:
        """Report a change that replaced no value."""
        self.report.rewrites.append(Rewrite(self.name, node.origin, what))

    def declined(self, node: Node, reason: str) -> None:
        """Report a near miss, once."""
        miss = Declined(self.name, node.label, reason)
        if self.report.declined[-1:] != [miss]:
            self.report.declined.append(miss)


def _remove_dead(nodes: Sequence[Node]) -> None:
    waiting = list(nodes)
    while waiting:
        left = []
        for node in waiting:
            if node.graph is not None and all(out.is_dead for out in node.outputs):
                node.graph.remove(node)
            else:
                left.append(node)
        if len(left) == len(waiting):
            return
        waiting = left


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


def run(graph: Graph, order: tuple[str, ...], disabled: Collection[str] = (), judge: Judge | None = None) -> Report:
    """Run the named passes in order; ``judge`` may veto each replacement."""
    report, verified = Report(), knobs.VERIFY.get()
    for name in order:
        if name in disabled:
            continue
        check_time()
        start = time.perf_counter()
        with Reporting("optimize", f"pass {name}"):
            PASSES[name](graph, Log(name, report, judge))
        if verified:
            verify(graph, name)
        report.seconds[name] = report.seconds.get(name, 0.0) + time.perf_counter() - start
    return report

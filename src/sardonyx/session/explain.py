"""``session.explain()``: where every node runs and why, and what the optimizer did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sardonyx.ir.graph import Graph, Node
from sardonyx.optimize.report import Report
from sardonyx.partition.assign import Owner
from sardonyx.partition.provider import Stepped, StepRow
from sardonyx.records import Record


class Placement(Record):
    """One node and its owner."""

    node: str
    op_type: str
    provider: str
    reason: str
    origin: tuple[str, ...]
    """Names of the nodes of the model file that it replaces."""
    on_numpy: str = ""
    """Why numpy runs it inside a provider that compiles; empty if it is compiled, or so far was whenever it ran."""

    @property
    def why_not_compiled(self) -> str | None:
        """Why numpy runs it; None if it is compiled."""
        return self.on_numpy or (self.reason if self.provider == "reference" else None)


class Explanation(Record):
    """The placement and optimization of a model. ``str()`` is a report for people; the fields are for programs."""

    placements: tuple[Placement, ...]
    report: Report
    phases: dict[str, float]
    """Seconds of each phase of loading. A phase inside another, such as ``compile/kernels``, is part of that one; what
    all threads computed is added up."""

    @classmethod
    def of(cls, graph: Graph, owners: dict[Node, Owner], report: Report, phases: dict[str, float]) -> Explanation:
        rows: list[Placement] = []
        for node in graph.nodes:
            owner = owners[node]
            rows.append(_row(node, owner.provider.name, owner.reason))
            for _, sub in node.subgraphs():
                for n in sub.all_nodes():
                    inner = owners.get(n, owner)
                    rows.append(_row(n, inner.provider.name, f"in a body of {node.label}; {inner.reason}"))
        return cls(tuple(rows), report, phases)

    def told(self, on_numpy: Mapping[str, str]) -> Explanation:
        """The same with nodes, by name, that numpy runs inside a provider that compiles, and why."""
        if not on_numpy:
            return self
        rows = (
            replace(p, on_numpy=on_numpy[p.node]) if p.provider != "reference" and p.node in on_numpy else p
            for p in self.placements
        )
        return replace(self, placements=tuple(rows))

    def by_node(self, graph: Graph) -> list[tuple[Node, Placement]]:
        """The explained graph's nodes, without those of bodies, each with its row."""
        rows = iter(self.placements)
        pairs = []
        for node in graph.nodes:
            pairs.append((node, next(rows)))
            for _ in (n for _, sub in node.subgraphs() for n in sub.all_nodes()):
                next(rows)
        return pairs

    def counts(self) -> dict[str, dict[str, int]]:
        """Provider to operator to number of nodes."""
        counts: dict[str, Counter[str]] = {}
        for p in self.placements:
            counts.setdefault(p.provider, Counter())[p.op_type] += 1
        return {provider: dict(ops) for provider, ops in counts.items()}

    def __str__(self) -> str:
        lines = [f"{len(self.placements)} nodes"]
        for provider, ops in self.counts().items():
            listed = ", ".join(f"{op} {n}" for op, n in sorted(ops.items(), key=lambda kv: (-kv[1], kv[0])))
            lines.append(f"  {provider}: {sum(ops.values())} ({listed})")
        if inside := [p for p in self.placements if p.on_numpy]:
            lines.append(f"  of those on numpy all the same: {len(inside)} (see placement)")
        lines.append("placement")
        wide = max((len(p.node) for p in self.placements), default=0)
        lines += [f"  {p.node:<{min(wide, 48)}}  {p.op_type:<22} {p.provider:<10} {_why(p)}" for p in self.placements]
        if self.report.rewrites:
            lines.append("rewrites")
            lines += [f"  {r}" for r in self.report.rewrites]
        if declined := [*self.report.declined, *self.report.rolled_back]:
            lines.append("declined")
            lines += [f"  {d}" for d in declined]
        lines.append("seconds")
        lines += [f"  {s:8.4f}  {'  ' * name.count('/')}{name.rsplit('/')[-1]}" for name, s in _nested(self.phases)]
        return "\n".join(lines)


class CompiledSteps(Record):
    """The kernels of a session's compiled parts, in the order in which they run. ``str()`` is a report."""

    parts: tuple[tuple[StepRow, ...], ...]

    @classmethod
    def of(cls, compiled: Iterable[tuple[Any, Any]]) -> CompiledSteps:
        return cls(tuple(tuple(rows) for rows in _rows(compiled)))

    def __str__(self) -> str:
        lines = []
        for number, rows in enumerate(self.parts):
            lines.append(f"part {number}: {len(rows)} steps")
            wide, widest = (max(map(len, column), default=0) for column in _columns(rows))
            for i, row in enumerate(rows):
                variant = f"  ({row.variant})" if row.variant else ""
                lines.append(f"  {i:>4}  {row.kernel:<{wide}}  {row.chosen:<{widest}}  {', '.join(row.nodes)}{variant}")
                if row.refusals and (i + 1 == len(rows) or rows[i + 1].nodes != row.nodes):
                    lines += [f"        not {name}: {reason}" for name, reason in row.refusals]
        return "\n".join(lines) or "nothing is compiled"


def _nested(phases: dict[str, float]) -> Iterator[tuple[str, float]]:
    """The phases in order, each followed by those inside it."""
    order = {name: i for i, name in enumerate(phases)}

    def place(name: str) -> list[int]:
        parts = name.split("/")
        return [order["/".join(parts[: i + 1])] for i in range(len(parts))]

    for name in sorted(phases, key=place):
        yield name, phases[name]


def _columns(rows: Sequence[StepRow]) -> tuple[list[str], list[str]]:
    return [row.kernel for row in rows], [row.chosen for row in rows]


def _rows(compiled: Iterable[tuple[Any, Any]]) -> Iterator[list[StepRow]]:
    for _, executable in compiled:
        if isinstance(executable, Stepped):
            yield executable.rows()
        else:
            yield from _rows(getattr(executable, "compiled", ()))


def _why(placement: Placement) -> str:
    on_numpy = f"; on numpy all the same: {placement.on_numpy}" if placement.on_numpy else ""
    return f"{placement.reason}{on_numpy}"


def _row(node: Node, provider: str, reason: str) -> Placement:
    return Placement(node.name or node.outputs[0].name, node.op_type, provider, reason, node.origin)

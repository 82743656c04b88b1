"""Finds the pass, or combination of passes, that changes a model's results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sardonyx.errors import SardonyxError
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Model, Node, Value
from sardonyx.optimize import manager
from sardonyx.optimize.check import Checker, answers, difference, is_rounded
from sardonyx.optimize.report import Rewrite
from sardonyx.records import Record


class Culprit(Record):
    """``passes`` are all needed for a difference; the last one introduces it."""

    passes: tuple[str, ...]
    rewrite: Rewrite | None
    """The first wrong rewrite; None if the pass edits nodes in place."""
    difference: str

    def __str__(self) -> str:
        *others, last = self.passes
        after = f", but only after {' and '.join(others)}," if others else ""
        first = f"\nfirst rewrite at fault: {self.rewrite}" if self.rewrite is not None else ""
        return f"{last}{after} makes the answers differ: {self.difference}{first}"


class Suspects:
    """A model, its results without any pass, and the passes to test."""

    def __init__(
        self,
        model: Model,
        order: Sequence[str],
        feeds: Mapping[str, Any] | None = None,
        tolerance: float | None = None,
    ) -> None:
        self.model, self.order, self.tolerance = model, list(order), tolerance
        checker = Checker(model.graph, feeds)
        self.feeds, self.expected = checker.feeds, checker.outputs

    def differs(self, model: Model) -> str | None:
        """How the results of a rewritten copy differ; None if they do not."""
        try:
            got = answers(model, self.feeds)
        except SardonyxError as e:
            return f"it no longer runs: {e}"
        graph = self.model.graph
        for name, value, a, b in zip(graph.output_names, graph.outputs, self.expected, got, strict=True):
            why = difference(a, b, self.tolerance, rounded=is_rounded(value))
            if why is not None:
                return f"output {name!r}: {why}"
        return None

    def culprit(self) -> Culprit | None:
        found = self.first_at_fault()
        if found is None:
            return None
        end, why = found
        needed = self._needed(end)
        return Culprit((*needed, self.order[end]), self._first_rewrite(end, needed), why)

    def first_at_fault(self, *, judged: bool = False) -> tuple[int, str] | None:
        """The index of the first pass after which the results differ; ``judged`` checks each rewrite too."""
        model = clone(self.model)
        judge = Checker(model.graph, self.feeds) if judged else None
        for i, name in enumerate(self.order):
            before = _structure(model)
            report = manager.run(model.graph, (name,), judge=judge)
            if report.rewrites or _structure(model) != before:
                why = self.differs(model)
                if why is not None:
                    return i, why
        return None

    def _needed(self, end: int) -> tuple[str, ...]:
        """Earlier passes that are each needed for the pass at ``end`` to make a difference."""
        kept = list(dict.fromkeys(self.order[:end]))
        if self._harm([], end):
            return ()
        for name in list(kept):
            rest = [k for k in kept if k != name]
            if self._harm(rest, end):
                kept = rest
        return tuple(kept)

    def _harm(self, allowed: Collection[str], end: int) -> bool:
        return self.differs(self._rewritten(allowed, end)) is not None

    def _rewritten(self, allowed: Collection[str], end: int, judge: manager.Judge | None = None) -> Model:
        model = clone(self.model)
        manager.run(model.graph, tuple(n for n in self.order[:end] if n in allowed))
        manager.run(model.graph, (self.order[end],), judge=judge)
        return model

    def _first_rewrite(self, end: int, allowed: Collection[str]) -> Rewrite | None:
        """The smallest number of the pass's rewrites that makes a difference."""
        total = _Allowance(None)
        self._rewritten(allowed, end, total)
        low, high = 0, total.asked
        if self._harm_of(0, end, allowed) or not high:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if self._harm_of(middle, end, allowed):
                high = middle
            else:
                low = middle
        model = clone(self.model)
        manager.run(model.graph, tuple(n for n in self.order[:end] if n in allowed))
        return manager.run(model.graph, (self.order[end],), judge=_Allowance(high)).rewrites[-1]

    def _harm_of(self, count: int, end: int, allowed: Collection[str]) -> bool:
        return self.differs(self._rewritten(allowed, end, _Allowance(count))) is not None


class _Allowance:
    """A judge that allows the first ``count`` replacements and counts all."""

    def __init__(self, count: int | None) -> None:
        self.count, self.asked = count, 0

    def __call__(self, old: Sequence[Value], new: Sequence[Value], made: Sequence[Node]) -> str | None:
        self.asked += 1
        return None if self.count is None or self.asked <= self.count else "not asked for"


def _structure(model: Model) -> list[tuple[int, ...]]:
    return [(id(node), *map(id, node.inputs)) for node in model.graph.all_nodes()]

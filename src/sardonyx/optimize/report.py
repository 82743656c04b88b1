"""Reports of rewrites, and of places where a pass declined and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from sardonyx.records import Record


class Rewrite(Record):
    """One change: the nodes of the model file that it affected, and the result."""

    name: str
    nodes: tuple[str, ...]
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what} ({', '.join(self.nodes)})"


class Declined(Record):
    """A place where a pattern matched but a condition did not hold."""

    name: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} left {self.node} alone: {self.reason}"


@dataclass
class Report:
    """All rewrites and near misses of one optimization."""

    rewrites: list[Rewrite] = field(default_factory=list)
    declined: list[Declined] = field(default_factory=list)
    rolled_back: list[Declined] = field(default_factory=list)
    """Rewrites that were undone: their results differed, or they replaced another provider's nodes."""
    seconds: dict[str, float] = field(default_factory=dict)

    def extend(self, other: Report) -> None:
        """Append the entries of a later run of passes; repeated near misses are skipped."""
        self.rewrites += other.rewrites
        self.declined += [d for d in other.declined if d not in self.declined]
        self.rolled_back += [d for d in other.rolled_back if d not in self.rolled_back]
        for name, seconds in other.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def count(self) -> dict[str, int]:
        """Rewrites by pass."""
        counts: dict[str, int] = {}
        for r in self.rewrites:
            counts[r.name] = counts.get(r.name, 0) + 1
        return counts

    def __str__(self) -> str:
        return "\n".join(map(str, [*self.rewrites, *self.declined, *self.rolled_back]))

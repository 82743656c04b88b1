"""What the optimizer did, and where it declined and why."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rewrite:
    """One change: the nodes of the model file that it touched and what became of them."""

    name: str
    nodes: tuple[str, ...]
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what} ({', '.join(self.nodes)})"


@dataclass(frozen=True)
class Declined:
    """A place where a pass nearly applied."""

    name: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} left {self.node} alone: {self.reason}"


@dataclass
class Report:
    """Everything that one optimization did."""

    rewrites: list[Rewrite] = field(default_factory=list)
    declined: list[Declined] = field(default_factory=list)
    rolled_back: list[Declined] = field(default_factory=list)
    """Rewrites that gave other numbers than what they were to replace."""
    seconds: dict[str, float] = field(default_factory=dict)

    def count(self) -> dict[str, int]:
        """Rewrites by pass."""
        counts: dict[str, int] = {}
        for r in self.rewrites:
            counts[r.name] = counts.get(r.name, 0) + 1
        return counts

    def __str__(self) -> str:
        return "\n".join(map(str, [*self.rewrites, *self.declined, *self.rolled_back]))

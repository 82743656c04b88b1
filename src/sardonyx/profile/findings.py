"""Findings: a problem, its evidence in numbers, and the setting or change that mends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from sardonyx.records import Record

PROBLEM, OPPORTUNITY = "problem", "opportunity"
Number = int | float | str


class Fix(Record):
    """What to change. What a session can be told is in ``options`` and ``config``, and ``sardonyx.tune`` tries it."""

    text: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of SessionOptions."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Configuration keys of the session."""
    batch: int = 0
    """Rows to run at once; 0 where that is not what is changed."""
    states: tuple[tuple[str, str, int], ...] = ()
    """Inputs and outputs to be bound as states that grow along an axis."""
    is_contiguous: bool = False
    """Whether inputs are to be contiguous."""

    @property
    def is_setting(self) -> bool:
        """Whether it changes no more than settings and calls."""
        return bool(self.options or self.config or self.batch or self.states or self.is_contiguous)


class Finding(Record):
    """One thing that is wrong, or could be better."""

    code: str
    """A name that stays the same from version to version."""
    title: str
    evidence: Mapping[str, Number]
    """What was counted or measured."""
    why: str
    """What it means, in a sentence or two."""
    fix: Fix
    nodes: tuple[str, ...] = ()
    """The nodes concerned, by name."""
    kind: str = PROBLEM
    """``problem``, or ``opportunity``: nothing is wrong, but there is something to gain."""
    cost: float | None = None
    """The share of a run that it takes at most, where the profile tells."""

    def __str__(self) -> str:
        told = ", ".join(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in self.evidence.items())
        cost = "" if self.cost is None else f" (up to {100 * self.cost:.0f} % of a run)"
        lines = [f"{self.title}{cost}", f"  {self.why}", f"  evidence: {told}"]
        if self.nodes:
            more = f" and {len(self.nodes) - 4} more" if len(self.nodes) > 4 else ""
            lines.append(f"  nodes: {', '.join(self.nodes[:4])}{more}")
        return "\n".join([*lines, f"  change: {self.fix.text}"])


def _shown(value: Number) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value

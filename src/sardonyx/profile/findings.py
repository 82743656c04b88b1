"""Findings: a problem, its evidence in numbers, and the setting or change that fixes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from sardonyx.profile.text import nbytes_text, percent, seconds_text
from sardonyx.records import Record

PROBLEM, OPPORTUNITY = "problem", "opportunity"
Number = int | float | str
LISTED = 4
"""Nodes that a text names."""


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
        lines = [self.headline, f"  {self.why}", f"  evidence: {self.evidence_text}"]
        if self.nodes:
            lines.append(f"  nodes: {self.nodes_text}")
        return "\n".join([*lines, f"  change: {self.fix.text}"])

    @property
    def headline(self) -> str:
        """The title, and what fixing it could save at most."""
        return self.title if self.cost is None else f"{self.title} (up to {percent(self.cost)} of a run)"

    @property
    def evidence_text(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')} {_shown(name, value)}" for name, value in self.evidence.items())

    @property
    def nodes_text(self) -> str:
        """The first nodes, and how many more there are."""
        more = f" and {len(self.nodes) - LISTED} more" if len(self.nodes) > LISTED else ""
        return ", ".join(self.nodes[:LISTED]) + more


def _shown(name: str, value: Number) -> str:
    """A number in the unit that its name says."""
    words = name.split("_")
    if isinstance(value, str):
        return value
    if "share" in words:
        return percent(value)
    if "bytes" in words:
        return nbytes_text(value)
    if words[-1] == "s" or "seconds" in words:
        return seconds_text(value)
    return f"{value:.3g}" if isinstance(value, float) else f"{value:,}"

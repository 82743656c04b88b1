"""Differences from onnxruntime or onnx.reference that are right, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    operator: str
    """Whose result differs; ``*`` for any."""
    difference: str
    """A piece of text that the difference has; empty for any."""
    kinds: tuple[str, ...]
    """The kinds of runs that it holds for; none for any."""
    reason: str


EXPLAINED: tuple[Explanation, ...] = (
    Explanation("Loop", "shape [0", (), "nothing tells the shape of elements that no trip made"),
    Explanation("Scan", "shape [0", (), "nothing tells the shape of elements that no step made"),
    Explanation("Cast", "", ("extreme",), "what a float outside of an integer type becomes is the machine's choice"),
)


def why(subject: str, kind: str, difference: str) -> str | None:
    """The reason why the answer of an operator differs, where it is known."""
    for e in EXPLAINED:
        if e.operator in ("*", subject) and e.difference in difference and (not e.kinds or kind in e.kinds):
            return e.reason
    return None

"""Differences from onnxruntime or onnx.reference that are right, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

from fuzz.cases import Case


@dataclass(frozen=True)
class Explanation:
    operator: str
    """What the case is about; ``*`` for any."""
    difference: str
    """A piece of text that the difference has; empty for any."""
    kinds: tuple[str, ...]
    """The kinds of runs that it holds for; none for any."""
    reason: str


EXPLAINED: tuple[Explanation, ...] = ()


def why(case: Case, kind: str, difference: str) -> str | None:
    """The reason why an answer differs, where it is known."""
    for e in EXPLAINED:
        if e.operator in ("*", case.operator) and e.difference in difference and (not e.kinds or kind in e.kinds):
            return e.reason
    return None

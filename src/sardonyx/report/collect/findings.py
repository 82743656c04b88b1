"""What a report says first: things that cost time, with their evidence, from what a session explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sardonyx.report.records import Finding, Layer
from sardonyx.session.explain import Explanation

SHARE = 0.02
"""Nodes on the reference provider are a finding from this share of the run on."""


def findings(explanation: Explanation, layers: Sequence[Layer]) -> list[Finding]:
    found = []
    slow = [p for p in explanation.placements if p.provider == "reference"]
    total = sum(layer.seconds for layer in layers)
    spent = sum(layer.seconds for layer in layers if layer.kernel == "numpy")
    if slow and total and spent / total >= SHARE:
        reasons = Counter(f"{p.op_type}: {p.reason}" for p in slow)
        listed = "; ".join(reason for reason, _ in reasons.most_common(3))
        found.append(
            Finding(
                "warning",
                f"{len(slow)} nodes run on numpy and take {spent / total:.0%} of the time",
                listed,
                "Export the model with operators that are compiled, or move these nodes out of the model.",
            )
        )
    missed = Counter((d.name, d.reason) for d in explanation.report.declined if d.name.startswith("Fuse"))
    for (name, reason), count in missed.most_common(5):
        places = f"{count} places" if count > 1 else "one place"
        found.append(Finding("advice", f"{name} did not apply in {places}", reason, ""))
    return found

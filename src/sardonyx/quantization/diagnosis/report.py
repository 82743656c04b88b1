"""What a diagnosis says: the first layer at fault, all findings, and the errors of every layer."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

ERROR, WARNING = "error", "warning"


@dataclass
class Finding:
    """One thing that is wrong at one place."""

    layer: str
    """As the float model names it."""
    tensor: str
    """The weight, the bias or the activation, as the float model names it."""
    cause: str
    """One of ``CAUSES``."""
    what: str
    """A sentence with the numbers."""
    change: str
    """What to do."""
    severity: str = ERROR
    numbers: dict[str, Any] = field(default_factory=dict)
    index: int = -1
    """The position of the layer in the float model; -1 for an input."""
    node: str = ""
    """The node in the quantized model."""

    def __str__(self) -> str:
        return f"{self.layer}: {self.cause}, {self.what}\n    change: {self.change}"


CAUSES = {
    "wrong scale": "a scale that does not fit the values",
    "wrong zero point": "values shifted by a constant",
    "clipped range": "values outside of the range that the scale covers",
    "per-tensor weight": "one scale for channels whose sizes differ too much",
    "outlier activation": "few large values take the range of all others",
    "bias scale": "a bias at another scale than that of the products it is added to",
    "saturation": "sums of two products of u8 and i8 that do not fit 16 bits, which old chips cut off",
    "unexplained": "the layer computes something else, and no scale or zero point explains it",
}


@dataclass
class LayerError:
    """How much a layer's result differs from the float model's, as a ratio of signal to noise."""

    layer: str
    kind: str
    tensor: str
    accumulated_db: float
    """On the quantized model's own values."""
    local_db: float | None
    """On the float model's values as inputs: the error of this layer alone."""
    matched_by: str
    node: str


@dataclass
class Diagnosis:
    """The result of ``debug``; ``str()`` is for people, ``to_json()`` for programs."""

    findings: list[Finding]
    layers: list[LayerError]
    outputs: dict[str, float]
    """The ratio of signal to noise of the model's outputs, in decibels."""
    runs: int
    unmatched: list[str]
    """Layers of the float model without a counterpart in the quantized one."""

    @property
    def healthy(self) -> bool:
        return self.first is None

    @property
    def first(self) -> Finding | None:
        """The first layer at fault, in the order of the float model."""
        return next((f for f in self.findings if f.severity == ERROR), None)

    @property
    def verdict(self) -> str:
        worst = min(self.outputs.values(), default=math.inf)
        at_output = f"the outputs have {_db(worst)} of signal to noise"
        if self.first is not None:
            count = sum(f.severity == ERROR for f in self.findings)
            more = f"; {count - 1} more at fault" if count > 1 else ""
            return f"goes wrong at {self.first.layer}: {self.first.cause} ({at_output}{more})"
        if worst >= 20:
            return f"healthy: no layer is at fault, and {at_output}"
        listed = ", ".join(f"{e.layer} ({_db(e.local_db)})" for e in self.weakest(3) if e.local_db is not None)
        return (
            f"no layer is at fault, but errors add up: {at_output}. The least exact layers are {listed}: "
            "keep them in float, or give them more bits"
        )

    def weakest(self, count: int) -> list[LayerError]:
        """The layers with the largest errors of their own."""
        known = [e for e in self.layers if e.local_db is not None]
        return sorted(known, key=lambda e: e.local_db or 0.0)[:count]

    def to_dict(self) -> dict[str, Any]:
        found = {
            "healthy": self.healthy,
            "verdict": self.verdict,
            "first": None if self.first is None else asdict(self.first),
            "findings": [asdict(f) for f in self.findings],
            "outputs": self.outputs,
            "layers": [asdict(e) for e in self.layers],
            "runs": self.runs,
            "unmatched": self.unmatched,
        }
        plain: dict[str, Any] = _plain(found)
        return plain

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        lines = [self.verdict, ""]
        for severity in (ERROR, WARNING):
            found = [f for f in self.findings if f.severity == severity]
            lines += [f"{severity}s" if found else "", *(f"  {f}" for f in found)] if found else []
        lines += ["", f"{'layer':40} {'operator':18} {'accumulated':>11} {'own':>9}  matched by"]
        for e in self.layers:
            own = "" if e.local_db is None else _db(e.local_db)
            lines.append(f"{e.layer[:40]:40} {e.kind:18} {_db(e.accumulated_db):>11} {own:>9}  {e.matched_by}")
        if self.unmatched:
            lines += ["", f"without a counterpart: {', '.join(self.unmatched)}"]
        return "\n".join(lines)


def _db(value: float | None) -> str:
    return "" if value is None else "exact" if value == math.inf else f"{value:.1f} dB"


def _plain(value: Any) -> Any:
    """Numbers that JSON has: infinities as text, numpy's as Python's."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

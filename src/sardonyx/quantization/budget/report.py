"""What a search within a budget found: the layers, the models that were tried, the remedies; as text and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sardonyx.quantization.budget.damage import Score


@dataclass
class LayerRow:
    """A layer: what quantizing it alone costs, what it gains in the whole model, and what became of it."""

    name: str
    operator: str
    nodes: tuple[str, ...]
    sqnr_db: float | None = None
    cosine: float | None = None
    loss: float | None = None
    """Of the metric; None without one."""
    gain_ms: float | None = None
    """Time in float minus time in integers; None where its kernel computes other layers too."""
    decision: str = "int8"
    reason: str = ""


@dataclass
class Trial:
    """A model that was tried as a whole. Times are of races on this machine; None where it was not raced."""

    label: str
    layers_in_float: int
    sqnr_db: float
    cosine: float
    loss: float | None
    metric: float | None
    nbytes: int
    meets: bool
    """The limits of accuracy."""
    latency_ms: float | None = None
    speedup: float | None = None

    def dominates(self, other: Trial) -> bool:
        """Whether it is nowhere worse, and somewhere better: in accuracy, latency or size."""
        mine, theirs = self._merits(), other._merits()
        return all(a >= b for a, b in zip(mine, theirs, strict=True)) and mine != theirs

    def _merits(self) -> tuple[float, ...]:
        latency = math.inf if self.latency_ms is None else self.latency_ms
        return (self.sqnr_db if self.loss is None else -self.loss, -latency, -self.nbytes)


@dataclass
class RemedyRow:
    """A remedy: whether it was applied, and why or why not."""

    name: str
    applied: bool
    reason: str
    sqnr_db: tuple[float, float] | None = None
    """Before and with it."""


@dataclass
class Report:
    """``met`` says whether a model that meets the budget was written; ``statement`` says what was found."""

    budget: str
    output: str
    float_trial: Trial
    float_score: Score
    layers: list[LayerRow] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    remedies: list[RemedyRow] = field(default_factory=list)
    chosen: Trial | None = None
    statement: str = ""
    notes: list[str] = field(default_factory=list)
    samples: tuple[int, int] = (0, 0)
    """How many samples SQNR and cosine are of, the first ones, and how many there are."""

    @property
    def basis(self) -> str:
        """What SQNRs are of."""
        first, total = self.samples
        counted = f"the first {first} of {total}" if first < total else total
        return f"the SQNR is that of the worst output over {counted} samples"

    @property
    def met(self) -> bool:
        return self.chosen is not None

    @property
    def frontier(self) -> list[Trial]:
        """Models of which no other is as good in accuracy, latency and size, and better in one; the fastest first."""
        raced = [t for t in (self.float_trial, *self.trials) if t.latency_ms is not None]
        best = [t for t in raced if not any(other.dominates(t) for other in raced)]
        return sorted(best, key=lambda t: (t.latency_ms or 0.0, t.nbytes))

    @property
    def compared(self) -> list[Trial]:
        """The frontier, with the float model and the chosen one where they are not on it."""
        best = self.frontier
        known = [self.float_trial, *([] if self.chosen is None else [self.chosen])]
        return best + [trial for trial in known if trial.latency_ms is not None and trial not in best]

    def to_json(self) -> str:
        """All of it; numbers that JSON lacks (infinite SQNR) are null."""
        content = {
            "met": self.met,
            "statement": self.statement,
            "budget": self.budget,
            "output": self.output,
            "samples": list(self.samples),
            "float": asdict(self.float_trial),
            "chosen": None if self.chosen is None else asdict(self.chosen),
            "layers": [asdict(row) for row in self.layers],
            "frontier": [asdict(trial) for trial in self.frontier],
            "trials": [asdict(trial) for trial in self.trials],
            "remedies": [asdict(row) for row in self.remedies],
            "notes": self.notes,
        }
        return json.dumps(_finite(content), indent=2)

    def __str__(self) -> str:
        lines = [self.statement, f"budget: {self.budget}; {self.basis}"]
        if self.layers:
            head: tuple[str, ...] = ("layer", "operator", "SQNR dB", "cosine", "loss", "gain ms", "", "reason")
            rows: list[tuple[str, ...]] = [
                (
                    row.name,
                    row.operator,
                    _text(row.sqnr_db, ".1f"),
                    _text(row.cosine, ".5f"),
                    _text(row.loss, ".4g"),
                    _text(row.gain_ms, "+.3f"),
                    row.decision,
                    row.reason,
                )
                for row in self.layers
            ]
            lines += ["", "layers: each quantized alone, and its gain in the whole model", *_table(head, rows)]
        if self.frontier:
            head = ("model", "in float", "SQNR dB", "loss", "ms", "times as fast", "MB")
            rows = [
                (
                    trial.label,
                    str(trial.layers_in_float),
                    _text(trial.sqnr_db, ".1f"),
                    _text(trial.loss, ".4g"),
                    _text(trial.latency_ms, ".3f"),
                    _text(trial.speedup, ".2f"),
                    f"{trial.nbytes / 1e6:.2f}",
                )
                for trial in self.frontier
            ]
            lines += ["", "frontier: no model tried is better in accuracy, latency and size", *_table(head, rows)]
        if self.remedies:
            lines += ["", "remedies"]
            lines += [f"  {r.name}: {'applied' if r.applied else 'not applied'}: {r.reason}" for r in self.remedies]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _text(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    return format(value, form) if math.isfinite(value) else "exact" if value > 0 else "broken"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value

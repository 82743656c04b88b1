"""Records of other packages, with what a test does not care about filled in."""

from __future__ import annotations

from sardonyx.bench.results import Timing
from sardonyx.quantization.budget.damage import Score
from sardonyx.quantization.budget.report import LayerRow, Trial


def timing(name: str, median_s: float) -> Timing:
    return Timing(
        name, name, "1.0", "highest", 2, 1, 1, 100, median_s, median_s, 0.9 * median_s, 1.1 * median_s, median_s, None,
        None, 1 / median_s, (median_s,), (median_s,), (0,), 3, True, (), 1 << 20, 1 << 19, {},
    )  # fmt: skip


def trial(label: str, latency_ms: float, sqnr_db: float | None) -> Trial:
    return Trial(label, 0, float("inf") if sqnr_db is None else sqnr_db, 1.0, 0.0, 0.9, 1000, True, latency_ms, 1.0)


def score() -> Score:
    return Score()


def layer_row(name: str) -> LayerRow:
    return LayerRow(name, "Conv", (name,), 30.0, 0.999, 0.0, 0.1, "int8", "it pays")

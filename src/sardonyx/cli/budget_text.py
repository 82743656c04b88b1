"""What a search for a quantized model within a budget found, as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sardonyx.cli.console import hanging, nbytes_text, seconds_text, shortened, table

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.quantization.budget.report import Report

LAYERS = 20
"""How many layers are listed: the most damaging ones."""
WIDE, NAME, LABEL = 100, 24, 28
"""Columns from which on a line has all there is; characters of a name in a shorter one."""


def print_budget(out: Console, found: Report, all_layers: bool = False) -> None:
    """The statement, the models tried, the layers with their decisions, the remedies."""
    out.print(found.statement)
    out.print(f"Budget: {found.budget}; {found.basis}.")
    has_loss = any(row.loss is not None for row in found.layers)
    if compared := found.compared:
        out.print()
        columns = ["model", ">SQNR dB", *([">lost"] if has_loss else []), ">a run", ">times as fast", ">size"]
        rows = [
            (
                trial.label if out.width >= WIDE else hanging(trial.label, LABEL, 2),
                decibels(trial.sqnr_db),
                *([_figure(trial.loss, ".4g")] if has_loss else []),
                "-" if trial.latency_ms is None else seconds_text(trial.latency_ms / 1e3),
                _figure(trial.speedup, ".2f"),
                nbytes_text(trial.nbytes),
            )
            for trial in compared
        ]
        out.print(table(columns, rows, "Models tried: the best in accuracy, time or size, and the float model"))
    if found.layers:
        out.print()
        ranked = sorted(found.layers, key=lambda row: math.inf if row.sqnr_db is None else row.sqnr_db)
        shown = ranked if all_layers else ranked[:LAYERS]
        is_wide = out.width >= WIDE
        columns = [
            *(["=layer", "operator"] if is_wide else ["=layer"]),
            ">SQNR dB",
            *([">lost"] if has_loss else []),
            ">gain",
            "kept in",
        ]
        rows = [
            (
                row.name if is_wide else shortened(row.name, NAME),
                *([row.operator] if is_wide else []),
                decibels(row.sqnr_db),
                *([_figure(row.loss, ".4g")] if has_loss else []),
                "-" if row.gain_ms is None else seconds_text(row.gain_ms / 1e3),
                f"{row.decision}: {row.reason}" if row.reason else row.decision,
            )
            for row in shown
        ]
        some = f" (the worst {len(shown)} of {len(ranked)})" if len(shown) < len(ranked) else ""
        out.print(table(columns, rows, f"Layers, each quantized alone{some}"))
    told = {remedy.name: remedy for remedy in found.remedies if not remedy.reason.startswith("not needed")}
    if told:
        out.print()
        for remedy in told.values():
            out.print(f"{remedy.name}: {'applied' if remedy.applied else 'not applied'}: {remedy.reason}")
    for note in found.notes:
        out.print(f"{note[:1].upper()}{note[1:]}.")


def decibels(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if math.isfinite(value) else "exact" if value > 0 else "broken"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)

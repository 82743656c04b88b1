"""What other packages found out, as records of a report's page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sardonyx.report.records import Finding, Measurement, Table

if TYPE_CHECKING:
    from sardonyx.bench.results import Result, Timing
    from sardonyx.profile.diagnosis import Diagnosis
    from sardonyx.quantization.budget.report import Report


def findings_of(diagnosis: Diagnosis) -> list[Finding]:
    """Problems first, then what could be gained."""
    found = []
    for each in (*diagnosis.problems, *diagnosis.opportunities):
        nodes = f" Nodes: {each.nodes_text}." if each.nodes else ""
        severity = "warning" if each.kind == "problem" else "advice"
        evidence = f"{each.why} Evidence: {each.evidence_text}.{nodes}"
        found.append(Finding(severity, each.headline, evidence, each.fix.text))
    return found


def measurements_of(result: Result) -> list[Measurement]:
    """The contestants, then each sweep under the value of its setting."""
    main = [_measurement(timing, f"{timing.engine} {timing.version}", "") for timing in result.timings]
    return main + [
        _measurement(timing, timing.name, sweep.setting) for sweep in result.sweeps for timing in sweep.timings
    ]


def verdict_of(result: Result) -> str:
    """What the benchmark says in sentences, and why it may be wrong."""
    absent = [f"{name} was not measured: {why}." for name, why in {**result.absent, **result.failed}.items()]
    return " ".join((*(c.sentence for c in result.comparisons), *result.disturbances, *absent))


def tables_of(found: Report) -> list[Table]:
    """A search for a quantized model within a budget: the models tried, and each layer with its decision."""
    trials = Table(
        "Quantized models",
        ("model", "layers in float", "SQNR dB", "metric lost", "milliseconds", "times as fast", "megabytes"),
        tuple(
            (t.label, t.layers_in_float, t.sqnr_db, t.loss, t.latency_ms, t.speedup, t.nbytes / 1e6)
            for t in found.frontier
        ),
        f"{found.statement} No model that was tried is better in accuracy, latency and size than one of these.",
    )
    layers = Table(
        "Layers quantized alone",
        ("layer", "operator", "SQNR dB", "cosine", "metric lost", "gain in milliseconds", "decision", "reason"),
        tuple((r.name, r.operator, r.sqnr_db, r.cosine, r.loss, r.gain_ms, r.decision, r.reason) for r in found.layers),
    )
    return [table for table in (trials, layers) if table.rows]


def _measurement(timing: Timing, engine: str, setting: str) -> Measurement:
    return Measurement(
        engine,
        setting,
        timing.median_s,
        timing.low_s,
        timing.high_s,
        timing.p90_s,
        timing.p99_s,
        timing.throughput,
        timing.peak_nbytes,
    )

"""What other packages found out, as records of a report's page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sardonyx.inspection.text import duration
from sardonyx.report.records import MICRO, Finding, Measurement, Table

MOST_LAYERS = 100

NO_PROBLEM = Finding(
    "good",
    "No problem found",
    "Looked for: nodes on numpy, missed fusions, threads beyond the cores or the quota, layouts that change back and "
    "forth, copies, float64, denormals.",
)

QUIET = "Write the report again while nothing else runs."

if TYPE_CHECKING:
    from sardonyx.bench.answers import Agreement
    from sardonyx.bench.results import Result, Timing
    from sardonyx.inspection.compare import Comparison
    from sardonyx.profile.diagnosis import Diagnosis
    from sardonyx.quantization.budget.report import Report


def findings_of(diagnosis: Diagnosis) -> list[Finding]:
    """Problems first, then what could be gained."""
    found = [] if diagnosis.problems else [NO_PROBLEM]
    for each in (*diagnosis.problems, *diagnosis.opportunities):
        nodes = f" Nodes: {each.nodes_text}." if each.nodes else ""
        severity = "warning" if each.kind == "problem" else "advice"
        evidence = f"{each.why} Evidence: {each.evidence_text}.{nodes}"
        found.append(Finding(severity, _capitalized(each.headline), evidence, _capitalized(each.fix.text)))
    if diagnosis.disturbances:
        told = " ".join(diagnosis.disturbances)
        found.append(Finding("note", "The machine was busy: times on this page mean little", told, QUIET))
    return found


def _capitalized(text: str) -> str:
    """A sentence; code keeps its case."""
    is_word = text.partition(" ")[0].isalpha()
    return text[:1].upper() + text[1:] if is_word else text


def measurements_of(result: Result) -> list[Measurement]:
    """The contestants, then each sweep under the value of its setting."""
    main = [_measurement(timing, f"{timing.engine} {timing.version}", "") for timing in result.timings]
    return main + [
        _measurement(timing, timing.name, sweep.setting) for sweep in result.sweeps for timing in sweep.timings
    ]


def verdict_of(result: Result) -> str:
    """What the benchmark says in sentences, and why it may be wrong."""
    absent = [f"{name} was not measured: {why}." for name, why in {**result.absent, **result.failed}.items()]
    busy = ["The machine was busy, so that these figures mean little:"] if result.disturbances else []
    return " ".join((*(c.sentence for c in result.comparisons), *busy, *result.disturbances, *absent))


def tables_of(found: Report) -> list[Table]:
    """A search for a quantized model within a budget: the models tried, and each layer with its decision."""
    trials = Table(
        "Quantized models",
        ("model", "layers in float", "SQNR dB", "metric lost", "milliseconds", "times as fast", "megabytes"),
        tuple(
            (t.label, t.layers_in_float, t.sqnr_db, t.loss, t.latency_ms, t.speedup, t.nbytes / 1e6)
            for t in found.compared
        ),
        f"{found.statement} The models tried that are best in accuracy, latency or size, and the float model.",
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


def accuracy_of(agreements: Sequence[Agreement], engine: str) -> Table:
    """Outputs beside another engine's."""
    rows = tuple((a.name, a.error, f"differs: {a.difference}" if a.difference else "agrees") for a in agreements)
    return Table(
        f"Accuracy beside {engine}",
        ("output", "relative error", "verdict"),
        rows,
        f"The outputs of {engine}, without its optimizer, on the same inputs.",
    )


def comparison_of(found: Comparison) -> list[Table]:
    """Another version of the model: its outputs, and the values inside where it differs most."""
    times = ""
    if found.seconds is not None:
        times = (
            f" A run takes {duration(found.seconds[0], MICRO)}, and {duration(found.seconds[1], MICRO)} of the other."
        )
    outputs = tuple((d.name, d.error, d.largest, d.reason or "alike") for d in found.outputs)
    columns: tuple[str, ...] = ("output", "relative error", "largest difference", "verdict")
    tables = [Table(f"Outputs of {found.b}", columns, outputs, f"Beside those of {found.a}.{times}")]
    worst = sorted((d for d in found.layers if d.error or d.reason), key=lambda d: -(d.error or 0.0))[:MOST_LAYERS]
    if found.layers and not worst:
        tables[0] = replace(tables[0], about=f"{tables[0].about} All {len(found.layers)} values inside are equal.")
    if worst:
        rows = tuple((d.name, d.operator, d.error, d.largest) for d in worst)
        columns = ("value", "operator", "relative error", "largest difference")
        first = "" if found.first is None else f" The first that is not alike is {found.first.name}."
        tables.append(Table(f"Values inside {found.b}", columns, rows, f"Those that differ most.{first}"))
    return tables

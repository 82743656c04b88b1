"""Results of benchmarks, diagnoses and searches become records of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sardonyx.bench.results import Comparison, Result, Sweep, Timing
from sardonyx.bench.statistics import Ratio
from sardonyx.profile.diagnosis import Diagnosis
from sardonyx.profile.findings import OPPORTUNITY, Finding, Fix
from sardonyx.profile.records import Profile
from sardonyx.quantization.budget.report import Report
from sardonyx.report.adapt import findings_of, measurements_of, tables_of, verdict_of
from sardonyx.report.records import plain
from tests.report.records import layer_row, score, timing, trial


def result(**changes: Any) -> Result:
    timings: tuple[Timing, ...] = (timing("sardonyx", 0.01), timing("onnxruntime", 0.02))
    facts: dict[str, Any] = {
        "model": "m.onnx", "nbytes": 10, "made": "now", "machine": {}, "versions": {}, "seed": 0, "inputs": {},
        "statements": (), "disturbances": ("Others took 1 core.",), "timings": timings,
        "comparisons": (Comparison("sardonyx", "onnxruntime", Ratio(2.0, 1.9, 2.1), True, "Twice as fast."),),
        "sweeps": (Sweep("batch", (timing("batch 4", 0.03),), "4", "4 is best."),), "failed": {},
        "absent": {"openvino": "not installed"},
    }  # fmt: skip
    return Result(**{**facts, **changes})


def test_a_benchmark() -> None:
    rows = measurements_of(result())
    assert [(r.engine, r.setting, r.median_s) for r in rows] == [
        ("sardonyx 1.0", "", 0.01), ("onnxruntime 1.0", "", 0.02), ("batch 4", "batch", 0.03)
    ]  # fmt: skip
    said = verdict_of(result())
    assert said == (
        "Twice as fast. The machine was busy, so that these figures mean little: Others took 1 core. openvino was not "
        "measured: not installed."
    )


def test_a_diagnosis() -> None:
    profile = Profile("m", False, {}, (), (), (), (), 0, 0)
    findings = (
        Finding("a", "gain", {"share": 0.25}, "It would help.", Fix("do this"), kind=OPPORTUNITY),
        Finding("b", "broken", {"copied_bytes": 12}, "It hurts.", Fix("do that"), nodes=("n1",), cost=0.5),
    )
    first, second = findings_of(Diagnosis(profile, findings))
    assert (first.severity, first.title, first.fix) == ("warning", "Broken (up to 50 % of a run)", "Do that")
    assert first.evidence == "It hurts. Evidence: copied bytes 12 B. Nodes: n1." and second.severity == "advice"


def test_a_busy_machine_is_told_of() -> None:
    profile = Profile("m.onnx", False, {}, (), (), (), (), 0, 0)
    *_, last = findings_of(Diagnosis(profile, (), ("Other processes took 1.0 of 2 cores.",)))
    assert last.severity == "note" and "mean little" in last.title and last.evidence.startswith("Other processes")
    assert findings_of(Diagnosis(profile, ()))[-1].severity == "good"


def test_a_search_for_a_quantized_model() -> None:
    float_trial, chosen = trial("float", 2.0, None), trial("int8", 1.0, 30.0)
    found = Report("b", "o", float_trial, score(), [layer_row("conv1")], [chosen], [], chosen, "int8 meets the budget.")
    trials, layers = tables_of(found)
    assert trials.about.startswith("int8 meets") and {row[0] for row in trials.rows} >= {"int8"}
    assert layers.rows[0][0] == "conv1" and len(layers.columns) == len(layers.rows[0])
    assert json.dumps(plain(trials), allow_nan=False)


def test_no_layer_no_table(tmp_path: Path) -> None:
    found = Report("b", "o", trial("float", 2.0, None), score(), statement="nothing pays")
    assert [t.title for t in tables_of(found)] in ([], ["Quantized models"])

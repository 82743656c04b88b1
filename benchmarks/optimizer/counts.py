"""How many nodes does an optimizer leave of a model: Sardonyx beside onnxruntime, both at their extended level?

Counted is what each one saves (Sardonyx with com.microsoft operators, its `contrib` spelling), nodes of subgraphs and
local functions too; `Constant` nodes are initializers in another place and count in neither. What Sardonyx saved is
then run by Sardonyx and by onnxruntime, what onnxruntime saved by onnxruntime, on the feeds that lie beside the model,
and compared with onnxruntime's answers with its optimizer off, by relative L2 distance.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

import sardonyx
from benchmarks import page
from benchmarks.optimizer.answers import PROVIDERS, allowance, answers, count, distance, guarded, models_in
from benchmarks.zoo.trained import feeds_of

REASONS = 5
"""Declined fusions listed for a model of which Sardonyx leaves more nodes."""


def save_by_onnxruntime(model: Path, out: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(model, options, providers=PROVIDERS)


def save_by_sardonyx(model: Path, out: Path) -> list[str]:
    """Save, and give the reasons for which fusions were declined."""
    result = sardonyx.optimize_model(model, level="extended", spelling="contrib")
    result.save(out)
    return sorted({str(each) for each in result.report.declined})


def check(model: Path, saved: dict[str, Path]) -> dict[str, Any]:
    """Relative distances of the saved models' answers, by who ran which."""
    feeds, reason = guarded(feeds_of, model)
    if feeds is None:
        return {"failed": [reason]}
    wanted, reason = guarded(answers, onnxruntime, model, feeds)
    if wanted is None:
        return {"failed": [f"original by onnxruntime: {reason}"]}
    runs = {
        "ours_by_sardonyx": ("sardonyx", sardonyx),
        "ours_by_onnxruntime": ("sardonyx", onnxruntime),
        "theirs_by_onnxruntime": ("onnxruntime", onnxruntime),
    }
    found: dict[str, Any] = {"failed": []}
    for key, (owner, package) in runs.items():
        if owner in saved:
            got, reason = guarded(answers, package, saved[owner], feeds, list(wanted))
            if got is None:
                found["failed"].append(f"{key}: {reason}")
            else:
                found[key] = distance(got, wanted)
    return found


def measure(model: Path, verify: bool) -> dict[str, Any]:
    proto = onnx.load(model, load_external_data=False)
    original = count(proto)
    row: dict[str, Any] = {"model": model.stem, "original": sum(original.values()), "failed": []}
    kinds, saved = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, save in (("onnxruntime", save_by_onnxruntime), ("sardonyx", save_by_sardonyx)):
            out = Path(folder) / f"{name}.onnx"
            start = time.perf_counter()
            declined, reason = guarded(save, model, out)
            row[f"{name}_seconds"] = round(time.perf_counter() - start, 3)
            if reason:
                row["failed"].append(f"{name} cannot save it: {reason}")
            else:
                saved[name], kinds[name] = out, count(onnx.load(out, load_external_data=False))
                row[name] = sum(kinds[name].values())
                row["declined"] = declined or []
        if verify:
            found = check(model, saved)
            row["failed"] += [reason.replace(f"{folder}/", "") for reason in found.pop("failed")]
            row |= found
            limit = allowance(proto)
            row["disagree"] = [key for key, far in found.items() if far > limit and key.startswith("ours")]
    if len(kinds) == 2:
        ours, theirs = kinds["sardonyx"], kinds["onnxruntime"]
        row["ratio"] = (row["sardonyx"] or 1) / (row["onnxruntime"] or 1)
        both = sorted({*ours, *theirs}, key=lambda k: (theirs[k] - ours[k], k))
        row["difference"] = {k: ours[k] - theirs[k] for k in both if ours[k] != theirs[k]}
        row["fused"] = {name: {k: v for k, v in sorted(c.items()) if ":" in k} for name, c in kinds.items()}
    return row


def mean_ratio(rows: list[dict[str, Any]]) -> float:
    """The geometric mean of Sardonyx's node counts over onnxruntime's."""
    logs = [math.log(row["ratio"]) for row in rows if "ratio" in row]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def markdown(rows: list[dict[str, Any]]) -> str:
    def shown(row: dict[str, Any], key: str) -> str:
        return f"{row[key]:.0e}" if key in row else ""

    counted = [row for row in rows if "ratio" in row]
    more = [row for row in counted if row["ratio"] > 1]
    runs = ("ours_by_sardonyx", "ours_by_onnxruntime", "theirs_by_onnxruntime")
    lines = [
        f"""{page.head("Nodes left at the extended level", ("onnxruntime",))}
Constants are not counted; nodes of subgraphs are.

Geometric mean of Sardonyx / onnxruntime over {len(counted)} models: **{mean_ratio(rows):.3f}**.
Models of which Sardonyx leaves more nodes: {len(more)}.

The last three columns are relative L2 distances from onnxruntime's answers with its optimizer off: of what Sardonyx
saved, run by Sardonyx and by onnxruntime, and of what onnxruntime saved.

| model | original | onnxruntime | Sardonyx | ratio | ours, by Sardonyx | ours, by onnxruntime | theirs |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""
    ]
    for row in rows:
        ratio = f"{row['ratio']:.3f}" if "ratio" in row else ""
        counts = (row["model"], row["original"], row.get("onnxruntime", ""), row.get("sardonyx", ""), ratio)
        lines.append("| " + " | ".join(map(str, (*counts, *(shown(row, key) for key in runs)))) + " |")
    if more:
        lines += ["", "## Where Sardonyx leaves more", ""]
        for row in more:
            parts = ", ".join(f"{v:+d} {k}" for k, v in row["difference"].items())
            lines.append(f"- **{row['model']}** ({row['sardonyx']} against {row['onnxruntime']}): {parts}")
            lines += [f"  - {reason}" for reason in row["declined"][:REASONS]]
    wrong = [
        f"- **{r['model']}**: {reason}" for r in rows for reason in (*r["failed"], *map(differs, r.get("disagree", [])))
    ]
    if wrong:
        lines += ["", "## What did not run, or differs", "", *wrong]
    return "\n".join(lines) + "\n"


def differs(key: str) -> str:
    return f"{key.replace('_', ' ')} differs"


def run(args: argparse.Namespace) -> bool:
    rows = []
    for model in models_in(args.paths, args.only):
        row = measure(model, not args.no_check)
        rows.append(row)
        figures = " ".join(f"{row.get(k, '-')!s:>7}" for k in ("original", "onnxruntime", "sardonyx"))
        remarks = "; ".join((*row["failed"], *map(differs, row.get("disagree", []))))
        print(f"{row['model']:44}{figures}  {row.get('ratio', math.nan):6.3f}  {remarks}", flush=True)
    print(f"geometric mean {mean_ratio(rows):.4f}")
    page.write(args.markdown, markdown(rows))
    return not any(row["failed"] or row.get("disagree") for row in rows)

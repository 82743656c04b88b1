"""How many nodes an optimizer leaves of a model: Sardonyx beside onnxruntime, both at their extended level.

    python benchmarks/node_counts.py ZOO_DIR [FOLDER_OR_MODEL ...]       table on the screen and in benchmarks/results
    python benchmarks/node_counts.py ZOO_DIR --only bert vit --no-check

Counted is what each one saves (Sardonyx with com.microsoft operators, its `contrib` spelling), nodes of subgraphs and
local functions too; `Constant` nodes are initializers in another place and count in neither. What Sardonyx saved is
then run by Sardonyx and by onnxruntime, what onnxruntime saved by onnxruntime, on the feeds of NAME.npz (beside the
model, or in its folder `ref`), and compared with onnxruntime's answers with its optimizer off, by relative L2 distance.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import sardonyx

RESULTS = Path(__file__).parent / "results"
PROVIDERS = ["CPUExecutionProvider"]
AGREES = 1e-4
COARSELY = 5e-2
"""Relative L2 distances beyond which answers differ: COARSELY for quantized models, whose steps flip, and halves."""
FLOOR = 1e-3
"""Outputs whose root mean square is less are measured against this: a sigmoid's 1e-5 is right to 1e-7, no better."""
QUANTIZED_OPERATORS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulNBits"}
REASONS = 5
"""Declined fusions listed for a model of which Sardonyx leaves more nodes; the JSON file has all."""

Feeds = dict[str, Any]


def operators(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    """The operator of every node, those inside If, Loop and Scan included."""
    for node in graph.node:
        if node.op_type != "Constant":
            yield f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from operators(inner)


def count(model: onnx.ModelProto) -> Counter[str]:
    return Counter(name for body in (model.graph, *model.functions) for name in operators(body))


def allowance(model: onnx.ModelProto) -> float:
    """How far the answers of a rewritten model may be from the original's."""
    half = any(t.data_type == onnx.TensorProto.FLOAT16 for t in model.graph.initializer)
    coarse = half or bool(QUANTIZED_OPERATORS & {name.split(":")[-1] for name in count(model)})
    return COARSELY if coarse else AGREES


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


def answers(package: Any, model: Path, feeds: Feeds, names: list[str] | None = None) -> Feeds:
    """What a session of a package without an optimizer gives."""
    options = package.SessionOptions()
    options.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = package.InferenceSession(str(model), options, providers=PROVIDERS)
    names = names or [o.name for o in session.get_outputs() if o.type.startswith("tensor")]
    given = {i.name: feeds[i.name] for i in session.get_inputs() if i.name in feeds}
    return dict(zip(names, session.run(names, given), strict=True))


def distance(got: Feeds, wanted: Feeds) -> float:
    """The largest relative L2 distance over the outputs; infinite where shape, type or a string differs."""
    worst = 0.0
    for name, right in wanted.items():
        left = got[name]
        if left.shape != right.shape or left.dtype != right.dtype:
            return math.inf
        if right.dtype.kind not in "fc":
            worst = max(worst, float(np.mean(left != right)) if right.size else 0.0)
            continue
        norm = float(np.linalg.norm(right.astype(np.float64).ravel()))
        error = float(np.linalg.norm((left.astype(np.float64) - right).ravel()))
        worst = max(worst, error / max(norm, FLOOR * math.sqrt(max(right.size, 1))))
    return worst if math.isfinite(worst) else math.inf


def feeds_of(model: Path) -> Feeds:
    """Those beside the model; else normal values for inputs that are floats, where a free dimension is 1."""
    for path in (model.with_suffix(".npz"), model.parent / "ref" / f"{model.stem}.npz"):
        if path.exists():
            with np.load(path) as stored:
                return {k[3:].replace("|", "/"): stored[k] for k in stored if k.startswith("in:")}
    session = onnxruntime.InferenceSession(model, providers=PROVIDERS)
    shapes = {i.name: [d if isinstance(d, int) else 1 for d in i.shape] for i in session.get_inputs()}
    if any(i.type != "tensor(float)" for i in session.get_inputs()):
        raise ValueError("no feeds beside the model")
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def guarded(call: Any, *args: Any) -> tuple[Any, str]:
    """A call's result and no reason, or none and the reason."""
    try:
        return call(*args), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"


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
        f"""# Nodes left at the extended level

onnxruntime {onnxruntime.__version__} and Sardonyx {sardonyx.__version__}; made by `benchmarks/node_counts.py`.
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


def models_in(paths: list[Path], only: list[str]) -> list[Path]:
    files = [f for path in paths for f in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]
    return [f for f in files if any(part in f.stem for part in only)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="folders of models, or models")
    parser.add_argument("--only", nargs="+", default=[""], help="models whose name holds one of these")
    parser.add_argument("--no-check", action="store_true", help="count only, run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for node_counts.md and node_counts.json")
    args = parser.parse_args()
    rows = []
    for model in models_in(args.paths, args.only):
        row = measure(model, not args.no_check)
        rows.append(row)
        figures = " ".join(f"{row.get(k, '-')!s:>7}" for k in ("original", "onnxruntime", "sardonyx"))
        remarks = "; ".join((*row["failed"], *map(differs, row.get("disagree", []))))
        print(f"{row['model']:44}{figures}  {row.get('ratio', math.nan):6.3f}  {remarks}", flush=True)
    if not rows:
        parser.error("no models there")
    print(f"geometric mean {mean_ratio(rows):.4f}")
    args.out.mkdir(parents=True, exist_ok=True)
    versions = {"onnxruntime": onnxruntime.__version__, "sardonyx": sardonyx.__version__, "onnx": onnx.__version__}
    report = {"versions": versions, "geometric_mean": mean_ratio(rows), "models": rows}
    (args.out / "node_counts.json").write_text(json.dumps(report, indent=1) + "\n")
    (args.out / "node_counts.md").write_text(markdown(rows))
    sys.exit(any(row["failed"] or row.get("disagree") for row in rows))


if __name__ == "__main__":
    main()

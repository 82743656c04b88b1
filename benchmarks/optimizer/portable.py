"""Do models saved in the `portable` spelling load, and answer as the originals do, in onnxruntime and OpenVINO?

Every model is optimized at the extended level and saved with operators of ONNX alone. Each engine then runs the
original and the saved model on the feeds that lie beside the model, its own optimizer off
where it has a switch, and the answers are compared with each other by relative L2 distance: an engine is asked about
the rewrites, not about itself. Where it refuses the original, the saved model is compared with onnxruntime's answers if
it runs, and is no failure if it does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnxruntime

import sardonyx
from benchmarks import page
from benchmarks.optimizer.answers import allowance, answers, distance, guarded, models_in
from benchmarks.zoo.trained import feeds_of
from sardonyx.bench.arrays import Feeds

try:
    import openvino
except ImportError:
    openvino = None

ONNX_DOMAINS = {"", "ai.onnx", "ai.onnx.ml"}
Engine = Callable[[Path, Feeds], Feeds]


def by_onnxruntime(model: Path, feeds: Feeds) -> Feeds:
    return answers(onnxruntime, model, feeds)


def by_openvino(model: Path, feeds: Feeds) -> Feeds:
    """The answers of OpenVINO's processor plugin; f32 where it would choose a half type."""
    try:
        compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        known = {name for port in compiled.inputs for name in port.names}
        found = compiled({name: x for name, x in feeds.items() if name in known})
    except RuntimeError as error:
        raise RuntimeError(str(error).strip().splitlines()[-1]) from error  # where it comes to the point
    names = {value.name for value in onnx.load(model, load_external_data=False).graph.output}
    outputs = {name: found[port] for port in compiled.outputs for name in names & port.names}
    if outputs.keys() != names:
        raise RuntimeError(f"it gives no {', '.join(sorted(names - outputs.keys()))}")
    return outputs


ENGINES: dict[str, Engine] = {"onnxruntime": by_onnxruntime, **({"OpenVINO": by_openvino} if openvino else {})}


@dataclass
class Row:
    """What became of one model; where an engine has no distance ``refused`` or ``failed`` says why."""

    model: str
    nodes: tuple[int, int]
    opset: int
    distances: dict[str, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def measure(model: Path, folder: Path) -> Row:
    result = sardonyx.optimize_model(model, "extended", spelling="portable")
    saved = folder / "portable.onnx"
    result.save(saved)
    row = Row(model.stem, result.node_counts, result.model.opsets.get("", 1))
    foreign = {n.domain for n in result.model.graph.all_nodes()} - ONNX_DOMAINS
    if foreign:
        row.failed.append(f"it has operators of {', '.join(sorted(foreign))}")
    limit = allowance(onnx.load(model, load_external_data=False))
    feeds = feeds_of(model)
    answered: Feeds | None = None
    for name, engine in ENGINES.items():
        wanted, why = guarded(engine, model, feeds)
        got, reason = guarded(engine, saved, feeds)
        answered = answered or wanted
        if wanted is None:
            too = "but runs what was saved" if got else "and the saved one"
            row.refused.append(f"{name} refuses the original, {too}: {why}")
        elif got is None:
            row.failed.append(f"{name} refuses what was saved: {reason}")
        if got is None or answered is None:
            continue
        row.distances[name] = far = distance(got, wanted or answered)
        if far > limit:
            row.failed.append(f"{name} answers otherwise: relative distance {far:.1e}")
    return row


def shown(row: Row, engine: str) -> str:
    return f"{row.distances[engine]:.0e}" if engine in row.distances else "-"


def markdown(rows: list[Row]) -> str:
    ran = {name: sum(name in row.distances for row in rows) for name in ENGINES}
    lines = [
        f"""{page.head("Models in the portable spelling, elsewhere", ("onnxruntime", "openvino"))}
{len(rows)} models saved at the extended level; {", ".join(f"{name} ran {n} of them" for name, n in ran.items())}.
Failures: {sum(bool(row.failed) for row in rows)}.

The last columns are relative L2 distances, in each engine, between the answers of the saved model and of the original.

| model | nodes | saved | opset | {" | ".join(ENGINES)} |
| --- | ---: | ---: | ---: |{" ---: |" * len(ENGINES)}"""
    ]
    for row in rows:
        cells = (row.model, *row.nodes, row.opset, *(shown(row, name) for name in ENGINES))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for title, notes in (
        ("What failed", [(row.model, note) for row in rows for note in row.failed]),
        ("What an engine does not run as it came", [(row.model, note) for row in rows for note in row.refused]),
    ):
        if notes:
            lines += ["", f"## {title}", "", *(f"- **{model}**: {note}" for model, note in notes)]
    return "\n".join(lines) + "\n"


def run(args: argparse.Namespace) -> bool:
    if openvino is None:
        print("OpenVINO is not installed: onnxruntime alone", file=sys.stderr)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models_in(args.paths, args.only):
            row = measure(model, Path(folder))
            rows.append(row)
            far = " ".join(f"{name} {shown(row, name)}" for name in ENGINES)
            print(f"{row.model:44}{far}  {'; '.join((*row.failed, *row.refused))}".rstrip(), flush=True)
    page.write(args.markdown, markdown(rows))
    return not any(row.failed for row in rows)

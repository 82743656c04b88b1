"""``sardonyx demo``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli import FAILED, GOOD
from sardonyx.cli.bench_text import print_result
from sardonyx.cli.budget_text import print_budget
from sardonyx.cli.console import console, nbytes_text, placements, plain, seconds_text, show, table
from sardonyx.cli.options import AsJson
from sardonyx.cli.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sardonyx.bench import Result
    from sardonyx.demo.records import Loaded, Optimized, Placed, Read

EXAMPLES = """
sardonyx demo
sardonyx demo digits --seconds 10
sardonyx demo --json
"""
INK = " .:-=+*#%@"


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="[FOLDER]", help="Where the models and the report are written.")
    ] = Path("sardonyx-demo"),
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0.01, help="Seconds of the rounds of each comparison of the benchmark.")
    ] = 4.0,
    as_json: AsJson = False,
) -> int:
    """Do the main job on a trained model, in less than a minute.

    Loads a model that reads handwritten digits, counts what it reads right of digits that it has never seen, optimizes
    and explains it, quantizes it within a budget, times it beside the engines that are installed, and writes a report.
    """
    import numpy as np

    from sardonyx.demo.steps import Demo

    begun = time.perf_counter()
    out = None if as_json else console()
    with progress() as step:
        demo = Demo(folder)
        step("loading the model")
        loaded = demo.load()
        _tell(out, "Load", _loaded, loaded)
        step("reading digits")
        read = demo.read()
        _tell(out, "Read digits that were held out of training", _read, read)
        step("optimizing")
        optimized = demo.optimize()
        _tell(out, "Optimize", _optimized, optimized)
        placed = demo.explain()
        _tell(out, "Explain: who runs the nodes", _placed, placed)
        step("quantizing within a budget")
        quantized = demo.quantize()
        _tell(out, "Quantize, with at most half a point of accuracy lost", print_budget, quantized)
        result = demo.benchmark(seconds, step)
        _tell(out, "Benchmark", _benchmarked, result)
        step("writing the report")
        path, data = demo.report()
    took_s = time.perf_counter() - begun
    if out is not None:
        _heading(out, "Report")
        for finding in data.findings:
            out.print(f"{finding.title}: {finding.evidence}")
        out.print(f"open {path} in a browser ({nbytes_text(path.stat().st_size)})", soft_wrap=True)
        out.print(f"\nAll of it took {seconds_text(took_s)}. To go on:")
        for line in (f"bench {demo.model} --callers 1,2,4", f"explain {demo.model} --stage cpu", "--help"):
            out.print(f"  sardonyx {line}", soft_wrap=True)
    else:
        facts = {
            "folder": folder,
            "load": loaded,
            "read": {**plain(read), "first": np.asarray(read.first).tolist(), "share": read.share},
            "optimize": optimized,
            "explain": placed,
            "quantize": json.loads(quantized.to_json()),
            "bench": result.to_json(),
            "report": path,
            "seconds": took_s,
        }
        show(facts, lambda _: None, True)
    is_accurate = any(trial.meets for trial in quantized.trials)
    return GOOD if optimized.is_same and is_accurate and read.as_onnxruntime is not False else FAILED


def _tell(out: Console | None, title: str, text: Any, found: Any) -> None:
    """A part of the demo, as soon as it is done."""
    if out is not None:
        _heading(out, title)
        text(out, found)


def _heading(out: Console, title: str) -> None:
    out.print(f"\n{title}", style="bold")
    out.print("─" * min(len(title), out.width), style="dim")


def _loaded(out: Console, found: Loaded) -> None:
    out.print(f"{found.model}, {nbytes_text(found.nbytes)}, in {seconds_text(found.load_s)}", soft_wrap=True)
    for kind, ends in (("in ", found.inputs), ("out", found.outputs)):
        for name, what in ends.items():
            out.print(f"  {kind}  {name:12} {what}")


def _read(out: Console, found: Read) -> None:
    for line in zip(*(drawn(image) for image in found.first.tolist()), strict=True):
        out.print("   ".join(line))
    captions = [f"{f'{a} ({s:.1%} sure)':^16}" for a, s in zip(found.answers, found.sure, strict=True)]
    out.print("   ".join(captions))
    out.print(f"\naccuracy: {found.right} of {found.count}, {found.share:.2%}")
    for answer, label in found.mistaken:
        out.print(f"mistaken: read as {answer}, labelled {label}")
    if found.as_onnxruntime is not None:
        said = "the same as" if found.as_onnxruntime else "NOT those of"
        out.print(f"the answers are {said} onnxruntime's")


def drawn(image: Sequence[Sequence[int]]) -> list[str]:
    """Lines of two characters a pixel, dark ink for high values (0 to 16)."""
    return ["".join(INK[value * (len(INK) - 1) // 16] * 2 for value in row) for row in image]


def _optimized(out: Console, found: Optimized) -> None:
    out.print(f"{found.before} nodes became {found.after}: {found.model}", soft_wrap=True)
    out.print(table(("pass", ">rewrites"), list(found.passes.items())))
    out.print(f"it gives {'the same answers' if found.is_same else 'OTHER ANSWERS'}")


def _benchmarked(out: Console, found: Result) -> None:
    print_result(out, found)
    if len(found.timings) == 1:
        out.print("No other engine is here to compare with; pip install onnxruntime brings one.")


def _placed(out: Console, found: Placed) -> None:
    out.print(placements(found.providers, out.width))

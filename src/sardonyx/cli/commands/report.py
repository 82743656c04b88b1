"""One HTML page about a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sardonyx.cli.console import nbytes_text, seconds_text, show
from sardonyx.cli.options import (
    AsJson,
    Dimensions,
    ModelPath,
    Providers,
    Seed,
    Shapes,
    Threads,
    dimensions,
    shapes,
    usable_providers,
)
from sardonyx.cli.progress import progress

EXAMPLES = """
sardonyx report model.onnx
sardonyx report model.onnx -o report.html --dim batch=8
sardonyx report model.onnx --bench onnxruntime --bench openvino
"""


def command(
    model: ModelPath,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File of the page; MODEL.html in this folder by default.", show_default=False
        ),
    ] = None,
    bench: Annotated[
        list[str] | None,
        typer.Option(
            "--bench", metavar="ENGINE", help="Benchmark beside this engine; several times.", show_default=False
        ),
    ] = None,
    providers: Providers = None,
    threads: Threads = 0,
    dims: Dimensions = None,
    shape: Shapes = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write a page about a model that opens in any browser, without a network.

    It shows the graph before and after optimization with the fused groups, the time of each kernel beside what the
    machine allows, memory over time, and findings: what to change.
    """
    from sardonyx.bench.inputs import generate_inputs
    from sardonyx.report.write import write_report
    from sardonyx.session.options import SessionOptions

    path = Path(f"{model.stem}.html") if output is None else output
    sizes: dict[str, Any] = {"dimensions": dimensions(dims), "shapes": shapes(shape)}
    options = SessionOptions()
    options.intra_op_num_threads = threads
    with progress() as step:
        given = generate_inputs(model, seed=seed, **sizes)
        measured: dict[str, Any] = {}
        if bench:
            step("benchmark")
            measured = _measured(model, bench, threads, sizes)
        step("compiling and running the model")
        data = write_report(
            model, path, options=options, providers=usable_providers(providers), feeds=given.feeds, **measured
        )
    facts = {"report": path, "nbytes": path.stat().st_size, "run_s": data.run_s, "findings": data.findings}

    def text(out: Any) -> None:
        for statement in given.statements:
            out.print(statement, soft_wrap=True)
        for finding in data.findings:
            out.print(f"{finding.title}: {finding.evidence}", soft_wrap=True)
        out.print(f"a run takes {seconds_text(data.run_s or 0)}")
        out.print(f"{path}: {nbytes_text(path.stat().st_size)}", soft_wrap=True)

    show(facts, text, as_json)


def _measured(model: Path, engines: list[str], threads: int, sizes: dict[str, Any]) -> dict[str, Any]:
    from sardonyx.bench.api import benchmark
    from sardonyx.report.adapt import measurements_of, verdict_of

    result = benchmark(model, peers=engines, threads=threads, **sizes)
    return {"measurements": measurements_of(result), "verdict": verdict_of(result)}

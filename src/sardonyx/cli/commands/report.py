"""One HTML page about a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli.console import nbytes_text, seconds_text, show
from sardonyx.cli.inputs import feeds_of, sizes_were_assumed
from sardonyx.cli.options import (
    AsJson,
    Dimensions,
    InputFiles,
    ModelPath,
    Providers,
    Seed,
    Shapes,
    Threads,
    session_options,
    usable_providers,
)
from sardonyx.cli.progress import progress

if TYPE_CHECKING:
    from sardonyx.report import Table

EXAMPLES = """
sardonyx report model.onnx
sardonyx report model.onnx -o report.html --dim batch=8
sardonyx report model.onnx --bench onnxruntime --bench openvino
sardonyx report model.onnx --check --compare int8.onnx
"""
KINDS = {"warning": "Problem: ", "advice": "To gain: "}
"""What severities of findings are called."""


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
    check: Annotated[
        bool, typer.Option("--check", help="Compare the outputs with onnxruntime's, or else with numpy's.")
    ] = False,
    other: Annotated[
        Path | None,
        typer.Option(
            "--compare",
            metavar="OTHER",
            help="Another version of the model, such as a quantized one.",
            show_default=False,
        ),
    ] = None,
    providers: Providers = None,
    threads: Threads = 0,
    inputs: InputFiles = None,
    dims: Dimensions = None,
    shape: Shapes = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write a page about a model that opens in any browser, without a network.

    It shows the graph before and after optimization with the fused groups, the time of each kernel beside what the
    machine allows, memory over time, and findings: what to change. With --bench there are times beside other engines,
    with --check and --compare the errors of outputs.
    """
    from sardonyx.inspection.compare import compare_models
    from sardonyx.report.adapt import comparison_of
    from sardonyx.report.write import require_writable, write_report

    path = Path(f"{model.stem}.html") if output is None else output
    require_writable(path)
    usable = usable_providers(providers)
    options = session_options(threads)
    feeds, statements = feeds_of(model, inputs, dims, shape, seed)
    with progress() as step, sizes_were_assumed(statements):
        found: dict[str, Any] = {"tables": []}
        if bench:
            step("benchmark")
            found |= _measured(model, feeds, bench, threads)
        if check:
            step("checking the outputs")
            found["tables"].append(_checked(model, feeds))
        if other is not None:
            step(f"comparing with {other.name}")
            found["tables"] += comparison_of(compare_models(model, other, feeds=feeds))
        step("compiling and running the model")
        data = write_report(model, path, options=options, providers=usable, feeds=feeds, **found)
    facts = {"report": path, "nbytes": path.stat().st_size, "run_s": data.run_s, "findings": data.findings}

    def text(out: Any) -> None:
        for statement in statements:
            out.print(statement)
        for finding in data.findings:
            out.print(f"{KINDS.get(finding.severity, '')}{finding.title}")
        out.print(f"a run takes {seconds_text(data.run_s or 0)}")
        out.print(f"{path}: {nbytes_text(path.stat().st_size)}", soft_wrap=True)

    show(facts, text, as_json)


def _measured(model: Path, feeds: Mapping[str, Any], engines: list[str], threads: int) -> dict[str, Any]:
    from sardonyx.bench.api import benchmark
    from sardonyx.report.adapt import measurements_of, verdict_of

    result = benchmark(model, feeds, peers=engines, threads=threads)
    return {"measurements": measurements_of(result), "verdict": verdict_of(result)}


def _checked(model: Path, feeds: dict[str, Any]) -> Table:
    import sardonyx
    from sardonyx.bench.answers import checked, checker_name
    from sardonyx.report.adapt import accuracy_of

    engine = checker_name()
    session = sardonyx.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    outputs = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
    return accuracy_of(checked(engine, model, feeds, outputs), engine)

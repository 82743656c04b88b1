"""``sardonyx profile``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sardonyx.cli import FAILED, GOOD
from sardonyx.cli.console import show
from sardonyx.cli.findings import print_disturbances, print_findings
from sardonyx.cli.inputs import feeds_of, sizes_were_assumed
from sardonyx.cli.options import (
    AsJson,
    ConfigFile,
    Dimensions,
    FromTrace,
    InputFiles,
    ModelPath,
    Precision,
    Providers,
    Seed,
    Shapes,
    Threads,
    require_writable,
    session_options,
    usable_providers,
)
from sardonyx.cli.progress import progress
from sardonyx.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.profile import Diagnosis

EXAMPLES = """
sardonyx profile model.onnx
sardonyx profile model.onnx --dim batch=8 --top 30
sardonyx profile model.onnx --save-trace trace.json
sardonyx profile model.onnx --from-trace onnxruntime_profile__2026-11-19_10-00-00_000.json
sardonyx profile model.onnx --threads 4 --fail-on-problem
"""


def command(
    model: ModelPath,
    inputs: InputFiles = None,
    runs: Annotated[int, typer.Option(metavar="N", min=1, help="Runs that are recorded, after a warm-up.")] = 20,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Kernels to list.")] = 12,
    from_trace: FromTrace = None,
    save_trace: Annotated[
        Path | None,
        typer.Option("--save-trace", metavar="FILE", help="Keep the trace, for Perfetto.", show_default=False),
    ] = None,
    fail_on_problem: Annotated[
        bool, typer.Option("--fail-on-problem", help="The status is 1 if a problem is found.")
    ] = False,
    provider: Providers = None,
    threads: Threads = 0,
    precision: Precision = "highest",
    config: ConfigFile = None,
    dim: Dimensions = None,
    shape: Shapes = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """List the kernels that take a model's time, and find what is wrong: the evidence, and the change that fixes it.

    The model is run here, on generated inputs or on those of files; or the trace of a program is read that ran it with
    enable_profiling, and how it calls the session is judged too.
    """
    from sardonyx.profile.diagnosis import diagnose
    from sardonyx.profile.read import read_trace

    if from_trace is not None and (inputs or save_trace):
        raise InvalidArgument("--from-trace runs nothing, so that --input and --save-trace mean nothing")
    if save_trace is not None:
        require_writable(save_trace)
    options = session_options(threads, precision, config)
    usable = usable_providers(provider)
    given = None if from_trace is None else read_trace(from_trace)
    feeds, statements = feeds_of(model, inputs, dim, shape, seed) if given is None else (None, ())
    with progress() as step, sizes_were_assumed(statements):
        found = diagnose(
            model, feeds, options=options, providers=usable, profile=given, runs=runs, trace=save_trace, step=step
        )
    result = {**found.to_json(), "statements": list(statements), "trace": save_trace}
    show(result, lambda out: _print(out, found, statements, top, save_trace), as_json)
    return FAILED if fail_on_problem and found.problems else GOOD


def _print(out: Console, found: Diagnosis, statements: Sequence[str], top: int, trace: Path | None) -> None:
    from sardonyx.profile.text import report

    for statement in statements:
        out.print(statement)
    out.print(report(found.profile, top), soft_wrap=True)
    out.print()
    print_findings(out, found.problems, found.opportunities)
    print_disturbances(out, found.disturbances)
    if trace is not None:
        out.print(f"the trace is in {trace}; open it in https://ui.perfetto.dev", soft_wrap=True)

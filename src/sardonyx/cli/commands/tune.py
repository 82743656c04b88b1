"""``sardonyx tune``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding

from sardonyx.cli.console import seconds_text, show, table
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
    words,
)
from sardonyx.cli.progress import progress

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.session.config_file import Config
    from sardonyx.tune import Trial, Tuning

EXAMPLES = """
sardonyx tune model.onnx
sardonyx tune model.onnx -o tuned.json --dim batch=8
sardonyx tune model.onnx --from-trace onnxruntime_profile__2026-11-19_10-00-00_000.json
sardonyx tune model.onnx --precisions high,medium --precision-error 1e-2
sardonyx tune model.onnx --config model.config.json --threads 4
"""

WIDE = 110
"""Columns from which on the settings that were tried are a table."""


def command(
    model: ModelPath,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="File of the settings; MODEL.config.json in this folder by default.",
            show_default=False,
        ),
    ] = None,
    inputs: InputFiles = None,
    from_trace: FromTrace = None,
    max_error: Annotated[
        float, typer.Option(metavar="ERROR", min=0.0, help="Relative error of an output that a setting may cost.")
    ] = 1e-5,
    precisions: Annotated[
        str,
        typer.Option(metavar="high,medium", help="Precisions to try too.", show_default=False),
    ] = "",
    precision_error: Annotated[
        float, typer.Option(metavar="ERROR", min=0.0, help="Relative error that a precision may cost.")
    ] = 1e-2,
    rounds: Annotated[int, typer.Option(metavar="N", min=6, max=1000, help="Rounds of each comparison.")] = 30,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0.01, help="Seconds of the rounds of each comparison.")
    ] = 5.0,
    provider: Providers = None,
    threads: Threads = 0,
    precision: Precision = "highest",
    config: ConfigFile = None,
    dim: Dimensions = None,
    shape: Shapes = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Try the settings that a diagnosis names, measure each beside what was there before, and keep what helps.

    The file that is written is read by SessionOptions.load_config, and by --config of other commands. Outputs are
    compared with those before; a setting that costs more than --max-error is left out.
    """
    from sardonyx.profile.read import read_trace
    from sardonyx.session.config_file import read_config
    from sardonyx.tune import tune_model

    path = Path(f"{model.stem}.config.json") if output is None else output
    require_writable(path)
    options = session_options(threads, precision, config)
    usable = usable_providers(provider)
    profile = None if from_trace is None else read_trace(from_trace)
    usual = {} if profile is None or dim else {name: sizes for name, (_, sizes) in profile.runs[-1].inputs.items()}
    feeds, statements = feeds_of(model, inputs, dim, shape, seed, usual)
    with progress() as step, sizes_were_assumed(statements):
        found = tune_model(
            model,
            feeds,
            options=options,
            providers=usable,
            profile=profile,
            precisions=words(precisions),
            max_error=max_error,
            precision_error=precision_error,
            rounds=rounds,
            seconds=seconds,
            step=step,
        )
    made = found.config if config is None else _joined(read_config(config), found.config)
    made.save(path)
    result = {**found.to_json(), "config": made.to_json(), "config_file": path, "statements": list(statements)}
    show(result, lambda out: _print(out, found, statements, path), as_json)


def _joined(base: Config, found: Config) -> Config:
    """The settings of a file that was the beginning, with those that were kept on top."""
    from sardonyx.session.config_file import Config

    return Config(
        {**base.options, **found.options}, {**base.entries, **found.entries}, {**base.calls, **found.calls}, found.notes
    )


def _print_trials(out: Console, trials: Sequence[Trial]) -> None:
    """A table; on a narrow screen, where names of settings would fill it, lines."""
    rows = [
        (
            trial.change,
            *(seconds_text(s) if s else "-" for s in (trial.before_s, trial.after_s)),
            f"{trial.ratio.value:.2f} [{trial.ratio.low:.2f}, {trial.ratio.high:.2f}]" if trial.before_s else "-",
            f"{'kept' if trial.is_kept else 'left out'}: {trial.reason}",
        )
        for trial in trials
    ]
    if out.width >= WIDE:
        out.print(table(("=tried", ">before", ">after", ">times as fast", "outcome"), rows))
    else:
        for change, before, after, ratio, outcome in rows:
            times = "" if before == "-" else f"{before} -> {after}, {ratio} times as fast; "
            out.print(change, style="bold", soft_wrap=True)
            out.print(Padding(f"{times}{outcome}", (0, 0, 0, 2)))
    if rows:
        out.print()


def _print(out: Console, found: Tuning, statements: Sequence[str], path: Path) -> None:
    for statement in statements:
        out.print(statement)
    _print_trials(out, found.trials)
    if any(trial.is_kept for trial in found.trials):
        a_row = " a row" if "batch" in found.config.calls else ""
        times = f"{seconds_text(found.before_s)} -> {seconds_text(found.after_s)}{a_row}"
        out.print(f"All that was kept: {times}, {found.ratio} times as fast.")
    else:
        out.print("Nothing helps: the settings are good as they are.")
    if found.repaired:
        out.print(f"Repaired: {', '.join(found.repaired)}.")
    print_findings(out, found.after.problems, ())
    print_disturbances(out, found.disturbances)
    out.print()
    out.print(f"Settings saved to {path}; options.load_config reads them.", soft_wrap=True)
    if calls := found.config.calls:
        out.print(f"What the program should do itself: {json.dumps(calls)}", soft_wrap=True)

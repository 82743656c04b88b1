"""``sardonyx bench``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sardonyx.cli import FAILED, GOOD
from sardonyx.cli.console import nbytes_text, seconds_text, show, table
from sardonyx.cli.options import (
    AsJson,
    Dimensions,
    InputFiles,
    ModelPath,
    Precision,
    Providers,
    Seed,
    Shapes,
    Threads,
    dimensions,
    numbers,
    shapes,
    words,
)
from sardonyx.cli.progress import progress
from sardonyx.errors import Fail, InvalidArgument

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.bench import Result, Sweep, Timing
    from sardonyx.bench.history import Regression

COMPARED, MEASURED, KEPT = "What is compared", "How it is measured", "Earlier results"

EXAMPLES = """
sardonyx bench model.onnx
sardonyx bench model.onnx --peer none --dim batch=8 --dim sequence=128
sardonyx bench model.onnx --batches 1,2,4,8 --callers 1,2,4
sardonyx bench model.onnx --thread-counts 1,2,4 --precisions highest,high,medium
sardonyx bench model.onnx --history times.jsonl
sardonyx bench model.onnx --against times.jsonl
"""
NO_PEER = "none"


def command(
    model: ModelPath,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=COMPARED,
            metavar="ENGINE",
            help=f"Engine to compare with: onnxruntime, openvino; {NO_PEER} for none. Those installed by default.",
            show_default=False,
        ),
    ] = None,
    threads: Threads = 0,
    precision: Precision = "highest",
    provider: Providers = None,
    inputs: InputFiles = None,
    dim: Dimensions = None,
    shape: Shapes = None,
    batches: Annotated[
        str,
        typer.Option(rich_help_panel=COMPARED, metavar="1,4,...", help="Batch sizes to compare.", show_default=False),
    ] = "",
    callers: Annotated[
        str,
        typer.Option(
            rich_help_panel=COMPARED,
            metavar="1,2,...",
            help="Numbers of callers at once to compare.",
            show_default=False,
        ),
    ] = "",
    thread_counts: Annotated[
        str,
        typer.Option(
            rich_help_panel=COMPARED, metavar="1,2,...", help="Numbers of threads to compare.", show_default=False
        ),
    ] = "",
    precisions: Annotated[
        str,
        typer.Option(rich_help_panel=COMPARED, metavar="high,...", help="Precisions to compare.", show_default=False),
    ] = "",
    seconds: Annotated[
        float,
        typer.Option(rich_help_panel=MEASURED, metavar="S", min=0.01, help="Seconds of the rounds of each comparison."),
    ] = 10.0,
    rounds: Annotated[
        int, typer.Option(rich_help_panel=MEASURED, metavar="N", min=1, help="Rounds of each comparison.")
    ] = 24,
    starts: Annotated[
        int, typer.Option(rich_help_panel=MEASURED, metavar="N", min=1, help="Starts of each engine.")
    ] = 3,
    warm: Annotated[
        float, typer.Option(rich_help_panel=MEASURED, metavar="S", min=0.0, help="Most seconds to warm up.")
    ] = 5.0,
    history: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=KEPT,
            metavar="FILE",
            help="File to add the result to, one JSON object a line.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=KEPT,
            metavar="FILE",
            help="File with an earlier result; status 1 if this one is worse.",
            show_default=False,
        ),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(
            rich_help_panel=KEPT, metavar="PERCENT", min=0.0, help="Per cent by which a time must be worse to count."
        ),
    ] = 5.0,
    require_quiet: Annotated[
        bool,
        typer.Option(
            "--require-quiet", rich_help_panel=MEASURED, help="Measure nothing if the machine is busy (status 2)."
        ),
    ] = False,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Time a model beside other engines, and say whether differences are real.

    Each engine runs in a process of its own; all take turns on the same cores. The figures are those of warm runs,
    times of single runs among them. A ratio has a 95 % interval over rounds and starts.

    A result that seems worse than --against is measured again, and counts if it is worse twice. With --history and
    --against the same file is good for both.
    """
    from sardonyx import bench
    from sardonyx.bench.history import earlier_result
    from sardonyx.bench.machine import cores, why_busy

    earlier = None if against is None else earlier_result(against, model.name)
    if require_quiet and (reasons := why_busy(threads or len(cores()))):
        raise Fail("the machine is too busy to measure", got=" ".join(reasons))
    feeds = _feeds(model, inputs)

    def measure() -> Result:
        with progress() as step:
            return bench.benchmark(
                model,
                feeds,
                peers=_peers(peer),
                threads=threads,
                precision=precision,
                providers=tuple(provider or ()),
                batches=numbers(batches, "--batches"),
                callers=numbers(callers, "--callers"),
                thread_counts=numbers(thread_counts, "--thread-counts"),
                precisions=words(precisions),
                dimensions=dimensions(dim),
                shapes=shapes(shape),
                rounds=rounds,
                seconds=seconds,
                starts=starts,
                warm_s=warm,
                seed=seed,
                step=step,
            )

    result = measure()
    worse = [] if earlier is None else bench.regressions(earlier, result, margin / 100)
    if worse and earlier is not None:
        again = {(r.name, r.figure) for r in bench.regressions(earlier, measure(), margin / 100)}
        worse = [regression for regression in worse if (regression.name, regression.figure) in again]
    if history is not None:
        bench.append_history(history, result)
    found: dict[str, Any] = result.to_json()
    if earlier is not None:
        found["regressions"] = [str(regression) for regression in worse]
    show(found, lambda out: _print(out, result, earlier, worse), as_json)
    return FAILED if worse else GOOD


def _feeds(model: Path, inputs: Sequence[str] | None) -> dict[str, Any] | None:
    if not inputs:
        return None
    from sardonyx.bench.files import read_inputs
    from sardonyx.bench.inputs import declared_inputs

    declared = declared_inputs(model)
    found = read_inputs(declared, inputs)
    if missing := [each.name for each in declared if each.name not in found]:
        raise InvalidArgument("no file gives these inputs", got=missing)
    return found


def _peers(given: Sequence[str] | None) -> list[str] | None:
    if given is None:
        return None
    return [name for name in given if name != NO_PEER]


def _print(out: Console, result: Result, earlier: Result | None, worse: Sequence[Regression]) -> None:
    first = result.timings[0]
    fed = ", ".join(f"{name} {what}" for name, what in result.inputs.items())
    out.print(f"{result.model}, {nbytes_text(result.nbytes)}: {fed}")
    out.print(f"{result.machine['cpu']}, {_many(result.machine['cores'], 'core')}")
    how = f"{_many(first.threads, 'thread')}, {_many(len(first.rounds), 'round')}, {_many(len(first.starts), 'start')}"
    out.print(how)
    for statement in result.statements:
        out.print(statement)
    out.print()
    out.print(_times(result.timings, "Warm runs"))
    out.print()
    out.print(_starts(result.timings))
    out.print()
    for comparison in result.comparisons:
        out.print(comparison.sentence)
    for sweep in result.sweeps:
        _print_sweep(out, sweep)
    for name, why in {**result.absent, **result.failed}.items():
        out.print(f"{name} takes no part: {why}")
    left = sum(count for provider, count in first.nodes.items() if "reference" in provider)
    if left:
        out.print(f"{left} of {sum(first.nodes.values())} nodes run on the reference provider, which is slow.")
    for timing in result.timings:
        if not timing.is_warm:
            out.print(f"{timing.name} still became faster when warming up ended; --warm gives it longer.")
    if result.disturbances:
        out.print("The machine was busy, so that these figures mean little: " + " ".join(result.disturbances))
    if earlier is not None and not worse:
        out.print(f"Nothing is worse than on {earlier.made[:10]}.")
    for regression in worse:
        out.print(f"WORSE than on {earlier.made[:10] if earlier else ''}: {regression}")


def _print_sweep(out: Console, sweep: Sweep) -> None:
    out.print()
    out.print(_times(sweep.timings, f"By {sweep.setting}"))
    out.print(sweep.sentence)


def _times(timings: Sequence[Timing], title: str) -> Any:
    """Milliseconds, or microseconds where they are few."""
    is_short = max(timing.median_s for timing in timings) < 1e-3
    unit, size = ("microseconds", 1e-6) if is_short else ("milliseconds", 1e-3)

    def figure(seconds: float | None) -> str:
        if seconds is None:
            return "-"
        value = seconds / size
        return f"{value:.{max(0, 3 - len(str(int(value))))}f}"

    rows = [
        (
            t.name,
            figure(t.median_s),
            f"{100 * max(t.high_s - t.median_s, t.median_s - t.low_s) / t.median_s:.0f} %",
            *map(figure, (t.mean_s, t.p90_s, t.p95_s, t.p99_s)),
            f"{t.throughput:.{0 if t.throughput >= 100 else 2}f}",
        )
        for t in timings
    ]
    return table(("", ">median", ">±", ">mean", ">p90", ">p95", ">p99", ">samples/s"), rows, f"{title}, {unit}")


def _starts(timings: Sequence[Timing]) -> Any:
    rows = []
    for t in timings:
        cold = next((start for start in t.starts if start.is_cold), t.starts[0])
        warm = t.starts[-1]
        figures = (cold.load_s, cold.first_s, warm.load_s, warm.first_s, warm.import_s)
        rows.append((t.name, *map(seconds_text, figures), nbytes_text(t.peak_nbytes)))
    columns = ("", ">load", ">first run", ">next load", ">first run", ">import", ">peak memory")
    return table(columns, rows, "Starts: the first, with an empty cache, and the last")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

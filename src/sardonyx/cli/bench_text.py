"""A benchmark's result as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.cli.console import nbytes_text, seconds_text, table

if TYPE_CHECKING:
    from rich.console import Console

    from sardonyx.bench import Result, Sweep, Timing
    from sardonyx.bench.history import Regression

SHORT_S = 5e-4


def print_result(out: Console, result: Result, earlier: Result | None = None, worse: Sequence[Regression] = ()) -> None:
    """Tables of times and starts, and the sentences that judge them."""
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
    if result.comparisons:
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
    """Milliseconds, or microseconds where a time is short."""
    is_short = min(timing.median_s for timing in timings) < SHORT_S
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
    """The first start and the last of each, and the most memory of all."""
    rows = []
    for t in timings:
        for i, start in enumerate(dict.fromkeys((t.starts[0], t.starts[-1]))):
            which = "first start" if i == 0 else "last start"
            memory = nbytes_text(t.peak_nbytes) if i == 0 else ""
            second = math.nan if start.second_s is None else start.second_s
            figures = map(seconds_text, (start.import_s, start.load_s, start.first_s, second))
            rows.append((t.name if i == 0 else "", which, *figures, memory))
    columns = ("", "=", ">import", ">load", ">first run", ">second run", ">peak memory")
    return table(columns, rows, "Starts, the first one with an empty cache")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

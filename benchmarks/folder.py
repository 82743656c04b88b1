"""How fast does each model of a folder run beside onnxruntime, how soon and in how much memory does it start, and what
has become worse?

    python benchmarks/folder.py FOLDER [--threads 2] [--rounds 4] [--seconds 0.12] [--starts 3] [--only NAME ...]
    python benchmarks/folder.py FOLDER --json NOW.json --against EARLIER.json

Contestants, processes, rounds and starts are those of ``benchmarks.compare``. A model's feeds are FOLDER/ref/NAME.npz,
where that exists, and else random numbers. A time is the median over rounds of the median run of a turn, of sessions
that are warm; a ratio is the median over rounds, with a bootstrap interval. Rounds share a cache of kernels.

A start is the creation of a session in a new process that has imported the engine: the first with an empty cache, the
second with what the first left; the median of ``--starts`` of each counts. On a busy machine, ``--processor-time`` adds
up what threads computed instead. Memory is the most that a process ever had (VmHWM) until it had run once.

Models that run slower than with onnxruntime are listed with the steps that take most of their time. ``--against``
compares with the ``--json`` of an earlier run (``benchmarks.regressions``), and measures again what seems to be worse:
the exit status is 1 if a model has become worse.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from benchmarks import page
from benchmarks.compare.cases import Case, Files
from benchmarks.compare.report import ms, percent
from benchmarks.compare.report import table as aligned
from benchmarks.compare.rounds import Settings, measure
from benchmarks.layers import median_rows
from benchmarks.regressions import OURS, THEIRS, Entry, Regression, confirmed, regressions
from benchmarks.zoo.trained import feeds_of
from sardonyx.bench.arrays import store
from sardonyx.bench.engines import Contestant
from sardonyx.bench.machine import machine
from sardonyx.bench.starts import measure_starts
from sardonyx.bench.statistics import Ratio, geometric_mean, paired_ratio

CONTESTANTS = (Contestant(OURS), Contestant(THEIRS))
LATE_S = 0.05
"""A second start is late if it takes so much longer than onnxruntime's."""
STEPS = 5
"""Of a slow model, those that are shown."""


def files_of(path: Path, folder: Path) -> Files | None:
    """A model where it is, and its feeds in a folder of ours; None where feeds cannot be had."""
    feeds = folder / f"{path.stem}.npz"
    try:
        store(feeds, **{"in": feeds_of(path)})
    except Exception as error:
        print(f"{path.name}: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return Files(path, feeds)


def entry_of(path: Path, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What is found of a model, as ``benchmarks.regressions`` compares it."""
    files, case = files_of(path, folder), Case.of(path.stem)
    entry: dict[str, Any] = {"rounds": {}, "starts": {}, "failed": {}}
    if files is None:
        return {**entry, "failed": dict.fromkeys((OURS, THEIRS), "its feeds cannot be had")}
    if args.rounds:
        # a turn is a part of the case's seconds, one for each contestant and one for limits, not measured here
        seconds = args.seconds * args.rounds * (len(CONTESTANTS) + 1)
        found = measure(case, files, CONTESTANTS, Settings(str(folder / "cache"), args.threads, args.rounds, seconds))
        entry["rounds"] = {name: each["rounds"] for name, each in found["contestants"].items()}
        entry["failed"] |= found["failed"] | found["absent"]
    if args.starts:
        clock = "process_time" if args.processor_time else "perf_counter"
        started = measure_starts(files.model, files.feeds, CONTESTANTS, args.threads, args.starts, clock=clock)
        entry["starts"] = started["starts"]
        entry["failed"] |= started["absent"]
    return entry


def ratio_of(entry: Entry) -> Ratio | None:
    """How many times as fast as onnxruntime; None where one of both does not run the model."""
    rounds = entry["rounds"]
    if not {OURS, THEIRS} <= rounds.keys():
        return None
    both = min(len(rounds[OURS]), len(rounds[THEIRS]))
    return paired_ratio(rounds[THEIRS][:both], rounds[OURS][:both])


def middle(entry: Entry, engine: str, kind: str, key: str) -> float:
    """The median of a figure over starts."""
    return statistics.median(start[key] for start in entry["starts"][engine][kind])


def is_run_by_both(entry: Entry) -> bool:
    return not entry["failed"] and all(
        {OURS, THEIRS} <= entry[part].keys() for part in ("rounds", "starts") if entry[part]
    )


def row(name: str, entry: Entry, args: argparse.Namespace) -> str:
    """A line of the table."""
    cells = [name]
    if not is_run_by_both(entry):
        empty = [""] * (3 * bool(args.rounds) + 6 * bool(args.starts) - 1)
        return f"| {' | '.join((name, 'not run by both', *empty))} |"
    if args.rounds:
        cells += [ms(statistics.median(entry["rounds"][engine])) for engine in (OURS, THEIRS)]
        cells.append(str(ratio_of(entry)))
    if args.starts:
        cells.append(f"{middle(entry, OURS, 'cold', 'open_s'):.2f}")
        cells += [f"{1e3 * middle(entry, engine, 'warm', 'open_s'):.0f}" for engine in (OURS, THEIRS)]
        peaks = ((OURS, "cold"), (OURS, "warm"), (THEIRS, "warm"))
        cells += [f"{middle(entry, engine, kind, 'peak_mb'):.0f}" for engine, kind in peaks]
    return f"| {' | '.join(cells)} |"


def head(args: argparse.Namespace) -> Iterator[str]:
    names = ["model"]
    if args.rounds:
        names += ["sardonyx ms", "onnxruntime ms", "times as fast"]
    if args.starts:
        names += ["first start s", "second start ms", "onnxruntime ms", "peak MB, first", "second", "onnxruntime"]
    yield f"| {' | '.join(names)} |"
    yield f"| --- |{' ---: |' * (len(names) - 1)}"


def summary(entries: Mapping[str, Entry]) -> Iterator[str]:
    """What all models come to."""
    both = [entry for entry in entries.values() if is_run_by_both(entry)]
    ratios = [found.value for entry in both if (found := ratio_of(entry)) is not None]
    if ratios:
        slower = sum(r < 1 for r in ratios)
        yield f"Geometric mean {geometric_mean(ratios):.2f}; {slower} of {len(ratios)} are slower than onnxruntime."
    started = [entry for entry in both if entry["starts"]]
    if started:
        firsts = [middle(entry, OURS, "cold", "open_s") for entry in started]
        opened, peaks = (
            [[middle(entry, engine, "warm", key) for engine in (OURS, THEIRS)] for entry in started]
            for key in ("open_s", "peak_mb")
        )
        imports = [
            1e3 * statistics.median(middle(e, engine, "warm", "import_s") for e in started) for engine in (OURS, THEIRS)
        ]
        late, large = sum(a > b + LATE_S for a, b in opened), sum(a > b for a, b in peaks)
        yield f"First start: at most {max(firsts):.2f} s."
        yield f"Second start: {late} of {len(started)} take longer than onnxruntime's and {1e3 * LATE_S:.0f} ms."
        yield f"Memory of a second start: {large} of {len(started)} take more than onnxruntime."
        yield f"Importing the engine, not counted above: {imports[0]:.0f} ms, onnxruntime {imports[1]:.0f} ms."


def slow(paths: Mapping[str, Path], entries: Mapping[str, Entry], threads: int) -> Iterator[str]:
    """Models that are slower than with onnxruntime, with the steps that take most of their time."""
    for name, entry in entries.items():
        ratio = ratio_of(entry)
        if ratio is None or ratio.value >= 1:
            continue
        yield f"## {name}: {ratio} times as fast as onnxruntime"
        yield ""
        rows, others = median_rows(paths[name], threads)
        if others:
            yield f"On numpy: {', '.join(f'{count} {op}' for op, count in others.items())}."
            yield ""
        total = sum(each.seconds for each in rows) or 1.0
        longest = sorted(range(len(rows)), key=lambda i: -rows[i].seconds)[:STEPS]
        shown = [
            [f"{i} {rows[i].what}", ms(rows[i].seconds), percent(rows[i].seconds / total)] for i in sorted(longest)
        ]
        yield aligned(("step", "ms", "of all steps"), shown)
        yield ""


def worse(earlier: Mapping[str, Any], now: Mapping[str, Any], again: Callable[[str], Entry]) -> list[Regression]:
    """What an earlier run found better. Models that seem to be worse are measured ``again``."""
    for key in ("machine", "threads"):
        if earlier[key] != now[key]:
            raise ValueError(f"the earlier run had another {key}: {earlier[key]}, not {now[key]}")
    first = list(regressions(earlier["models"], now["models"]))
    second = {name: again(name) for name in dict.fromkeys(each.model for each in first)}
    return confirmed(first, list(regressions(earlier["models"], second)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folder", type=Path)
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=4, help="0 for none")
    add("--seconds", type=float, default=0.12, help="of a turn")
    add("--starts", type=int, default=3, metavar="N", help="first and second starts of each engine; 0 for none")
    add("--processor-time", action="store_true", help="of all threads, for starts on a busy machine")
    add("--only", nargs="*", default=[""], help="models whose names contain one of these")
    add("--json", type=Path, help="write what was found there")
    add("--against", type=Path, metavar="EARLIER.json", help="fail if a model has become worse since")
    add("--markdown", type=Path, help="write the page there")
    args = parser.parse_args()
    earlier = json.loads(args.against.read_text(encoding="utf-8")) if args.against else None
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    say(page.head("Models of a folder, beside onnxruntime", (THEIRS,), f"{args.threads} threads"))
    paths = {
        path.stem: path for path in sorted(args.folder.glob("*.onnx")) if any(part in path.stem for part in args.only)
    }
    found: dict[str, Any] = {"machine": machine(), "threads": args.threads, "models": {}}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "cache").mkdir(0o700)
        for line in head(args):
            say(line)
        for name, path in paths.items():
            found["models"][name] = entry_of(path, args, folder)
            say(row(name, found["models"][name], args))
            page.write(args.json, json.dumps(found, indent=1))
        losses = [] if earlier is None else worse(earlier, found, lambda name: entry_of(paths[name], args, folder))
    say("")
    for text in (*summary(found["models"]), "", *slow(paths, found["models"], args.threads)):
        say(text)
    if earlier is not None:
        say(f"{len(losses)} figures are worse than in the earlier run{':' if losses else '.'}")
        for loss in losses:
            say(f"- {loss}")
    page.write(args.markdown, "\n".join(lines))
    sys.exit(1 if losses else 0)


if __name__ == "__main__":
    main()

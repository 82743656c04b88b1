"""How fast does each model of a folder run beside onnxruntime, and how soon and in how much memory does it start?

    python benchmarks/folder.py FOLDER [--threads 2] [--rounds 4] [--seconds 0.12] [--markdown FILE]
    python benchmarks/folder.py FOLDER --starts 3 [--only NAME ...]

Contestants, processes, rounds and starts are those of ``benchmarks.compare``. A model's feeds are FOLDER/ref/NAME.npz,
where that exists, and else random numbers. A time is the median over rounds of the median run of a turn; a ratio is the
median over rounds, with a bootstrap interval. Opening is the session's first; models share kernels through a cache that
is empty at the first.

``--starts N`` asks how engines start instead. A start is the creation of a session in a new process that has imported
the engine: the first with an empty cache, the warm one with what the first left; the median of N of each counts. On a
busy machine, ``--processor-time`` adds up what threads computed instead. Memory is the most that a process ever had
(VmHWM) until it had run once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from benchmarks import page
from benchmarks.compare.cases import Case, Files, store
from benchmarks.compare.engines import Contestant
from benchmarks.compare.report import ms
from benchmarks.compare.rounds import Settings, measure
from benchmarks.compare.starts import measure_starts
from benchmarks.compare.stats import Ratio, geometric_mean
from benchmarks.zoo.trained import feeds_of

OURS, THEIRS = "sardonyx", "onnxruntime"
CONTESTANTS = (Contestant(OURS), Contestant(THEIRS))


def files_of(path: Path, folder: Path) -> Files | None:
    """A model where it is, and its feeds in a folder of ours; None where feeds cannot be had."""
    feeds = folder / f"{path.stem}.npz"
    try:
        store(feeds, **{"in": feeds_of(path)})
    except Exception as error:
        print(f"{path.name}: {type(error).__name__}: {error}", file=sys.stderr)
        return None
    return Files(path, feeds)


def table(paths: list[Path], args: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| model | sardonyx ms | onnxruntime ms | times as fast | first opening s |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    ratios = []
    # a turn is a part of the case's seconds, one for each contestant and one for limits, which are not measured here
    seconds = args.seconds * args.rounds * (len(CONTESTANTS) + 1)
    settings = Settings(str(folder / "cache"), args.threads, args.rounds, seconds)
    for path in paths:
        files = files_of(path, folder)
        result = measure(Case.of(path.stem), files, CONTESTANTS, settings) if files else {}
        entries = result.get("contestants", {})
        if len(entries) < len(CONTESTANTS):
            yield f"| {path.stem} | | | not run by both | |"
            continue
        ratio = Ratio(**result["ratios"][OURS][THEIRS])
        ratios.append(ratio.value)
        times = " | ".join(ms(entries[name]["median_s"]) for name in (OURS, THEIRS))
        yield f"| {path.stem} | {times} | {ratio} | {entries[OURS]['open_s']:.2f} |"
    if ratios:
        yield ""
        slower = sum(r < 1 for r in ratios)
        yield f"Geometric mean {geometric_mean(ratios):.2f}; {slower} of {len(ratios)} are slower than onnxruntime."


def start_table(paths: list[Path], args: argparse.Namespace, folder: Path) -> Iterator[str]:
    yield "| model | first start s | warm start ms | onnxruntime ms | peak MB, first | warm | onnxruntime |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    rows: list[tuple[dict[str, Any], ...]] = []
    clock = "process_time" if args.processor_time else "perf_counter"
    for path in paths:
        files = files_of(path, folder)
        found = {}
        if files:
            case = Case.of(path.stem)
            found = measure_starts(case, files, CONTESTANTS, args.threads, args.starts, clock=clock)["contestants"]
        if len(found) < len(CONTESTANTS):
            yield f"| {path.stem} | not run by both | | | | | |"
            continue
        rows.append((found[OURS]["cold"], found[OURS]["warm"], found[THEIRS]["warm"]))
        first, warm, theirs = rows[-1]
        times = f"{first['open_s']:.2f} | {1e3 * warm['open_s']:.0f} | {1e3 * theirs['open_s']:.0f}"
        peaks = " | ".join(f"{each['peak_mb']:.0f}" for each in rows[-1])
        yield f"| {path.stem} | {times} | {peaks} |"
    if rows:
        late = sum(warm["open_s"] > theirs["open_s"] + 0.05 for _, warm, theirs in rows)
        large = sum(warm["peak_mb"] > theirs["peak_mb"] for _, warm, theirs in rows)
        imports = [1e3 * statistics.median(row[i]["import_s"] for row in rows) for i in (1, 2)]
        yield ""
        yield f"First start: at most {max(first['open_s'] for first, _, _ in rows):.2f} s."
        yield f"Warm start: {late} of {len(rows)} take longer than onnxruntime's and 50 ms."
        yield f"Memory of a warm start: {large} of {len(rows)} take more than onnxruntime."
        yield f"Importing the engine, not counted above: {imports[0]:.0f} ms, onnxruntime {imports[1]:.0f} ms."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("folder", type=Path)
    add("--threads", type=int, default=2)
    add("--rounds", type=int, default=4)
    add("--seconds", type=float, default=0.12, help="of a turn")
    add("--markdown", type=Path, help="write the page there")
    add("--starts", type=int, default=0, metavar="N", help="starts of each engine, instead of runs")
    add("--processor-time", action="store_true", help="of all threads, for starts on a busy machine")
    add("--only", nargs="*", default=[""], help="models whose names contain one of these")
    args = parser.parse_args()
    title = "How the models of a folder start" if args.starts else "Models of a folder"
    lines = [page.head(f"{title}, beside onnxruntime", (THEIRS,), f"{args.threads} threads")]
    print(lines[0])
    paths = [path for path in sorted(args.folder.glob("*.onnx")) if any(part in path.stem for part in args.only)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "cache").mkdir(0o700)
        for line in start_table(paths, args, folder) if args.starts else table(paths, args, folder):
            print(line, flush=True)
            lines.append(line)
    page.write(args.markdown, "\n".join(lines))


if __name__ == "__main__":
    main()

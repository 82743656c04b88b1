"""Every model of a folder beside onnxruntime: each engine in a process of its own, in turns.

    python benchmarks/folder.py FOLDER [--threads 2] [--rounds 4] [--seconds 0.12] [--markdown FILE]
    python benchmarks/folder.py FOLDER --starts 3 [--only NAME ...]

A model's feeds are FOLDER/ref/NAME.npz, where that exists, and else random numbers. A time is the median over rounds of
the median run of a turn; a ratio is the median over rounds. Opening is the session's first with an empty kernel cache.

``--starts N`` asks how engines start instead. A start is the creation of a session in a new process that has imported
the engine: the first with an empty cache; warm ones with what the first left, N of them in turns with onnxruntime's,
of which the best counts. On a busy machine, ``--processor-time`` adds up what threads computed instead. Memory is the
most that a process ever had (VmHWM) until it had run once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.shared import feeds_of

ENGINES = ("sardonyx", "onnxruntime")


def serve(engine: str, path: Path, threads: int) -> None:
    """Open a model, run it once, then for as long as each line says."""
    import importlib

    warnings.simplefilter("ignore")
    package = importlib.import_module(engine)
    package.set_default_logger_severity(4)
    options = package.SessionOptions()
    options.intra_op_num_threads = threads
    start = time.perf_counter()
    session = package.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    opened = time.perf_counter() - start
    given = feeds_of(session, path)
    session.run(None, given)
    print(opened, flush=True)
    for line in sys.stdin:
        seconds, end = [], time.perf_counter() + float(line)
        while not seconds or time.perf_counter() < end:
            start = time.perf_counter()
            session.run(None, given)
            seconds.append(time.perf_counter() - start)
        print(statistics.median(seconds), flush=True)


def start(engine: str, path: Path, threads: int, clock: Callable[[], float]) -> None:
    """Import an engine, open a model and run it once; what that took, as JSON."""
    import importlib

    warnings.simplefilter("ignore")
    marks = [clock()]
    package = importlib.import_module(engine)
    package.set_default_logger_severity(4)
    options = package.SessionOptions()
    options.intra_op_num_threads = threads
    marks.append(clock())
    session = package.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    marks.append(clock())
    session.run(None, feeds_of(session, path))
    status = Path("/proc/self/status").read_text().split()
    imported, opened = (1e3 * (b - a) for a, b in itertools.pairwise(marks))
    peak = int(status[status.index("VmHWM:") + 1]) / 1024
    print(json.dumps({"imported_ms": imported, "opened_ms": opened, "peak_mb": peak}))


class Worker:
    def __init__(self, engine: str, path: Path, threads: int, cache: str) -> None:
        command = [sys.executable, __file__, str(path), "--threads", str(threads), "--serve", engine]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, env=environment(cache), **pipes)
        self.opened_s = self._read()

    def _read(self) -> float:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return float(line) if line else math.nan

    def turn(self, seconds: float) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return self._read()


def measure(path: Path, args: argparse.Namespace, cache: str) -> dict[str, float] | None:
    """Milliseconds of both, the ratio, and seconds of opening; None where one of them cannot run the model."""
    workers = {engine: Worker(engine, path, args.threads, cache) for engine in ENGINES}
    times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    try:
        if any(math.isnan(w.opened_s) for w in workers.values()):
            return None
        for i in range(args.rounds):
            for engine in ENGINES if i % 2 else reversed(ENGINES):
                times[engine].append(workers[engine].turn(args.seconds))
    finally:
        for worker in workers.values():
            worker.process.kill()
    ours, theirs = (times[engine] for engine in ENGINES)
    return {
        "ours_ms": 1e3 * statistics.median(ours), "theirs_ms": 1e3 * statistics.median(theirs),
        "ratio": statistics.median(b / a for a, b in zip(ours, theirs, strict=True)),
        "opened_s": workers[ENGINES[0]].opened_s,
    }  # fmt: skip


def measure_starts(path: Path, args: argparse.Namespace) -> dict[str, float] | None:
    """Milliseconds and megabytes of a first start, of warm ones and of onnxruntime's."""
    kinds: dict[str, list[dict[str, float]]] = {"first": [], "warm": [], "onnxruntime": []}
    with tempfile.TemporaryDirectory() as cache:
        for kind in ["first", *["warm", "onnxruntime"] * args.starts]:
            engine = ENGINES[kind == "onnxruntime"]
            command = [sys.executable, __file__, str(path), "--threads", str(args.threads), "--start", engine]
            command += ["--processor-time"] * args.processor_time
            told = subprocess.run(command, capture_output=True, text=True, env=environment(cache)).stdout
            if not told:
                return None
            kinds[kind].append(json.loads(told))
    return {
        f"{kind}_{figure}": min(start[figure] for start in starts)
        for kind, starts in kinds.items()
        for figure in starts[0]
    }


def environment(cache: str) -> dict[str, str]:
    """Of a worker: a cache of its own, and bytecode kept as an installed package has it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "SARDONYX_CACHE": cache}


def start_table(paths: list[Path], args: argparse.Namespace) -> Iterator[str]:
    yield "| model | first start s | warm start ms | onnxruntime ms | peak MB, first | warm | onnxruntime |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    rows = []
    for path in paths:
        row = measure_starts(path, args)
        if row is None:
            yield f"| {path.stem} | not run by both | | | | | |"
            continue
        rows.append(row)
        times = f"{row['first_opened_ms'] / 1e3:.2f} | {row['warm_opened_ms']:.0f} | {row['onnxruntime_opened_ms']:.0f}"
        peaks = " | ".join(f"{row[f'{kind}_peak_mb']:.0f}" for kind in ("first", "warm", "onnxruntime"))
        yield f"| {path.stem} | {times} | {peaks} |"
    late = sum(r["warm_opened_ms"] > r["onnxruntime_opened_ms"] + 50 for r in rows)
    large = sum(r["warm_peak_mb"] > r["onnxruntime_peak_mb"] for r in rows)
    imports = [statistics.median(r[f"{kind}_imported_ms"] for r in rows) for kind in ("warm", "onnxruntime")]
    yield ""
    yield f"First start: at most {max(r['first_opened_ms'] for r in rows) / 1e3:.2f} s."
    yield f"Warm start: {late} of {len(rows)} take longer than onnxruntime's and 50 ms."
    yield f"Memory of a warm start: {large} of {len(rows)} take more than onnxruntime."
    yield f"Importing the engine, not counted above: {imports[0]:.0f} ms, onnxruntime {imports[1]:.0f} ms."


def table(paths: list[Path], args: argparse.Namespace, cache: str) -> Iterator[str]:
    yield "| model | sardonyx ms | onnxruntime ms | times as fast | first opening s |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    ratios = []
    for path in paths:
        row = measure(path, args, cache)
        if row is None:
            yield f"| {path.stem} | | | not run by both | |"
            continue
        ratios.append(row["ratio"])
        figures = f"{row['ours_ms']:.3g} | {row['theirs_ms']:.3g} | {row['ratio']:.2f} | {row['opened_s']:.2f}"
        yield f"| {path.stem} | {figures} |"
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    yield ""
    yield f"Geometric mean {mean:.2f}; {sum(r < 1 for r in ratios)} of {len(ratios)} are slower than onnxruntime."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.12, help="of a turn")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--starts", type=int, default=0, metavar="N", help="starts of each engine, instead of runs")
    parser.add_argument("--processor-time", action="store_true", help="of all threads, for starts on a busy machine")
    parser.add_argument("--only", nargs="*", default=[""], help="models whose names contain one of these")
    parser.add_argument("--serve", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--start", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.start:
        start(args.start, args.folder, args.threads, time.process_time if args.processor_time else time.perf_counter)
        return
    if args.serve:
        serve(args.serve, args.folder, args.threads)
        return
    lines = []
    paths = [path for path in sorted(args.folder.glob("*.onnx")) if any(part in path.stem for part in args.only)]
    with tempfile.TemporaryDirectory() as cache:
        for line in start_table(paths, args) if args.starts else table(paths, args, cache):
            print(line, flush=True)
            lines.append(line)
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

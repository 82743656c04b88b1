"""Every model of a folder beside onnxruntime: each engine in a process of its own, in turns.

    python benchmarks/folder.py FOLDER [--threads 2] [--rounds 4] [--seconds 0.12] [--markdown FILE]

A model's feeds are FOLDER/ref/NAME.npz, where that exists, and else random numbers. A time is the median over rounds of
the median run of a turn; a ratio is the median over rounds. Opening is the session's first with an empty kernel cache.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.shared import feeds_of  # noqa: E402

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


class Worker:
    def __init__(self, engine: str, path: Path, threads: int, cache: str) -> None:
        command = [sys.executable, __file__, str(path), "--threads", str(threads), "--serve", engine]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, text=True, env={**os.environ, "SARDONYX_CACHE": cache}, **pipes)
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
    parser.add_argument("--serve", choices=ENGINES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.folder, args.threads)
        return
    lines = []
    with tempfile.TemporaryDirectory() as cache:
        for line in table(sorted(args.folder.glob("*.onnx")), args, cache):
            print(line, flush=True)
            lines.append(line)
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""Sardonyx beside onnxruntime, OpenVINO f32 and OpenVINO bf16 on the models of benchmarks/zoo.

    python -m benchmarks.zoo timed --out DIR                       once: build the models
    python -m benchmarks.zoo timed --out DIR --shared FOLDER       and take over trained ones
    python -m benchmarks.compare --folder DIR                      every case, then starts and memory
    python -m benchmarks.compare --models bert vit --precision highest high medium --isa skylake-avx512 haswell
    python -m benchmarks.compare --everything --budget 240         build, time, start, load the cores, scale: in 240 s
    python -m benchmarks.compare --compare OLD.json                and this run beside an earlier one

Each contestant runs in a process of its own; all of them run in every round, in an order that rotates, on the same
cores, which rotate too where there are more of them than threads. A time is the median over rounds; a ratio is the
middle of their time / our time over rounds, with a signed-rank interval. Errors are relative L2 distances from the
model run in float64. The limit is what this machine reached, in the same rounds, in arithmetic and in reading a buffer
of the weights' size. All engines are given the same file, sizes left free.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.compare import report
from benchmarks.compare.cases import CASES, FOLDER, Case, cases_in
from benchmarks.compare.neighbours import busy_neighbours
from benchmarks.compare.rounds import WORKER, Settings, measure
from sardonyx.bench.engines import PEERS, Contestant
from sardonyx.bench.machine import cores, machine
from sardonyx.bench.process import environment
from sardonyx.bench.starts import measure_starts

SCALING = next(case for case in CASES if case.name == "bert-8x128")
THREADS = (1, 2, 4, 8, 16)
MAIN = 5
"""So many cases come before everything else."""
LEAST_S = 8.0
"""What a job is given at least, while the budget lasts; what comes when less is left is left out."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--folder", type=Path, default=FOLDER, help="where the models are")
    names = ", ".join(c.name for c in CASES)
    add(
        "--models", nargs="+", help=f"cases or models, by name; all by default: {names}, and what else the folder holds"
    )
    engines = dict.fromkeys(("sardonyx", *(peer.engine for peer in PEERS)))
    add("--contestants", nargs="+", choices=engines, help=f"{', '.join(engines)}: all by default")
    add("--threads", type=int, default=len(cores()))
    add("--precision", nargs="+", choices=("highest", "high", "medium"), default=["highest"])
    add(
        "--isa",
        nargs="+",
        default=[],
        help="CPUs to which further contestants of ours hold themselves, at the first precision",
    )
    add("--busy", action="store_true", help="a busy neighbour on each core")
    add("--rounds", type=int, default=15)
    add("--seconds", type=float, default=20.0, help="for the rounds of one case")
    add("--starts", type=int, default=3, metavar="N", help="cold and warm starts of each model; 0 for none")
    add("--scaling", action="store_true", help=f"{SCALING.name} at {', '.join(map(str, THREADS))} threads")
    add("--build", action="store_true", help="build the models that are missing, which needs torch")
    add("--shared", type=Path, metavar="FOLDER", help="a folder of trained models, to take over and to time too")
    add("--everything", action="store_true", help="all precisions, a busy row, scaling, and --build")
    add("--budget", type=float, help="seconds for the whole run; what does not fit is left out and named")
    add("--json", type=Path, help="write the results there, after each case")
    add("--markdown", type=Path, help="write the tables there, after each case")
    add("--compare", type=Path, metavar="OLD.json", help="print this run beside an earlier one")
    args = parser.parse_args()
    if args.everything:
        args.build = args.scaling = True
        args.precision = ["highest", "high", "medium"]
    if args.shared:
        models("--out", args.folder, "--shared", args.shared)
    known = {name for case in cases_in(args.folder) for name in (case.name, case.model)}
    if unknown := set(args.models or ()) - known:
        parser.error(f"no such case or model: {', '.join(sorted(unknown))}")
    return args


def models(*args: object) -> None:
    """Have the zoo write models."""
    command = [sys.executable, "-m", "benchmarks.zoo", "timed", *map(str, args)]
    subprocess.run(command, env=environment(), stderr=subprocess.DEVNULL, check=False)


class Run:
    """One run of the program: what it has found so far, and how much of its time is left."""

    def __init__(self, args: argparse.Namespace, cache: str) -> None:
        self.args, self.cache = args, cache
        self.start = time.monotonic()
        there = cases_in(args.folder)
        wanted = args.models or [case.name for case in there]
        self.cases = [case for case in there if case.name in wanted or case.model in wanted]
        own = [Contestant("sardonyx", p) for p in args.precision]
        own += [Contestant("sardonyx", args.precision[0], isa) for isa in args.isa]
        self.contestants = [c for c in (*own, *PEERS) if c.engine in (args.contestants or c.engine)]
        self.results: dict[str, Any] = {
            "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": page.command(),
            "machine": machine(),
            "versions": {"python": platform.python_version()},
            "options": {k: v for k, v in vars(args).items() if not isinstance(v, Path)},
            "cases": {},
            "starts": {},
            "scaling": {},
            "absent": {},
            "skipped": [],
        }

    def left(self) -> float:
        return self.deadline() - time.monotonic()

    def deadline(self) -> float:
        return math.inf if self.args.budget is None else self.start + float(self.args.budget)

    def say(self, text: str) -> None:
        clock = "" if self.args.budget is None else f"[{time.monotonic() - self.start:4.0f} s] "
        print(clock + text, flush=True)

    def skip(self, what: str, why: str) -> None:
        self.results["skipped"].append(f"{what}: {why}")
        self.say(f"{what} is left out: {why}")

    def save(self) -> None:
        page.write(self.args.json, json.dumps(self.results, indent=1))
        page.write(self.args.markdown, report.document(self.results))

    # -- what is done

    def prepare(self) -> None:
        """Have the models; cases without one are dropped."""
        folder = self.args.folder
        missing = [c for c in self.cases if not (c.onnx(folder).exists() and c.feeds(folder).exists())]
        if missing and self.args.build:
            names = list(dict.fromkeys(c.model for c in missing))
            self.say(f"building {', '.join(names)}")
            models("--out", folder, *names)
        for case in [c for c in missing if not (c.onnx(folder).exists() and c.feeds(folder).exists())]:
            self.skip(case.name, "its model is not there; `python -m benchmarks.zoo timed` builds it")
            self.cases.remove(case)

    def refer(self, case: Case) -> bool:
        """Whether a case has a reference, which is computed where it is missing or older than the feeds."""
        path = case.reference(self.args.folder)
        if path.exists() and path.stat().st_mtime >= case.feeds(self.args.folder).stat().st_mtime:
            return True
        command = [sys.executable, "-m", "benchmarks.compare.reference", str(self.args.folder), case.name]
        timeout = None if self.args.budget is None else max(1.0, self.left())
        try:
            done = subprocess.run(
                command, env=environment(), timeout=timeout, capture_output=True, text=True, check=True
            )
        except subprocess.TimeoutExpired:
            self.skip(case.name, "the budget ended during its float64 reference")
        except subprocess.CalledProcessError as error:
            words = (error.stderr.strip().splitlines() or ["no words"])[-1][:300]
            self.skip(case.name, f"its float64 reference failed: {words}")
        else:
            self.say(f"float64 reference of {done.stdout.strip()}")
            return True
        return False

    def settings(self, seconds: float, threads: int) -> Settings:
        seconds = min(seconds, self.args.seconds)
        return Settings(self.cache, threads, self.args.rounds, seconds, self.deadline())

    def time_case(self, case: Case, busy: bool, seconds: float) -> None:
        """The case's rounds take half of the seconds given: opening and checking take the rest."""
        if not self.refer(case):
            return
        name = f"{case.name} busy" if busy else case.name
        with busy_neighbours(busy):
            result = measure(
                case, case.files(self.args.folder), self.contestants, self.settings(seconds / 2, self.args.threads)
            )
        for contestant, entry in result["contestants"].items():
            self.results["versions"].setdefault(contestant.split()[0], entry["version"])
        for who, why in result["absent"].items():
            self.say(f"{who} does not take part: {why}")
        self.results["absent"] |= result["absent"]
        self.contestants = [c for c in self.contestants if c.name not in result["absent"]]
        if not result["contestants"]:
            self.skip(name, "; ".join(f"{who}: {why}" for who, why in result["failed"].items()) or "nobody to time")
            return
        self.results["cases"][name] = result
        self.say(report.case_text(name, result))

    def time_starts(self, case: Case, seconds: float) -> None:
        files, threads = case.files(self.args.folder), self.args.threads
        result = measure_starts(
            files.model,
            files.feeds,
            self.contestants,
            threads,
            self.args.starts,
            seconds,
            self.deadline(),
            worker=WORKER,
            is_stepwise=bool(case.steps),
        )
        self.results["starts"][case.model] = result
        self.say(report.starts_text(case.model, result))

    def scale(self, case: Case, seconds: float) -> None:
        contestants = [c for c in self.contestants if c.engine == "onnxruntime" or (c.is_ours and c.name == "sardonyx")]
        if not self.refer(case):
            return
        counts = [n for n in THREADS if n <= len(cores())]
        if len(counts) < len(THREADS):
            self.skip(f"{case.name} above {counts[-1]} threads", f"there are {len(cores())} cores")
        results = []
        for n in counts:
            settings = self.settings(seconds / 2 / len(counts), n)
            results.append(measure(case, case.files(self.args.folder), contestants, settings))
            self.say(f"{case.name}, {n} threads: " + times_text(results[-1]))
        results = [r for r in results if r["contestants"]]
        if not results:
            return
        self.results["scaling"][case.name] = results
        self.say(report.scaling_text(case.name, results))

    def jobs(self) -> Iterator[tuple[str, Callable[[float], None]]]:
        """Everything asked for, most wanted first, each to be called with its share of the seconds left."""
        timed = [(case.name, partial(self.time_case, case, self.args.busy)) for case in self.cases]
        firsts = [case for case in self.cases if case is next(c for c in self.cases if c.model == case.model)]
        started = [(f"{case.model}: starts", partial(self.time_starts, case)) for case in firsts if self.args.starts]
        yield from timed[:MAIN]
        if self.args.everything and not self.args.busy:
            yield from ((f"{case.name} busy", partial(self.time_case, case, True)) for case in self.cases[:1])
        yield from started[:1]
        if self.args.scaling and SCALING in self.cases:
            yield "scaling", partial(self.scale, SCALING)
        yield from timed[MAIN:]
        yield from started[1:]

    def go(self) -> None:
        self.prepare()
        jobs = list(self.jobs())
        for number, (name, job) in enumerate(jobs):
            if self.left() < LEAST_S:
                self.skip(name, "the budget is spent")
                continue
            job(max(LEAST_S, self.left() / (len(jobs) - number)))
            self.save()
        self.save()


def times_text(result: dict[str, Any]) -> str:
    return ", ".join(f"{n} {report.ms(e['median_s'])} ms" for n, e in result["contestants"].items())


def main() -> None:
    args = parse()
    old = json.loads(args.compare.read_text(encoding="utf-8")) if args.compare else None
    with tempfile.TemporaryDirectory() as cache:
        run = Run(args, cache)
        run.go()
    if old is not None:
        print(report.comparison(old, run.results))
    if not run.results["cases"]:
        sys.exit("nothing was timed")


if __name__ == "__main__":
    main()

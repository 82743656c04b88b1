"""A contestant's process: opens a model once and then does what it is asked, one JSON line for one JSON line.

open    {contestant, model, threads, cache, clock}  import the engine and open the model
about   {}                                    what the engine made of the model; a session may build much to tell it
feed    {feeds, is_stepwise}                  take a case's feeds
turn    {runs, cores}                         run so often, maybe on certain cores; seconds of each run or step
check   {reference}                           run once; seconds, errors against the reference, digest of the answers
memory  {field}                               the most memory that this process has held, in MB, or holds (VmRSS)
limits  {threads, nbytes, moved}              what the machine can do
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.compare.cases import Feeds, cache_of, step_feeds, stored
from benchmarks.compare.engines import Contestant, Runner, Unavailable, import_engine, open_model
from benchmarks.compare.stats import relative_error

Reply = dict[str, Any]


class Worker:
    runner: Runner
    names: list[set[str]]
    feeds: Feeds
    steps: int

    def open(
        self, contestant: dict[str, str], model: str, threads: int, cache: str, clock: str = "perf_counter"
    ) -> Reply:
        asked, now = Contestant(**contestant), getattr(time, clock)
        start = now()
        package = import_engine(asked.engine)
        imported = now()
        self.runner = open_model(asked, package, model, threads, cache)
        opened = now()
        self.names = self.runner.names()
        version = str(getattr(package, "__version__", "")).split("-")[0]
        return {"import_s": imported - start, "open_s": opened - imported, "version": version}

    def about(self) -> Reply:
        return self.runner.about()

    def feed(self, feeds: str, is_stepwise: bool = False) -> Reply:
        self.feeds = stored(Path(feeds), "in")
        self.steps = self.feeds["input_ids"].shape[1] if is_stepwise else 0
        return {}

    def turn(self, runs: int, cores: list[int] | None = None) -> Reply:
        if cores is None:
            return {"seconds": self.times(runs)}
        before = os.sched_getaffinity(0)
        move_threads(cores)
        self.times(-(-runs // 4))  # brings caches along, and each thread to a core of its own
        seconds = self.times(runs)
        move_threads(before)  # threads that still spin do so out of the way of who comes next
        return {"seconds": seconds}

    def times(self, runs: int) -> list[float]:
        clock = time.perf_counter
        if self.steps:
            return [s for _ in range(runs) for s, _ in self.generate()]
        run, feeds, seconds = self.runner.run, self.feeds, []
        for _ in range(runs):
            start = clock()
            run(feeds)
            seconds.append(clock() - start)
        return seconds

    def generate(self) -> Iterator[tuple[float, Feeds]]:
        """Token by token, each step's seconds and outputs; keys and values given are keys and values fed."""
        ids, cache = self.feeds["input_ids"], {n: v for n, v in self.feeds.items() if n.startswith("past")}
        for step in range(self.steps):
            feeds = step_feeds(ids, step, cache)
            start = time.perf_counter()
            answers = self.runner.run(feeds)
            seconds = time.perf_counter() - start
            outputs = self.named(answers)
            cache = {name: value.copy() for name, value in cache_of(outputs).items()}
            yield seconds, outputs

    def named(self, results: list[Any]) -> Feeds:
        return {name: result for names, result in zip(self.names, results, strict=True) for name in names}

    def check(self, reference: str) -> Reply:
        wanted = stored(Path(reference), "out")
        if self.steps:
            seconds, told = zip(*((s, outputs["logits"].copy()) for s, outputs in self.generate()), strict=True)
            answers = {"logits": np.concatenate(told, axis=1)}
        else:
            start = time.perf_counter()
            results = self.runner.run(self.feeds)
            seconds = (time.perf_counter() - start,)
            answers = self.named(results)
        digest = hashlib.sha256(b"".join(np.ascontiguousarray(answers[name]).tobytes() for name in wanted))
        errors = {name: relative_error(answers[name], wanted[name]) for name in wanted}
        return {"seconds": seconds, "errors": errors, "digest": digest.hexdigest()[:16]}

    def memory(self, field: str = "VmHWM") -> Reply:
        with open("/proc/self/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return {"mb": int(fields[field].split()[0]) * 1024 / 1e6}

    def limits(self, threads: int, nbytes: int, moved: int) -> Reply:
        from benchmarks.compare.limits import measure

        return measure(threads, nbytes, moved)


def move_threads(cores: Iterable[int]) -> None:
    """All threads of this process, an engine's own too, run on these cores from now on."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it has just ended
            os.sched_setaffinity(int(thread), cores)


def serve(worker: Worker, requests: TextIO, replies: TextIO) -> None:
    for line in requests:
        request = json.loads(line)
        action: Callable[..., Reply] = getattr(worker, request.pop("do"))
        try:
            reply = action(**request)
        except Unavailable as why:
            reply = {"unavailable": str(why)}
        except Exception as error:
            reply = {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main(worker: Worker) -> None:
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever an engine prints goes to stderr
    serve(worker, sys.stdin, pipe)


if __name__ == "__main__":
    main(Worker())

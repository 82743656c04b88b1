"""A contestant's process: opens a model once and then does what it is asked, one JSON line for one JSON line.

open    {contestant, model, threads, cache, clock}  import the engine and open the model
about   {}                                    what the engine made of the model; a session may build much to tell it
feed    {feeds, key}                          take feeds from a file, under a key
warm    {seconds, key}                        run until the times no longer fall; seconds of the first two runs
turn    {runs, cores, callers, key}           run so often, maybe on certain cores; seconds of each run
answer  {path, key}                           run once and write the outputs
memory  {field}                               the most memory that this process has held, in MB, or holds (VmRSS)
limits  {threads, nbytes, moved}              what the machine can do
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from sardonyx.bench.arrays import Feeds, store, stored
from sardonyx.bench.engines import Contestant, Runner, Unavailable, import_engine, open_model

Reply = dict[str, Any]
BLOCK_RUNS, BLOCK_S = 3, 0.1
"""Warm-up goes block by block, each of so many runs and seconds."""
WARM_SHARE = 0.25
"""Of a turn's runs, as many again come before those that are timed."""
STEADY, FALL = 3, 0.02
"""Times are stable when so many blocks in a row have not fallen by more than this share below the best before them."""


class Worker:
    runner: Runner
    names: list[set[str]]
    feeds: Feeds

    def __init__(self) -> None:
        self._by_key: dict[str, Feeds] = {}

    def open(
        self, contestant: dict[str, Any], model: str, threads: int, cache: str, clock: str = "perf_counter"
    ) -> Reply:
        asked, now = Contestant(**contestant), getattr(time, clock)
        start = now()
        package = import_engine(asked.engine)
        imported, held_mb = now(), self.memory("VmRSS")["mb"]
        self.runner = open_model(asked, package, model, threads, cache)
        opened = now()
        self.names = self.runner.names()
        version = str(getattr(package, "__version__", "")).split("-")[0]
        return {
            "import_s": imported - start,
            "open_s": opened - imported,
            "version": version,
            "engine_mb": held_mb,
        }

    def about(self) -> Reply:
        return self.runner.about()

    def feed(self, feeds: str, key: str = "") -> Reply:
        self.feeds = self._by_key[key] = stored(Path(feeds), "in")
        return {}

    def warm(self, seconds: float, key: str = "") -> Reply:
        self.feeds = self._by_key[key]
        first, second = self.times(2)
        blocks: list[float] = []
        runs, end, is_stable = 2, time.perf_counter() + seconds, False
        while not is_stable and (time.perf_counter() < end or not blocks):
            block: list[float] = []
            while len(block) < BLOCK_RUNS or sum(block) < BLOCK_S:
                block += self.times(1)
                if time.perf_counter() > end:
                    break
            blocks.append(statistics.median(block))
            runs += len(block)
            is_stable = is_steady(blocks)
        return {"first_s": first, "second_s": second, "run_s": blocks[-1], "runs": runs, "is_stable": is_stable}

    def turn(self, runs: int, cores: list[int] | None = None, callers: int = 1, key: str | None = None) -> Reply:
        if key is not None:
            self.feeds = self._by_key[key]
        times = self.times if callers == 1 else lambda count: self.times_of_callers(count, callers)
        if cores is None:
            return self._timed(times, runs)
        before = os.sched_getaffinity(0)
        move_threads(cores)
        times(math.ceil(WARM_SHARE * runs))  # brings caches along, and each thread to a core of its own
        reply = self._timed(times, runs)
        move_threads(before)  # threads that still spin do so out of the way of who comes next
        return reply

    def _timed(self, times: Callable[[int], list[float]], runs: int) -> Reply:
        start = time.perf_counter()
        seconds = times(runs)
        return {"seconds": seconds, "wall_s": time.perf_counter() - start}

    def times(self, runs: int) -> list[float]:
        clock = time.perf_counter
        run, feeds, seconds = self.runner.run, self.feeds, []
        for _ in range(runs):
            start = clock()
            run(feeds)
            seconds.append(clock() - start)
        return seconds

    def times_of_callers(self, runs: int, callers: int) -> list[float]:
        """Of so many runs by each of several threads, which begin together."""
        found: list[list[float]] = []
        errors: list[BaseException] = []
        begun = threading.Barrier(callers)

        def call() -> None:
            try:
                begun.wait()
                found.append(self.times(runs))
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=call) for _ in range(callers)]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        if errors:
            raise errors[0]
        return [seconds for each in found for seconds in each]

    def named(self, results: list[Any]) -> Feeds:
        return {name: result for names, result in zip(self.names, results, strict=True) for name in names}

    def answer(self, path: str, key: str = "") -> Reply:
        store(Path(path), out=self.named(self.runner.run(self._by_key[key])))
        return {}

    def memory(self, field: str = "VmHWM") -> Reply:
        with open("/proc/self/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        return {"mb": int(fields[field].split()[0]) * 1024 / 1e6}

    def limits(self, threads: int, nbytes: int, moved: int) -> Reply:
        from sardonyx.bench.limits import measure

        return measure(threads, nbytes, moved)


def is_steady(blocks: list[float]) -> bool:
    """Whether the last blocks were no faster than those before them."""
    if len(blocks) <= STEADY:
        return False
    return min(blocks[-STEADY:]) >= (1 - FALL) * min(blocks[:-STEADY])


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
    with suppress(KeyboardInterrupt):  # the parent is interrupted, too, and says so
        serve(worker, sys.stdin, pipe)


if __name__ == "__main__":
    main(Worker())

"""Threads, forks and cancels for as long as you like: every answer is the one that was computed before, and memory does
not grow.

    python fuzz/stress_threads.py [SECONDS] [--threads 8] [--models 12] [--folder DIR] [--seed 0]

Threads take random models and shapes. In between they make sessions and drop others that may be running, hold results
for a while and look at them again, stop runs that would never end (a terminate flag, a timeout, a cancelled task), and
fork children, which run the sessions of their parent and some of their own. A difference, an error that nobody asked
for, a crash or a hang of a child, or memory that grows is a finding: each is printed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from stress_models import Feeds, Model, endless, model_in, model_of

import sardonyx
from sardonyx.errors import SardonyxError

SHAPES = 12
"""Of each model."""
CHILD_S, STOP_S = 120, 120
"""How long a child, a stopped run, or a thread when time is up may take."""
GROWTH, GROWTH_MIB = 0.05, 32
"""What memory may grow by from the first half, after everything has run once, to the second."""
HELD = 20
"""Results that a thread holds on to."""

Answers = list[Any]


class Finding(Exception):
    """What should not have happened."""


class Case:
    """A model with a number of feeds and what it answers to each."""

    def __init__(self, model: Model) -> None:
        self.model = model
        session = sardonyx.InferenceSession(model.content)
        self.feeds: list[Feeds] = []
        self.answers: list[Answers] = []
        for number in range(SHAPES):
            feeds = model.feeds(number)
            with contextlib.suppress(SardonyxError):  # sizes that a model given by the user does not take
                self.answers.append(session.run(None, feeds))
                self.feeds.append(feeds)
        if not self.feeds:
            raise ValueError(f"{model.name} takes none of the feeds that were drawn")

    def check(self, i: int, got: Sequence[Any], where: str) -> None:
        for name, (a, b) in enumerate(zip(got, self.answers[i], strict=True)):
            if not _is_same(a, b):
                shapes = {n: x.shape for n, x in self.feeds[i].items()}
                raise Finding(f"{where}: output {name} of {self.model.name} for {shapes} is not what it was before")


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(b, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return bool(a == b)


class Stress:
    """All threads work on one set of sessions."""

    def __init__(self, cases: list[Case], seed: int) -> None:
        self.cases, self.seed = cases, seed
        self.sessions = [_session(case.model.content, 1) for case in cases]
        self.endless = _session(endless(), 2)
        self.findings: list[str] = []
        self.done: Counter[str] = Counter()
        self.is_over = threading.Event()
        self._lock = threading.Lock()

    def work(self, number: int) -> None:
        """A thread's life."""
        pick, held = random.Random(f"{self.seed}-{number}"), list[tuple[Case, int, Answers]]()
        actions: dict[Callable[..., None], int] = {
            self._run: 60, self._run_bound: 8, self._renew: 6, self._terminate: 3, self._time_out: 2, self._cancel: 1,
            self._fork: 1,
        }  # fmt: skip
        while not self.is_over.is_set():
            action = pick.choices(list(actions), list(actions.values()))[0]
            try:
                action(pick, held)
            except Exception as error:
                told = str(error) if isinstance(error, Finding) else traceback.format_exc()
                with self._lock:
                    self.findings.append(f"thread {number}, {action.__name__.strip('_')}: {told}")
                if len(self.findings) >= 20:
                    self.is_over.set()
            with self._lock:
                self.done[action.__name__.strip("_")] += 1

    def _pick(self, pick: random.Random) -> tuple[Case, sardonyx.InferenceSession, int]:
        at = pick.randrange(len(self.cases))
        case = self.cases[at]
        return case, self.sessions[at], pick.randrange(len(case.feeds))

    def _run(self, pick: random.Random, held: list[tuple[Case, int, Answers]]) -> None:
        case, session, i = self._pick(pick)
        got = session.run(None, case.feeds[i])
        case.check(i, got, "run")
        held.append((case, i, got))
        if len(held) > HELD:
            older, j, results = held.pop(pick.randrange(HELD))
            older.check(j, results, "held while others ran")

    def _run_bound(self, pick: random.Random, held: object) -> None:
        case, session, i = self._pick(pick)
        binding = session.io_binding()
        for name, array in case.feeds[i].items():
            binding.bind_cpu_input(name, array)
        for given in session.get_outputs():
            binding.bind_output(given.name)
        session.run_with_iobinding(binding)
        case.check(i, binding.copy_outputs_to_cpu(), "run with IO binding")

    def _renew(self, pick: random.Random, held: object) -> None:
        """Drop a session, that another thread may be running, for one like it."""
        at = pick.randrange(len(self.cases))
        self.sessions[at] = _session(self.cases[at].model.content, pick.choice([1, 1, 2, 3]))

    def _terminate(self, pick: random.Random, held: object) -> None:
        options = sardonyx.RunOptions()
        timer = threading.Timer(pick.uniform(0, 0.02), setattr, (options, "terminate", True))
        timer.start()
        try:
            self._run_endless(lambda feeds: self.endless.run(None, feeds, options))
        except SardonyxError as error:
            if "terminate flag" not in str(error):
                raise
        finally:
            timer.join()

    def _time_out(self, pick: random.Random, held: object) -> None:
        with contextlib.suppress(TimeoutError):
            timeout = pick.uniform(0.001, 0.02)
            self._run_endless(lambda feeds: asyncio.run(self.endless.run_awaitable(None, feeds, timeout=timeout)))

    def _cancel(self, pick: random.Random, held: object) -> None:
        async def cancelled(feeds: Feeds) -> None:
            task = asyncio.create_task(self.endless.run_awaitable(None, feeds))
            await asyncio.sleep(pick.uniform(0, 0.02))
            task.cancel()
            await task

        with contextlib.suppress(asyncio.CancelledError):
            self._run_endless(lambda feeds: asyncio.run(cancelled(feeds)))

    def _run_endless(self, run: Callable[[Feeds], object]) -> None:
        start = time.monotonic()
        try:
            run({"x": np.ones(500, np.float32), "trips": np.array(10**7)})
        finally:
            if time.monotonic() - start > STOP_S:
                raise Finding(f"a run that was to be stopped went on for {time.monotonic() - start:.0f} s")
        raise Finding("a run that has no end came to it")

    def _fork(self, pick: random.Random, held: object) -> None:
        choices = [self._pick(pick) for _ in range(4)]
        is_new = pick.random() < 0.3
        child = os.fork()
        if not child:
            _in_child(choices, is_new)
        status = _awaited(child)
        if status:
            raise Finding(f"a forked child ended with {status}; its own words are above")


def _session(content: bytes, threads: int) -> sardonyx.InferenceSession:
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = threads
    return sardonyx.InferenceSession(content, options)


def _in_child(choices: list[tuple[Case, sardonyx.InferenceSession, int]], is_new: bool) -> None:
    code = 1
    try:
        faulthandler.dump_traceback_later(CHILD_S - 20, exit=True)
        if is_new:
            case, _, i = choices[0]
            choices = [(case, _session(case.model.content, 2), i), *choices]
        for case, session, i in choices:
            case.check(i, session.run(None, case.feeds[i]), "in a forked child")
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _awaited(child: int) -> int:
    """The exit code of a child; one that hangs is killed."""
    end = time.monotonic() + CHILD_S
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise Finding(f"a forked child hung for {CHILD_S} s")


def memory_mib() -> float:
    """What the process takes that nobody else has."""
    gc.collect()
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise OSError("the system does not tell RssAnon")


def grown(samples: Sequence[float]) -> str | None:
    """What is wrong with a course of memory: the least of its end is compared with the most of its middle."""
    count = len(samples)
    middle, end = samples[count // 4 : count // 2], samples[-max(count // 4, 1) :]
    if not middle or min(end) <= max(middle) * (1 + GROWTH) + GROWTH_MIB:
        return None
    return f"memory grew from {max(middle):.0f} MiB to {min(end):.0f} MiB"


def stress(cases: list[Case], seconds: float, threads: int, seed: int) -> list[str]:
    """The findings."""
    made = Stress(cases, seed)
    workers = [threading.Thread(target=made.work, args=(i,), daemon=True) for i in range(threads)]
    for worker in workers:
        worker.start()
    end, samples, told = time.monotonic() + seconds, list[float](), time.monotonic()
    while time.monotonic() < end and not made.is_over.is_set():
        made.is_over.wait(min(max(seconds / 200, 0.1), max(end - time.monotonic(), 0)))
        samples.append(memory_mib())
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{end - told:6.0f} s left, {samples[-1]:.0f} MiB, {dict(made.done)}", flush=True)
    made.is_over.set()
    for i, worker in enumerate(workers):
        worker.join(STOP_S)
        if worker.is_alive():
            faulthandler.dump_traceback(all_threads=True)
            made.findings.append(f"thread {i} hangs; where is above")
    problem = grown(samples)
    if problem:
        made.findings.append(problem)
    print(f"done: {dict(made.done)}; memory {samples[0]:.0f} to {samples[-1]:.0f} MiB, at most {max(samples):.0f}")
    return made.findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seconds", type=float, nargs="?", default=3600)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--models", type=int, default=12, help="how many are built from seeds")
    parser.add_argument("--folder", type=Path, help="other models, each *.onnx")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
    faulthandler.enable()
    logging.getLogger("asyncio").setLevel(
        logging.CRITICAL
    )  # it reports runs that end after their event loop was closed
    models = [model_of(args.seed * 1000 + i) for i in range(args.models)]
    models += [model_in(path) for path in sorted(args.folder.glob("*.onnx"))] if args.folder else []
    cases = []
    for model in models:
        try:
            cases.append(Case(model))
        except (SardonyxError, ValueError) as error:
            print(f"left out: {error}")
    findings = stress(cases, args.seconds, args.threads, args.seed)
    for finding in findings:
        print(f"FOUND {finding}")
    print(f"{len(findings)} findings with {len(cases)} models, {args.threads} threads, seed {args.seed}")
    sys.stdout.flush()
    if any(thread.daemon and thread.name.startswith("Thread") for thread in threading.enumerate()):
        os._exit(1)  # a thread that hangs must not keep the process
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())

"""The child process that runs a block of cases, and reports each to the runner before and after it runs."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import resource
import struct
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from fuzz.cases import Case
from fuzz.execute import Watch, execute
from fuzz.fuzzers import case_of
from fuzz.judge import Verdict, judged
from fuzz.oracle import Oracle

NBYTES = 8 << 30
"""Memory that a worker may take in addition to what it inherits."""
PEAK_NBYTES = 1500 << 20
"""From where on the memory of one case is a finding."""
MUTATIONS = 3
PHASES = ("make", "build", "run", "judge")
KNOBS = {"SARDONYX_CHECK_ADDRESSES": "1", "SARDONYX_GUARD_PAGES": "end", "SARDONYX_VERIFY": "1"}


class Slot:
    """Shared memory in which a worker says what it is at: index, mutation (-1 for none), run, phase, and what
    processor time it had taken before.
    """

    FORM = struct.Struct("<qqqqd")

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.write(-1, None, 0, "make")

    def write(self, index: int, mutation: int | None, run: int, phase: str) -> None:
        number = -1 if mutation is None else mutation
        self._memory[: self.FORM.size] = self.FORM.pack(index, number, run, PHASES.index(phase), time.process_time())

    def read(self) -> tuple[int, int | None, int, str, float]:
        index, mutation, run, phase, since = self.FORM.unpack(self._memory[: self.FORM.size])
        return index, None if mutation < 0 else mutation, run, PHASES[phase], since


@dataclass
class Report:
    """How the runs of one case ended, and what it reached for the first time."""

    index: int
    mutation: int | None
    verdicts: list[Verdict]
    reached: set[str] = field(default_factory=set)
    operator: str = ""


def settle(cpu: str | None, *, with_limits: bool = True) -> None:
    """Knobs and limits of a fresh child."""
    os.environ.update(KNOBS)
    os.environ.pop("SARDONYX_CPU", None)
    if cpu is not None:
        os.environ["SARDONYX_CPU"] = cpu
    faulthandler.enable()
    if with_limits:
        used = int(_status("VmSize")) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (used + NBYTES, used + NBYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _status(name: str) -> str:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(line.split()[1] for line in file if line.startswith(f"{name}:"))


def _forget_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def tried(
    case: Case, watch: Watch, oracle: Oracle | None, slot: Slot | None = None, at: tuple[int, int | None] = (0, None)
) -> Report:
    """Run a case and judge it."""
    _forget_peak()
    before = int(_status("VmRSS"))
    on_phase = (lambda run, phase: slot.write(*at, run, phase)) if slot else (lambda run, phase: None)
    outcomes, reached = execute(case, watch, on_phase)
    nbytes = (int(_status("VmHWM")) - before) * 1024
    verdicts = []
    for i, outcome in enumerate(outcomes):
        on_phase(i, "judge")
        verdicts.append(judged(case, i, outcome, oracle))
    if nbytes > PEAK_NBYTES:
        verdicts[0] = Verdict("found", f"{case.operator}: memory", f"a case takes {nbytes >> 20} MiB")
    return Report(*at, verdicts, reached, case.operator)


def work(fuzzer: str, seed: int, indices: range, cpu: str | None, slot: Slot, pipe: int, seen: set[str] | None) -> None:
    """Run the cases of a block; ``seen`` is what earlier cases reached, None to follow no lead."""
    oracle = Oracle()
    settle(cpu)
    watch = Watch()
    for index in indices:
        queue: list[int | None] = [None]
        while queue:
            mutation = queue.pop(0)
            slot.write(index, mutation, 0, "make")
            try:
                case = case_of(fuzzer, seed, index, mutation)
            except Exception as why:  # what a draw leads to may be no model, such as an attribute of 65 bits
                print(f"{fuzzer}/{seed}/{index}+{mutation} is not made: {why!r}", file=sys.stderr, flush=True)
                continue
            report = tried(case, watch, oracle, slot, (index, mutation))
            if seen is not None:
                report.reached -= seen
                seen |= report.reached
                if report.reached and mutation is None:
                    queue += range(MUTATIONS)
            else:
                report.reached = set()
            _send(pipe, report)
    _send(pipe, None)
    oracle.close()


def _send(pipe: int, message: Any) -> None:
    content = pickle.dumps(message)
    view = memoryview(struct.pack("<Q", len(content)) + content)
    while view:
        view = view[os.write(pipe, view) :]

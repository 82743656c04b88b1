"""No memory at each allocation of a start, and of a run.

python -m tests.faults.memory calls FOLDER     the allocator and numpy's functions fail, one call after the other
python -m tests.faults.memory limits FOLDER    the system gives the process only so much
"""

from __future__ import annotations

import os
import resource
import sys
from functools import partial
from itertools import chain, count
from pathlib import Path

from tests.faults import harness
from tests.faults.harness import MEMORY, Fault, faulty, no_memory
from tests.slices import first

LARGE = 4096
EACH, EVERY = 60, 7


def calls(model: str) -> None:
    """The n-th call fails: one after the other at first, then every seventh, others at each commit."""
    for what in ("start", "run"):
        session, fired = harness.started(model), 0
        for n in chain(range(EACH), count(EACH + first(EVERY), EVERY)):
            harness.forget()
            with faulty(MEMORY, Fault(n, no_memory)) as fault:
                try:
                    if what == "start":
                        harness.started(model)
                    else:
                        harness.check(session, 2 + n % 5)
                except harness.allowed():
                    fired += 1
            if not fault.is_met:
                break
            if what == "run":
                harness.check(session)
                harness.check(session, LARGE)
        print(what, "calls", n, "raised", fired, flush=True)
        assert fired
        harness.check(harness.started(model))


def limits(model: str) -> None:
    harness.check(harness.started(model))

    def limit(nbytes: int) -> None:
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, resource.RLIM_INFINITY))

    def start(nbytes: int) -> None:
        limit(nbytes)
        harness.forget()
        session = harness.started(model)
        harness.check(session)
        harness.check(session, LARGE)

    def run(nbytes: int) -> None:
        session = harness.started(model)
        harness.check(session)
        limit(nbytes)
        try:
            harness.check(session, 8 * LARGE)
        except harness.allowed():
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            harness.check(session, 8 * LARGE)
            raise

    for what in (start, run):
        met = set()
        for nbytes in (0, *(1 << k for k in range(14, 30))):
            code = harness.in_a_child(partial(what, nbytes))
            print(what.__name__, nbytes, code, flush=True)
            assert code in (0, 1), f"{code} with {nbytes} bytes"
            met.add(code)
        assert met == {0, 1}


def main(how: str, folder: str) -> None:
    os.environ["SARDONYX_CACHE"] = "off"
    model = harness.write(Path(folder) / "model.onnx")
    if how == "calls":
        harness.remember_compiled()
    {"calls": calls, "limits": limits}[how](str(model))


if __name__ == "__main__":
    main(*sys.argv[1:])

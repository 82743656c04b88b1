"""No space, or a broken disk, at each call of a file system during a cold start.

python -m tests.faults.disk ERRNO FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.faults import harness
from tests.faults.harness import FILES, WRITES, Fault, error, faulty, points
from tests.waiting import let_threads_end


def main(number: str, folder: str) -> None:
    cache, model = Path(folder) / "cache", harness.write(Path(folder) / "model.onnx")
    os.environ["SARDONYX_CACHE"] = str(cache)
    harness.remember_compiled()
    for functions in (WRITES, FILES):
        for n in points():
            harness.empty(cache)
            harness.forget()
            with faulty(functions, Fault(n, error(int(number)))) as fault:
                try:
                    harness.check(harness.started(model))
                    outcome = "right"
                except harness.allowed() as problem:
                    outcome = f"{type(problem).__name__}: {problem}"
                let_threads_end()
            if not fault.is_met:
                break
            print(n, fault.name, outcome, flush=True)
            sessions = []
            for _ in range(2):
                harness.forget()
                sessions.append(harness.started(model))
                harness.check(sessions[-1])
            assert harness.was_kept(sessions[-1]), "the cache does not recover"
            assert fault.name == "unlink" or not harness.left_over(cache), harness.left_over(cache)
        print("calls", n, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

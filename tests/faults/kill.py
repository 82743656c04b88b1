"""kill -9 at each call that may change a folder during a cold start; then starts as usual.

python -m tests.faults.kill FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.faults import harness
from tests.faults.harness import STEPS, Fault, faulty, killed, points


def main(folder: str) -> None:
    cache, model = Path(folder) / "cache", harness.write(Path(folder) / "model.onnx")
    os.environ["SARDONYX_CACHE"] = str(cache)
    harness.remember_compiled()
    harness.check(harness.started(model))

    def start(n: int) -> None:
        harness.forget()
        with faulty(STEPS, Fault(n, killed)):
            harness.check(harness.started(model))

    def usual() -> None:
        for _ in range(2):
            harness.forget()
            session = harness.started(model)
            harness.check(session)
        assert harness.was_kept(session), "the cache does not recover"

    harness.empty(cache)
    most = 0
    for round_, n in enumerate(points()):
        code = harness.in_a_child(lambda n=n: start(n))
        most = max(most, len(harness.left_over(cache)))
        if code == 0:
            break
        assert code == -signal.SIGKILL, code
        assert harness.in_a_child(usual) == 0, n
        if round_ % 2:
            harness.empty(cache)
        else:
            for path in cache.glob("*.start"):
                path.unlink()
    print("calls", n, "left", most, flush=True)
    assert most <= harness.THREADS, f"{most} temporary files are left"


if __name__ == "__main__":
    main(*sys.argv[1:])

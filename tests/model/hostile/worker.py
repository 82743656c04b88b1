"""Runs a family of hostile cases, each in a forked child, and prints what became of it as lines of JSON.

    python worker.py FAMILY [EVERY FIRST [NAME...]]

The child loads and runs the model in each of ``WAYS``: at optimization levels, by the reference provider and, of every
``EVERY`` cases the one at ``FIRST``, compiled with addresses checked. Measured are the processor time of each, the
growth of resident memory over that of an idle child, and the way the child ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.model.hostile.cases import Case

USUAL_S, SLOWEST = 0.03, 3.0
"""Of processor time for 300,000 squares on an idle core, at most; and by what others may lengthen it."""
LONG_S, TOO_LONG_S = 1.0, 1.8
"""From the first on it is asked how slow the core is, from the second on a case may try again."""
WAYS = (("disabled", False), ("all", False), ("all", True))
"""Optimization levels, and whether what can be compiled is."""
HANG_S = 30
"""Wall time after which a child is killed; the processor time that counts is judged by the test."""
LAST_RESORT_NBYTES = 16 << 30
"""Far above what a case may take, so that it is our checks that refuse, and far below what would hurt the machine."""


def outcome(case: Case, folder: Path, ways: Sequence[tuple[str, bool]] = WAYS) -> dict[str, Any]:
    """What loading and running the model gives at every level: an error's class, or results that agree."""
    from sardonyx import errors
    from sardonyx.interpret.context import RunContext
    from sardonyx.session.build import BuildOptions, build

    source = case.source
    if callable(source):
        source = source(folder)
    elif isinstance(source, onnx.ModelProto):
        source = source.SerializeToString()
    ends: list[dict[str, Any]] = []
    results: list[list[Any]] = []
    seconds: list[float] = []
    for level, is_compiled in ways:
        start = time.process_time()
        try:
            engine = build(source, BuildOptions(providers=[_compiler()] if is_compiled else [], level=level))
            names = [v.name for v in engine.outputs]
            results.append(engine.run(case.feeds, names, RunContext()))
            ends.append({"error": None})
        except errors.SardonyxError as e:
            ends.append({"error": [c.__name__ for c in type(e).__mro__], "text": str(e)[:300]})
        except BaseException as e:
            return {"error": ["escaped", type(e).__name__], "text": traceback.format_exc()[-1500:]}
        seconds.append(time.process_time() - start)
    # How much memory a way takes is its own affair; what it computes is not.
    if results and all(end["error"] is None or end["error"][0] == "OutOfBudget" for end in ends):
        peers = [onnxruntime_results(source, case.feeds)] if case.peer else []
        agree = all(
            same(a, b) for other in (*results[1:], *peers) if other for a, b in zip(results[0], other, strict=True)
        )
        end = {"error": None, "agree": agree}
    elif any(end["error"] is None for end in ends):
        end = {"error": ["ways differ"], "text": f"{ends}"}
    else:
        end = ends[0]
    longest = max(seconds)
    return {**end, "seconds": longest / slowness() if longest > LONG_S else longest}


def _compiler() -> Any:
    from sardonyx.providers.cpu import CpuProvider

    return CpuProvider(threads=1)


def slowness() -> float:
    """How much longer than usual this core takes at the moment: others may share it."""
    start = time.process_time()
    sum(i * i for i in range(300_000))
    return min(max(1.0, (time.process_time() - start) / USUAL_S), SLOWEST)


def onnxruntime_results(source: bytes, feeds: dict[str, Any]) -> list[Any] | None:
    """What onnxruntime makes of the model; None where it is not here, or refuses."""
    try:
        import onnxruntime

        return list(onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, feeds))
    except Exception:
        return None


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if not isinstance(a, np.ndarray):
        return bool(a == b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind in "fc":
        return bool(np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True))
    return a.tobytes() == b.tobytes() if a.dtype != object else a.tolist() == b.tolist()


def warm_up() -> None:
    """Import and build what every case needs, so that a child pays for its own model only."""
    with contextlib.suppress(ImportError):
        import onnxruntime  # noqa: F401
    from tests.model.hostile.cases import const, model, node

    plain = model([node("Relu", "x", "a"), node("Add", "a c")], const("c", [1.0, 2.0]))
    evil = Case("warm-up", plain, None)
    assert outcome(evil, Path())["error"] is None


def measured(case: Case, idle_nbytes: int, ways: Sequence[tuple[str, bool]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            resource.setrlimit(resource.RLIMIT_AS, (LAST_RESORT_NBYTES, LAST_RESORT_NBYTES))
            text = json.dumps(outcome(case, Path(folder), ways))
            os.write(write, text.encode()[:60_000])
            os._exit(0)
        os.close(write)
        status, usage = wait(pid)
        with os.fdopen(read, "rb") as pipe:
            text = pipe.read().decode()
    end = json.loads(text) if text else {"error": ["died"], "text": f"status {status}"}
    return {
        "name": case.name,
        "expected": case.error,
        **end,
        "seconds": end.get("seconds", usage.ru_utime + usage.ru_stime),
        "mbytes": max(0, usage.ru_maxrss * 1024 - idle_nbytes) / 1e6,
    }


def fairly_measured(case: Case, idle_nbytes: int, ways: Sequence[tuple[str, bool]]) -> dict[str, Any]:
    """How a case ended the first time, with the shortest of up to three times where that was near what it may take:
    neighbours come and go.
    """
    end = measured(case, idle_nbytes, ways)
    for _ in range(2):
        if end["seconds"] > TOO_LONG_S:
            end["seconds"] = min(end["seconds"], measured(case, idle_nbytes, ways)["seconds"])
    return end


def wait(pid: int) -> tuple[int, Any]:
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done:
            return status, usage
        time.sleep(0.002)
    os.kill(pid, 9)
    _, status, usage = os.wait4(pid, 0)
    return status, usage


def idle_nbytes() -> int:
    """Resident memory of a child that does nothing."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return int(os.wait4(pid, 0)[2].ru_maxrss) * 1024


def main() -> None:
    family = importlib.import_module(f"tests.model.hostile.{sys.argv[1]}")
    every = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    wanted = set(sys.argv[4:])
    warm_up()
    gc.freeze()  # a child's collections do not look at what it has inherited, nor copy its pages
    idle = idle_nbytes()
    for i, case in enumerate(family.cases()):
        if not wanted or case.name in wanted:
            ways = WAYS if i % every == first else [way for way in WAYS if not way[1]]
            print(json.dumps(fairly_measured(case, idle, ways)), flush=True)


if __name__ == "__main__":
    main()

"""Worker processes, from the outside."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from sardonyx.bench.engines import Contestant, Unavailable

TIMEOUT_S = 600.0
EXIT_S = 20.0
WORKER = "sardonyx.bench.worker"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Failed(Exception):
    """A contestant took part and failed."""


def environment() -> dict[str, str]:
    """For a child that imports what this process can import, with bytecode kept as installed."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


class Process:
    """A worker of its own interpreter; ends with the ``with`` block."""

    def __init__(
        self, threads: int, isa: str = "", cache: str = "", deadline: float = math.inf, worker: str = WORKER
    ) -> None:
        """``threads`` 0 leaves the number to the engine."""
        env = environment() | (dict.fromkeys(THREAD_VARIABLES, str(threads)) if threads else {})
        env |= {"SARDONYX_CPU": isa} if isa else {}
        env |= {"SARDONYX_CACHE": cache} if cache else {}
        self.threads, self.cache, self.deadline = threads, cache, deadline
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        command = [sys.executable, "-m", worker]
        self._child = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """The end of its requests ends a worker, which may then write what it keeps for its next start."""
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(EXIT_S if kind is None else 0)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        for file in (self._child.stdout, self._log):
            if file is not None:
                file.close()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """One request, one reply; Unavailable and Failed carry the worker's words."""
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise Failed(self._last_words()) from None
        timeout_s = min(TIMEOUT_S, max(1.0, self.deadline - time.monotonic()))
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                self._child.kill()
                raise Failed(f"no answer to '{do}' within {timeout_s:.0f} s")
        line = self._child.stdout.readline()
        if not line:
            raise Failed(self._last_words())
        reply: dict[str, Any] = json.loads(line)
        if "unavailable" in reply:
            raise Unavailable(reply["unavailable"])
        if "failed" in reply:
            raise Failed(reply["failed"])
        return reply

    def open(self, contestant: Contestant, model: Path, **more: Any) -> dict[str, Any]:
        who = {field.name: getattr(contestant, field.name) for field in dataclasses.fields(contestant)}
        return self.ask("open", contestant=who, model=str(model), threads=self.threads, cache=self.cache, **more)

    def _last_words(self) -> str:
        code = self._child.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return f"the process ended with {code}" + (f": {lines[-1][:300]}" if lines else "")

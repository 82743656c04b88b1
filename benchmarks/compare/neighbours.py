"""Busy neighbours, on purpose."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sardonyx.bench.machine import cores


@contextmanager
def busy_neighbours(wanted: bool) -> Iterator[None]:
    """A process that never rests on each core, where wanted."""
    spin = [sys.executable, "-c", "while True: pass"]
    children = [(core, subprocess.Popen(spin)) for core in cores()] if wanted else []
    try:
        for core, child in children:
            os.sched_setaffinity(child.pid, {core})
        yield
    finally:
        for _, child in children:
            child.kill()
            child.wait()

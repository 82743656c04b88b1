"""Which of many cases that are alike a run of the tests takes: others at each commit, so that all are seen in time.

SARDONYX_TEST_ALL=1    every case
SARDONYX_TEST_SLICE=N  the cases that the offset N gives, to repeat a failure; pytest's header prints it

The offset follows from the hash of HEAD, of which a shallow clone knows too, and is 0 outside of a repository.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

TEST_ALL = os.environ.get("SARDONYX_TEST_ALL", "") not in ("", "0")
VARIABLE = "SARDONYX_TEST_SLICE"
LARGEST = 720_720
"""Offsets are below it. Most steps divide it, so that no remainder is more likely than another."""


def _of_the_commit() -> int:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout.strip(), 16) % LARGEST


OFFSET = int(os.environ.get(VARIABLE) or _of_the_commit())
os.environ[VARIABLE] = str(OFFSET)  # for pytest-xdist's workers and the programs that tests start


def first(step: int) -> int:
    """The index of the first of every ``step``-th case."""
    return OFFSET % step


def is_taken(index: int, step: int) -> bool:
    """Whether a case is one of every ``step``-th."""
    return TEST_ALL or index % step == first(step)


def some(cases: Sequence[T], step: int) -> list[T]:
    """Every ``step``-th case, or all where all are asked for."""
    return [case for index, case in enumerate(cases) if is_taken(index, step)]

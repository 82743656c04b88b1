"""What one run carries with it: the cancel flag, the deadline, and the profile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sardonyx.errors import Fail


class RunContext:
    """One caller's run. ``stop`` may be set from another thread; it is looked at between steps."""

    __slots__ = ("deadline", "record", "stop")

    def __init__(
        self, *, timeout_s: float | None = None, record: Callable[[Any, int, int, Any, Any], None] | None = None
    ) -> None:
        self.stop = False
        self.deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self.record = record
        """Called as ``record(node, start_ns, end_ns, inputs, outputs)`` after each step, when given."""

    def check(self) -> None:
        """Raise if the run was cancelled or is late."""
        if self.stop:
            raise Fail("Exiting due to terminate flag being set to true.")
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise Fail("the run reached its deadline")

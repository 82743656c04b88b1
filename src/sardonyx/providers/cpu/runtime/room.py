"""Room for the rows of Loops that nothing bounds before a run."""

from __future__ import annotations

import numpy as np

from sardonyx.errors import OutOfBudget
from sardonyx.interpret.bodies import ENDLESS

FEW, FACTOR, LATER_FACTOR = 64, 4, 2
"""Room for up to so many rows grows by the first factor, then by the second: no run has much more than it needs. Later
runs find it large enough."""


class NeedsRoom(Exception):
    """A Loop has collected as many rows as there is room for, and goes on."""


class Room:
    """An array of as many bytes as there is room for rows. Kernels read its size alone."""

    def __init__(self, rows: int) -> None:
        self.array = np.empty(rows, np.uint8)

    def grow(self, used: int) -> None:
        """Make more room than for the rows that a run had room for, unless another thread did."""
        if self.array.size == used:
            if used >= ENDLESS:
                raise OutOfBudget("a Loop collects too many rows", expected=f"at most {used}")
            self.array = np.empty(used * (FACTOR if used < FEW else LATER_FACTOR), np.uint8)

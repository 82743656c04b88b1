"""States: inputs that every run replaces by an output."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.session.misuse import Misuse

Array = np.ndarray[Any, Any]


class State:
    """The value of an input for the next run.

    With a ``capacity``, the value lies at the start of a buffer with room for that many elements along ``axis``. A run
    that only appends writes the new elements and copies nothing.
    """

    def __init__(self, input_name: str, value: Array, capacity: int | None, axis: int) -> None:
        self.input_name = input_name
        self.memory: Array | None = None
        self.value = value.copy()
        if capacity is None:
            return
        if not -value.ndim <= axis < value.ndim:
            raise Misuse("the axis of a state is out of range", where=f"input {input_name!r}", got=axis)
        self.axis = axis % value.ndim
        shape = list(value.shape)
        shape[self.axis] = capacity
        self.memory = np.empty(shape, value.dtype)
        self.take(self.value)

    def take(self, result: Array) -> None:
        """Replace the value by an output; an output that was appended in place is already there."""
        if self.memory is None:
            self.value = result
            return
        size, room = result.shape[self.axis], self.memory.shape[self.axis]
        if size > room:
            raise Misuse(
                "a state has no room for what is appended", where=f"input {self.input_name!r}", expected=room, got=size
            )
        window = self.memory[(slice(None),) * self.axis + (slice(size),)]
        if not np.may_share_memory(result, self.memory):
            window[...] = result
        self.value = window

"""Counts the memory of live values against a run's budget. Arrays count once per owner of their elements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sardonyx.limits import Budget

TEXT_NBYTES = 56
"""Overhead of a Python string object."""


class Live:
    """Counts, against a budget, the live memory that one program's steps have allocated."""

    def __init__(self, budget: Budget, given: Iterable[Any]) -> None:
        """The makers of ``given`` have counted them, so they are not counted again."""
        self._budget, self._before = budget, budget.held_nbytes
        self._owners: dict[int, list[Any]] = {id(o): [o, 1, 0] for value in given for o in _owners(value)}

    def add(self, value: Any) -> None:
        """Count a new value; UntrustedRefusal if it exceeds the budget."""
        for owner in _owners(value):
            found = self._owners.setdefault(id(owner), [owner, 0, -1])
            found[1] += 1
            if found[2] < 0:
                found[2] = nbytes_of(owner)
                self._budget.hold(found[2], "the values of a run take too much memory")

    def drop(self, value: Any) -> None:
        """The value is no longer used."""
        for owner in _owners(value):
            found = self._owners.get(id(owner))
            if found is not None:
                found[1] -= 1
                if found[1] == 0:
                    self._budget.held_nbytes -= max(found[2], 0)
                    del self._owners[id(owner)]

    def end(self) -> None:
        """The program is over; its caller counts the results."""
        self._budget.held_nbytes = self._before


class HeldValues:
    """Counts the values that a loop or a chain of parts holds, against a budget if there is one."""

    def __init__(self, budget: Budget | None) -> None:
        self._budget = budget
        self._before = 0 if budget is None else budget.held_nbytes

    def set(self, values: Iterable[Any], collected_nbytes: int = 0) -> None:
        """Count these values and the rows collected so far, in place of what was counted before."""
        if self._budget is not None:
            self._budget.held_nbytes = self._before
            held = collected_nbytes + sum(map(nbytes_of, values))
            self._budget.hold(held, "the values held between trips or parts take too much memory")

    def release(self) -> None:
        if self._budget is not None:
            self._budget.held_nbytes = self._before


def _owners(value: Any) -> Iterator[Any]:
    """The objects that own the elements of a value."""
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _owners(item)
    elif isinstance(value, dict):
        yield value


def nbytes_of(value: Any) -> int:
    """Memory of a value; for strings and maps an estimate."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return value.nbytes + sum(TEXT_NBYTES + len(s) for s in value.flat if isinstance(s, str))
        return value.nbytes
    if isinstance(value, list):
        return sum(map(nbytes_of, value))
    return 200 * len(value) if isinstance(value, dict) else 0

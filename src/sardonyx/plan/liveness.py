"""When the memories of a program are in use."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)


class Access(NamedTuple):
    """What one step reads and writes."""

    reads: frozenset[object]
    writes: frozenset[object]


def intervals(accesses: Sequence[Access]) -> list[int]:
    """For each step the number of barriers before it: neighbours that do not touch each other's memory share one.

    Threads of a team are between the same two barriers at any time, so whatever lives in one interval lives at once.
    """
    numbers: list[int] = []
    read: set[object] = set()
    written: set[object] = set()
    now = 0
    for access in accesses:
        if access.reads & written or access.writes & written or access.writes & read:
            now += 1
            read.clear()
            written.clear()
        read |= access.reads
        written |= access.writes
        numbers.append(now)
    return numbers


def lifetimes(accesses: Sequence[Access], numbers: Sequence[int]) -> dict[object, tuple[int, int]]:
    """For every memory the first and the last interval in which it is touched."""
    found: dict[object, tuple[int, int]] = {}
    for access, now in zip(accesses, numbers, strict=True):
        for memory in access.reads | access.writes:
            first, _ = found.get(memory, (now, now))
            found[memory] = (first, now)
    return found

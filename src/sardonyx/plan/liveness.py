"""When the memories of a program are in use."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)


class Access(NamedTuple):
    """What one step reads and writes."""

    reads: frozenset[object]
    writes: frozenset[object]
    is_control: bool = False
    """All threads meet in front of it, and one of them carries it out before the others go on."""


def intervals(accesses: Sequence[Access]) -> list[int]:
    """For each step the number of barriers before it: neighbours that do not touch each other's memory share one.

    Threads of a team are between the same two barriers at any time, so whatever lives in one interval lives at once.
    """
    numbers: list[int] = []
    read: set[object] = set()
    written: set[object] = set()
    now = 0
    for access in accesses:
        if access.is_control:
            now += 1
            read.clear()
            written.clear()
            numbers.append(now)
            continue
        if access.reads & written or access.writes & written or access.writes & read:
            now += 1
            read.clear()
            written.clear()
        read |= access.reads
        written |= access.writes
        numbers.append(now)
    return numbers


def lifetimes(
    accesses: Sequence[Access], numbers: Sequence[int], loops: Sequence[tuple[int, int]] = ()
) -> dict[object, tuple[int, int]]:
    """For every memory the first and the last interval in which it is touched.

    ``loops`` are the first and the last steps of what is repeated: a memory that is touched in a loop and outside of it
    is in use all through the loop.
    """
    found: dict[object, tuple[int, int]] = {}
    for access, now in zip(accesses, numbers, strict=True):
        for memory in access.reads | access.writes:
            first, _ = found.get(memory, (now, now))
            found[memory] = (first, now)
    for begin, end in loops:
        inside = {memory for access in accesses[begin : end + 1] for memory in access.reads | access.writes}
        outside = (a for accesses_ in (accesses[:begin], accesses[end + 1 :]) for a in accesses_)
        for memory in inside & {memory for access in outside for memory in access.reads | access.writes}:
            first, last = found[memory]
            found[memory] = (min(first, numbers[begin]), max(last, numbers[end]))
    return found

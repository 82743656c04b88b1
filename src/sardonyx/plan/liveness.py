"""Lifetimes of a program's memories."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)


class Access(NamedTuple):
    """The memories that one step reads and writes."""

    reads: frozenset[object]
    writes: frozenset[object]
    is_control: bool = False
    """Whether all threads meet before the step and one of them executes it before the others go on."""


def intervals(accesses: Sequence[Access]) -> list[int]:
    """For each step the number of barriers before it: adjacent steps that share no memory need none between them.

    All threads of a team are always between the same two barriers, so everything in one interval is live at the same
    time.
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
    """The first and the last interval in which each memory is used.

    ``loops`` are the first and last steps of loops. A memory that is used inside and outside a loop lives through all
    of it.
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

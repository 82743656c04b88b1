"""Contestants in turns: all of them in every round, in an order that rotates, on the same cores, which rotate too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sardonyx.bench.process import Failed

Name = TypeVar("Name")
Reply = TypeVar("Reply")

LEAST_ROUNDS, LATE_ROUNDS = 5, 3
"""Rounds that are run even if the time is over, or over twice."""


def interleave(
    turns: Mapping[Name, Callable[[list[int]], Reply]],
    rounds: int,
    seconds: float,
    places: Sequence[list[int]],
    before: Callable[[int], object] = lambda number: None,
    first: int = 0,
) -> tuple[dict[Name, list[Reply]], dict[Name, str]]:
    """What each contestant's turns gave, round by round, and why some failed: those leave with the rounds they had.

    ``places`` are the cores of the rounds in turn, ``before`` is called with the number of each round, ``first`` is the
    number of the first.
    """
    found: dict[Name, list[Reply]] = {name: [] for name in turns}
    failed: dict[Name, str] = {}
    start = time.monotonic()
    for number in range(first, first + rounds):
        spent = (time.monotonic() - start) / seconds
        order = [name for name in turns if name not in failed]
        if not order or (spent > 1 and number - first >= (LEAST_ROUNDS if spent < 2 else LATE_ROUNDS)):
            break
        before(number)
        shift = number % len(order)
        for name in order[shift:] + order[:shift]:
            try:
                found[name].append(turns[name](places[number % len(places)]))
            except Failed as why:
                failed[name] = str(why)
    return found, failed


def places(cores: Sequence[int], threads: int) -> list[list[int]]:
    """As many cores as there are threads, the same for all contestants of a round, and others in the next: on a shared
    machine cores differ in what their neighbours leave of them.
    """
    return [sorted({cores[(first + i) % len(cores)] for i in range(threads)}) for first in _firsts(len(cores), threads)]


def _firsts(cores: int, threads: int) -> list[int]:
    """The first core of each round until they repeat."""
    found = [0]
    while (following := (found[-1] + threads) % cores) not in found:
        found.append(following)
    return found

"""Turns, and the cores that they are given."""

from __future__ import annotations

from sardonyx.bench.process import Failed
from sardonyx.bench.rounds import LATE_ROUNDS, interleave, places


def test_the_order_rotates_and_all_share_the_cores_of_a_round() -> None:
    seen: list[tuple[str, tuple[int, ...]]] = []

    def turn(name: str, place: list[int]) -> int:
        seen.append((name, tuple(place)))
        return len(seen)

    turns = {name: lambda place, name=name: turn(name, place) for name in "abc"}
    found, failed = interleave(turns, 3, 60.0, [[0], [1]])
    assert [name for name, _ in seen] == list("abcbcacab") and not failed
    assert [place for _, place in seen] == [(0,)] * 3 + [(1,)] * 3 + [(0,)] * 3
    assert {name: len(replies) for name, replies in found.items()} == dict.fromkeys("abc", 3)


def test_who_fails_leaves_with_the_rounds_before() -> None:
    calls = iter(range(10))

    def fails(_: list[int]) -> float:
        if next(calls) == 2:
            raise Failed("the process ended with -9")
        return 1.0

    found, failed = interleave({"a": lambda _: 2.0, "b": fails}, 5, 60.0, [[0]])
    assert found == {"a": [2.0] * 5, "b": [1.0, 1.0]} and failed == {"b": "the process ended with -9"}


def test_rounds_end_when_their_time_is_over() -> None:
    found, _ = interleave({"a": lambda _: 1.0}, 1000, 1e-9, [[0]])
    assert len(found["a"]) == LATE_ROUNDS


def test_each_round_is_announced() -> None:
    numbers: list[int] = []
    interleave({"a": lambda _: 1.0}, 3, 60.0, [[0]], numbers.append, first=4)
    assert numbers == [4, 5, 6]


def test_contestants_of_a_round_share_cores_that_rotate() -> None:
    assert places([4, 5, 6, 9, 11], 2)[:4] == [[4, 5], [6, 9], [4, 11], [5, 6]]
    assert places([0, 1], 2) == [[0, 1]] and places([3], 2) == [[3]] and places([0, 1, 2], 1) == [[0], [1], [2]]
    assert places([0, 1], 5) == [[0, 1], [0, 1]]

"""Records are frozen dataclasses in all but how they are made."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, astuple, dataclass, field, fields, replace
from typing import Any

import pytest

from sardonyx.records import Record


class Ours(Record):
    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list, hash=False)


@dataclass(frozen=True)
class Theirs:
    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list, hash=False)


class Same(Record, eq=False):
    a: int


GIVEN: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}), ((1, "x"), {}), ((1, "x", [2]), {}), ((), {"a": 3}), ((1,), {"c": [4]}),
    ((), {"c": [5], "b": "", "a": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("args", "named"), GIVEN)
def test_records_are_made_as_dataclasses_are(args: Any, named: Any) -> None:
    ours, theirs = Ours(*args, **named), Theirs(*args, **named)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours") and hash(ours) == hash(theirs)
    assert astuple(ours) == astuple(theirs) and ours == Ours(*args, **named) and ours != replace(ours, a=9)
    assert ours != theirs and [f.name for f in fields(ours)] == [f.name for f in fields(theirs)]
    assert pickle.loads(pickle.dumps(ours)) == copy.deepcopy(ours) == ours and dataclasses.is_dataclass(Ours)


@pytest.mark.parametrize(
    ("args", "named"), [((), {}), ((), {"b": "x"}), ((1, "x", [], 4), {}), ((1,), {"a": 2}), ((1,), {"d": 2})]
)
def test_records_refuse_what_dataclasses_refuse(args: Any, named: Any) -> None:
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError):
            kind(*args, **named)


def test_records_are_frozen_and_share_no_defaults() -> None:
    made = Ours(1)
    with pytest.raises(FrozenInstanceError):
        made.a = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del made.a
    made.c.append(1)
    assert Ours(1).c == []


def test_some_are_equal_only_to_themselves() -> None:
    one = Same(1)
    assert one == one and one != Same(1) and len({one, Same(1)}) == 2


class Noted(Record):
    a: int
    note: list[int] = field(default_factory=list, compare=False, repr=False)


def test_fields_may_be_left_out_of_comparison_and_of_what_is_shown() -> None:
    one, other = Noted(1, [2]), Noted(1, [3])
    assert one == other and hash(one) == hash(other) and repr(one) == "Noted(a=1)"

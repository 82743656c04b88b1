"""Records are frozen dataclasses in all but how they are made."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, astuple, dataclass, field, fields, replace
from typing import Any, ClassVar

import pytest

from sardonyx import records
from sardonyx.forks import cached_property
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


class Base(Record):
    kind: ClassVar[str] = "base"
    a: int
    b: int = 2


class Derived(Base):
    """A record without ``field()``, whose base is described first or later."""

    c: int = 3
    a: int = 1


class Mixed(Derived):
    d: list[int] = field(default_factory=list, compare=False)


class After(Mixed):
    e: int = 5


@dataclass(frozen=True)
class TheirBase:
    kind: ClassVar[str] = "base"
    a: int
    b: int = 2


@dataclass(frozen=True)
class TheirDerived(TheirBase):
    c: int = 3
    a: int = 1


@dataclass(frozen=True)
class TheirMixed(TheirDerived):
    d: list[int] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class TheirAfter(TheirMixed):
    e: int = 5


@pytest.mark.parametrize(
    ("ours", "theirs"), [(After, TheirAfter), (Base, TheirBase), (Derived, TheirDerived), (Mixed, TheirMixed)]
)
def test_fields_of_bases_come_first(ours: Any, theirs: Any) -> None:
    def told(of: Any) -> list[Any]:
        return [(f.name, f.default, f.compare, f.default_factory) for f in fields(of)]

    assert told(ours) == told(theirs) and ours.__match_args__ == theirs.__match_args__
    a, b = ours(7, 8), theirs(7, 8)
    assert astuple(a) == astuple(b) and repr(a) == repr(b).replace("Their", "") and hash(a) == hash(b)
    assert astuple(replace(a, b=9)) == astuple(replace(b, b=9)) and a == ours(7, 8) != ours(7, 9)
    assert (a.kind, ours.b, list(ours.__dataclass_fields__)) == ("base", 2, list(theirs.__dataclass_fields__))


@pytest.mark.parametrize("given", [Ours(1), Ours(1, c=[2]), Same(1), Theirs(1, "x")])
def test_replace_is_that_of_dataclasses(given: Any) -> None:
    changed = records.replace(given, a=5)
    assert type(changed) is type(given) and changed.a == 5 and given.a == 1
    for f in fields(given)[1:]:
        assert getattr(changed, f.name) is getattr(given, f.name)
    with pytest.raises(TypeError):
        records.replace(given, nothing=1)


class Derived(Record):
    a: int

    @cached_property
    def twice(self) -> int:
        return 2 * self.a


def test_replace_leaves_out_what_was_computed() -> None:
    made = Derived(2)
    assert made.twice == 4 and records.replace(made, a=3).twice == 6

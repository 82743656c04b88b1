"""Control flow: groups of work that is skipped or done again.

Nothing of it moves data by itself. What differs from trip to trip lies in a ``Moving`` storage, of which a run keeps
the address: a row of a tensor, at another place in every trip, or one of the two memories of a carried value, which
change places after each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.lower.check import Check
from sardonyx.lower.groups.base import Group, Storage, View


@dataclass(eq=False)
class Moving(Storage):
    """Memory that lies elsewhere in every trip, always inside ``backing``."""

    backing: tuple[Storage, ...] = ()


@dataclass(frozen=True)
class Branch(Group):
    """``then`` where the condition, one flag, holds, and ``other`` where it does not. Both write the same results.

    An arm whose conditions on sizes do not hold must not be taken.
    """

    condition: View
    then: tuple[Group, ...]
    other: tuple[Group, ...]
    then_checks: tuple[Check, ...]
    other_checks: tuple[Check, ...]

    @property
    def reads(self) -> tuple[View, ...]:
        return self.condition, *_read((*self.then, *self.other))

    @property
    def writes(self) -> tuple[View, ...]:
        return _written((*self.then, *self.other))


@dataclass(frozen=True)
class Row:
    """One index of an axis of ``source``: the first, or counted from the end, in the first trip, then the next."""

    place: Moving
    source: View
    axis: int
    is_backward: bool


@dataclass(frozen=True)
class Carried:
    """A value that a trip reads in ``now`` and writes, for the next, in ``after``: in the first trip, these views."""

    now: Moving
    after: Moving
    first: View
    second: View


@dataclass(frozen=True)
class Repeat(Group):
    """``body`` while ``count`` is below ``limit`` and the flag holds: ``going`` in front of it, ``again`` after a trip.

    ``count`` is the number of the trip at hand, and in the end that of all. Then carried values are in ``now``.
    """

    count: View
    limit: View
    going: View
    again: View
    rows: tuple[Row, ...]
    """Of what is read and of what is collected."""
    carried: tuple[Carried, ...]
    body: tuple[Group, ...]
    trips: Known | None
    """How often the body runs, where that follows from sizes."""
    is_endless: bool
    """Whether nothing but the limit can end it."""

    @property
    def reads(self) -> tuple[View, ...]:
        made = {v.storage for v in self.writes}
        own = (self.limit, self.going, self.again, *(r.source for r in self.rows), *(c.first for c in self.carried))
        return tuple(v for v in (*own, *_read(self.body)) if v.storage not in made)

    @property
    def writes(self) -> tuple[View, ...]:
        inside = _written(self.body)
        written = {v.storage for v in inside}
        collected = [r.source for r in self.rows if r.place in written]
        now = [View(c.now, c.first.shape, c.first.strides) for c in self.carried]
        return (self.count, *collected, *now, *(c.second for c in self.carried), *inside)


def _read(groups: Sequence[Group]) -> tuple[View, ...]:
    """What is read that is not made here."""
    made = {v.storage for v in _written(groups)}
    return tuple(dict.fromkeys(v for g in groups for v in g.reads if v.storage not in made))


def _written(groups: Sequence[Group]) -> tuple[View, ...]:
    return tuple(dict.fromkeys(v for g in groups for v in g.writes))


def checks_of(groups: Sequence[Group]) -> Iterator[Check]:
    """What the arms of branches, however deep, ask of sizes."""
    for group in groups:
        if isinstance(group, Branch):
            yield from (*group.then_checks, *group.other_checks)
            yield from checks_of((*group.then, *group.other))
        elif isinstance(group, Repeat):
            yield from checks_of(group.body)

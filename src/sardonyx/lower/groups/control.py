"""Control flow: branches and loops over groups.

Control flow copies no data. What differs between iterations lives in an ``IndirectStorage``, whose address the run
updates: a row of a tensor that advances with each iteration, or one of the two buffers of a loop-carried value, which
are swapped after each iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sardonyx.ir.dims import Known
from sardonyx.lower.check import Check
from sardonyx.lower.groups.base import Group, Storage, View
from sardonyx.records import Record


@dataclass(eq=False)
class IndirectStorage(Storage):
    """Memory at a pointer that changes in every iteration, always inside one of the ``backing`` storages."""

    backing: tuple[Storage, ...] = ()


class Branch(Group):
    """``then`` if the condition, a scalar bool, holds, else ``other``. Both write the same outputs.

    Taking an arm whose size checks fail is an error.
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


class Row(Record):
    """Slice t (``is_backward``: slice t from the end) along an axis of ``source``, in iteration t."""

    place: IndirectStorage
    source: View
    axis: int
    is_backward: bool


class Carried(Record):
    """A loop-carried value: an iteration reads ``now`` and writes ``after``, which are then swapped.

    In the first iteration they point to ``first`` and ``second``.
    """

    now: IndirectStorage
    after: IndirectStorage
    first: View
    second: View

    @property
    def before(self) -> View:
        """The value as an iteration reads it."""
        return View(self.now, self.first.shape, self.first.strides)

    @property
    def made(self) -> View:
        """The value as an iteration writes it."""
        return View(self.after, self.first.shape, self.first.strides)


class Repeat(Group):
    """Repeats ``body`` while ``count`` < ``limit`` and the condition holds.

    The condition is ``going`` before the first iteration and ``again`` after each. ``count`` is the number of the
    current iteration, and after the loop the number of iterations; carried values are then in ``now``.
    """

    count: View
    limit: View
    going: View
    again: View
    rows: tuple[Row, ...]
    """The current rows of scanned inputs and collected outputs."""
    carried: tuple[Carried, ...]
    body: tuple[Group, ...]
    trips: Known | None
    """The number of iterations, if the sizes determine it."""
    is_endless: bool
    """Whether only the limit can end the loop."""
    room: Known | None = None
    """The most iterations that it has room for, if there may be more: then the run is repeated with more room."""

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
        carried = (*(c.before for c in self.carried), *(c.second for c in self.carried))
        return (self.count, *collected, *carried, *inside)


def _read(groups: Sequence[Group]) -> tuple[View, ...]:
    """Views read but not written by these groups."""
    made = {v.storage for v in _written(groups)}
    return tuple(dict.fromkeys(v for g in groups for v in g.reads if v.storage not in made))


def _written(groups: Sequence[Group]) -> tuple[View, ...]:
    return tuple(dict.fromkeys(v for g in groups for v in g.writes))


def checks_of(groups: Sequence[Group]) -> Iterator[Check]:
    """Size checks of all branch arms, including nested ones."""
    for group in groups:
        if isinstance(group, Branch):
            yield from (*group.then_checks, *group.other_checks)
            yield from checks_of((*group.then, *group.other))
        elif isinstance(group, Repeat):
            yield from checks_of(group.body)

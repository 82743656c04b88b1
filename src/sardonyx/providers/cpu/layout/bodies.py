"""Passes over the bodies of control flow.

A body's groups are rewritten as those of a part are, but what other groups read or write too stays as it is: the
results of a node's branches, the values that a loop carries, and what a body takes from around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sardonyx.lower.groups import Branch, Group, IndirectStorage, Repeat, Storage
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.records import replace

Rewrite = Callable[[Sequence[Group], Analysis], Sequence[Group]]
Body = tuple[Group, ...]


def everywhere(rewrite: Rewrite, groups: Sequence[Group], analysis: Analysis) -> Sequence[Group]:
    """The groups, rewritten, and the bodies of control flow among them rewritten by themselves."""
    made = rewrite(groups, analysis)
    if not any(map(_bodies, made)):
        return made
    shared = shared_storages(made, analysis)

    def body(groups: Body) -> Body:
        return tuple(everywhere(rewrite, groups, replace(analysis, shared=shared[id(groups)])))

    return [_with_bodies(group, body) for group in made]


def shared_storages(groups: Sequence[Group], analysis: Analysis) -> dict[int, frozenset[Storage]]:
    """The storages of each body of control flow among the groups, by its ``id``, that are accessed outside of it."""
    owners: dict[Storage, int] = {}
    found: dict[int, set[Storage]] = {}
    for group in groups:
        for owner, storages in _accessed_by(group):
            for storage in storages:
                if owners.setdefault(storage, owner) != owner:
                    found.setdefault(owner, set()).add(storage)
                    found.setdefault(owners[storage], set()).add(storage)
    bodies = [body for group in groups for body in _bodies(group)]
    return {id(body): analysis.shared | found.get(id(body), frozenset()) for body in bodies}


def _accessed_by(group: Group) -> Iterator[tuple[int, set[Storage]]]:
    """What a group accesses itself, and what each of its bodies does, by the body's ``id``."""
    bodies = _bodies(group)
    yield 0, _own(group) if bodies else _accessed(group)
    for body in bodies:
        yield id(body), {storage for inner in body for storage in _accessed(inner)}


def _accessed(group: Group) -> set[Storage]:
    bodies = _bodies(group)
    if bodies:
        return _own(group).union(*(_accessed(inner) for body in bodies for inner in body))
    found = {view.storage for view in (*group.reads, *group.writes)}
    return found.union(*(s.backing for s in found if isinstance(s, IndirectStorage)))


def _own(group: Group) -> set[Storage]:
    """What control flow accesses besides its bodies."""
    if isinstance(group, Branch):
        return {group.condition.storage}
    assert isinstance(group, Repeat)
    found = {v.storage for v in (group.count, group.limit, group.going, group.again)}
    for row in group.rows:
        found |= {row.place, row.source.storage}
    for c in group.carried:
        found |= {c.now, c.after, c.first.storage, c.second.storage}
    return found


def _bodies(group: Group) -> tuple[Body, ...]:
    if isinstance(group, Branch):
        return group.then, group.other
    return (group.body,) if isinstance(group, Repeat) else ()


def _with_bodies(group: Group, rewritten: Callable[[Body], Body]) -> Group:
    if isinstance(group, Branch):
        return replace(group, then=rewritten(group.then), other=rewritten(group.other))
    return replace(group, body=rewritten(group.body)) if isinstance(group, Repeat) else group

"""Branches and loops."""

from __future__ import annotations

from sardonyx.lower.groups.control import Branch, Repeat
from sardonyx.lower.interpret.memory import MEANINGS, Memory, enforce, meaning


@meaning(Branch)
def branch(memory: Memory, group: Branch) -> None:
    taken = bool(memory.at(group.condition).item())
    for check in group.then_checks if taken else group.other_checks:
        enforce(check, memory.sizes)
    for g in group.then if taken else group.other:
        MEANINGS[type(g)](memory, g)


@meaning(Repeat)
def repeat(memory: Memory, group: Repeat) -> None:
    arrays = memory.arrays
    for c in group.carried:
        memory.at(c.first), memory.at(c.second)
        arrays[c.now], arrays[c.after] = arrays[c.first.storage], arrays[c.second.storage]
    trip, limit = 0, memory.at(group.limit).item()
    going = memory.at(group.going).item()
    while going and trip < limit:
        memory.at(group.count)[...] = trip
        for row in group.rows:
            memory.at(row.source)
            last = memory.size(row.source.shape[row.axis]) - 1
            index = last - trip if row.is_backward else trip
            start = memory.size(row.source.offset) + index * memory.size(row.source.strides[row.axis])
            arrays[row.place] = arrays[row.source.storage][start:]
        for g in group.body:
            MEANINGS[type(g)](memory, g)
        for c in group.carried:
            arrays[c.now], arrays[c.after] = arrays[c.after], arrays[c.now]
        trip, going = trip + 1, memory.at(group.again).item()
        assert group.room is None or trip <= memory.size(group.room)
    memory.at(group.count)[...] = trip

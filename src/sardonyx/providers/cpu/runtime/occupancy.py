"""What lies where in the arena of a compiled part, and when: for reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sardonyx.partition.provider import Memory
from sardonyx.plan.arena import Block, place
from sardonyx.plan.buckets import bucket
from sardonyx.providers.cpu.runtime.plans import values_of

if TYPE_CHECKING:
    from sardonyx.providers.cpu.runtime.executable import CpuExecutable


class ArenaBlock(NamedTuple):
    name: str
    """Of the value, the first of those that share the block."""
    nbytes: int
    offset: int
    first: int
    """The first interval in which it is alive."""
    last: int
    """The last one."""


class Occupancy(NamedTuple):
    blocks: list[ArenaBlock]
    intervals: list[int]
    """The interval of each step."""
    memory: Memory


def occupancy(executable: CpuExecutable) -> Occupancy | None:
    """The arena for the shapes that were bound last; None if nothing has run."""
    shapes = list(executable._shapes.values())
    if not shapes:
        return None
    table = executable.table
    values = values_of(table, shapes[-1].sizes).tolist()
    sizes = [bucket(values[i])[1] for i in table.nbytes.tolist()]
    offsets = place([Block(n, *life) for n, life in zip(sizes, table.lives, strict=True)]).offsets
    blocks = [
        ArenaBlock(storage.value.name if storage.value is not None else "", nbytes, offset, *life)
        for storage, nbytes, offset, life in zip(table.temporaries, sizes, offsets, table.lives, strict=True)
    ]
    return Occupancy(blocks, list(table.intervals), executable._memory(shapes[-1]))

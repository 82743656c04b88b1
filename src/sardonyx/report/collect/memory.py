"""The arenas of compiled parts, as their plans lay them out for the shapes of the last run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sardonyx.providers.cpu.runtime.occupancy import occupancy
from sardonyx.report.collect.groups import compiled_parts
from sardonyx.report.records import Allocation, MemoryMap

MOST_PARTS = 8


def memory_maps(compiled: Iterable[tuple[Any, Any]]) -> list[MemoryMap]:
    """A map for each part that has run, those with the largest arenas."""
    found = list(_maps(compiled))
    return sorted(found, key=lambda m: -m.arena_nbytes)[:MOST_PARTS]


def _maps(compiled: Iterable[tuple[Any, Any]]) -> Iterator[MemoryMap]:
    for number, (_, executable) in enumerate(compiled_parts(compiled)):
        if not hasattr(executable, "table"):
            continue
        found = occupancy(executable)
        if found is None:
            continue
        kernels: list[list[str]] = [[] for _ in range(max(found.intervals, default=-1) + 1)]
        for step, interval in zip(executable.table.steps, found.intervals, strict=True):
            kernels[interval].append(step.spec.name)
        memory = found.memory
        yield MemoryMap(
            name=f"part {number}",
            steps=tuple(", ".join(names) for names in kernels),
            arena_nbytes=memory.intermediates_nbytes,
            live_nbytes=memory.least_nbytes,
            constants_nbytes=memory.constants_nbytes,
            scratch_nbytes=memory.scratch_nbytes,
            outputs_nbytes=memory.outputs_nbytes,
            allocations=tuple(Allocation(b.name, b.nbytes, b.offset, b.first, b.last) for b in found.blocks),
        )

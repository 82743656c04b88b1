"""Binary heaps in memory, with the worst entry (by the caller's order) at the root.

An entry is a slot of one or more buffers. ``Heap.worse`` is a strict total order of entries, so the order in which they
come out does not depend on the order in which they went in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Val

Entry = tuple[Val, ...]


class Heap:
    def __init__(self, k: Kernel, buffers: Sequence[Buf], worse: Callable[[Entry, Entry], Val]) -> None:
        self.k, self.buffers, self.worse = k, tuple(buffers), worse

    def load(self, slot: Operand) -> Entry:
        return tuple(b.load(slot) for b in self.buffers)

    def store(self, slot: Operand, entry: Entry) -> None:
        for b, v in zip(self.buffers, entry, strict=True):
            b.store(slot, v)

    def sift_down(self, root: Operand, count: Val, entry: Entry | None = None) -> None:
        """Sifts an entry, by default the root's own, down from ``root`` in a heap of ``count`` entries."""
        k = self.k
        moving = self.load(root) if entry is None else entry
        at, goes = k.var(root), k.var(1)
        with k.loop_while(lambda: goes.get().ne(0) & (at.get() * 2 + 1 < count)):
            left = at.get() * 2 + 1
            right = k.min(left + 1, count - 1)
            child = k.select(self.worse(self.load(right), self.load(left)), right, left)
            found = self.load(child)
            sinks = self.worse(found, moving)
            goes.set(k.cast(sinks, at.dtype))
            with k.when(sinks):
                self.store(at.get(), found)
                at.set(child)
        self.store(at.get(), moving)

    def heapify(self, count: Val) -> None:
        """Builds a heap of the first ``count`` slots."""
        half = count // 2
        with self.k.loop(0, half) as i:
            self.sift_down(half - 1 - i, count)

    def sort(self, count: Val) -> None:
        """Sorts a heap, the best entry first."""
        with self.k.loop(1, count) as i:
            end = count - i
            last, worst = self.load(end), self.load(0)
            self.store(end, worst)
            self.sift_down(0, end, last)

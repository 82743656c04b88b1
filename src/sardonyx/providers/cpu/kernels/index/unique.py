"""Distinct rows of a matrix: row indices are heap-sorted, by keys if a row is one number, and adjacent rows compared.

A single thread does the work: typical inputs are labels and small tables.
"""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.lower.groups import Storage, Unique
from sardonyx.providers.cpu.kernels.index.heap import Entry, Heap
from sardonyx.providers.cpu.kernels.index.top_k import key_of, worse
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import product
from sardonyx.providers.cpu.program.steps import Ref, Step


def steps(group: Unique, analysis: Analysis) -> list[Step]:
    rows, width = group.x.shape
    args: dict[str, Any] = {
        "x": Ref.of(group.x), "rows": rows, "width": width, "along": group.x.strides[0], "across": group.x.strides[1],
        "order": Ref(Storage("temporary", dtypes.i64, rows)), "rank": Ref(Storage("temporary", dtypes.i64, rows)),
        "keys": Ref(Storage("temporary", dtypes.i64, rows if width == 1 else 1)),
        "first": Ref.of(group.first), "inverse": Ref.of(group.inverse), "counts": Ref.of(group.counts),
        "total": Ref.of(group.count),
    }  # fmt: skip
    spec = unique_rows(dtype=group.x.dtype, is_sorted=group.is_sorted, is_flat=width == 1)
    writes = frozenset(("order", "rank", "keys", "first", "inverse", "counts", "total"))
    return [Step(spec, args, writes, group.nodes, nbytes=product((16, rows, width)))]


@kernel(
    x=("dtype",), order=(i64,), rank=(i64,), keys=(i64,), first=(i64,), inverse=(i64,), counts=(i64,), total=(i64,),
    **dict.fromkeys(("rows", "width", "along", "across"), i64),
)  # fmt: skip
def unique_rows(
    k: Kernel, x: Buf, order: Buf, rank: Buf, keys: Buf, first: Buf, inverse: Buf, counts: Buf, total: Buf, rows: Val,
    width: Val, along: Val, across: Val, *, dtype: DType, is_sorted: bool, is_flat: bool,
) -> None:  # fmt: skip
    def compared(a: Val, b: Val) -> Val:
        """Negative, 0 or positive if row a is less than, equal to or greater than row b."""
        result, i = k.var(0), k.var(0)
        with k.loop_while(lambda: result.get().eq(0) & (i.get() < width)):
            one, two = (key_of(k, x.load(r * along + i.get() * across), dtype, descending=False) for r in (a, b))
            result.set(k.select(one < two, k.const(-1), k.select(one > two, k.const(1), k.const(0))))
            i += 1
        return result.get()

    def worse_row(a: Entry, b: Entry) -> Val:
        how = compared(a[0], b[0])
        return (how > 0) | (how.eq(0) & (a[0] > b[0]))

    with k.when(k.thread.eq(0)):
        with k.loop(0, rows) as i:
            order.store(i, i)
            if is_flat:
                keys.store(i, k.cast(key_of(k, x.load(i * along), dtype, descending=False), i64))
        heap = Heap(k, (keys, order), worse) if is_flat else Heap(k, (order,), worse_row)
        heap.heapify(rows)
        heap.sort(rows)
        found = k.var(0)
        with k.loop(0, rows) as i:
            row = order.load(i)
            is_new = k.var(1)
            with k.when(i > 0):
                is_other = keys.load(i - 1).ne(keys.load(i)) if is_flat else compared(order.load(i - 1), row).ne(0)
                is_new.set(k.cast(is_other, i64))
            with k.when(is_new.get().ne(0)):
                first.store(found.get(), row)
                counts.store(found.get(), 0)
                found += 1
            inverse.store(row, found.get() - 1)
            counts.store(found.get() - 1, counts.load(found.get() - 1) + 1)
        total.store(0, found.get())
        if not is_sorted:
            _by_occurrence(k, rows, order, rank, first, inverse, counts)


def _by_occurrence(k: Kernel, rows: Val, count_of: Buf, rank: Buf, first: Buf, inverse: Buf, counts: Buf) -> None:
    """Renumbers the distinct rows by first occurrence; ``count_of`` is a temporary for the counts."""
    seen = k.var(0)
    with k.loop(0, rows) as i:
        which = inverse.load(i)
        with k.when(first.load(which).eq(i)):
            rank.store(which, seen.get())
            count_of.store(seen.get(), counts.load(which))
            seen += 1
        inverse.store(i, rank.load(which))
    placed = k.var(0)
    with k.loop(0, rows) as i, k.when(inverse.load(i).eq(placed.get())):
        first.store(placed.get(), i)
        counts.store(placed.get(), count_of.load(placed.get()))
        placed += 1

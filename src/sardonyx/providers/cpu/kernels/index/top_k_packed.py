"""The k largest or smallest elements of each row whose keys have 32 bits: key and index are one number.

An entry has the key in its upper half and the index in its lower one: entries are compared at once, and no two are
equal. Where most elements of a row are not among the best, one scan keeps a heap of the best k; else all elements are
entries. A few entries are sorted by counting those that are smaller, more of them by their digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from sardonyx.ir import dims
from sardonyx.lower.groups import TopK
from sardonyx.providers.cpu.kernels.common.loop_nest import load, nest_loop
from sardonyx.providers.cpu.kernels.index.heap import Heap
from sardonyx.providers.cpu.kernels.index.top_k import (
    INDICES,
    UNROLL,
    VALUES,
    TopKArgs,
    TopKConfig,
    X,
    args_of,
    config_of,
    key_dtype,
    key_of,
    params,
)
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i32, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal

FEW = 16
"""Where more than one element in so many is wanted, all of them are sorted."""
RANKED = 16
"""Entries are counted, rather than sorted by digits, if they fill at most so many vectors."""
DIGITS, RADIX = 8, 256
"""How many digits of a byte an entry has, and how many values a digit."""
LAST = (1 << 63) - 1
"""Larger than all entries."""


def supports(group: TopK, analysis: Analysis) -> Refusal | None:
    return None if key_dtype(group.x.dtype) is i32 else Refusal("keys of 64 bits")


def steps(group: TopK, analysis: Analysis) -> list[Step]:
    seen = product((8, *group.x.shape))
    room = expressible(dims.minimum(group.x.shape[-1], expressible(dims.mul(FEW, group.k))))
    scratch = expressible(dims.add(expressible(dims.mul(2 * 8, room)), 2 * 8 * 16 + DIGITS * RADIX * 4))
    writes = frozenset((f"m{VALUES}", f"m{INDICES}"))
    spec = top_k_packed(config=config_of(group))
    return [Step(spec, flat(args=args_of(group)), writes, group.nodes, scratch_nbytes=scratch, nbytes=seen)]


@kernel(params)
def top_k_packed(k: Kernel, args: TopKArgs[Buf, Val], *, config: TopKConfig) -> None:
    nest, along, size, count = args.nest, args.along, args.size, args.count
    room = k.min(size, count * FEW) + 16
    counters = k.scratch(i32)
    entries, others = (k.scratch(i64, room * (8 * i) + DIGITS * RADIX * 4) for i in range(2))
    heap = Heap(k, (entries,), lambda a, b: a[0] > b[0])
    with k.when(count > 0), nest_loop(k, nest.extents, nest.strides) as (_, moved):
        x, values, indices = (view.at(at) for view, at in zip(nest.views, moved, strict=True))
        is_all = count * FEW >= size
        found = k.select(is_all, size, count)
        with k.loop(0, found) as i:
            entries.store(i, _entry(k, _key(k, config, x.load(i * along[X])), i))
        with k.when(~is_all):
            heap.heapify(count)
            _scan(k, config, x, along[X], size, count, heap)

        def put(rank: Val, entry: Val) -> None:
            at = entry & 0xFFFFFFFF
            values.store(rank * along[VALUES], x.load(at * along[X]))
            indices.store(rank * along[INDICES], at)

        lanes = max(k.lanes // 2, 1)
        with k.either(found <= RANKED * lanes) as (few, many):
            with few:
                entries.store(found, k.const(LAST, i64, lanes))
                with k.loop(0, found) as i:
                    entry = entries.load(i)
                    rank = _rank(k, entries, found, entry, lanes)
                    with k.when(rank < count):
                        put(rank, entry)
            with many:
                # All elements of a row come in the order of their indices, entries of a heap do not.
                is_moved = _sort(k, entries, others, found, counters, k.select(is_all, k.const(DIGITS // 2), 0))
                ordered = k.choose(is_moved, others, entries)
                with k.loop(0, count) as i:
                    put(i, ordered.load(i))


def _key(k: Kernel, config: TopKConfig, v: Val) -> Val:
    return key_of(k, v, config.dtype, descending=config.largest)


def _entry(k: Kernel, key: Val, index: Val) -> Val:
    return (k.cast(key, i64) << 32) + index


def _scan(k: Kernel, config: TopKConfig, x: Buf, along: Val, size: Val, count: Val, heap: Heap) -> None:
    """Insert elements that are better than the heap's worst; of equal elements the first stays."""
    worst, keys = k.var(_worst(k, heap)), k.local(i32, k.lanes)

    def insert(key: Val, index: Val) -> None:
        with k.when(key < worst.get()):
            heap.sift_down(0, count, (_entry(k, key, index),))
            worst.set(_worst(k, heap))

    def seen(tiles: Sequence[Tile]) -> list[Val]:
        return [_key(k, config, load(x, tile, config.kind, along)) for tile in tiles]

    whole = size - (size - count) % (k.lanes * UNROLL)
    with k.loop(count, whole, k.lanes * UNROLL) as first:
        tiles = [Tile(first + u * k.lanes, k.lanes, None) for u in range(UNROLL)]
        found = seen(tiles)
        with k.when(reduce(Val.__or__, (key < worst.get() for key in found)).any(), likely=False):
            for tile, key in zip(tiles, found, strict=True):
                with k.when((key < worst.get()).any()):
                    keys.store(0, key)
                    with k.loop(0, k.lanes) as lane:
                        insert(keys.load(lane), tile.index + lane)
    with k.loop(whole, size) as i:
        insert(_key(k, config, x.load(i * along)), i)


def _worst(k: Kernel, heap: Heap) -> Val:
    """The key of the heap's worst entry."""
    return k.cast(heap.buffers[0].load() >> 32, i32)


def _rank(k: Kernel, entries: Buf, count: Val, entry: Val, lanes: int) -> Val:
    """How many entries are smaller; after them come some that are not."""
    total = k.var(k.zeros(i64, lanes))
    with k.loop(0, count, lanes) as at:
        total.set(total.get() + k.select(entries.load(at, lanes) < k.splat(entry, lanes), k.const(1, i64, lanes), 0))
    return total.get().sum() if lanes > 1 else total.get()


def _sort(k: Kernel, entries: Buf, others: Buf, count: Val, counters: Buf, first: Val) -> Val:
    """Sort entries by their digits from ``first`` on, least significant first, skipping those that are all the same.

    Returns whether the sorted entries are in ``others``.
    """
    with k.loop(0, DIGITS * RADIX, k.lanes) as i:
        counters.store(i, k.zeros(i32, k.lanes))
    with k.loop(0, count) as i:
        entry = entries.load(i)
        for half in (k.const(0), k.const(DIGITS // 2)):
            with k.when(half >= first):
                for n in range(DIGITS // 2):
                    at = (half + n) * RADIX + _digit(k, entry, half + n)
                    counters.store(at, counters.load(at) + 1)
    is_moved = k.var(0)
    with k.loop(first, DIGITS) as digit:
        own, (source, target) = counters.at(digit * RADIX), _sides(k, is_moved.get().ne(0), entries, others)
        with k.when(k.cast(own.load(_digit(k, source.load(), digit)), i64).ne(count)):
            start = k.var(k.const(0, i32), i32)
            with k.loop(0, RADIX) as value:
                number = own.load(value)
                own.store(value, start.get())
                start.set(start.get() + number)
            with k.loop(0, count) as i:
                entry = source.load(i)
                value = _digit(k, entry, digit)
                place = own.load(value)
                target.store(k.cast(place, i64), entry)
                own.store(value, place + 1)
            is_moved.set(1 - is_moved.get())
    return is_moved.get().ne(0)


def _sides(k: Kernel, is_moved: Val, entries: Buf, others: Buf) -> tuple[Buf, Buf]:
    """Where entries are, and where the next pass puts them."""
    return k.choose(is_moved, others, entries), k.choose(is_moved, entries, others)


def _digit(k: Kernel, entry: Val, digit: Val) -> Val:
    """A digit of an entry; those of the sign come in the order of signed numbers."""
    return ((entry >> (digit * 8)) & (RADIX - 1)) ^ k.select(digit.eq(DIGITS - 1), k.const(RADIX // 2), 0)

"""The k largest or smallest elements of each row: one scan with a heap of the best k so far.

Elements are compared by integer keys, smaller for better. One vector comparison with the worst key of the heap rejects
most elements; the others are inserted. The heap is sorted at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import TopK, View
from sardonyx.providers.cpu.kernels.common.loop_nest import Nest, NestArgs, load, nest_loop, stride_class
from sardonyx.providers.cpu.kernels.index.heap import Entry, Heap
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, bool_, i32, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record, replace

X, VALUES, INDICES = range(3)
UNROLL = 4
"""Vectors that are compared together."""


class TopKConfig(Record):
    """The compile-time configuration of ``top_k``."""

    dtype: DType
    axes: int
    """Axes besides the rows' own."""
    kind: str
    """The stride class along a row."""
    largest: bool


def config_of(group: TopK) -> TopKConfig:
    return TopKConfig(group.x.dtype, len(_axes(group)), stride_class(group.x.strides[-1]), group.largest)


def _axes(group: TopK) -> Sequence[Any]:
    """The axes besides the rows' own, merged where all views allow."""
    return Nest.of(group.x.shape[:-1], [_rows(v) for v in _views(group)]).axes


def _views(group: TopK) -> tuple[View, View, View]:
    return group.x, group.values, group.indices


def args_of(group: TopK) -> TopKArgs[Ref, Known]:
    along = tuple(x.strides[-1] for x in _views(group))
    return TopKArgs[Ref, Known](NestArgs.of(_views(group), _axes(group)), along, group.x.shape[-1], group.k)


def steps(group: TopK, analysis: Analysis) -> list[Step]:
    seen = product((8, *group.x.shape))
    scratch = expressible(dims.mul(2 * 8, group.k))
    writes = frozenset((f"m{VALUES}", f"m{INDICES}"))
    spec = top_k(config=config_of(group))
    return [Step(spec, flat(args=args_of(group)), writes, group.nodes, scratch_nbytes=scratch, nbytes=seen)]


def _rows(view: View) -> View:
    return replace(view, shape=view.shape[:-1], strides=view.strides[:-1])


def key_dtype(dtype: DType) -> DType:
    return i64 if register_dtype(dtype).bits == 64 else i32


def key_of(k: Kernel, v: Val, dtype: DType, *, descending: bool) -> Val:
    """A signed integer with the order of the values: both zeros are equal, NaN is larger than all numbers."""
    key = key_dtype(dtype)
    if v.dtype.is_float:
        bits = k.bitcast(k.select(v.eq(0), k.const(0, v.dtype, v.lanes), v), key)
        low = bits ^ ((bits >> (key.bits - 1)) & ((1 << (key.bits - 1)) - 1))
        found = k.select(v.ne(v), (1 << (key.bits - 1)) - 1, low)
    elif v.dtype is not bool_ and v.dtype.kind == "uint" and v.dtype.bits == key.bits:
        found = k.bitcast(v, key) ^ -(1 << (key.bits - 1))
    else:
        found = k.cast(v, key)
    return ~found if descending else found


def worse(a: Entry, b: Entry) -> Val:
    """Compares by key; of equal keys, the later index is worse."""
    return (a[0] > b[0]) | (a[0].eq(b[0]) & (a[1] > b[1]))


class TopKArgs(Arguments[M, N]):
    """The parameters of ``top_k``: x, the values and the indices."""

    is_inline: ClassVar[bool] = True
    nest: NestArgs[M, N]
    along: tuple[N, ...]
    """Strides along a row."""
    size: N
    count: N


def params(config: TopKConfig) -> Params:
    nest = NestArgs.declared((config.dtype, config.dtype, i64), config.axes)
    return {"args": TopKArgs[Memory, DType](nest, (i64, i64, i64), i64, i64)}


@kernel(params)
def top_k(k: Kernel, args: TopKArgs[Buf, Val], *, config: TopKConfig) -> None:
    nest, along, size, count = args.nest, args.along, args.size, args.count
    heap = Heap(k, (k.scratch(key_dtype(config.dtype)), k.scratch(i64, count * 8)), worse)
    with k.when(count > 0), nest_loop(k, nest.extents, nest.strides) as (_, moved):
        x, values, indices = (view.at(at) for view, at in zip(nest.views, moved, strict=True))
        with k.loop(0, count) as i:
            heap.store(i, (_key(k, config, x.load(i * along[X])), i))
        heap.heapify(count)
        _scan(k, config, x, along[X], size, count, heap)
        heap.sort(count)
        with k.loop(0, count) as i:
            at = heap.buffers[1].load(i)
            values.store(i * along[VALUES], x.load(at * along[X]))
            indices.store(i * along[INDICES], at)


def _key(k: Kernel, config: TopKConfig, v: Val) -> Val:
    return key_of(k, v, config.dtype, descending=config.largest)


def _scan(k: Kernel, config: TopKConfig, x: Buf, along: Val, size: Val, count: Val, heap: Heap) -> None:
    """Inserts elements that are better than the heap's worst; of equal elements the first stays."""
    lanes = k.lanes * 32 // key_dtype(config.dtype).bits
    worst = k.var(heap.buffers[0].load())
    with k.loop(count, size, lanes * UNROLL) as first:
        passes = k.var(1)
        with k.when(first + lanes * UNROLL <= size):
            tiles = (Tile(first + u * lanes, lanes, None) for u in range(UNROLL))
            found = [_key(k, config, load(x, tile, config.kind, along)) < worst.get() for tile in tiles]
            passes.set(k.cast(reduce(Val.__or__, found).any(), i64))
        with k.when(passes.get().ne(0), likely=False), k.loop(first, k.min(first + lanes * UNROLL, size)) as i:
            key = _key(k, config, x.load(i * along))
            with k.when(key < worst.get()):
                heap.sift_down(0, count, (key, i))
                worst.set(heap.buffers[0].load())

"""Coordinates of nonzero elements, and gathers of as many rows as the data decide.

The first kernel counts the true elements of each chunk of the mask; the second then knows where each chunk's
coordinates begin. Coordinates are stored axis by axis, each axis ``count`` long, so that the result is dense.
"""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.dtypes import DType, of_name
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import CountedGather, NonZero, Storage
from sardonyx.providers.cpu.kernels.common.loop_nest import NestArgs, load, store, stride_class
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, bool_, i32, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Ref, Step

CHUNK = 4096
"""Elements of the mask that are counted together, as one work item."""


def steps(group: NonZero, analysis: Analysis) -> list[Step]:
    (size,), (stride,) = group.mask.shape, group.mask.strides
    chunks = expressible(dims.ceildiv(size, CHUNK))
    counts = Ref(Storage("temporary", dtypes.i64, chunks))
    kind = stride_class(stride)
    seen: dict[str, Any] = {"mask": Ref.of(group.mask), "stride": stride, "size": size}
    tallied = Step(
        count_nonzero(kind=kind), {**seen, "counts": counts}, frozenset(("counts",)), group.nodes, nbytes=size
    )
    box = NestArgs[Ref, Known]((), group.shape, ())
    args = flat(**seen, counts=counts, out=Ref.of(group.out), total=Ref.of(group.count), box=box)
    writes = frozenset(("out", "total"))
    return [tallied, Step(nonzero(kind=kind, rank=len(group.shape)), args, writes, group.nodes, nbytes=size)]


def _chunks(size: Val) -> Val:
    return (size + (CHUNK - 1)) // CHUNK


@kernel(mask=(bool_,), stride=i64, size=i64, counts=(i64,))
def count_nonzero(k: Kernel, mask: Buf, stride: Val, size: Val, counts: Buf, *, kind: str) -> None:
    """The number of true elements of each chunk."""
    with k.share(_chunks(size)) as chunk:
        total = k.var(k.zeros(i32, k.lanes))
        for tile in k.tiles(k.min(size - chunk * CHUNK, CHUNK)):
            seen = load(mask.at(chunk * CHUNK * stride), tile, kind, stride)
            total += k.value(k.cast(tile.keep(seen, 0), i32), i32, tile.lanes)
        counts.store(chunk, k.cast(total.get().sum(), i64))


def _nonzero_params(kind: str, rank: int) -> Params:
    return {
        "mask": (bool_,), "stride": i64, "size": i64, "counts": (i64,), "out": (i64,), "total": (i64,),
        "box": NestArgs.declared((), rank),
    }  # fmt: skip


@kernel(_nonzero_params)
def nonzero(
    k: Kernel,
    *,
    mask: Buf,
    stride: Val,
    size: Val,
    counts: Buf,
    out: Buf,
    total: Buf,
    box: NestArgs[Buf, Val],
    kind: str,
    rank: int,
) -> None:
    """The coordinates of the true elements."""
    first, last = k.share_of(_chunks(size))
    before, found = k.var(0), k.var(0)
    with k.loop(0, _chunks(size)) as chunk:
        found += counts.load(chunk)
        with k.when(chunk < first):
            before += counts.load(chunk)
    with k.when(k.thread.eq(0)):
        total.store(0, found.get())
    pitch = found.get()
    extents = [k.max(n, 1) for n in box.extents]
    with k.loop(first * CHUNK, k.min(last * CHUNK, size), k.lanes) as start:
        passes = k.var(1)
        with k.when(start + k.lanes <= size):
            seen = load(mask, Tile(start, k.lanes, None), kind, stride)
            passes.set(k.cast(k.value(seen, bool_, k.lanes).any(), i64))
        with (
            k.when(passes.get().ne(0)),
            k.loop(start, k.min(start + k.lanes, size)) as i,
            k.when(mask.load(i * stride)),
        ):
            rest = i
            for axis in reversed(range(rank)):
                out.store(pitch * axis + before.get(), rest % extents[axis] if axis else rest)
                rest = rest // extents[axis]
            before += 1


def counted_gather_steps(group: CountedGather, analysis: Analysis) -> list[Step]:
    outer, size, inner = group.x.shape
    dtype = of_name(f"u{group.x.dtype.itemsize * 8}")
    spec = counted_gather(dtype=dtype, kind=stride_class(group.x.strides[2]))
    args: dict[str, Any] = {
        "x": Ref.of(group.x), "indices": Ref.of(group.indices), "count": Ref.of(group.count), "out": Ref.of(group.out),
        "outer": outer, "size": size, "inner": inner,
        **{f"s{i}": s for i, s in enumerate(group.x.strides)},
    }  # fmt: skip
    moved = product((2 * dtype.bits // 8, *group.out.shape))
    return [Step(spec, args, frozenset(("out",)), group.nodes, nbytes=moved)]


@kernel(
    x=("dtype",), indices=(i64,), count=(i64,), out=("dtype",),
    **dict.fromkeys(("outer", "size", "inner", "s0", "s1", "s2"), i64),
)  # fmt: skip
def counted_gather(
    k: Kernel, x: Buf, indices: Buf, count: Buf, out: Buf, outer: Val, size: Val, inner: Val, s0: Val, s1: Val, s2: Val,
    *, dtype: DType, kind: str,
) -> None:  # fmt: skip
    """The rows at the first ``count`` indices."""
    rows = count.load()
    with k.share(outer * rows) as row:
        index = k.check_index(indices.load(row % rows), size)
        source = x.at(row // rows * s0 + index * s1)
        with k.when(size > 0):
            for tile in k.tiles(inner, k.lanes * 32 // dtype.bits, unroll=4):
                store(out.at(row * inner), tile, "1", 1, load(source, tile, kind, s2))

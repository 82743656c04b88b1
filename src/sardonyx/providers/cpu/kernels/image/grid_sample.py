"""GridSample: images sampled at positions that are data.

The offset in a channel and the weight of each tap are computed once for a block of points, into scratch memory. Each
channel is then sampled with them, points along the lanes. Grid: (batch, block of points).
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import field
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import GridSample, View
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.matrices import Matrix
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat, named
from sardonyx.providers.cpu.language.dsl import Definition, Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record

BLOCK = 64
"""Points of a block."""


class GridSampleConfig(Record):
    """Compile-time configuration of ``grid_sample``."""

    x: DType
    work: DType
    taps: tuple[int, ...]
    """Along each axis."""
    is_weighted: bool

    @property
    def count(self) -> int:
        return math.prod(self.taps)

    @property
    def scratch_nbytes(self) -> int:
        return self.count * BLOCK * (8 + self.work.bits // 8)


def config_of(group: GridSample) -> GridSampleConfig:
    taps = tuple(v.shape[0] for v in group.indices if isinstance(v.shape[0], int))
    return GridSampleConfig(group.x.dtype, register_dtype(group.epilogue.operands[0]), taps, bool(group.weights))


def steps(group: GridSample, analysis: Analysis) -> list[Step]:
    config = config_of(group)
    return [sampling_step(group, group.x, grid_sample, config.scratch_nbytes + config.count * BLOCK * 8)]


def sampling_step(group: GridSample, x: View, kernel: Definition, scratch_nbytes: int) -> Step:
    """The step that samples an image, the group's own or a copy of it, by one of the kernels."""
    box, config = group.box, config_of(group)
    if not all(views.is_dense(v) for v in (*group.indices, *group.weights)):
        raise NotImplemented("sampling positions that are not contiguous", where=group.nodes[0].label)
    extra, outputs = ([Matrix.of(v) for v in seen] for seen in (group.extra, group.outputs))
    epilogue, operands = Epilogue.over(group.epilogue, extra, outputs, box[2], 1)
    batch, channels, points = box
    args = GridSampleArgs[Ref, Known](
        Ref.of(x), batch, channels, points, x.strides[0], x.strides[1], x.strides[2:],
        tuple(map(Ref.of, group.indices)), tuple(map(Ref.of, group.weights)), operands,
    )  # fmt: skip
    flops = dims.known(dims.product((2 * config.count, *box))) or 0
    nbytes = dims.known(dims.product((x.dtype.bits // 8, *box))) or 0
    spec = kernel(config=config, epilogue=epilogue)
    return Step(spec, flat(args=args), epilogue.writes, group.nodes, scratch_nbytes, flops, nbytes)


class GridSampleArgs(Arguments[M, N]):
    """The parameters of ``grid_sample``."""

    is_inline: ClassVar[bool] = True
    x: M
    batch: N
    channels: N
    points: N
    x_b: N
    x_c: N
    strides: tuple[N, ...] = field(metadata=named("s"))
    """The strides of the image along the axes that are sampled."""
    indices: tuple[M, ...] = field(metadata=named("i"))
    weights: tuple[M, ...] = field(metadata=named("w"))
    epilogue: EpilogueArgs[M, N]


def params(config: GridSampleConfig, epilogue: Epilogue) -> Params:
    axes = len(config.taps)
    indices, weights = (Memory(i64),) * axes, (Memory(config.work),) * axes if config.is_weighted else ()
    return {"args": GridSampleArgs[Memory, DType](
        Memory(config.x), i64, i64, i64, i64, i64, (i64,) * axes, indices, weights, epilogue.declared
    )}  # fmt: skip


@kernel(params)
def grid_sample(k: Kernel, args: GridSampleArgs[Buf, Val], *, config: GridSampleConfig, epilogue: Epilogue) -> None:
    batch, points = args.batch, args.points
    blocks = ceil_div(points, BLOCK)
    lanes = lanes_of(k.lanes, config.work)
    places = k.scratch(i64)
    reads = places.at(config.count * BLOCK)
    weights = k.scratch(config.work, 2 * config.count * BLOCK * 8)
    with k.share(batch * blocks) as at:
        image, first = at // blocks, at % blocks * BLOCK
        count = k.min(points - first, BLOCK)
        compute_taps(k, config, args, image * points + first, batch * points, count, places, weights)
        with k.loop(0, config.count * BLOCK, lanes) as i:
            reads.store(i, k.max(places.load(i, lanes), 0))
        finish = BoundEpilogue(k, epilogue, args.epilogue, points, [image])
        start = args.x.at(image * args.x_b)
        with k.loop(0, args.channels) as channel:
            source = start.at(channel * args.x_c)
            for t in k.tiles(count, lanes):
                outputs = Tile(first + t.index, t.lanes, t.mask)
                finish.put(channel, outputs, _sampled(k, config, source, places, reads, weights, t))


def compute_taps(
    k: Kernel,
    config: GridSampleConfig,
    args: GridSampleArgs[Buf, Val],
    start: Val,
    pitch: Val,
    count: Val,
    places: Buf,
    weights: Buf,
) -> None:
    """Store the offset, -1 for padding, and the weight of every tap of a block of points.

    In the tables of an axis, the block begins at ``start`` and its taps are ``pitch`` elements apart.
    """
    with ExitStack() as loops:
        chosen, row = [], k.const(0)
        for taps in config.taps:
            chosen.append(loops.enter_context(k.loop(0, taps)))
            row = row * taps + chosen[-1]
        for t in k.tiles(count, lanes_of(k.lanes, config.work)):
            place, outside, weight = k.zeros(i64, t.lanes), None, None
            for axis, tap in enumerate(chosen):
                at = Tile(tap * pitch + start + t.index, t.lanes, t.mask)
                index = args.indices[axis].load(at)
                outside = index < 0 if outside is None else outside | (index < 0)
                place = place + index * args.strides[axis]
                if config.is_weighted:
                    w = args.weights[axis].load(at)
                    weight = w if weight is None else weight * w
            assert outside is not None
            to = Tile(row * BLOCK + t.index, t.lanes, None)
            places.store(to, k.select(outside, -1, place))
            if weight is not None:
                weights.store(to, weight)


def _sampled(k: Kernel, config: GridSampleConfig, channel: Buf, places: Buf, reads: Buf, weights: Buf, t: Tile) -> Val:
    """The weighted sum of the taps for a vector of points. ``reads`` has the offsets, 0 where there is no tap."""

    def seen(tap: Val) -> Val:
        row = tap * BLOCK + t.index
        v = k.pack([channel.load(reads.load(row + lane)) for lane in range(t.lanes)])
        return k.select(places.load(row, t.lanes) >= 0, k.cast(v, config.work), 0)

    if not config.is_weighted:
        return seen(k.const(0))
    total = k.var(k.zeros(config.work, t.lanes))
    with k.loop(0, config.count) as tap:
        total.set(k.fma(seen(tap), weights.load(tap * BLOCK + t.index, t.lanes), total.get()))
    return total.get()

"""RoiAlign of images whose rows are contiguous.

Bilinear samples are separable: a cell is the sum, over the pixels under its columns, of a weight times the weighted sum
of the rows under it. The same holds for maxima, since no weight is negative. The pixels and weights of all cells are
computed once for a block of channels, into scratch memory; sums merge samples that share a pixel. A row of cells then
takes one pass over the rows of pixels under it, pixels along the lanes, into a line in L1, and a few taps of that line
for each cell. Grid: (region, block of channels).
"""

from __future__ import annotations

from typing import NamedTuple

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import RoiAlign
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import Matrix
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.kernels.image.roi_align import (
    MAX,
    MEAN,
    BilinearSamples,
    Extent,
    RoiAlignArgs,
    RoiAlignConfig,
    args_of,
    config_of,
    corners_of,
    params,
    scaled,
)
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.math.reducers import extreme, lowest
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal

BLOCK = 32
"""Channels of a block."""
MAX_RATIO = 16
"""The most samples of a cell along an axis, if they are given."""


def supports(group: RoiAlign, analysis: Analysis) -> Refusal | None:
    if group.kind not in (MEAN, MAX) or (group.kind == MAX and not group.sampling_ratio):
        return Refusal("neither means nor maxima of a given number of samples")
    if group.x.strides[3] != 1:
        return Refusal("rows of the image are not contiguous")
    return Refusal("many samples in a cell") if group.sampling_ratio > MAX_RATIO else None


def pays(group: RoiAlign, analysis: Analysis) -> Refusal | None:
    return Refusal("the channels of a pixel are adjacent") if group.x.strides[1] == 1 else None


def steps(group: RoiAlign, analysis: Analysis) -> list[Step]:
    config, box = config_of(group), group.box
    extra, outputs = ([Matrix.of(v) for v in seen] for seen in (group.extra, group.outputs))
    epilogue, operands = Epilogue.over(group.epilogue, extra, outputs, box[3], 2)
    lanes = _lanes(config, box[3], analysis.isa.lanes)
    taps = [_most_taps(config, size) for size in group.x.shape[2:]]
    taps_nbytes, width = 8 + config.work.itemsize, dims.add(box[3], lanes)
    scratch = dims.total((
        dims.mul(taps_nbytes, dims.total((dims.mul(box[2], taps[0]), dims.mul(width, taps[1])))),
        dims.mul(8, dims.total((box[2], width))), dims.mul(config.work.itemsize, group.x.shape[3]), 256,
    ))  # fmt: skip
    flops = dims.known(dims.product((4 * max(group.sampling_ratio, 1), *box))) or 0
    spec = roi_align_rows(config=config, epilogue=epilogue, lanes=lanes)
    return [Step(spec, flat(args=args_of(group, operands)), epilogue.writes, group.nodes, expressible(scratch), flops)]


def _lanes(config: RoiAlignConfig, width: Known, lanes: int) -> int:
    """Lanes for a row of cells: as few as hold it."""
    found = lanes_of(lanes, config.work)
    while isinstance(width, int) and found > 2 and width <= found // 2:
        found //= 2
    return found


def _most_taps(config: RoiAlignConfig, size: Known) -> Known:
    """Pixels under a cell along an axis: two for each sample; samples at most one pixel apart share them."""
    return 2 * config.ratio if config.ratio else expressible(dims.add(size, 2))


class _Taps(NamedTuple):
    """Pixels and weights of the cells along an axis: of tap t of cell c, at t * ``tap`` + c * ``cell``."""

    counts: Buf
    """Of the taps of each cell."""
    place: Buf
    weight: Buf
    tap: Val
    cell: Val


@kernel(params)
def roi_align_rows(
    k: Kernel, args: RoiAlignArgs[Buf, Val], *, config: RoiAlignConfig, epilogue: Epilogue, lanes: int
) -> None:
    height, width = args.height, args.width
    blocks = ceil_div(args.channels, BLOCK)
    down, along, line = _tables(k, args, config, lanes)
    with k.share(args.count * blocks) as at:
        region, first = at // blocks, at % blocks * BLOCK
        image, corners, is_good = corners_of(k, args, config, region)
        with k.when(is_good):
            x1, y1, x2, y2 = (scaled(k, config, c) for c in corners)
            total_y, _, _ = _fill(k, config, down, y1, y2, height, args.size_y, args.x_y)
            total_x, low, high = _fill(k, config, along, x1, x2, width, args.size_x, args.x_x)
            most = _pad(k, along, width, ceil_div(width, lanes) * lanes, low)
            count = k.cast(k.max(total_y, 1), config.work) * k.cast(k.max(total_x, 1), config.work)
            has_samples = (total_y > 0) & (total_x > 0)
            start, span = args.x.at(image * args.x_b + low), k.max(high - low + 1, 0)
            with k.loop(first, k.min(first + BLOCK, args.channels)) as channel:
                finish = BoundEpilogue(k, epilogue, args.epilogue, width, [region, channel])
                source = start.at(channel * args.x_c)
                with k.loop(0, height) as row:
                    _combine_rows(k, config, source, down, row, span, line)
                    for t in k.tiles(width, lanes):
                        found = _combine_columns(k, config, line, along, most, low, t)
                        found = k.select(has_samples, found, 0.0) if config.kind == MAX else found / count
                        finish.put(row, t, found)


def _tables(k: Kernel, args: RoiAlignArgs[Buf, Val], config: RoiAlignConfig, lanes: int) -> tuple[_Taps, _Taps, Buf]:
    """Scratch memory for the taps of rows and columns, and for a line of an image."""
    height, width = args.height, ceil_div(args.width, lanes) * lanes
    most_y, most_x = (k.const(2 * config.ratio) if config.ratio else size + 2 for size in (args.size_y, args.size_x))
    words = [height, width, height * most_y, width * most_x]
    reals = [height * most_y, width * most_x]
    buffers, at = list[Buf](), k.const(0)
    for dtype, sizes in ((i64, words), (config.work, reals)):
        for size in sizes:
            buffers.append(k.scratch(dtype, at))
            at = at + size * dtype.itemsize
    one, two = k.const(1), width
    down = _Taps(buffers[0], buffers[2], buffers[4], one, most_y)
    return down, _Taps(buffers[1], buffers[3], buffers[5], two, one), k.scratch(config.work, at)


def _fill(
    k: Kernel, config: RoiAlignConfig, taps: _Taps, start: Val, stop: Val, cells: Val, size: Val, stride: Val
) -> tuple[Val, Val, Val]:
    """Find the taps of all cells along an axis; returns the samples of a cell, and the least and largest place."""
    low, high, samples = k.var(size * stride), k.var(k.const(-1)), k.var(k.const(0))
    is_max = config.kind == MAX
    with k.loop(0, cells) as cell:
        found = BilinearSamples(k, config, Extent(start, stop, cell, cells, size, stride))
        place, weight, made = taps.place.at(cell * taps.cell), taps.weight.at(cell * taps.cell), k.var(0)

        def add(tap: Val, w: Val, weight: Buf = weight) -> None:
            weight.store(tap * taps.tap, weight.load(tap * taps.tap) + w)

        with k.loop(0 if is_max else found.begin, found.count if is_max else found.end) as sample:
            (lower, lower_weight), (upper, upper_weight) = found.taps(sample)
            count = made.get()
            last, before = k.const(-1), k.const(-1)
            if not is_max:
                last, before = (k.select(count >= n, place.load(k.max(count - n, 0) * taps.tap), -1) for n in (1, 2))
            with k.either(before.eq(lower) & last.eq(upper)) as (same, other):
                with same:
                    add(count - 2, lower_weight)
                    add(count - 1, upper_weight)
                with other:
                    with k.either(last.eq(lower)) as (next_to, apart):
                        with next_to:
                            add(count - 1, lower_weight)
                        with apart:
                            place.store(count * taps.tap, lower)
                            weight.store(count * taps.tap, lower_weight)
                            made.set(count + 1)
                    place.store(made.get() * taps.tap, upper)
                    weight.store(made.get() * taps.tap, upper_weight)
                    made.set(made.get() + 1)
            low.set(k.min(low.get(), lower))
            high.set(k.max(high.get(), upper))
        taps.counts.store(cell, made.get())
        samples.set(found.count)
    return samples.get(), low.get(), high.get()


def _pad(k: Kernel, taps: _Taps, cells: Val, width: Val, place: Val) -> Val:
    """Give all cells, and those that fill a vector, as many taps as any has; returns how many these are."""
    most = k.var(k.const(0))
    with k.loop(cells, width) as cell:
        taps.counts.store(cell, 0)
    with k.loop(0, cells) as cell:
        most.set(k.max(most.get(), taps.counts.load(cell)))
    with k.loop(0, width) as cell, k.loop(taps.counts.load(cell), most.get()) as tap:
        taps.place.store(tap * taps.tap + cell * taps.cell, place)
        taps.weight.store(tap * taps.tap + cell * taps.cell, 0.0)
    return most.get()


def _none(k: Kernel, config: RoiAlignConfig, lanes: int) -> Val:
    return k.const(lowest(config.work) if config.kind == MAX else 0, config.work, lanes)


def _combined(k: Kernel, config: RoiAlignConfig, total: Val, seen: Val, weight: Val) -> Val:
    if config.kind == MAX:
        return extreme(k, total, seen * weight, largest=True)
    return k.fma(seen, weight, total)


def _combine_rows(k: Kernel, config: RoiAlignConfig, source: Buf, down: _Taps, row: Val, span: Val, line: Buf) -> None:
    """The weighted sum or maximum of the rows under a row of cells."""
    place, weight = down.place.at(row * down.cell), down.weight.at(row * down.cell)
    count = down.counts.load(row)
    for t in k.tiles(span, lanes_of(k.lanes, config.work)):
        total = k.var(_none(k, config, t.lanes))
        with k.loop(0, count) as tap:
            seen = source.at(place.load(tap)).load(t)
            total.set(_combined(k, config, total.get(), seen, k.splat(weight.load(tap), t.lanes)))
        line.store(t, total.get())


def _combine_columns(k: Kernel, config: RoiAlignConfig, line: Buf, along: _Taps, most: Val, low: Val, t: Tile) -> Val:
    """The weighted sum or maximum of the taps of a line for a vector of cells."""
    total, origin = k.var(_none(k, config, t.lanes)), line.at(-low)
    counts = along.counts.load(t.index, t.lanes)
    with k.loop(0, most) as tap:
        at = tap * along.tap + t.index
        seen = k.pack([origin.load(along.place.load(at + lane)) for lane in range(t.lanes)])
        found = _combined(k, config, total.get(), seen, along.weight.load(at, t.lanes))
        total.set(k.select(counts > tap, found, total.get()))
    return total.get()

"""GridSample of images with channels along the lanes.

The taps of a point are the same for all channels, so where those of a pixel are adjacent, a tap is one vector load for
as many channels as a vector has lanes. An NCHW image is transposed first, which takes less time than as many loads of
single elements. The sums of a block of points are transposed in registers, into rows of points for the epilogue. Grid:
(batch, block of points).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sardonyx.ir import dims
from sardonyx.lower import views
from sardonyx.lower.groups import GridSample, Loop, Storage, View
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.kernels.image.grid_sample import (
    BLOCK,
    GridSampleArgs,
    GridSampleConfig,
    compute_taps,
    config_of,
    params,
    sampling_step,
)
from sardonyx.providers.cpu.kernels.loops import copy, loop
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.math.transpose import transposed
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal

UNROLLED = 8
"""Taps that are unrolled."""
MAX_PIXELS = 16
"""Pixels for each point up to which an image is transposed to be sampled."""


def supports(group: GridSample, analysis: Analysis) -> Refusal | None:
    return None if group.weights else Refusal("taps have no weights")


def pays(group: GridSample, analysis: Analysis) -> Refusal | None:
    _, channels, points = group.box
    least = lanes_of(analysis.isa.lanes, register_dtype(group.epilogue.operands[0])) // 2
    if not isinstance(channels, int) or channels < least:
        return Refusal("channels fill less than half a vector")
    pixels = dims.known(dims.product(group.x.shape[2:]))
    is_known = isinstance(points, int) and isinstance(pixels, int)
    if group.x.strides[1] != 1 and is_known and int(pixels or 0) > MAX_PIXELS * int(points):
        return Refusal("few points of a large image, which would be transposed")
    return None


def steps(group: GridSample, analysis: Analysis) -> list[Step]:
    before, x = ([], group.x) if group.x.strides[1] == 1 else _nhwc(group, analysis)
    config = config_of(group)
    block_nbytes = BLOCK * lanes_of(analysis.isa.lanes, config.work) * config.work.bits // 8
    return [*before, sampling_step(group, x, grid_sample_nhwc, config.scratch_nbytes + 2 * block_nbytes)]


def _nhwc(group: GridSample, analysis: Analysis) -> tuple[list[Step], View]:
    """A copy of the image with adjacent channels, and the steps that make it."""
    batch, channels, *sizes = group.x.shape
    shape = (batch, *sizes, channels)
    made = views.dense(Storage("temporary", group.x.dtype, expressible(dims.product(shape))), shape)
    image = views.permuted(made, (0, len(shape) - 1, *range(1, len(shape) - 1)))
    copied = Loop.copying(group.nodes, group.x, image)
    way = copy.steps if copy.supports(copied, analysis) is None else loop.fused_steps
    return way(copied, analysis), image


@kernel(params)
def grid_sample_nhwc(
    k: Kernel, args: GridSampleArgs[Buf, Val], *, config: GridSampleConfig, epilogue: Epilogue
) -> None:
    batch, points, channels = args.batch, args.points, args.channels
    blocks, lanes = ceil_div(points, BLOCK), lanes_of(k.lanes, config.work)
    places = k.scratch(i64)
    weights = k.scratch(config.work, config.count * BLOCK * 8)
    by_point = weights.at(config.count * BLOCK)
    by_channel = by_point.at(BLOCK * lanes)
    with k.share(batch * blocks) as at:
        image, first = at // blocks, at % blocks * BLOCK
        count = k.min(points - first, BLOCK)
        compute_taps(k, config, args, image * points + first, batch * points, count, places, weights)
        finish = BoundEpilogue(k, epilogue, args.epilogue, points, [image])
        start = args.x.at(image * args.x_b)
        with _vectors(k, channels, lanes) as (t, filled):
            with k.loop(0, count) as point:
                by_point.store(point * lanes, _sampled(k, config, start, places.at(point), weights.at(point), t))
            with k.loop(0, count, lanes) as point:
                rows = transposed([by_point.load((point + i) * lanes, lanes) for i in range(lanes)])
                for i, row in enumerate(rows):
                    by_channel.store(i * BLOCK + point, row)
            finish.tile(by_channel, BLOCK, t.index, filled, first, count)


@contextmanager
def _vectors(k: Kernel, channels: Val, lanes: int) -> Iterator[tuple[Tile, Val]]:
    """Vectors of channels, all with a mask, and how many channels each has."""
    with k.loop(0, channels, lanes) as at:
        yield Tile(at, lanes, k.mask(channels - at, lanes)), k.min(channels - at, lanes)


def _sampled(k: Kernel, config: GridSampleConfig, image: Buf, places: Buf, weights: Buf, t: Tile) -> Val:
    """The weighted sum of a point's taps for a vector of channels; those in the padding count as 0."""

    def tap(at: Val | int, total: Val) -> Val:
        place = places.load(at * BLOCK)
        v = k.cast(image.at(k.max(place, 0)).load(t), config.work)
        return k.fma(k.select(place >= 0, v, 0), k.splat(weights.load(at * BLOCK), t.lanes), total)

    total = k.zeros(config.work, t.lanes)
    if config.count <= UNROLLED:
        for i in range(config.count):
            total = tap(i, total)
        return total
    summed = k.var(total)
    with k.loop(0, config.count) as number:
        summed.set(tap(number, summed.get()))
    return summed.get()

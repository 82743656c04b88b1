"""RoiAlign and MaxRoiPool: one cell of a region at a time, channels along the lanes.

The address and the weights of a sample are scalars, the same for all channels: where those of a pixel are adjacent, a
tap is one vector load. Grid: the cells of all regions.
"""

from __future__ import annotations

from typing import Any, ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import RoiAlign
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.matrices import Matrix
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.kernels.math.reducers import extreme, lowest
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.context import Code
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.polling import is_stopped
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, f32, f64, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record

INSIDE, MAX, MEAN = "inside", "max", "mean"
MAX_COORDINATE = 1 << 24
"""Coordinates from which on a region is an error: f32 cannot tell neighbouring pixels apart there."""
RELATIVE_ERROR = 2.0**-20
"""A bound of the relative error of coordinates, which are computed in f32."""


class RoiAlignConfig(Record):
    """Compile-time configuration of ``roi_align``."""

    x: DType
    rois: DType
    batches: DType
    kind: str
    scale: float
    shift: float
    ratio: int
    has_adjacent_channels: bool

    @property
    def work(self) -> DType:
        return register_dtype(self.x)


def config_of(group: RoiAlign) -> RoiAlignConfig:
    x, rois, batches = group.operands
    return RoiAlignConfig(
        x.dtype, rois.dtype, batches.dtype, group.kind, group.spatial_scale, group.shift, group.sampling_ratio,
        x.strides[1] == 1,
    )  # fmt: skip


def steps(group: RoiAlign, analysis: Analysis) -> list[Step]:
    config, channels = config_of(group), group.box[1]
    extra, outputs = (
        [Matrix.of(views.permuted(v, (0, 2, 3, 1))) for v in seen] for seen in (group.extra, group.outputs)
    )  # fmt: skip
    epilogue, operands = Epilogue.over(group.epilogue, extra, outputs, channels, 2)
    args = args_of(group, operands)
    flops = dims.known(dims.product((8 * max(group.sampling_ratio, 1) ** 2, *group.box))) or 0
    return [
        Step(
            roi_align(config=config, epilogue=epilogue),
            flat(args=args),
            epilogue.writes,
            group.nodes,
            flops=flops,
            can_fail=True,
        )
    ]


def args_of(group: RoiAlign, epilogue: EpilogueArgs[Ref, Known]) -> RoiAlignArgs[Ref, Known]:
    x, rois, batches = group.operands
    count, channels, height, width = group.box
    x_b, x_c, x_y, x_x = x.strides
    return RoiAlignArgs[Ref, Known](
        Ref.of(x), Ref.of(rois), Ref.of(batches), x_b, x_c, x_y, x_x, x.shape[0], x.shape[2], x.shape[3],
        count, channels, height, width, rois.strides[0], rois.strides[1], batches.strides[0], epilogue,
    )  # fmt: skip


class RoiAlignArgs(Arguments[M, N]):
    """The parameters of ``roi_align``."""

    is_inline: ClassVar[bool] = True
    x: M
    rois: M
    batches: M
    x_b: N
    x_c: N
    x_y: N
    x_x: N
    images: N
    size_y: N
    size_x: N
    count: N
    channels: N
    height: N
    width: N
    roi: N
    corner: N
    """Strides of ``rois``."""
    batch: N
    """The stride of ``batches``."""
    epilogue: EpilogueArgs[M, N]


def params(config: RoiAlignConfig, epilogue: Epilogue, **_: object) -> Params:
    memory = Memory(config.x), Memory(config.rois), Memory(config.batches)
    numbers = i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64
    return {"args": RoiAlignArgs[Memory, DType](*memory, *numbers, epilogue.declared)}


@kernel(params)
def roi_align(k: Kernel, args: RoiAlignArgs[Buf, Val], *, config: RoiAlignConfig, epilogue: Epilogue) -> None:
    count, channels, height, width = args.count, args.channels, args.height, args.width
    with k.share(count * height * width) as at:
        column, rest = at % width, at // width
        row, region = rest % height, rest // height
        image, corners, is_good = corners_of(k, args, config, region)
        with k.when(is_good):
            x1, y1, x2, y2 = (scaled(k, config, c) for c in corners)
            extents = (
                Extent(y1, y2, row, height, args.size_y, args.x_y),
                Extent(x1, x2, column, width, args.size_x, args.x_x),
            )
            samples = _Pixels if config.kind == INSIDE else BilinearSamples
            down, along = (samples(k, config, extent) for extent in extents)
            finish = BoundEpilogue(k, epilogue, args.epilogue, channels, [region, row])
            start = args.x.at(image * args.x_b)
            for t in k.tiles(channels, lanes_of(k.lanes, config.work)):
                finish.put(column, t, _pooled(k, config, args.x_c, start, down, along, t))


def corners_of(
    k: Kernel, args: RoiAlignArgs[Buf, Val], config: RoiAlignConfig, region: Val
) -> tuple[Val, list[Val], Val]:
    """The image and the corners of a region, and whether it is to be computed: it may be wrong, or the run over."""
    image = k.cast(args.batches.load(region * args.batch), i64)
    corners = [args.rois.load(region * args.roi + args.corner * i) for i in range(4)]
    foreign, far = (image < 0) | (image >= args.images), k.const(1).eq(0)
    for c in corners:
        far = far | ~(k.abs(c * config.scale) < MAX_COORDINATE)
    for bad, code, value in ((foreign, Code.INDEX, image), (far, Code.REGION, region)):
        with k.when(bad, likely=False):
            k.fail(code, value)
    return image, corners, ~(foreign | far | is_stopped(k))


def scaled(k: Kernel, config: RoiAlignConfig, corner: Val) -> Val:
    """A coordinate of a corner in the image; MaxRoiPool rounds it to a pixel, half away from zero."""
    if config.kind == INSIDE:
        v = k.cast(corner, f64) * config.scale
        return k.cast(k.select(v < 0, k.ceil(v - 0.5), k.floor(v + 0.5)), i64)
    return k.cast(corner, config.work) * config.scale - config.shift


class Extent(Record):
    """A region along one axis of the image: from ``start`` to ``stop``, of which cell number ``cell`` is pooled."""

    start: Val
    stop: Val
    cell: Val
    cells: Val
    size: Val
    """The size of the image along the axis."""
    stride: Val


class BilinearSamples:
    """The samples of a cell along one axis, each between two pixels."""

    def __init__(self, k: Kernel, config: RoiAlignConfig, extent: Extent) -> None:
        self.k, self.size, self.stride = k, extent.size, extent.stride
        length = extent.stop - extent.start
        if config.shift == 0:
            length = k.select(length > 1, length, 1.0)
        self.step = length / k.cast(extent.cells, config.work)
        self.first = extent.start + k.cast(extent.cell, config.work) * self.step
        samples = k.const(config.ratio) if config.ratio else k.max(k.cast(k.ceil(self.step), i64), 0)
        self.count = k.select(self.size > 0, samples, 0)
        self.begin, self.end = self._near()

    def _near(self) -> tuple[Val, Val]:
        """The range of samples that may be inside the image; the others have weight 0, and a region may have many.

        Both ends are wider by the error of coordinates.
        """
        k, size = self.k, self.k.cast(self.size, f64)
        first, pace = k.cast(self.first, f64), k.cast(self.step, f64) / k.cast(k.max(self.count, 1), f64)
        slack = (k.abs(first) + k.abs(k.cast(self.step, f64))) * RELATIVE_ERROR + 1.0
        ends = [(border - first) / pace for border in (-1.0 - slack, size + slack)]
        low, high = (k.cast(pick(*ends), i64) for pick in (k.min, k.max))
        is_one = pace.eq(0.0)
        begin = k.select(is_one, 0, k.min(k.max(low - 2, 0), self.count))
        return begin, k.select(is_one, self.count, k.max(k.min(high + 2, self.count), begin))

    def taps(self, sample: Val) -> list[tuple[Val, Val]]:
        """The offsets and weights of the two pixels around a sample."""
        k, work = self.k, self.step.dtype
        at = self.first + (k.cast(sample, work) + 0.5) * self.step / k.cast(self.count, work)
        size = k.cast(self.size, work)
        inside = k.select((at >= -1) & (at <= size), k.const(1.0, work), 0.0)
        at = k.min(k.max(at, 0.0), size - 1)
        low = k.min(k.cast(k.floor(at), i64), self.size - 1)
        weight = at - k.cast(low, work)
        return [
            (low * self.stride, (1.0 - weight) * inside),
            (k.min(low + 1, self.size - 1) * self.stride, weight * inside),
        ]


class _Pixels:
    """The pixels of a cell along one axis."""

    def __init__(self, k: Kernel, config: RoiAlignConfig, extent: Extent) -> None:
        size, stride = extent.size, extent.stride
        step = k.cast(k.max(extent.stop - extent.start + 1, 1), f32) / k.cast(extent.cells, f32)
        low = k.cast(k.floor(k.cast(extent.cell, f32) * step), i64) + extent.start
        high = k.cast(k.ceil(k.cast(extent.cell + 1, f32) * step), i64) + extent.start
        self.low = k.min(k.max(low, 0), size)
        self.count = k.max(k.min(k.max(high, 0), size) - self.low, 0)
        self.begin, self.end = k.const(0), self.count
        self.stride = stride

    def taps(self, sample: Val) -> list[tuple[Val, None]]:
        return [((self.low + sample) * self.stride, None)]


def _pooled(
    k: Kernel, config: RoiAlignConfig, step: Val, start: Buf, down: Any, along: Any, t: Tile
) -> Val:  # fmt: skip
    """The mean or maximum of a cell for a vector of channels; 0 if it has no samples."""
    work = config.work
    is_mean = config.kind not in (MAX, INSIDE)
    channels = [t.index + lane for lane in range(0 if config.has_adjacent_channels else t.lanes)]
    if t.mask is not None:
        channels = [k.select(t.mask[lane], channel, t.index) for lane, channel in enumerate(channels)]
    total = k.var(k.const(0 if is_mean else lowest(work), work, t.lanes))

    def combine(a: Val, b: Val) -> Val:
        return a + b if is_mean else extreme(k, a, b, largest=True)

    has_samples = (down.count > 0) & (along.count > 0)
    with k.when(has_samples), k.loop(down.begin, down.end) as y, k.loop(along.begin, along.end) as x:
        for row, u in down.taps(y):
            for column, v in along.taps(x):
                if config.has_adjacent_channels:
                    seen = start.at(row + column).load(t)
                else:
                    seen = k.pack([start.load(channel * step + row + column) for channel in channels])
                total.set(combine(total.get(), seen if u is None else seen * (u * v)))
    found = total.get()
    if is_mean:
        found = found / (k.cast(k.max(down.count, 1), work) * k.cast(k.max(along.count, 1), work))
    elif config.kind == MAX:
        has_outside = (down.end - down.begin).ne(down.count) | (along.end - along.begin).ne(along.count)
        found = k.select(has_outside, combine(found, k.zeros(work, t.lanes)), found)
    return k.select(has_samples, found, 0.0)

"""A pointwise convolution fused with the depthwise convolution that is its only reader.

Networks of such pairs (inverted residuals) widen an image about sixfold before the depthwise convolution: the
intermediate image is larger than input and output. Here it is never stored as a whole. A thread takes some vectors of
channels and a row block. It computes rows of the intermediate image when its windows reach them, with the micro-kernel
of ``gemm.vector``, into a ring of few rows that stays in cache, and slides the depthwise window over them
(``common.nhwc_window``).

**Order of sums.** Channel by channel in one K-block, then that of ``conv.depthwise_nhwc``; the same for every grid.

**Grid.** (batch, row block, channel panel), with a row block for each thread, which then finds what it wrote in the
step before in its cache; images of few pixels are divided by channels. Rows that two row blocks read are computed
twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution, Group, Storage, Window
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.matrices import MatrixArgs
from sardonyx.providers.cpu.kernels.common.nhwc_window import (
    MAX_SMALL_PIXELS,
    NhwcWindow,
    NhwcWindowArgs,
    NhwcWindowConfig,
    OutputTile,
)
from sardonyx.providers.cpu.kernels.common.window import WindowGeometry, nhwc_matrix
from sardonyx.providers.cpu.kernels.conv import im2col, nhwc, on_tiles
from sardonyx.providers.cpu.kernels.conv.depthwise_nhwc import DepthwiseWindow, weights_of
from sardonyx.providers.cpu.kernels.conv.image_epilogue import writes_of
from sardonyx.providers.cpu.kernels.gemm.vector import MicroTileShape, micro_kernel
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split import int8_slices
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat, named
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, f32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record, replace

NAME = "conv.pointwise_depthwise"
"""The name of the kernel variant."""
MAX_DEPTH = 160
"""Input channels up to which the saved memory traffic matters compared with the products."""
MAX_RECOMPUTED = 12
"""Products that may be computed twice, on average for each intermediate element."""
MIN_WORK_ITEMS, MIN_ROWS = 3, 4
"""Work items of a thread and output rows of a row block, at least."""
VECTORS = 3
"""Vectors of a channel panel, at most: the ring of wider ones would not stay in cache."""


class RingConfig(Record):
    """Compile-time configuration of the intermediate image and its ring."""

    shape: MicroTileShape
    """The micro-tile of the pointwise convolution."""
    rows: int
    """Rows of the ring."""
    has_full_panels: bool
    """The intermediate channels are whole panels."""
    epilogue: Epilogue
    """The epilogue of the pointwise convolution."""


def fusable_pairs(groups: Sequence[Group], analysis: Analysis) -> dict[Storage, Convolution]:
    """The pointwise convolutions that are fused with their depthwise readers, by intermediate image."""
    if not analysis.target.policy.allows(NAME):
        return {}
    reads = Counter(view.storage for group in groups for view in group.reads)
    writes = Counter(view.storage for group in groups for view in group.writes)
    convolutions = [group for group in groups if type(group) is Convolution]
    made = {g.outputs[0].storage: g for g in convolutions if _supports_pointwise(g, analysis)}
    found: dict[Storage, Convolution] = {}
    for group in convolutions:
        storage, first = group.x.storage, made.get(group.x.storage)
        is_alone = reads[storage] == writes[storage] == 1 and storage.kind == "temporary"
        if first is not None and is_alone and _supports_depthwise(group, first, analysis):
            found[storage] = first
    return found


def _supports_pointwise(group: Convolution, analysis: Analysis) -> bool:
    """Whether a convolution is pointwise with few input channels, of an image without gaps between rows."""
    geometry = WindowGeometry.of(group, collapse=False)
    image, window = geometry.x, geometry.window
    is_pointwise = (
        window == Window((1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0)) and group.groups == len(group.outputs) == 1
    )
    if not is_pointwise or group.x.dtype is not f32 or analysis.isa.name == "neon":
        return False
    if im2col.has_few_outputs(group, analysis) is not False:
        return False
    if not nhwc.suits(group) or not nhwc.has_nhwc_views(group):
        return False
    filters, channels = (int(d) for d in group.w.shape[:2])
    is_flat = image.shape[2] == 1 and image.strides[3] == dims.mul(image.strides[4], image.shape[4])
    is_by_channel = not any(s for v in geometry.extra for s in (v.strides[0], *v.strides[2:]))
    is_worth = channels <= MAX_DEPTH and 2 * filters >= analysis.isa.lanes and image.shape[2:] == geometry.size
    is_cheap = not on_tiles.takes(group, analysis) or on_tiles.terms(group, analysis) == int8_slices.SLICES
    return is_flat and is_by_channel and is_worth and is_cheap


def _supports_depthwise(group: Convolution, first: Convolution, analysis: Analysis) -> bool:
    """Whether a convolution is depthwise over the whole output of the pointwise one."""
    x, out = group.x, first.outputs[0]
    is_depthwise = group.groups > 1 and group.w.shape[1] == 1 and group.w.shape[0] == group.groups
    is_all = x.shape == out.shape and x.strides == out.strides and x.offset == out.offset and x.dtype is f32
    found = NhwcWindow.of(group, analysis) if is_depthwise and is_all else None
    if found is None or found.geometry.is_flat_pointwise or found.geometry.size[0] != 1:
        return False
    filters, channels = (int(d) for d in first.w.shape[:2])
    ring = _ring_nbytes(found, MicroTileShape.fitted(analysis.isa, f32, filters, VECTORS), analysis.isa)
    fits_cache = ring is not None and (not isinstance(ring, int) or ring <= analysis.isa.l2_nbytes // 2)
    return fits_cache and _is_worth(found.geometry, channels)


def _is_worth(geometry: WindowGeometry, channels: int) -> bool:
    """Whether recomputing the rows that two row blocks share costs less than storing the intermediate image."""
    taps, (rows, columns) = geometry.taps, geometry.size[1:]
    again = max((taps.kernel[1] - 1) * taps.dilations[1] + 1 - taps.strides[1], 0)
    if not isinstance(rows, int) or not isinstance(columns, int) or rows * columns <= MAX_SMALL_PIXELS:
        return True
    return rows >= MIN_ROWS and channels * again <= MAX_RECOMPUTED * rows * taps.strides[1]


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    """The step of a fused pair, of which ``group`` is the depthwise convolution."""
    first = analysis.fused_pairs[group.x.storage]
    isa, found, before = analysis.isa, NhwcWindow.of(group, analysis), WindowGeometry.of(first, collapse=False)
    assert found is not None
    filters, channels = (int(d) for d in first.w.shape[:2])
    shape = MicroTileShape.fitted(isa, f32, filters, VECTORS)
    pointwise_epilogue, operands = Epilogue.over(first.epilogue, [nhwc_matrix(v) for v in before.extra], [], filters, 3)
    packing, depthwise = weights_of(group, found.config, isa)
    panels = nhwc.packed(first, shape.columns(isa, f32), isa)
    window, source = found.operand.window, before.operand
    strides = replace(source.strides, c=window.strides.c)
    image = replace(found.operand, window=replace(window, x=source.x, strides=strides))
    args = FusedPairArgs(image, Ref(depthwise.storage), Ref(panels), channels, operands.x)
    scratch = dims.add(_ring_nbytes(found, shape, isa), shape.rows * shape.columns(isa, f32) * 4)
    made = RingConfig(shape, _ring(found.config), filters % shape.columns(isa, f32) == 0, pointwise_epilogue)
    spec = conv_pointwise_depthwise(config=found.config, ring_config=made, epilogue=found.epilogue)
    products = dims.add(dims.product((channels, *first.box)), dims.product((found.config.taps.count, *group.box)))
    flops = dims.known(dims.mul(2, products)) or 0
    moved = dims.total(dims.product(v.shape) for v in (first.x, *group.outputs))
    nbytes = dims.known(dims.mul(dims.add(moved, panels.elements), 4)) or 0
    variant = f"pointwise by {shape.rows} pixels x {shape.vectors} vectors, depthwise by {found.config.pixels} pixels"
    writes = writes_of(found.epilogue)
    nodes = (*first.nodes, *group.nodes)
    return [*packing, Step(spec, flat(args=args), writes, nodes, expressible(scratch), flops, nbytes, variant)]


def _ring(config: NhwcWindowConfig) -> int:
    """Rows of the ring: those that a window reads and the one in progress, rounded up to a power of two."""
    seen = (config.taps.kernel[1] - 1) * config.taps.dilations[1] + 1
    return 1 << seen.bit_length()


def _ring_nbytes(found: NhwcWindow, shape: MicroTileShape, isa: Isa) -> Known | None:
    return dims.known(dims.product((_ring(found.config), found.geometry.x.shape[4], shape.columns(isa, f32), 4)))


# -- the kernel


class FusedPairArgs(Arguments[M, N]):
    """The parameters of ``conv_pointwise_depthwise``."""

    is_inline: ClassVar[bool] = True
    image: NhwcWindowArgs[M, N]
    """Memory and strides are those of the image that the pointwise convolution reads."""
    w: M
    """Weights of the depthwise convolution."""
    panels: M
    """Weights of the pointwise convolution."""
    depth: N
    """Input channels of the pointwise convolution."""
    extra: tuple[MatrixArgs[M, N], ...] = field(metadata=named("first_x"))
    """The operands of its epilogue."""


def _params(config: NhwcWindowConfig, ring_config: RingConfig, epilogue: Epilogue) -> Params:
    image, extra = NhwcWindowArgs.declared(config, f32, epilogue), ring_config.epilogue.declared.x
    return {"args": FusedPairArgs(image, Memory(f32), Memory(f32), i64, extra)}


@kernel(_params)
def conv_pointwise_depthwise(
    k: Kernel, args: FusedPairArgs[Buf, Val], *, config: NhwcWindowConfig, ring_config: RingConfig, epilogue: Epilogue
) -> None:
    _FusedPair(k, config, ring_config, epilogue, args).slide()


class _FusedPair(DepthwiseWindow):
    """Slides the depthwise window over a ring of rows of the intermediate image.

    The pointwise convolution computes a row when the window reaches it.
    """

    def __init__(
        self, k: Kernel, config: NhwcWindowConfig, ring_config: RingConfig, epilogue: Epilogue,
        pair: FusedPairArgs[Buf, Val],
    ) -> None:  # fmt: skip
        super().__init__(k, config, epilogue, pair.image, pair.w)
        self.pair = pair
        self.ring_config, self.shape, self.rows = ring_config, ring_config.shape, ring_config.rows
        self.wide = self.shape.vectors * self.lanes
        own = EpilogueArgs[Buf, Val](pair.extra, ())
        self.finish = BoundEpilogue(k, ring_config.epilogue, own, pair.image.channels, [k.const(0)] * 3)
        self.sums, self.ring = k.scratch(f32), k.scratch(f32, self.shape.rows * self.wide * 4)
        self.pixel, self.stride = self.stride[2], (k.const(0), self.size[2] * self.wide, k.const(self.wide))
        self.first = k.const(0)
        """First channel of the current panel."""

    def row(self, z: Val, y: Val) -> Val:
        return (y & (self.rows - 1)) * self.stride[1]

    def channels_at(self, t: Tile) -> Tile:
        return Tile(t.index - self.first, t.lanes, t.mask)

    def slide(self) -> None:
        k, batch, channels, (_, out_y, out_x) = self.k, self.args.window.batch, self.args.channels, self.out
        self.args.epilogue.zero_padding(k, batch)
        panels = ceil_div(channels, self.wide)
        most = k.max(
            k.min(k.threads * ceil_div(k.const(MIN_WORK_ITEMS), k.max(batch * panels, 1)), out_y // MIN_ROWS), 1
        )
        row_blocks = k.opaque(k.select(out_y * out_x <= MAX_SMALL_PIXELS, 1, most))
        with k.share(batch * row_blocks * panels) as at:
            panel, rest = at % panels, at // panels
            row_block, image = rest % row_blocks, rest // row_blocks
            self.first = panel * self.wide
            self._row_block(image, row_block * out_y // row_blocks, (row_block + 1) * out_y // row_blocks)

    def _row_block(self, image: Val, top: Val, bottom: Val) -> None:
        """Compute the output rows from ``top`` to ``bottom`` of an image, for the current channel panel."""
        k, window, (_, in_y, in_x) = self.k, self.args.window, self.size
        stride, seen = self.taps.strides[1], (self.taps.kernel[1] - 1) * self.taps.dilations[1] + 1
        x = window.x.at(image * window.strides.b)
        weights = self.pair.panels.at(self.first * self.pair.depth)
        stop_channel = k.min(self.first + self.wide, self.args.channels)
        outputs, made = OutputTile(self, self.ring, (self.first, stop_channel)), k.var(0)
        with k.loop(top, bottom) as y:
            start = y * stride - self.pad[1]
            stop = k.min(start + seen, in_y)
            made.set(k.max(made.get(), k.max(start, 0) * in_x))
            room = k.min(stop + 1, in_y) * in_x
            with k.loop_while(lambda: made.get() < stop * in_x):
                self._make(x, weights, made.get(), room)
                made.set(k.min(made.get() + self.shape.rows, room))
            with k.loop(0, self.out[2], self.config.pixels) as at:
                outputs.make(image, (k.const(0), y, at), self.out[2] - at)

    def _make(self, x: Buf, weights: Buf, pixel: Val, room: Val) -> None:
        """Compute a micro-tile of intermediate pixels from ``pixel`` on; store those before ``room`` in the ring."""
        k, lanes, (_, in_y, in_x) = self.k, self.lanes, self.size
        last, count = in_y * in_x - 1, self.shape.rows
        given = [x.at(k.min(pixel + i, last) * self.pixel) for i in range(count)]
        found = micro_kernel(k, given, weights, self.pair.depth, f32, self.shape, is_near=True)
        start, around = (pixel // in_x & (self.rows - 1)) * in_x + pixel % in_x, self.rows * in_x
        if self.ring_config.epilogue.is_expensive:
            for at, total in enumerate(total for row in found for total in row):
                self.sums.store(at * lanes, total)
            with k.loop(0, k.min(room - pixel, count)) as i:
                sums = [self.sums.load(i * self.wide + j * lanes, lanes) for j in range(self.shape.vectors)]
                self._put(start + i, around, [self._finished(j, total) for j, total in enumerate(sums)])
            return
        for r, row in enumerate(found):
            with k.when(pixel + r < room, likely=True):
                self._put(start + r, around, [self._finished(j, total.get()) for j, total in enumerate(row)])

    def _finished(self, j: int, sums: Val) -> Val:
        at = self.first + j * self.lanes
        mask = None if self.ring_config.has_full_panels else self.k.mask(self.finish.n - at, self.lanes)
        (result,) = self.finish.results(0, Tile(at, self.lanes, mask), sums)
        return result

    def _put(self, at: Val, around: Val, results: Sequence[Val]) -> None:
        """Store pixel ``at`` of the ring; from ``around``, the number of its pixels, it continues at its start."""
        place = self.k.select(at >= around, at - around, at) * self.wide
        for j, result in enumerate(results):
            self.ring.store(place + j * self.lanes, result)

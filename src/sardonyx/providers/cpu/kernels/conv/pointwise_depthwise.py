"""A pointwise convolution and the depthwise one that alone reads it, as one step: what lies between is never whole.

Networks of such pairs widen an image sixfold to look at each channel by itself: what is between weighs more than what
goes in and comes out. Here a thread takes some vectors of channels and a band of rows. It makes rows of the image
between as its windows come to them, by the inner loop of ``gemm``, into a ring of so few rows that they stay near, and
slides its windows over them (``pixels``).

**Order of sums.** Channel by channel in one run, then that of ``conv.depthwise_nhwc``; the same for every grid.

**Grid.** (batch, band of rows, panel of channels), with a band for each thread, so that it finds what it wrote in the
step before; images of few pixels are shared by channels. What two bands see is made twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution, Group, Storage, Window
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.image_block import ceil_div
from sardonyx.providers.cpu.kernels.common.matrices import number, of_known
from sardonyx.providers.cpu.kernels.common.nhwc_window import (
    MAX_SMALL_PIXELS,
    NhwcWindow,
    NhwcWindowConfig,
    OutputTile,
    nhwc_window_params,
)
from sardonyx.providers.cpu.kernels.common.window import AXES, WindowGeometry, nhwc_matrix
from sardonyx.providers.cpu.kernels.conv import few_outputs, nhwc, on_tiles
from sardonyx.providers.cpu.kernels.conv.depthwise_nhwc import DepthwiseWindow, weights_of
from sardonyx.providers.cpu.kernels.conv.packed_image import zero_padding
from sardonyx.providers.cpu.kernels.gemm.vector import MicroTileShape, micro_kernel
from sardonyx.providers.cpu.kernels.split import int8_slices
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, f32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

DEEPEST = 160
"""Channels of the image that goes in up to which what is saved counts beside the products."""
AGAIN = 12
"""Products for a number between, on average, that may be made once more."""
PARTS, BAND = 3, 4
"""Parts of work that a thread has at least, and rows of results that a band has."""
VECTORS = 3
"""Of a panel of channels, at most: of more, a ring of rows does not stay near."""
FIRST = "first_"
"""What the names of the pointwise convolution's arguments begin with."""


@dataclass(frozen=True)
class RingConfig:
    """What is constant about the image between, and how it is made."""

    shape: MicroTileShape
    """The register tile."""
    rows: int
    """Of the ring."""
    is_full: bool
    """Its channels are whole panels."""
    ending: Epilogue


def fusable_pairs(groups: Sequence[Group], target: Target) -> dict[Storage, Convolution]:
    """The pointwise convolutions that are made together with the depthwise ones that read them."""
    reads = Counter(view.storage for group in groups for view in group.reads)
    writes = Counter(view.storage for group in groups for view in group.writes)
    convolutions = [group for group in groups if isinstance(group, Convolution)]
    made = {g.outputs[0].storage: g for g in convolutions if _is_first(g, target)}
    found: dict[Storage, Convolution] = {}
    for group in convolutions:
        storage, first = group.x.storage, made.get(group.x.storage)
        is_alone = reads[storage] == writes[storage] == 1 and storage.kind == "temporary"
        if first is not None and is_alone and _is_second(group, first, target):
            found[storage] = first
    return found


def _is_first(group: Convolution, target: Target) -> bool:
    """Whether a convolution is pointwise and shallow, of an image whose rows follow each other without gap."""
    geometry = WindowGeometry.of(group, collapse=False)
    image, window = geometry.x, geometry.window
    is_plain = window == Window((1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0)) and group.groups == len(group.outputs) == 1
    if not is_plain or group.x.dtype is not f32 or target.isa.name == "neon":
        return False
    if few_outputs.has_few_outputs(group, target) is not False:
        return False
    if not nhwc.supports(group) or not nhwc.has_nhwc_views(group):
        return False
    filters, channels = (int(d) for d in group.w.shape[:2])
    is_flat = image.shape[2] == 1 and image.strides[3] == dims.mul(image.strides[4], image.shape[4])
    is_by_channel = not any(s for v in geometry.extra for s in (v.strides[0], *v.strides[2:]))
    is_worth = channels <= DEEPEST and 2 * filters >= target.isa.lanes and image.shape[2:] == geometry.size
    return is_flat and is_by_channel and is_worth and on_tiles.terms_for(group, target) in (None, int8_slices.SLICES)


def _is_second(group: Convolution, first: Convolution, target: Target) -> bool:
    """Whether a convolution is depthwise, over all that another writes."""
    x, out = group.x, first.outputs[0]
    is_depthwise = group.groups > 1 and group.w.shape[1] == 1 and group.w.shape[0] == group.groups
    is_all = x.shape == out.shape and x.strides == out.strides and x.offset == out.offset and x.dtype is f32
    found = NhwcWindow.of(group, target) if is_depthwise and is_all else None
    if found is None or found.geometry.is_flat_pointwise or found.geometry.size[0] != 1:
        return False
    filters, channels = (int(d) for d in first.w.shape[:2])
    ring = _ring_nbytes(found, MicroTileShape.fitted(target.isa, f32, filters, VECTORS), target.isa)
    is_near = ring is not None and (not isinstance(ring, int) or ring <= target.isa.l2_nbytes // 2)
    return is_near and _is_worth(found.geometry, channels)


def _is_worth(geometry: WindowGeometry, channels: int) -> bool:
    """Whether there are bands of rows, and making those that two see twice costs less than a way through memory."""
    taps, (rows, columns) = geometry.taps, geometry.size[1:]
    again = max((taps.kernel[1] - 1) * taps.dilations[1] + 1 - taps.strides[1], 0)
    if not isinstance(rows, int) or not isinstance(columns, int) or rows * columns <= MAX_SMALL_PIXELS:
        return True
    return rows >= BAND and channels * again <= AGAIN * rows * taps.strides[1]


def steps(first: Convolution, group: Convolution, target: Target) -> list[Step]:
    """What two convolutions do."""
    isa, found, before = target.isa, NhwcWindow.of(group, target), WindowGeometry.of(first, collapse=False)
    assert found is not None
    filters, channels = (int(d) for d in first.w.shape[:2])
    shape = MicroTileShape.fitted(isa, f32, filters, VECTORS)
    ending, more = Epilogue.over(first.epilogue, [nhwc_matrix(v) for v in before.extra], [], filters, 3)
    packing, depthwise = weights_of(group, found.config, isa)
    panels = nhwc.packed(first, shape.columns(isa, f32), isa)
    source = before.args()
    args = {
        **found.args, "w": Ref(depthwise.storage), "panels": Ref(panels), "depth": channels,
        **{name: source[name] for name in ("x", "x_b", *(f"x_{a}" for a in AXES))},
        **{FIRST + name: value for name, value in more.items()},
    }  # fmt: skip
    scratch = dims.add(_ring_nbytes(found, shape, isa), shape.rows * shape.columns(isa, f32) * 4)
    made = RingConfig(shape, _ring(found.config), filters % shape.columns(isa, f32) == 0, ending)
    spec = conv_pointwise_depthwise(config=found.config, between=made, epilogue=found.epilogue)
    products = dims.add(dims.product((channels, *first.box)), dims.product((found.config.taps.count, *group.box)))
    flops = dims.known(dims.mul(2, products)) or 0
    moved = dims.total(dims.product(v.shape) for v in (first.x, *group.outputs))
    nbytes = dims.known(dims.mul(dims.add(moved, panels.elements), 4)) or 0
    variant = f"pointwise by {shape.rows} pixels x {shape.vectors} vectors, depthwise by {found.config.pixels} pixels"
    writes = found.epilogue.writes | ({"image"} if found.config.terms else set())
    nodes = (*first.nodes, *group.nodes)
    return [*packing, Step(spec, args, writes, nodes, of_known(scratch), flops, nbytes, variant)]


def _ring(config: NhwcWindowConfig) -> int:
    """Rows between that are kept: those that a window sees and the one that is begun, as a power of two."""
    seen = (config.taps.kernel[1] - 1) * config.taps.dilations[1] + 1
    return 1 << seen.bit_length()


def _ring_nbytes(found: NhwcWindow, shape: MicroTileShape, isa: Isa) -> Known | None:
    return dims.known(dims.product((_ring(found.config), found.geometry.x.shape[4], shape.columns(isa, f32), 4)))


# -- the kernel


def _params(config: NhwcWindowConfig, between: RingConfig, epilogue: Epilogue) -> Params:
    more = {FIRST + name: kind for name, kind in between.ending.params.items()}
    return {**nhwc_window_params(config, f32, epilogue), "w": (f32,), "panels": (f32,), "depth": i64, **more}


@kernel(_params)
def conv_pointwise_depthwise(
    k: Kernel, *, config: NhwcWindowConfig, between: RingConfig, epilogue: Epilogue, **memory: Any
) -> None:
    _FusedPair(k, config, between, epilogue, memory).slide()


class _FusedPair(DepthwiseWindow):
    """Windows over rows that are made when they come to them."""

    def __init__(
        self, k: Kernel, config: NhwcWindowConfig, between: RingConfig, epilogue: Epilogue, memory: dict[str, Any]
    ) -> None:
        super().__init__(k, config, epilogue, memory)
        self.between, self.shape, self.rows = between, between.shape, between.rows
        self.wide = self.shape.vectors * self.lanes
        own = {name.removeprefix(FIRST): value for name, value in memory.items() if name.startswith(FIRST)}
        self.finish = BoundEpilogue(k, between.ending, own, number(memory, "channels"), [k.const(0)] * 3)
        self.sums, self.ring = k.scratch(f32), k.scratch(f32, self.shape.rows * self.wide * 4)
        self.pixel, self.stride = self.stride[2], [k.const(0), self.size[2] * self.wide, k.const(self.wide)]
        self.first = k.const(0)
        """Of the channels at hand."""

    def row(self, z: Val, y: Val) -> Val:
        return (y & (self.rows - 1)) * self.stride[1]

    def channels_at(self, t: Tile) -> Tile:
        return Tile(t.index - self.first, t.lanes, t.mask)

    def slide(self) -> None:
        k, memory = self.k, self.memory
        batch, channels, (_, out_y, out_x) = number(memory, "batch"), number(memory, "channels"), self.out
        if self.config.terms:
            zero_padding(k, memory["image"], memory, "image", batch)
        panels = ceil_div(channels, self.wide)
        most = k.max(k.min(k.threads * ceil_div(k.const(PARTS), k.max(batch * panels, 1)), out_y // BAND), 1)
        bands = k.opaque(k.select(out_y * out_x <= MAX_SMALL_PIXELS, 1, most))
        with k.share(batch * bands * panels) as at:
            panel, rest = at % panels, at // panels
            band, image = rest % bands, rest // bands
            self.first = panel * self.wide
            self._band(image, band * out_y // bands, (band + 1) * out_y // bands)

    def _band(self, image: Val, top: Val, bottom: Val) -> None:
        """The results of some rows, for the panel of channels at hand."""
        k, memory, (_, in_y, in_x) = self.k, self.memory, self.size
        stride, seen = self.taps.strides[1], (self.taps.kernel[1] - 1) * self.taps.dilations[1] + 1
        x = memory["x"].at(image * number(memory, "x_b"))
        weights = memory["panels"].at(self.first * number(memory, "depth"))
        behind = k.min(self.first + self.wide, number(memory, "channels"))
        outputs, made = OutputTile(self, self.ring, (self.first, behind)), k.var(0)
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
        """Pixels of the image between, from one on and up to ``room``."""
        k, lanes, (_, in_y, in_x) = self.k, self.lanes, self.size
        last, many = in_y * in_x - 1, self.shape.rows
        given = [x.at(k.min(pixel + i, last) * self.pixel) for i in range(many)]
        found = micro_kernel(k, given, weights, number(self.memory, "depth"), f32, self.shape, is_near=True)
        start, around = (pixel // in_x & (self.rows - 1)) * in_x + pixel % in_x, self.rows * in_x
        if self.between.ending.is_expensive:
            for at, total in enumerate(total for row in found for total in row):
                self.sums.store(at * lanes, total)
            with k.loop(0, k.min(room - pixel, many)) as i:
                sums = [self.sums.load(i * self.wide + j * lanes, lanes) for j in range(self.shape.vectors)]
                self._put(start + i, around, [self._finished(j, total) for j, total in enumerate(sums)])
            return
        for r, row in enumerate(found):
            with k.when(pixel + r < room, likely=True):
                self._put(start + r, around, [self._finished(j, total.get()) for j, total in enumerate(row)])

    def _finished(self, j: int, sums: Val) -> Val:
        at = self.first + j * self.lanes
        mask = None if self.between.is_full else self.k.mask(self.finish.n - at, self.lanes)
        (result,) = self.finish.results(0, Tile(at, self.lanes, mask), sums)
        return result

    def _put(self, at: Val, around: Val, results: Sequence[Val]) -> None:
        """A pixel of the ring."""
        place = self.k.select(at >= around, at - around, at) * self.wide
        for j, result in enumerate(results):
            self.ring.store(place + j * self.lanes, result)

"""Convolution of NHWC images as an implicit GEMM by vector multiply-adds, filters along the lanes.

The rows of the product are output pixels, its columns filters, and k runs over taps and, within a tap, over channels,
which are contiguous. Weights are packed in panels of NR filters:

    [group][filters / NR][tap][channel][NR]

The micro-kernel is that of ``gemm.vector``: MR broadcast elements, one tap of MR pixels, times NV vectors of weights.
Where a tap reads padding, zeros replace its pixel; a bit mask per pixel says which taps do. Nothing is copied, and
images of any width fill all lanes. The pixels of a tile are mostly neighbours in a row and share one address
(``TilePixels``).

**Order of sums.** Tap by tap, channel by channel, in K-blocks of whole taps or parts of one; each starts from zero and
they are added in order. So results do not depend on tile heights, blocking or the number of threads.

**Cache blocking** is that of ``gemm.vector``: a K-block of a panel stays in L1 for the pixels of a block. Row blocks
are so large that their input, outputs and epilogue operands fill half of L2, so that one panel after the other finds
them there. Where all weights fit too, a row block is one block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Convolution, View
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, is_cheap
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, Matrix
from sardonyx.providers.cpu.kernels.common.window import WindowGeometry, geometry_params, is_nhwc, refusal
from sardonyx.providers.cpu.kernels.conv.nhwc_block import (
    TAPS,
    Block,
    Channels,
    TilePixels,
    fits_tables,
    is_inside,
    taps_args,
)
from sardonyx.providers.cpu.kernels.conv.stem_rows import NUMBERS, RowTransposer, StemRows
from sardonyx.providers.cpu.kernels.gemm.pack import NUMPY_NBYTES, numpy_panels, pack_panels, unit_axis
from sardonyx.providers.cpu.kernels.gemm.vector import (
    KC,
    MicroTileShape,
    RowBlocking,
    add_previous,
    kc_of,
    lanes_of,
    prefetch_pace,
    scratch_nbytes,
    store_sums,
)
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, Var, f32, f64, i64
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES, Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.prepack import aligned
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal

MAX_SHALLOW_TERMS = KC
"""Terms of a sum up to which a cheap epilogue is applied to registers; for longer sums scratch costs little."""
LOW = 4
"""Pixels of the small tile that takes the tail of an image; missing pixels repeat the last."""
LARGE = 1e8
"""Operations (of one image, if the batch is unknown) from which on a convolution has its own kernel with the pixel
stride as a constant. Smaller ones share kernels, which saves compile time."""
MANY = 64
"""Filters assumed for images of one pixel, such as global means, so that they share kernels."""
EVEN_ROWS = {1: (24, 20, 16), 2: (12, 10)}
"""Pixels of a tile by its vectors of filters, in order of preference."""


def suits(group: Convolution) -> bool:
    """Whether weights, types, window and epilogue suit this kernel; layouts aside."""
    return _unsuitable(group) is None


def _unsuitable(group: Convolution) -> Refusal | None:
    w = group.w
    if w.storage.tensor is None or not all(isinstance(d, int) for d in (*w.shape, w.offset)) or not views.is_dense(w):
        return Refusal("the weights are not a contiguous constant")
    if group.x.dtype is not w.dtype or w.dtype not in (f32, f64):
        return Refusal(f"{group.x.dtype} with weights of {w.dtype}")
    if not fits_tables(group):
        return Refusal("the window has too many taps")
    return refusal(group)


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    return analysis.once("conv.nhwc", group, _refusal)


def _refusal(group: Convolution) -> Refusal | None:
    return _unsuitable(group) if has_nhwc_views(group) else Refusal("the image or a result is not NHWC")


def is_depthwise(group: Convolution) -> bool:
    return group.groups > 1 and group.w.shape[1] == 1


def has_nhwc_views(group: Convolution) -> bool:
    """Whether image and outputs are NHWC, and the pixels of epilogue operands have a common stride."""
    return all(map(is_nhwc, (group.x, *group.outputs))) and Lines.of(group) is not None


@dataclass(frozen=True)
class Lines:
    """The pixels of outputs and epilogue operands as lines of constant stride.

    One line if there are no gaps; otherwise the rows of the image.
    """

    count: Known
    length: Known

    @staticmethod
    def of(group: Convolution) -> Lines | None:
        seen, size = (*group.extra, *group.outputs), group.box[2:]
        for cut in (0, len(size) - 1):
            parts = [(v.shape[2:], v.strides[2:]) for v in seen]
            if all(_even(d[:cut], s[:cut]) is not None and _even(d[cut:], s[cut:]) is not None for d, s in parts):
                return Lines(expressible(dims.product(size[:cut])), expressible(dims.product(size[cut:])))
        return None

    def matrix(self, view: View, filters: int) -> Matrix:
        """Rows are the pixels of a line, columns filters; the batch is (image, group, line)."""
        cut = 0 if self.count == 1 else len(view.shape) - 3
        d, s = view.shape[2:], view.strides[2:]
        line, pixel = _even(d[:cut], s[:cut]), _even(d[cut:], s[cut:])
        assert line is not None and pixel is not None
        batch = (view.strides[0], expressible(dims.mul(view.strides[1], filters)), line)
        return Matrix(view.storage, view.offset, batch, pixel, view.strides[1])

    def args(self) -> dict[str, Known]:
        return {"lines": self.count, "length": self.length}


def _even(shape: Sequence[Known], strides: Sequence[Known]) -> Known | None:
    """The common stride of some axes; None where there is none."""
    stride: Known = 0
    length: Known = 1
    for d, s in zip(reversed(shape), reversed(strides), strict=True):
        if d == 1:
            continue
        if length == 1:
            stride = s
        elif s != dims.mul(stride, length):
            return None
        length = expressible(dims.mul(length, d))
    return stride


def steps(group: Convolution, analysis: Analysis, first: StemRows | None = None) -> list[Step]:
    """A convolution with NHWC views, or one of the transposed rows of a stem."""
    isa, geometry, dtype = analysis.isa, WindowGeometry.of(group, collapse=False), group.x.dtype
    lines = Lines.of(group) if first is None else Lines(group.box[2], group.box[3])
    assert lines is not None
    channels, filters = int(group.w.shape[1]), int(group.w.shape[0]) // group.groups
    taps = geometry.taps
    shape, distance = _shape(geometry, isa, dtype, filters)
    extra, outputs = ([lines.matrix(v, filters) for v in seen] for seen in (group.extra, group.outputs))
    epilogue, more = Epilogue.over(group.epilogue, extra, outputs, filters, 3)
    weights = packed(group, shape.columns(isa, dtype), isa)
    run = kc_of(taps.count * channels)
    args = {
        **geometry.args(), **taps_args(taps), **lines.args(), "w": Ref(weights), "groups": group.groups,
        "channels": channels, "filters": filters, "run": run, "run_taps": max(run // max(channels, 1), 1),
        "row_block_nbytes": isa.l2_nbytes // 2, "distance": distance, **flat(operands=more),
        **(first.args() if first is not None else {}),
    }  # fmt: skip
    is_padded = not is_inside(geometry)
    is_direct = taps.count * channels <= MAX_SHALLOW_TERMS and is_cheap(group.epilogue) and not _is_single(geometry)
    planes = 0 if first is None else first.channels
    is_large = 2 * taps.count * channels * math.prod(d for d in group.box if isinstance(d, int)) >= LARGE
    even = None if not distance else distance if is_large else 0
    spec = conv_nhwc(
        dtype=dtype, shape=shape, even=even, is_padded=is_padded, is_direct=is_direct, planes=planes, epilogue=epilogue
    )
    flops = dims.known(dims.product((2 * taps.count, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(geometry.nbytes, dims.mul(weights.elements, dtype.bits // 8))) or 0
    scratch = _scratch(shape, isa, dtype) + (0 if first is None else first.nbytes)
    variant = f"{shape.rows} pixels x {shape.vectors} vectors of {dtype}, NHWC"
    return [Step(spec, args, epilogue.writes, group.nodes, scratch, flops, nbytes, variant)]


def _shape(geometry: WindowGeometry, isa: Isa, dtype: DType, filters: int) -> tuple[MicroTileShape, int]:
    """The micro-tile, and the stride of the pixels it reads; 0 where each pixel has its own address.

    x86 does not have enough registers for one address per pixel, so neighbouring pixels share addresses. Pointwise
    convolutions with tiles of two vectors gain nothing from that.
    """
    shape, distance = (
        MicroTileShape.fitted(isa, dtype, filters),
        expressible(dims.mul(geometry.x.strides[4], geometry.window.strides[2])),
    )
    if _is_single(geometry) and not shape.by_lane:
        return MicroTileShape.fitted(isa, dtype, MANY), 0
    rows = EVEN_ROWS.get(shape.vectors)
    is_worth = shape.vectors == 1 or geometry.taps.count > 1
    if shape.by_lane or isa.registers < 32 or rows is None or not (is_worth and isinstance(distance, int) and distance):
        return shape, 0
    wide = 0 if _joins(geometry) else geometry.size[2]
    whole = (n for n in rows if isinstance(wide, int) and wide % n == 0)
    return replace(shape, rows=next(whole, rows[0])), distance


def _is_single(geometry: WindowGeometry) -> bool:
    """Whether images have one pixel; the batch may be the first axis."""
    return geometry.size[1:] == (1, 1)


def _joins(geometry: WindowGeometry) -> bool:
    """Whether the pixels that consecutive output rows read follow each other without gaps."""
    return geometry.taps.count == 1 and geometry.window.strides[2] == 1 and views.is_mergeable(geometry.x, 3)


def packed(group: Convolution, nr: int, isa: Isa) -> Packed:
    """The weights packed in panels."""
    w, tensor = group.w, group.w.storage.tensor
    assert tensor is not None
    count, (all_filters, channels, *kernel) = group.groups, (int(d) for d in w.shape)
    filters, taps = all_filters // count, int(np.prod(kernel))
    panels = -(-filters // nr)
    elements = count * panels * taps * channels * nr

    def make() -> Any:
        content = np.ascontiguousarray(tensor.peek()).reshape(-1)[int(w.offset) :]
        out = aligned(elements, w.dtype)
        if out.nbytes <= NUMPY_NBYTES:
            given = content[: all_filters * channels * taps].reshape(count, filters, channels, taps)
            numpy_panels(given.transpose(0, 3, 2, 1), out.reshape(count, panels, taps, channels, nr).swapaxes(1, 2))
            return out
        unit = unit_axis(Matrix(w.storage, 0, (), taps, channels * taps))
        spec = pack_panels(source=w.dtype, target=w.dtype, unit=unit, nr=nr, axes=2)
        batch = {"x_batch0": filters * channels * taps, "x_batch1": 1, **flat(batch=BatchArgs((count, taps)))}
        numbers = {"x_row": taps, "x_col": channels * taps, "rows": channels, "columns": filters, **batch}
        Launch(spec, {**numbers, "x": content, "y": out}, isa=isa)()
        if taps > 1 and panels > 1:  # (group, tap, panel) to (group, panel, tap)
            permuted = out.reshape(count, taps, panels, -1).transpose(0, 2, 1, 3).copy()
            out[:] = permuted.reshape(-1)
        return out

    key = ("nhwc", identity(tensor), w.offset, tuple(w.shape), count, nr)
    return Packed("constant", w.dtype, elements, w.storage.value, key=key, make=make)


def _scratch(shape: MicroTileShape, isa: Isa, dtype: DType) -> int:
    """Scratch without the transposed rows of a stem, which come last."""
    return -(-(_head_nbytes(shape, dtype) + scratch_nbytes(shape, isa, dtype, dtype)) // LINE_NBYTES) * LINE_NBYTES


def _head_nbytes(shape: MicroTileShape, dtype: DType) -> int:
    """The pixel tables of a block, and zeros."""
    return Block.nbytes(shape.block * shape.rows) + KC * dtype.bits // 8


def _params(
    dtype: DType, shape: MicroTileShape, even: int | None, is_padded: bool, is_direct: bool, planes: int,
    epilogue: Epilogue,
) -> Params:  # fmt: skip
    numbers = (
        "groups",
        "channels",
        "filters",
        "run",
        "run_taps",
        "row_block_nbytes",
        "lines",
        "length",
        "distance",
        *TAPS,
    )
    numbers += NUMBERS if planes else ()
    return {**geometry_params(dtype), "w": (dtype,), **dict.fromkeys(numbers, i64), **epilogue.params}


@kernel(_params)
def conv_nhwc(
    k: Kernel, x: Buf, w: Buf, batch: Val, groups: Val, channels: Val, filters: Val, run: Val, run_taps: Val,
    row_block_nbytes: Val, lines: Val, length: Val, distance: Val,
    *, dtype: DType, shape: MicroTileShape, even: int | None, is_padded: bool, is_direct: bool, planes: int,
    epilogue: Epilogue, **memory: Any,
) -> None:  # fmt: skip
    """``even``: the stride of neighbouring pixels, where the pixels of a tile share addresses; 0 if it is the run-time
    number ``distance``, None if they do not share.
    ``planes``: channels of an NCHW image whose rows are transposed (``conv.stem_rows``); 0 for NHWC images."""
    nr, heights = shape.vectors * lanes_of(k.lanes, dtype), tuple(sorted({min(LOW, shape.rows), shape.rows}))
    panels, most = (filters + (nr - 1)) // nr, shape.block * shape.rows
    block, zeros = Block(k, memory, most), k.scratch(dtype, Block.nbytes(most))
    sums = k.scratch(dtype, _head_nbytes(shape, dtype))
    taps, apart = k.opaque(block.taps), distance if even == 0 else even
    block.fill_tap_offsets()
    if is_padded:
        with k.loop(0, KC, lanes_of(k.lanes, dtype)) as i:
            zeros.store(i, k.zeros(dtype, lanes_of(k.lanes, dtype)))
    row_nbytes = (channels + filters * len(epilogue.names)) * (dtype.bits // 8)
    images, panel_nbytes = batch * groups * lines, taps * channels * (nr * dtype.bits // 8)
    bands = RowBlocking(k, length, panels, images, shape.rows, shape.block, row_nbytes, panel_nbytes, row_block_nbytes)
    transposer = (
        RowTransposer(k, x, k.scratch(dtype, _scratch(shape, k.isa, dtype)), memory, planes) if planes else None
    )
    known = k.var(-1)
    with bands.share() as (index, panel, top, bottom):
        line, image = index % lines, index // lines
        image, group = image // groups, image % groups
        first = top * shape.rows
        place = (image * lines + line) * length + first
        with k.when(known.ne(place)):
            last = line * length + length - 1
            count = (bottom - top) * shape.rows
            block.locate(image, line * length + first, count, last, is_padded)
            if transposer is not None:
                transposer.transpose(image, line, first, k.min(count, length - first))
            known.set(place)
        source = x.at(group * channels) if transposer is None else transposer.rows
        weights = w.at((group * panels + panel) * taps * channels * nr)
        pace = prefetch_pace(k, bottom - top, nr)
        finish = BoundEpilogue(k, epilogue, memory, filters, [image, group, line])
        columns = k.min(filters - panel * nr, nr)
        with k.loop(0, taps, run_taps) as tap, k.loop(0, k.max(channels, 1), run) as c:
            deep = k.min(channels - c, run)
            many = k.min(taps - tap, run_taps)
            these = weights.at((tap * channels + c) * nr)
            following = these.at(many * deep * nr)
            is_later, is_last = (tap + c) > 0, (tap + many >= taps) & (c + deep >= channels)
            with k.loop(top, bottom) as tile:
                row = (tile - top) * shape.rows
                rows = k.min(length - first - row, shape.rows)
                partial = sums.at(row * nr)
                for low, high in zip((0, *heights), heights, strict=False):
                    with k.when((rows > low) & (rows <= high)):
                        is_high = high == shape.rows
                        if is_high:  # for pointwise windows the hardware prefetcher is enough
                            with k.when((taps > 1) & is_last):
                                for r in range(high):
                                    finish.prefetch(first + row + r, panel * nr, nr)
                            if not planes:
                                with k.when((taps > 1) & ~is_later & (tile + 1 < bottom)):
                                    _fetch(source, block, row + high, high, channels)
                        padding = zeros if is_padded else None
                        pixels = TilePixels(source.at(c), padding, block, row, high, apart if is_high else None)
                        has_next = is_high and shape.vectors > 1  # a panel of one vector is the only one, and in cache
                        ahead = following.at((tile - top) * many * deep * pace) if has_next else None
                        found = _tile(k, pixels, these, tap, many, deep, dtype, shape, ahead, pace)
                        add_previous(k, found, partial, is_later)
                        if is_direct and is_high:
                            with k.either(is_last & columns.eq(nr) & rows.eq(high)) as (whole, part):
                                with whole:
                                    _put(finish, found, first + row, panel * nr)
                                with part:
                                    store_sums(found, partial)
                        else:
                            store_sums(found, partial)
                if is_direct:
                    with k.when(is_last & ((rows < shape.rows) | columns.ne(nr))):
                        finish.tile(partial, nr, first + row, rows, panel * nr, columns, width=nr)
        if not is_direct:
            with k.loop(top, bottom) as tile:
                row = (tile - top) * shape.rows
                rows = k.min(length - first - row, shape.rows)
                finish.tile(sums.at(row * nr), nr, first + row, rows, panel * nr, columns, width=nr)


def _put(finish: BoundEpilogue, found: list[list[Var]], row: Val, column: Val) -> None:
    """Apply the epilogue to a whole tile in registers."""
    for r, sums in enumerate(found):
        for j, total in enumerate(sums):
            lanes = total.lanes
            finish.put(row + r, Tile(column + j * lanes, lanes, None), total.get())


def _fetch(source: Buf, block: Block, row: Val, rows: int, channels: Val) -> None:
    """Prefetch the input of the next tile's first taps: it is spread over more rows, each on its own page, than the
    hardware prefetcher follows.
    """
    k = source.k
    with k.loop(0, rows) as r, k.loop(0, channels, LINE_NBYTES // (source.dtype.bits // 8)) as c:
        source.at(block.places.load(row + r)).prefetch(c)


def _tile(
    k: Kernel, pixels: TilePixels, run: Buf, first: Val, taps: Val, length: Val, dtype: DType, shape: MicroTileShape,
    ahead: Buf | None, pace: Val,
) -> list[list[Var]]:  # fmt: skip
    """The sums of one run; what is at ``ahead`` is fetched into L2 meanwhile."""
    lanes = lanes_of(k.lanes, dtype)
    nr = shape.vectors * lanes
    sums = [[k.var(k.zeros(dtype, lanes)) for _ in range(shape.vectors)] for _ in pixels.rows]

    def add(channels: Channels, b: Buf, fetched: Buf | None) -> None:
        paces: list[Operand] = [nr] if fetched is None else [nr, pace]
        with k.paced(0, length, paces, channels.moving) as ((p, at, *further), here):
            if fetched is not None:
                fetched.prefetch(further[0], locality=2)
            columns = [b.load(at + j * lanes, lanes) for j in range(shape.vectors)]
            for row, element in zip(sums, channels.read(p, here), strict=True):
                v = k.splat(element, lanes)
                for total, y in zip(row, columns, strict=True):
                    total.set(k.multiply_add(v, y, total))

    with k.loop(0, taps) as t:
        tap, b = first + t, run.at(t * length * nr)
        fetched, is_even = None if ahead is None else ahead.at(t * length * pace), pixels.is_even(tap)
        if is_even is None:
            add(pixels.at(tap), b, fetched)
        else:
            with k.either(is_even) as (even, uneven):
                with even:
                    add(pixels.neighbours(tap), b, fetched)
                with uneven:
                    add(pixels.at(tap), b, fetched)
    return sums

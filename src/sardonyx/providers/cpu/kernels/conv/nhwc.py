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
from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import CentredConvolution, Convolution, View
from sardonyx.providers.cpu.codegen.launch import Launch, code_for_one_call
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue, is_cheap
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, Matrix
from sardonyx.providers.cpu.kernels.common.window import WindowGeometry, epilogue_refusal, is_nhwc, refusal
from sardonyx.providers.cpu.kernels.conv.nhwc_block import fits_tables, is_inside
from sardonyx.providers.cpu.kernels.conv.nhwc_kernel import NhwcConvArgs, NhwcConvConfig, conv_nhwc
from sardonyx.providers.cpu.kernels.conv.stem_rows import StemRows
from sardonyx.providers.cpu.kernels.gemm.pack import NUMPY_NBYTES, numpy_panels, pack_panels, unit_axis
from sardonyx.providers.cpu.kernels.gemm.vector import KC, MicroTileShape, kc_of
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.values import f32, f64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.prepack import aligned
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record, replace

MAX_SHALLOW_TERMS = KC
"""Terms of a sum up to which a cheap epilogue is applied to registers; for longer sums scratch costs little."""
LARGE = 1e8
"""Operations (of one image, if the batch is unknown) from which on a convolution has its own kernel with the pixel
stride as a constant. Smaller ones share kernels, which saves compile time."""
MANY = 64
"""Filters assumed for images of one pixel, such as global means, so that they share kernels."""
EVEN_ROWS = {1: (24, 20, 16), 2: (12, 10)}
"""Pixels of a tile by its vectors of filters, in order of preference."""


def suits(group: Convolution, *, by_row: bool = False) -> bool:
    """Whether weights, types, window and epilogue suit this kernel; layouts aside. ``by_row``: once the taps of a row
    are channels.
    """
    return suitability(group, by_row=by_row) is None


def suitability(group: Convolution, *, by_row: bool = False) -> Refusal | None:
    """Why weights, types, window or epilogue do not suit the kernels for NHWC images; layouts aside."""
    w = group.w
    if w.storage.tensor is None or not all(isinstance(d, int) for d in (*w.shape, w.offset)) or not views.is_dense(w):
        return Refusal("the weights are not a contiguous constant")
    is_centred = isinstance(group, CentredConvolution)
    if (group.x.dtype is not w.dtype and not is_centred) or w.dtype not in (f32, f64):
        return Refusal(f"{group.x.dtype} with weights of {w.dtype}")
    if not fits_tables(group, by_row=by_row):
        return Refusal("the window has too many taps")
    return epilogue_refusal(group) if is_centred else refusal(group)


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    return analysis.once("conv.nhwc", group, _refusal)


def _refusal(group: Convolution) -> Refusal | None:
    return suitability(group) if has_nhwc_views(group) else Refusal("the image or a result is not NHWC")


def is_depthwise(group: Convolution) -> bool:
    return group.groups > 1 and group.w.shape[1] == 1


def has_nhwc_views(group: Convolution) -> bool:
    """Whether image and outputs are NHWC, and the pixels of epilogue operands have a common stride."""
    return all(map(is_nhwc, (group.x, *group.outputs))) and Lines.of(group) is not None


class Lines(Record):
    """The pixels of outputs and epilogue operands as ``count`` lines of ``length`` pixels at a constant stride.

    There is one line if rows have no gaps between them; otherwise lines are the rows of the image.
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
    """The step of a convolution with NHWC views; with ``first``, of a stem, whose NCHW rows the kernel transposes."""
    isa, geometry, dtype = analysis.isa, WindowGeometry.of(group, collapse=False), group.x.dtype
    lines = Lines.of(group) if first is None else Lines(group.box[2], group.box[3])
    assert lines is not None
    channels, filters = int(group.w.shape[1]), int(group.w.shape[0]) // group.groups
    taps = geometry.taps
    shape, distance = _shape(geometry, isa, dtype, filters)
    extra, outputs = ([lines.matrix(v, filters) for v in seen] for seen in (group.extra, group.outputs))
    epilogue, operands = Epilogue.over(group.epilogue, extra, outputs, filters, 3)
    weights = packed(group, shape.columns(isa, dtype), isa)
    k_block, window = kc_of(taps.count * channels), geometry.operand
    if first is not None:
        window = replace(window, x=Ref.of(first.x))
    args = NhwcConvArgs[Ref, Known](
        window, Ref(weights), groups=group.groups, channels=channels, filters=filters, k_block=k_block,
        k_block_taps=max(k_block // max(channels, 1), 1), row_block_nbytes=isa.l2_nbytes // 2, lines=lines.count,
        length=lines.length, distance=distance, taps=taps.operand, stem=None if first is None else first.operand,
        epilogue=operands,
    )  # fmt: skip
    is_register_epilogue = (
        taps.count * channels <= MAX_SHALLOW_TERMS and is_cheap(group.epilogue) and not _is_single(geometry)
    )
    stem_channels = 0 if first is None else first.channels
    is_large = 2 * taps.count * channels * math.prod(d for d in group.box if isinstance(d, int)) >= LARGE
    even = None if not distance else distance if is_large else 0
    config = NhwcConvConfig(shape, even, not is_inside(geometry), is_register_epilogue, stem_channels, dtype)
    spec = conv_nhwc(config=config, epilogue=epilogue)
    flops = dims.known(dims.product((2 * taps.count, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(geometry.nbytes, dims.mul(weights.elements, dtype.bits // 8))) or 0
    scratch = config.scratch_nbytes(isa) + (0 if first is None else first.nbytes)
    variant = f"{shape.rows} pixels x {shape.vectors} vectors of {dtype}, NHWC"
    return [Step(spec, flat(args=args), epilogue.writes, group.nodes, scratch, flops, nbytes, variant)]


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
    wide = 0 if _has_gapless_rows(geometry) else geometry.size[2]
    whole = (n for n in rows if isinstance(wide, int) and wide % n == 0)
    return replace(shape, rows=next(whole, rows[0])), distance


def _is_single(geometry: WindowGeometry) -> bool:
    """Whether images have one pixel; the batch may be the first axis."""
    return geometry.size[1:] == (1, 1)


def _has_gapless_rows(geometry: WindowGeometry) -> bool:
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
        Launch(spec, {**numbers, "x": content, "y": out}, at=code_for_one_call(spec, isa, content.nbytes))()
        if taps > 1 and panels > 1:  # (group, tap, panel) to (group, panel, tap)
            permuted = out.reshape(count, taps, panels, -1).transpose(0, 2, 1, 3).copy()
            out[:] = permuted.reshape(-1)
        return out

    key = ("nhwc", identity(tensor), w.offset, tuple(w.shape), count, nr)
    return Packed("constant", w.dtype, elements, w.storage.value, key=key, make=make)

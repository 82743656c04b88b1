"""Convolution with few outputs as a matrix product (im2col), filters along the lanes.

An image of few pixels fills neither vectors nor tiles, and its weights are larger than the image. So the input under
the window of each output becomes a row of a matrix, and the weights are read once for all rows (``gemm``). Where a
window reads contiguous elements or single pixels, the rows are views of the image; otherwise they are copied.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Contraction, Convolution, Storage, View
from sardonyx.providers.cpu.kernels.common.matrices import problem
from sardonyx.providers.cpu.kernels.common.window import TapsArgs, WindowArgs, WindowGeometry, refusal
from sardonyx.providers.cpu.kernels.conv import dot_product, on_tiles, stem
from sardonyx.providers.cpu.kernels.gemm.contraction import multiply_adds
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import DOUBLED, Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, SizeRange, Step
from sardonyx.providers.cpu.program.variants import Refusal

MIN_FEW = 8
"""Outputs that count as few on any chip; elsewhere as many as a vector has lanes."""


def has_few_outputs(group: Convolution, analysis: Analysis) -> bool | SizeRange:
    """Whether a convolution has few outputs: always, never, or up to some length of a sequence (``SizeRange``)."""
    w = group.w
    if group.groups != 1 or w.storage.tensor is None or not all(isinstance(d, int) for d in (*w.shape, w.offset)):
        return False
    most, outputs = max(analysis.isa.lanes, MIN_FEW), expressible(dims.product((group.box[0], *group.box[2:])))
    if isinstance(outputs, int):
        return outputs <= most
    known = [d for d in (group.box[0], *group.box[2:]) if isinstance(d, int)]
    least, kernel = dims.product(known), group.window.kernel
    is_sequence = len(kernel) == 1 or (all(n == 1 for n in kernel[:-1]) and len(known) == len(kernel))
    is_sequence |= least == 1 and sum(not isinstance(d, int) for d in group.box[2:]) <= 1
    is_open = isinstance(least, int) and least <= most and is_sequence and int(w.storage.elements) <= DOUBLED
    return SizeRange(outputs, most=most) if is_open else False


def few_output_sizes(group: Convolution, analysis: Analysis) -> SizeRange | None:
    """The lengths of a sequence up to which a convolution has few outputs."""
    found = has_few_outputs(group, analysis)
    return found if isinstance(found, SizeRange) else None


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    if group.groups != 1:
        return Refusal("grouped")
    if group.w.storage.tensor is None or not all(isinstance(d, int) for d in (*group.w.shape, group.w.offset)):
        return Refusal("the weights are not constant")
    return refusal(group)


def pays(group: Convolution, analysis: Analysis) -> Refusal | None:
    if has_few_outputs(group, analysis) is not True:
        return Refusal("the outputs are many, or as many as the run tells")
    if _is_read_as_nhwc(group, analysis) and not on_tiles.takes(group, analysis):
        return Refusal("the kernels of NHWC images read the weights of few outputs once too")
    return None


def _is_read_as_nhwc(group: Convolution, analysis: Analysis) -> bool:
    allows = analysis.target.policy.allows
    if allows("conv.stem") and stem.as_stem(group, analysis.isa) is not None:
        return True
    is_allowed = allows("conv.dot_product", "conv.winograd_nhwc", "conv.nhwc")
    return is_allowed and dot_product.reads_nhwc(group, analysis)


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    geometry, depth = WindowGeometry.of(group), expressible(dims.product(group.w.shape[1:]))
    before, rows = _rows(group, geometry, (geometry.x.shape[0], *geometry.size), depth, register_dtype(group.x.dtype))
    return [*before, *product_steps(group, geometry, rows, analysis)]


def product_steps(group: Convolution, geometry: WindowGeometry, rows: View, analysis: Analysis) -> list[Step]:
    """The steps of a convolution as a matrix product with filters along the lanes.

    ``rows`` are the windows, as a view over (batch, z, y, x, depth).
    """
    *box, depth = rows.shape
    filters = int(group.w.shape[0])
    weights = View(group.w.storage, (*box[:-1], depth, filters), (0, 0, 0, 1, depth), group.w.offset)
    extra, outputs = (
        tuple(views.permuted(v, (0, 2, 3, 4, 1)) for v in seen) for seen in (geometry.extra, geometry.outputs)
    )
    made = Contraction(
        group.nodes, group.epilogue, extra, outputs, tuple(box[:-1]), box[-1], filters, depth, rows, weights
    )  # fmt: skip
    return multiply_adds(problem(made), analysis)


def windows_in_place(geometry: WindowGeometry, depth: Known) -> View:
    """The windows along one axis of an image with one channel, as a view over (batch, z, y, x, depth)."""
    x, window = geometry.x, geometry.window
    moved = tuple(expressible(dims.mul(s, n)) for s, n in zip(x.strides[2:], window.strides, strict=True))
    along = expressible(dims.mul(x.strides[4], window.dilations[2]))
    return View(x.storage, (x.shape[0], *geometry.size, depth), (x.strides[0], *moved, along), x.offset)


def _rows(
    group: Convolution, geometry: WindowGeometry, box: tuple[Known, ...], depth: Known, dtype: DType
) -> tuple[list[Step], View]:
    """The input under each output's window as a view over (batch, z, y, x, depth), and the steps that copy it."""
    x, window = geometry.x, geometry.window
    if geometry.is_unpadded:
        if geometry.taps.count == 1:
            moved = tuple(expressible(dims.mul(s, n)) for s, n in zip(x.strides[2:], window.strides, strict=True))
            return [], View(x.storage, (*box, depth), (x.strides[0], *moved, x.strides[1]), x.offset)
        if group.w.shape[1] == 1 and window.kernel[:2] == (1, 1):
            return [], windows_in_place(geometry, depth)
    to = Storage("temporary", dtype, expressible(dims.product((*box, depth))))
    args = Im2colArgs[Ref, Known](geometry.operand, Ref(to), geometry.taps.operand, group.w.shape[1])
    nbytes = expressible(dims.mul(to.elements, (x.dtype.bits + dtype.bits) // 8))
    spec = im2col(x_dtype=x.dtype, dtype=dtype)
    return [Step(spec, flat(args=args), frozenset("y"), group.nodes, nbytes=nbytes)], views.dense(to, (*box, depth))


class Im2colArgs(Arguments[M, N]):
    """The parameters of ``im2col``."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    y: M
    taps: TapsArgs[M, N]
    channels: N


def _params(x_dtype: DType, dtype: DType) -> Params:
    window = WindowArgs.declared(x_dtype)
    return {"args": Im2colArgs[Memory, DType](window, Memory(dtype), TapsArgs.declared(), i64)}


@kernel(_params)
def im2col(k: Kernel, args: Im2colArgs[Buf, Val], *, x_dtype: DType, dtype: DType) -> None:
    """y[batch, z, y, x][channel][tap] = the input under each output's window, zero in the padding."""
    window, channels = args.window, args.channels
    out, kernel, steps = window.out, args.taps.kernel.each, window.strides.axes
    taps = args.taps.count()
    with k.share(window.batch * out[0] * out[1] * out[2]) as at:
        rest, place = at, list[Val]()
        for size in reversed(out):
            place.insert(0, rest % size)
            rest = rest // size
        start, row = window.x.at(rest * window.strides.b), args.y.at(at * (channels * taps))
        first = [p * s - pad for p, s, pad in zip(place, args.taps.stride.each, window.pad, strict=True)]
        with k.loop(0, kernel[0]) as tz, k.loop(0, kernel[1]) as ty, k.loop(0, kernel[2]) as tx:
            seen = [f + t * d for f, t, d in zip(first, (tz, ty, tx), args.taps.dilation.each, strict=True)]
            is_there = reduce(and_, [(s >= 0) & (s < size) for s, size in zip(seen, window.size, strict=True)])
            to = row.at((tz * kernel[1] + ty) * kernel[2] + tx)
            with k.either(is_there) as (yes, no):
                with yes:
                    source = start.at(seen[0] * steps[0] + seen[1] * steps[1] + seen[2] * steps[2])
                    with k.loop(0, channels) as c:
                        to.store(c * taps, source.load(c * window.strides.c))
                with no, k.loop(0, channels) as c:
                    to.store(c * taps, 0.0)

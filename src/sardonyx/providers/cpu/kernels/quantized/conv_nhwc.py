"""int8 convolution of NHWC images as an implicit GEMM by dot products of four channels, filters along the lanes.

The rows of the product are output pixels, its columns filters, and k runs over taps and, within a tap, over channels,
four of which are a word. A word of a pixel is broadcast and multiplied by vectors of weights. These are packed in
panels of NR filters:

    [group][filters / NR] of [NR] start, [tap][channels / 4][NR][4] weights

A *start* is what the sums of a filter begin with: what the epilogue would add to them (``quantized.rescale``), and,
for signed bytes, which are shifted by 128, minus 128 times the sum of the filter's weights.
Windows that read padding read a pixel of zero points instead. Nothing is copied (``conv.nhwc``). First layers transpose
rows of their NCHW image, of which the taps of a row are the channels (``conv.stem``).

Sums are whole numbers, so no K-block is needed: a panel's weights come from L2 for every micro-tile, which has as many
products for each byte of weights as the registers allow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Convolution, Expression, IntegerConvolution
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.window import MIN_NHWC_LANES, WindowGeometry, epilogue_refusal, is_nhwc
from sardonyx.providers.cpu.kernels.conv import stem
from sardonyx.providers.cpu.kernels.conv.nhwc import Lines, has_nhwc_views
from sardonyx.providers.cpu.kernels.conv.nhwc_block import fits_tables, is_inside
from sardonyx.providers.cpu.kernels.conv.nhwc_kernel import LOW
from sardonyx.providers.cpu.kernels.conv.stem_rows import MAX_ROW_CHANNELS, StemRows
from sardonyx.providers.cpu.kernels.gemm.vector import MC, MicroTileShape
from sardonyx.providers.cpu.kernels.quantized.conv_nhwc_kernel import (
    QUAD,
    Int8NhwcArgs,
    Int8NhwcConfig,
    conv_int8_nhwc,
)
from sardonyx.providers.cpu.kernels.quantized.rescale import begun_with_units
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.values import i8
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.prepack import aligned
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import replace

MAX_REGISTER_OPS = 10
"""Operations of an epilogue that is emitted for every pixel of a micro-tile, at most."""
REGISTER_OPS = frozenset(("int", "real", "add", "sub", "mul", "fma", "maximum", "minimum", "cast", "saturate"))
LARGE = 1e8
"""Operations from which on a convolution has its own kernel with the pixel stride as a constant."""
MANY_PIXELS = 1 << 12
"""Pixels that are assumed where only the run tells."""
ROWS = {1: (24, 16), 2: (14, 12, 7), 3: (8, 7), 4: (6,)}
"""Pixels of a micro-tile by its vectors of filters; with 16 registers at most ``FEW_ROWS``."""
FEW_ROWS = {1: (8,), 2: (6,), 3: (4,)}
STORE_CYCLES, FINISH_CYCLES, SPLIT_ROWS = 4, 3, 1.5
"""What an epilogue costs for a pixel, and for each vector; a factor on tiles that cross the ends of rows."""


def suits(group: Convolution, analysis: Analysis) -> bool:
    """Whether weights, types, window and epilogue suit this kernel; layouts aside."""
    return isinstance(group, IntegerConvolution) and suitability(group, analysis) is None


def suitability(group: IntegerConvolution, analysis: Analysis) -> Refusal | None:
    isa, w = analysis.isa, group.w
    if isa.name not in ("amx", "avx512", "avx2") or not isa.byte_dot or isa.lanes < MIN_NHWC_LANES:
        return Refusal(f"no dot product of unsigned and signed bytes on {isa.name}")
    if w.storage.tensor is None or not all(isinstance(d, int) for d in (*w.shape, w.offset)) or not views.is_dense(w):
        return Refusal("the weights are not a contiguous constant")
    if w.dtype is not i8 or 0 in w.shape:
        return Refusal(f"weights of {w.dtype}, or none")
    if int(w.shape[1]) % QUAD != 0 and not _is_stem(group, isa):
        return Refusal("channels are no multiple of four")
    if not fits_tables(group):
        return Refusal("the window has too many taps")
    return epilogue_refusal(group)


def supports(group: IntegerConvolution, analysis: Analysis) -> Refusal | None:
    found = suitability(group, analysis)
    if found is not None:
        return found
    if int(group.w.shape[1]) % QUAD == 0:
        return None if has_nhwc_views(group) else Refusal("the image or a result is not NHWC")
    return None if as_stem(group, analysis.isa) is not None else Refusal("a result is not NHWC")


def takes_rows(group: IntegerConvolution, analysis: Analysis) -> bool:
    """Whether this is a first layer whose image has to stay NCHW."""
    is_allowed = analysis.target.policy.allows("quantized.conv_nhwc")
    return is_allowed and suits(group, analysis) and int(group.w.shape[1]) % QUAD != 0


def _is_stem(group: IntegerConvolution, isa: Isa) -> bool:
    """Whether this is a first layer of an NCHW image."""
    x = group.x
    is_nchw = len(x.shape) == 4 and x.strides[3] == 1 and x.shape[1] in range(2, MAX_ROW_CHANNELS + 1)
    is_known = all(isinstance(n, int) and n > 0 for n in (*x.shape[2:], *group.box[2:]))
    return is_nchw and is_known and stem.has_few_channels(group) and _rows(group).nbytes <= isa.l1_nbytes // 2


def as_stem(group: IntegerConvolution, isa: Isa) -> StemRows | None:
    """A first layer of an NCHW image with NHWC results; None for others."""
    if int(group.w.shape[1]) % QUAD == 0 or not _is_stem(group, isa) or not all(map(is_nhwc, group.outputs)):
        return None
    return _rows(group)


def _rows(group: IntegerConvolution) -> StemRows:
    padded = stem.padded_sizes(group)
    assert padded is not None
    return StemRows.of(group, stem.taps_as_channels(group.w), int(padded[0]), MC)


def steps(group: IntegerConvolution, analysis: Analysis) -> list[Step]:
    isa, first = analysis.isa, as_stem(group, analysis.isa)
    if first is not None:
        assert isinstance(first.group, IntegerConvolution)
        group = first.group
    geometry = WindowGeometry.of(group, collapse=False)
    lines = Lines.of(group) if first is None else Lines(group.box[2], group.box[3])
    assert lines is not None
    channels, filters = int(group.w.shape[1]), int(group.w.shape[0]) // group.groups
    taps, quads, window = geometry.taps, -(-channels // QUAD), geometry.operand
    if first is not None:
        window = replace(window, x=Ref.of(first.x))
    units, scaled = begun_with_units(group)
    in_registers = _is_short(scaled.epilogue)
    distance = expressible(dims.mul(geometry.x.strides[4], geometry.window.strides[2]))
    shape = _shape(geometry, lines, filters, taps.count * quads, isa, in_registers=in_registers)
    nr = shape.vectors * isa.lanes
    extra, outputs = ([lines.matrix(v, filters) for v in seen] for seen in (scaled.extra, scaled.outputs))
    epilogue, operands = Epilogue.over(scaled.epilogue, extra, outputs, filters, 3)
    weights = _packed(group, nr, units)
    args = Int8NhwcArgs[Ref, Known](
        window, Ref(weights), Ref.of(group.zero), groups=group.groups, channels=channels, quads=quads,
        filters=filters, row_block_nbytes=isa.l2_nbytes // 2, lines=lines.count, length=lines.length,
        distance=distance, taps=taps.operand, stem=None if first is None else first.operand, epilogue=operands,
    )  # fmt: skip
    flops = dims.known(dims.product((2 * taps.count, channels, *group.box))) or 0
    is_large = 2 * taps.count * channels * math.prod(d for d in group.box if isinstance(d, int)) >= LARGE
    even = None
    if isinstance(distance, int) and distance > 0 and isa.registers >= 32 and shape.rows > LOW:
        even = distance if is_large else 0
    config = Int8NhwcConfig(
        shape, even, not is_inside(geometry), in_registers, 0 if first is None else first.channels, group.x.dtype,
        group.x.dtype is i8 or units is not None, filters % nr, filters <= nr,
        taps.count * quads * nr * QUAD > isa.l1_nbytes // 2,
    )  # fmt: skip
    nbytes = dims.known(dims.add(geometry.nbytes, weights.elements)) or 0
    variant = f"{shape.rows} pixels x {shape.vectors} vectors of {group.x.dtype}, NHWC"
    spec, scratch = conv_int8_nhwc(config=config, epilogue=epilogue), config.scratch_nbytes(isa, channels)
    scratch += 0 if first is None else first.nbytes + QUAD
    return [Step(spec, flat(args=args), epilogue.writes, group.nodes, scratch, flops, nbytes, variant)]


def _is_short(expression: Expression) -> bool:
    """Whether an epilogue is emitted for every pixel of a micro-tile."""
    programs = [step.program for step in expression.steps if isinstance(step, Apply)]
    ops = [step.op for program in programs for step in program.steps[program.arity :]]
    return len(ops) <= MAX_REGISTER_OPS and REGISTER_OPS.issuperset(ops)


def _shape(
    geometry: WindowGeometry, lines: Lines, filters: int, steps: int, isa: Isa, *, in_registers: bool
) -> MicroTileShape:
    """The micro-tile that takes the fewest cycles, by an estimate: of products, loads and the epilogue."""
    pixels = lines.length if isinstance(lines.length, int) else MANY_PIXELS
    wide, is_pointwise = geometry.size[2], geometry.taps.count == 1 and geometry.window.strides[2] == 1

    def cycles(vectors: int, rows: int) -> float:
        filled = min(rows, pixels)
        each = max(rows * vectors / 2, (rows + vectors) / 2, (rows * vectors + rows + vectors + 5) / 4, 5)
        if not is_pointwise and not (isinstance(wide, int) and wide % rows == 0):
            each *= SPLIT_ROWS
        tile = steps * each + filled * (STORE_CYCLES * -(-vectors // 4) + FINISH_CYCLES * vectors)
        return -(-pixels // rows) * -(-filters // (vectors * isa.lanes)) * tile

    table = ROWS if isa.registers >= 32 else FEW_ROWS
    shapes = [(v, rows) for v, heights in table.items() if in_registers or v != 3 for rows in heights]
    vectors, rows = min(shapes, key=lambda shape: cycles(*shape))
    return MicroTileShape(rows, vectors, False)


def _packed(group: IntegerConvolution, nr: int, units: Any) -> Packed:
    """The weights packed in panels, with what sums begin with: the ``units`` of each filter, if there are any."""
    w, tensor, is_signed = group.w, group.w.storage.tensor, group.x.dtype is i8
    assert tensor is not None
    count, (all_filters, channels, *kernel) = group.groups, (int(d) for d in w.shape)
    filters, taps, quads = all_filters // count, int(np.prod(kernel)), -(-channels // QUAD)
    panels, start_nbytes = -(-filters // nr), nr * 4 if is_signed or units is not None else 0
    each = start_nbytes + taps * quads * QUAD * nr

    def make() -> Any:
        content = np.ascontiguousarray(tensor.peek()).reshape(-1)[int(w.offset) :][: all_filters * channels * taps]
        padded = np.zeros((count, panels * nr, quads * QUAD, taps), np.int8)
        padded[:, :filters, :channels] = content.reshape(count, filters, channels, taps)
        out = aligned(count * panels * each, i8)
        to = out.reshape(count, panels, each)
        quad = padded.reshape(count, panels, nr, quads, QUAD, taps).transpose(0, 1, 5, 3, 2, 4)
        to[:, :, start_nbytes:] = quad.reshape(count, panels, -1)
        if start_nbytes:
            start = np.zeros((count, panels * nr), np.int32)
            start[:, :filters] = 0 if units is None else units.reshape(count, filters)
            if is_signed:
                start -= 128 * padded.sum((2, 3), dtype=np.int32)
            to[:, :, :start_nbytes] = start.view(np.int8).reshape(count, panels, -1)
        return out

    begin = None if units is None else units.tobytes()
    key = ("quads", identity(tensor), w.offset, tuple(w.shape), count, nr, is_signed, begin)
    return Packed("constant", i8, count * panels * each, w.storage.value, key=key, make=make)

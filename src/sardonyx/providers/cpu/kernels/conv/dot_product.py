"""Convolution of NHWC images with very few filters: channels along the lanes.

One or two filters do not fill a vector. So each output is a dot product of the input under its window with the filter,
vector by vector of channels, followed by a horizontal reduction. ``PIXELS`` outputs are computed at once; results wait
in scratch until a block of pixels is finished, one row per filter.

**Order of sums.** Tap by tap, vector by vector of channels; then the lanes, halving them.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.matrices import Matrix
from sardonyx.providers.cpu.kernels.common.window import TapsArgs, WindowArgs, WindowGeometry
from sardonyx.providers.cpu.kernels.conv import nhwc
from sardonyx.providers.cpu.kernels.conv.nhwc import Lines
from sardonyx.providers.cpu.kernels.conv.nhwc_block import Block, is_inside
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.memory.allocator import allocate
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal

PIXELS, BLOCK = 4, 64
"""Outputs of a filter that are computed at once, which hides the latency of an addition and shares shuffles; pixels of
a block, a multiple of that."""
MIN_LANES_PER_FILTER = 4
"""With more filters than lanes / 4, filters along the lanes are faster."""


def has_few_filters(group: Convolution, isa: Isa) -> bool:
    return group.groups == 1 and int(group.w.shape[0]) * MIN_LANES_PER_FILTER <= lanes_of(isa.lanes, group.x.dtype)


def has_full_vectors(group: Convolution, isa: Isa) -> bool:
    """Whether an NHWC kernel has enough filters or, where these are few, enough channels to fill vectors."""
    return not has_few_filters(group, isa) or _has_many_channels(group, isa)


def _has_many_channels(group: Convolution, isa: Isa) -> bool:
    return 2 * int(group.w.shape[1]) >= lanes_of(isa.lanes, group.x.dtype)


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    found = nhwc.supports(group, analysis)
    return found or (None if has_few_filters(group, analysis.isa) else Refusal("many filters, or several groups"))


def pays(group: Convolution, analysis: Analysis) -> Refusal | None:
    return None if _has_many_channels(group, analysis.isa) else Refusal("channels fill less than half a vector")


def filter_lanes_refusal(group: Convolution, analysis: Analysis) -> Refusal | None:
    """Why kernels with filters along the lanes do not pay for an NHWC convolution; None if they do."""
    if nhwc.is_depthwise(group):
        return Refusal("depthwise")
    return None if has_full_vectors(group, analysis.isa) else Refusal("filters and channels fill too little of vectors")


def reads_nhwc(group: Convolution, analysis: Analysis) -> bool:
    """Whether one of the kernels for NHWC images takes a convolution."""
    return nhwc.supports(group, analysis) is None and filter_lanes_refusal(group, analysis) is None


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    isa, geometry, dtype = analysis.isa, WindowGeometry.of(group, collapse=False), group.x.dtype
    filters, channels, lines = int(group.w.shape[0]), int(group.w.shape[1]), Lines.of(group)
    assert lines is not None
    extra, outputs = ([_transposed(lines.matrix(v, filters)) for v in seen] for seen in (group.extra, group.outputs))
    epilogue, operands = Epilogue.over(group.epilogue, extra, outputs, lines.length, 2)
    lanes = lanes_of(isa.lanes, dtype)
    weights = _packed(group, lanes)
    args = DotProductArgs[Ref, Known](
        geometry.operand, Ref(weights), channels=channels, lines=lines.count, length=lines.length,
        taps=geometry.taps.operand, epilogue=operands,
    )  # fmt: skip
    spec = conv_dot_product(dtype=dtype, filters=filters, is_padded=not is_inside(geometry), epilogue=epilogue)
    flops = dims.known(dims.product((2 * geometry.taps.count, channels, *group.box))) or 0
    scratch = Block.nbytes(BLOCK) + filters * BLOCK * dtype.bits // 8
    why = f"{filters} filters, channels along the lanes, NHWC"
    return [Step(spec, flat(args=args), epilogue.writes, group.nodes, scratch, flops, geometry.nbytes, why)]


def _transposed(m: Matrix) -> Matrix:
    """The matrix with filters as rows and pixels as columns; images and lines are its batch."""
    return Matrix(m.storage, m.offset, (m.batch[0], m.batch[2]), m.column, m.row)


def _packed(group: Convolution, lanes: int) -> Packed:
    """The weights as [tap][vector of channels][filter][channel of the vector]."""
    w, tensor = group.w, group.w.storage.tensor
    assert tensor is not None
    shape = tuple(int(d) for d in w.shape)
    filters, channels, taps = shape[0], shape[1], int(np.prod(shape[2:]))
    vectors = -(-channels // lanes)
    elements = taps * vectors * filters * lanes

    def make() -> Any:
        content = np.ascontiguousarray(tensor.peek()).reshape(-1)[int(w.offset) :][: int(np.prod(shape))]
        wide = np.zeros((taps, vectors * lanes, filters), content.dtype)
        wide[:, :channels] = content.reshape(filters, channels, taps).transpose(2, 1, 0)
        out = allocate(elements * w.dtype.itemsize).view(w.dtype.numpy)
        out[:] = wide.reshape(taps, vectors, lanes, filters).transpose(0, 1, 3, 2).reshape(-1)
        return out

    key = ("dot product", identity(tensor), w.offset, shape, lanes)
    return Packed("constant", w.dtype, elements, w.storage.value, key=key, make=make)


class DotProductArgs(Arguments[M, N]):
    """The parameters of ``conv_dot_product``."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    w: M
    channels: N
    lines: N
    length: N
    """Pixels of a line."""
    taps: TapsArgs[M, N]
    epilogue: EpilogueArgs[M, N]


def _params(dtype: DType, filters: int, is_padded: bool, epilogue: Epilogue) -> Params:
    window, taps = WindowArgs.declared(dtype), TapsArgs.declared()
    return {"args": DotProductArgs[Memory, DType](window, Memory(dtype), i64, i64, i64, taps, epilogue.declared)}


@kernel(_params)
def conv_dot_product(
    k: Kernel, args: DotProductArgs[Buf, Val], *, dtype: DType, filters: int, is_padded: bool, epilogue: Epilogue
) -> None:
    lines, length = args.lines, args.length
    blocks = ceil_div(length, BLOCK)
    block, sums = Block(k, args.window, args.taps, BLOCK), k.scratch(dtype, Block.nbytes(BLOCK))
    block.fill_tap_offsets()
    with k.share(args.window.batch * lines * blocks) as at:
        which, first = at // blocks, at % blocks * BLOCK
        image, line = which // lines, which % lines
        count = k.min(length - first, BLOCK)
        whole = ceil_div(count, PIXELS) * PIXELS
        block.locate(image, line * length + first, whole, line * length + length - 1, is_padded)
        with k.loop(0, whole, PIXELS) as i:
            rows = [i + p for p in range(PIXELS)]
            for f, found in enumerate(_filter_sums(k, args, block, rows, filters, is_padded)):
                sums.store(f * BLOCK + i, found)
        finish = BoundEpilogue(k, epilogue, args.epilogue, length, [image, line])
        finish.tile(sums, BLOCK, k.const(0), filters, first, count)


def _filter_sums(
    k: Kernel, args: DotProductArgs[Buf, Val], block: Block, rows: list[Val], filters: int, is_padded: bool
) -> list[Val]:
    """The sums of some pixels, one vector for each filter."""
    channels, dtype = args.channels, args.w.dtype
    lanes = lanes_of(k.lanes, dtype)
    totals = [[k.var(k.zeros(dtype, lanes)) for _ in range(filters)] for _ in rows]
    vectors = ceil_div(channels, lanes)
    with k.loop(0, args.taps.count()) as tap:
        distance = block.distances.load(tap)
        weights = args.w.at(tap * vectors * (filters * lanes))
        for row, sums in zip(rows, totals, strict=True):
            with k.when(block.has(row, tap), likely=True) if is_padded else nullcontext():
                pixel = args.window.x.at(block.places.load(row) + distance)
                for t in k.tiles(channels, lanes):
                    seen, at = t.keep(pixel.load(t), 0.0), weights.at(t.index * filters)
                    for f, total in enumerate(sums):
                        total.set(k.fma(seen, at.load(f * lanes, lanes), total.get()))
    return [_horizontal_sums([sums[f].get() for sums in totals]) for f in range(filters)]


def _horizontal_sums(vectors: list[Val]) -> Val:
    """The horizontal sum of each vector, as the lanes of one vector: pairs of vectors are halved into one."""
    wide = vectors[0].lanes
    while len(vectors) > 1 or wide > 1:
        half = max(wide // 2, 1)
        others: list[Val | None] = [*vectors[1::2]] or [None]
        lanes = vectors[0].lanes * min(len(vectors), 2)
        low = [start + i for start in range(0, lanes, wide) for i in range(half)]
        high = [i + half for i in low]
        pairs = zip(vectors[::2], others, strict=True)
        vectors = [a.shuffle(low, b) if wide == 1 else a.shuffle(low, b) + a.shuffle(high, b) for a, b in pairs]
        wide = half
    return vectors[0]

"""int8 convolution of NCHW images as an implicit GEMM: the weights times panels that are packed on the fly.

A panel is the right operand of a product in the layout of ``quantized.pack``: its columns are NR neighbouring outputs,
its rows the elements under a window. The weights, [filters][channels][taps], are the left operand. Panels are packed
from an image block in scratch memory: the padded input rows that a block of outputs reads, with columns grouped by
stride phase, so that neighbouring outputs read neighbouring elements for each tap. Pointwise convolutions pack panels
from the image itself. Only the few panels of one step hold elements once per tap; they stay in L1 or L2 for all
filters.

The kernel is in ``quantized.conv_kernel``, its scratch memory in ``quantized.conv_block``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, IntegerConvolution, Storage
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem
from sardonyx.providers.cpu.kernels.common.window import WindowGeometry
from sardonyx.providers.cpu.kernels.gemm.vector import MicroTileShape
from sardonyx.providers.cpu.kernels.quantized.byte_dot import zero_offset
from sardonyx.providers.cpu.kernels.quantized.conv_block import (
    PANELS,
    Int8ConvArgs,
    Int8ConvConfig,
    Int8ConvScratch,
)
from sardonyx.providers.cpu.kernels.quantized.conv_kernel import conv_int8
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD, depth_of, padded_a
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i8, i32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.prepack import aligned
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step

Array = np.ndarray[Any, Any]


def steps(group: IntegerConvolution, analysis: Analysis) -> list[Step]:
    if not all(isinstance(step, Apply) for step in group.epilogue.steps):
        raise NotImplemented("a reduction follows the sums", where=group.nodes[0].op_type)
    isa, geometry = analysis.isa, WindowGeometry.of(group)
    channels, filters = group.w.shape[1], expressible(dims.exact_div(group.w.shape[0], group.groups))
    is_pointwise = geometry.is_flat_pointwise and geometry.has_unit_stride
    pixels = geometry.size[2] if is_pointwise else dims.known(dims.mul(*geometry.size[1:])) or 1 << 20
    shape = MicroTileShape.of(isa, i32, pixels)
    config = Int8ConvConfig(
        group.x.dtype, geometry.taps, shape, geometry.has_unit_stride, is_pointwise, geometry.rows_are_contiguous
    )
    depth = expressible(dims.product((geometry.taps.count, channels)))
    before, w = _weights(group, isa, depth)
    more_before, w_sums = _weight_sums(group, w, expressible(depth_of(depth, isa)), config, isa)
    epilogue, operands = geometry.epilogue(group)
    padded, nr = depth_of(depth, isa), config.nr(isa)
    block_nbytes = config.block_nbytes(channels, geometry.size[2])
    args = Int8ConvArgs[Ref, Known](
        geometry.operand, Ref(w.storage, w.offset), w_sums, Ref.of(group.zero), groups=group.groups, channels=channels,
        filters=filters, depth=padded, block_nbytes=block_nbytes, epilogue=operands,
    )  # fmt: skip
    panels = dims.mul(padded, PANELS * nr + QUAD)
    scratch = dims.total((Int8ConvScratch.fixed_nbytes(config, isa), block_nbytes, panels))
    flops = dims.known(dims.product((2 * geometry.taps.count, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(geometry.nbytes, w.storage.elements)) or 0
    variant = "AMX tiles, int8" if isa.amx else f"micro-tile of {shape.rows} filters x {shape.vectors} vectors, int8"
    spec = conv_int8(config=config, epilogue=epilogue)
    return [
        *before,
        *more_before,
        Step(spec, flat(args=args), epilogue.writes, group.nodes, expressible(scratch), flops, nbytes, variant),
    ]


def _weights(group: IntegerConvolution, isa: Isa, depth: Known) -> tuple[list[Step], Matrix]:
    """The weights as rows of whole steps of k: themselves, padded once if they are constant, or padded in every run."""
    w = group.w
    rows = Matrix(w.storage, w.offset, (), depth, 1)
    padded, tensor = depth_of(depth, isa), w.storage.tensor
    if depth == padded or tensor is None:
        return padded_a(Problem(group.nodes, (), w.shape[0], 0, depth, rows, rows, group.epilogue, (), ()), isa)
    count, width, whole = int(w.shape[0]), int(depth), int(padded)

    def make() -> Array:
        out = aligned(count * whole, i8).reshape(count, whole)
        out[:, width:] = 0
        first = int(w.offset)
        out[:, :width] = tensor.peek().reshape(-1)[first : first + count * width].reshape(count, width)
        return out.reshape(-1)

    key = ("rows of bytes", identity(tensor), w.offset, count, width, whole)
    made = Packed("constant", i8, count * whole, w.storage.value, key=key, make=make)
    return [], Matrix(made, 0, (), padded, 1)


def _weight_sums(
    group: IntegerConvolution, w: Matrix, depth: Known, config: Int8ConvConfig, isa: Isa
) -> tuple[list[Step], Ref]:
    """The sum of each filter's weights, which compensates for flipped panels; without those, a dummy."""
    count, tensor = group.w.shape[0], group.w.storage.tensor
    if not zero_offset(config.x_dtype, config.panel_dtype(isa)):
        return [], Ref(Packed("constant", i32, 1, key=("no sums",), make=lambda: np.zeros(1, np.int32)))
    if tensor is None:
        to = Storage("temporary", i32, count)
        args: dict[str, Ref | Known | float] = {
            "w": Ref(w.storage, w.offset), "sums": Ref(to), "rows": count, "depth": depth
        }  # fmt: skip
        writes = frozenset(("sums",))
        return [Step(sum_weight_rows(), args, writes, group.nodes, variant="sums of a filter's weights")], Ref(to)
    first, width = int(group.w.offset), int(expressible(dims.product(group.w.shape[1:])))

    def make() -> Array:
        content = tensor.peek().reshape(-1)[first : first + int(count) * width].reshape(int(count), width)
        return np.asarray(content.sum(1, dtype=np.int32))

    key = ("sums of rows", identity(tensor), first, count, width)
    return [], Ref(Packed("constant", i32, count, group.w.storage.value, key=key, make=make))


@kernel(w=(i8,), sums=(i32,), rows=i64, depth=i64)
def sum_weight_rows(k: Kernel, w: Buf, sums: Buf, rows: Val, depth: Val) -> None:
    """The sum of each row of weights."""
    with k.share(rows) as r:
        total = k.var(k.zeros(i32, k.lanes))
        for t in k.tiles(depth):
            total += k.cast(w.at(r * depth).load(t), i32)
        sums.store(r, total.sum())

"""Products of many rows with a weight in blocks (``gemm.blocks``) by vector multiply-adds.

As in ``gemm.vector``; a K-block of a panel of B is decoded into scratch memory, in L1, before the micro-tiles of a
block of rows read it. Blocks are ``TALL`` times as high, since each decodes B anew. Order of sums and micro-kernel are
the same.
"""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, Problem
from sardonyx.providers.cpu.kernels.gemm import blocks_pack
from sardonyx.providers.cpu.kernels.gemm.blocks import COLUMNS, BlockFormat, BlocksGemmArgs, PanelReader
from sardonyx.providers.cpu.kernels.gemm.pack import packed_a
from sardonyx.providers.cpu.kernels.gemm.vector import KC, MicroTileShape, RowBlocking, accumulate, micro_kernel
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step

TALL = 2


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    isa, epilogue, b = analysis.isa, Epilogue.of(p), blocks_pack.weight(p, analysis)
    shape = MicroTileShape.of(isa, f32, p.n)
    before, a = packed_a(p, f32, isa)
    spec = multiply_decoded(form=b.form, epilogue=epilogue, shape=shape)
    args = BlocksGemmArgs[Ref, Known](
        a.operand, b.operand, BatchArgs(p.batch), p.m, p.n, p.k, operands_of(p.extra, p.outputs), isa.l2_nbytes // 2
    )  # fmt: skip
    scratch = (TALL * shape.block * shape.rows + KC) * shape.columns(isa, f32) * 4
    why = f"{shape.rows} x {shape.vectors} vectors, B decoded in K-blocks: {b.text}"
    return [*before, Step(spec, flat(args=args), epilogue.writes, p.nodes, scratch, p.flops, b.nbytes, why)]


def _params(form: BlockFormat, epilogue: Epilogue, shape: MicroTileShape) -> Params:
    return {"args": BlocksGemmArgs.declared(f32, form, epilogue)}


@kernel(_params)
def multiply_decoded(
    k: Kernel, args: BlocksGemmArgs[Buf, Val], *, form: BlockFormat, epilogue: Epilogue, shape: MicroTileShape
) -> None:
    """A batch of products. Rows of ``a`` are contiguous."""
    m, n, depth, nr = args.m, args.n, args.depth, shape.columns(k.isa, f32)
    panels, segments = ceil_div(n, nr), ceil_div(depth, form.segment)
    sums = k.scratch(f32)
    decoded = sums.at(TALL * shape.block * shape.rows * nr)
    grid = RowBlocking(
        k, m, panels, args.batch.count(k), shape.rows, TALL * shape.block, depth * 4, depth * (nr * 4), args.l2_nbytes
    )
    with grid.share() as (index, panel, top, bottom):
        place = args.batch.indices(index)
        a, row_stride, left = args.a.at(place), args.a.row, panel * nr
        reader = PanelReader(k, form, args.b, left // COLUMNS, segments)
        finish = BoundEpilogue(k, epilogue, args.epilogue, n, place)
        with k.loop(0, k.max(depth, 1), KC) as start:
            length = k.min(depth - start, KC)
            reader.decode(start, length, left % COLUMNS, nr, decoded)
            with k.loop(top, bottom) as tile:
                row = tile * shape.rows
                rows = k.min(m - row, shape.rows)
                corner = a.at(row * row_stride + start)
                if epilogue.prefetchable:
                    with k.when(start + KC >= depth), k.loop(row, row + rows) as line:
                        finish.prefetch(line, left, nr)
                partial = sums.at((tile - top) * (shape.rows * nr))
                for low, high in zip((0, *shape.heights), shape.heights, strict=False):
                    with k.when((rows > low) & (rows <= high)):
                        given = [corner.at(row_stride * k.min(rows - 1, r)) for r in range(high)]
                        found = micro_kernel(k, given, decoded, length, f32, shape, is_near=True)
                        accumulate(k, found, partial, start > 0)
        columns = k.min(n - left, nr)
        with k.loop(top, bottom) as tile:
            row = tile * shape.rows
            finish.tile(
                sums.at((tile - top) * (shape.rows * nr)), nr, row, k.min(m - row, shape.rows), left, columns
            )  # fmt: skip

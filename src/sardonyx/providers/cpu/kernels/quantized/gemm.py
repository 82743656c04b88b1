"""int8 matrix products with vector dot products, from panels of B in quads of k (``quantized.pack``).

As in ``gemm``, a micro-tile holds MR rows by NV vectors of i32 sums in registers. Each step along k adds the dot
products of one quad (four bytes) of each row of A with NV vectors of quads of B. Integer sums are exact in any order,
so there is no K-blocking: a step reads 4 * NR bytes of B for 4 * MR * NR products, which L2 sustains.

An A of the sign that the chip does not multiply with signed B (``byte_dot``) is flipped as it is loaded. The sums then
start with the compensation, from the column sums in front of each panel.
"""

from __future__ import annotations

from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, MatrixArgs, PanelsArgs, Problem
from sardonyx.providers.cpu.kernels.gemm.vector import MicroTileShape, RowBlocking
from sardonyx.providers.cpu.kernels.quantized.byte_dot import dot, flip_signs, partner_dtype, zero_offset
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD, depth_of, packed_b, padded_a
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, Var, i8, i32, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal


class Int8GemmArgs(Arguments[M, N]):
    """The parameters of an int8 matrix product."""

    is_inline: ClassVar[bool] = True
    a: MatrixArgs[M, N]
    b: PanelsArgs[M, N]
    batch: BatchArgs[M, N]
    m: N
    n: N
    depth: N
    row_block_nbytes: N
    """Bytes of A that a row block takes."""
    epilogue: EpilogueArgs[M, N]

    @staticmethod
    def declared(a_dtype: DType, epilogue: Epilogue) -> Int8GemmArgs[Memory, DType]:
        axes = epilogue.batch_axes
        a, b, batch = MatrixArgs.declared(a_dtype, axes), PanelsArgs.declared(i8, axes), BatchArgs.declared(axes)
        return Int8GemmArgs(a, b, batch, i64, i64, i64, i64, epilogue.declared)


def int8_args(p: Problem, analysis: Analysis, nr: int) -> tuple[list[Step], Int8GemmArgs[Ref, Known]]:
    """The arguments of a product, and the steps that pack the operands."""
    isa = analysis.isa
    before_a, a = padded_a(p, isa)
    before_b, b = packed_b(p, nr, isa)
    sizes = p.m, p.n, depth_of(p.k, isa), isa.l2_nbytes // 2
    epilogue = operands_of(p.extra, p.outputs)
    return [*before_a, *before_b], Int8GemmArgs(a.operand, b.panels, BatchArgs(p.batch), *sizes, epilogue)


def supports(p: Problem, analysis: Analysis) -> Refusal | None:
    return None if p.b.dtype is i8 else Refusal("not of 8-bit integers")


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    isa, epilogue = analysis.isa, Epilogue.of(p)
    shape = MicroTileShape.of(isa, i32, p.n)
    nr = shape.columns(isa, i32)
    before, args = int8_args(p, analysis, nr)
    spec = gemm_int8(a_dtype=p.a.dtype, epilogue=epilogue, shape=shape)
    nbytes = dims.known(dims.mul(p.n, p.k)) or 0
    variant = f"micro-tile of {shape.rows} rows x {shape.vectors} vectors, int8"
    scratch = shape.rows * nr * 4
    return [*before, Step(spec, flat(args=args), epilogue.writes, p.nodes, scratch, p.flops, nbytes, variant)]


def _params(a_dtype: DType, epilogue: Epilogue, shape: MicroTileShape) -> Params:
    return {"args": Int8GemmArgs.declared(a_dtype, epilogue)}


@kernel(_params)
def gemm_int8(
    k: Kernel, args: Int8GemmArgs[Buf, Val], *, a_dtype: DType, epilogue: Epilogue, shape: MicroTileShape
) -> None:
    """A batch of products. Rows of ``a`` are contiguous and have ``depth`` elements."""
    m, n, depth, nr = args.m, args.n, args.depth, shape.vectors * k.lanes
    panels = (n + (nr - 1)) // nr
    sums = k.scratch(i32)
    batch_size = args.batch.count(k)
    grid = RowBlocking(
        k, m, panels, batch_size, shape.rows, shape.block, depth, (depth + QUAD) * nr, args.row_block_nbytes
    )
    with grid.share() as (index, panel, *tiles):
        batch = args.batch.indices(index)
        a, a_row = args.a.at(batch), args.a.row
        b = args.b.at(batch).at(panel * (depth + QUAD) * nr)
        finish = BoundEpilogue(k, epilogue, args.epilogue, n, batch)
        columns = k.min(n - panel * nr, nr)
        with k.loop(*tiles) as tile:
            row = tile * shape.rows
            rows = k.min(m - row, shape.rows)
            for low, high in zip((0, *shape.heights), shape.heights, strict=False):
                with k.when((rows > low) & (rows <= high)):
                    given = [a.at(a_row * (row + k.min(rows - 1, r))) for r in range(high)]
                    store_sums(Int8MicroTile(k, shape, a_dtype, i8).sums(given, b, depth), sums, nr)
            finish.tile(sums, nr, row, rows, panel * nr, columns, width=nr, at_once=True)


def store_sums(found: list[list[Var]], into: Buf, nr: int) -> None:
    for r, row in enumerate(found):
        for j, total in enumerate(row):
            into.store(r * nr + j * total.lanes, total)


class Int8MicroTile:
    """Some rows of A times a panel of B, summed in registers."""

    def __init__(self, k: Kernel, shape: MicroTileShape, a_dtype: DType, b_dtype: DType) -> None:
        self.k, self.shape = k, shape
        self.signs = (partner_dtype(k.isa) if b_dtype is i8 else i8), b_dtype
        self.zero_offset = zero_offset(a_dtype, self.signs[0])

    def sums(self, a: list[Buf], b: Buf, depth: Val, start: list[Val] | None = None) -> list[list[Var]]:
        """The sums over ``depth`` elements. They begin with ``start`` for each row, else with the compensation for a
        flipped A, if it is.
        """
        k, lanes, count = self.k, self.k.lanes, self.shape.vectors
        first = [k.zeros(i32, lanes) for _ in range(count)]
        if self.zero_offset:
            first = [b.as_type(i32).load(j * lanes, lanes) * self.zero_offset for j in range(count)]
        sums = [[k.var(v) for v in (first if start is None else [start[r]] * count)] for r, _ in enumerate(a)]
        whole = k.const(0)
        if self.shape.by_lane and len(a) == self.shape.rows:
            whole = depth & -(QUAD * lanes)
            with k.loop(0, whole, QUAD * lanes) as p:
                vectors = [self._quads(x.load(p, QUAD * lanes)) for x in a]
                for i in range(lanes):
                    self._step(sums, b, p + i * QUAD, [v.shuffle([i] * lanes) for v in vectors])
        with k.loop(whole, depth, QUAD) as p:
            self._step(sums, b, p, [k.splat(self._quads(x.load(p, QUAD)), lanes) for x in a])
        return sums

    def _quads(self, v: Val) -> Val:
        quads = self.k.bitcast(v, i32)
        return flip_signs(quads) if self.zero_offset else quads

    def _step(self, sums: list[list[Var]], b: Buf, p: Val, quads: list[Val]) -> None:
        k, lanes, nr = self.k, self.k.lanes, self.shape.vectors * self.k.lanes
        at = b.at((p + QUAD) * nr)
        columns = [k.bitcast(at.load(j * lanes * QUAD, lanes * QUAD), i32) for j in range(self.shape.vectors)]
        for row, x in zip(sums, quads, strict=True):
            for total, y in zip(row, columns, strict=True):
                total.set(dot(k, total.get(), x, y, *self.signs))

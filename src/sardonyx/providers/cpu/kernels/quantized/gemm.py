"""int8 matrix products with vector dot products, from panels of B in quads of k (``quantized.pack``).

As in ``gemm``, a micro-tile holds MR rows by NV vectors of i32 sums in registers. Each step along k adds the dot
products of one quad (four bytes) of each row of A with NV vectors of quads of B. Integer sums are exact in any order,
so there is no K-blocking: a step reads 4 * NR bytes of B for 4 * MR * NR products, which L2 sustains.

An A of the sign that the chip does not multiply with signed B (``byte_dot``) is flipped as it is loaded. The sums then
start with the compensation, from the column sums in front of each panel.
"""

from __future__ import annotations

from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import (
    Problem,
    batch_args,
    batch_count,
    batch_indices,
    batch_params,
    matrix_at,
    matrix_params,
    number,
)
from sardonyx.providers.cpu.kernels.gemm.vector import MicroTileShape, RowBlocking
from sardonyx.providers.cpu.kernels.quantized.byte_dot import dot, flip_signs, partner_dtype, zero_offset
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD, depth_of, packed_b, padded_a
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, Var, i8, i32, i64
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal


def int8_params(a_dtype: DType, axes: int) -> Params:
    """Parameters of A, of the packed B, and of the sizes of a product."""
    panels = {"b": (i8,), **{f"b_batch{i}": i64 for i in range(axes)}}
    return {**matrix_params("a", a_dtype, axes), **panels, **batch_params(axes), "m": i64, "n": i64, "depth": i64}


def int8_args(p: Problem, analysis: Analysis, nr: int) -> tuple[list[Step], dict[str, Any]]:
    """The arguments of ``int8_params``, and the steps that pack the operands."""
    before_a, a = padded_a(p, analysis.isa)
    before_b, b = packed_b(p, nr, analysis.isa)
    panels = {name: value for name, value in b.args("b").items() if name not in ("b_row", "b_col")}
    sizes = {"m": p.m, "n": p.n, "depth": depth_of(p.k, analysis.isa)}
    return [*before_a, *before_b], {**a.args("a"), **panels, **batch_args(p.batch), **sizes}


def supports(p: Problem, analysis: Analysis) -> Refusal | None:
    return None if p.b.dtype is i8 else Refusal("not of 8-bit integers")


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    isa, epilogue = analysis.isa, Epilogue.of(p)
    shape = MicroTileShape.of(isa, i32, p.n)
    nr = shape.columns(isa, i32)
    before, args = int8_args(p, analysis, nr)
    spec = gemm_int8(a_dtype=p.a.dtype, epilogue=epilogue, shape=shape)
    args |= {"row_block_nbytes": isa.l2_nbytes // 2, **epilogue.args(p)}
    nbytes = dims.known(dims.mul(p.n, p.k)) or 0
    variant = f"micro-tile of {shape.rows} rows x {shape.vectors} vectors, int8"
    scratch = shape.rows * nr * 4
    return [*before, Step(spec, args, epilogue.writes, p.nodes, scratch, p.flops, nbytes, variant)]


def _params(a_dtype: DType, epilogue: Epilogue, shape: MicroTileShape) -> Params:
    return {**int8_params(a_dtype, epilogue.batch_axes), "row_block_nbytes": i64, **epilogue.params}


@kernel(_params)
def gemm_int8(
    k: Kernel, m: Val, n: Val, depth: Val, row_block_nbytes: Val,
    *, a_dtype: DType, epilogue: Epilogue, shape: MicroTileShape, **memory: Any,
) -> None:  # fmt: skip
    """A batch of products. Rows of ``a`` are contiguous and have ``depth`` elements."""
    axes, nr = epilogue.batch_axes, shape.vectors * k.lanes
    panels = (n + (nr - 1)) // nr
    sums = k.scratch(i32)
    batch_size = batch_count(k, memory, axes)
    grid = RowBlocking(k, m, panels, batch_size, shape.rows, shape.block, depth, (depth + QUAD) * nr, row_block_nbytes)
    with grid.share() as (index, panel, *tiles):
        batch = batch_indices(k, memory, index, axes)
        a, a_row = matrix_at(memory, "a", batch), number(memory, "a_row")
        b = matrix_at(memory, "b", batch).at(panel * (depth + QUAD) * nr)
        finish = BoundEpilogue(k, epilogue, memory, n, batch)
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
        self.k, self.shape, self.b_dtype = k, shape, b_dtype
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

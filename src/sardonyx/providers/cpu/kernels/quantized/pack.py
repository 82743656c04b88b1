"""Packs the operands of int8 products.

B is packed into panels [batch][n / NR][1 + depth / 4][NR][4], zero beyond k and n: first the sum of each column, in
i32, then its elements in quads, so that a 32-bit lane holds four successive elements of one column. With AMX, the depth
is a multiple of 64. A is not packed if its rows are contiguous and as long as the depth; else it is copied to
[batch][m][depth].
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, Matrix, MatrixArgs, Problem
from sardonyx.providers.cpu.kernels.gemm.pack import COLUMNS, ROW_BLOCK, ROWS, packed_b_by, unit_axis
from sardonyx.providers.cpu.kernels.quantized.byte_dot import dot, partner_dtype
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, Spec, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i8, i32, i64, u8
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step

QUAD = 4
"""Elements of k that a dot product takes at once, adjacent in a panel."""
ONES = 0x0101_0101
"""Four bytes of 1."""


def step_of(isa: Isa) -> int:
    """Elements of k in one instruction: depths are multiples of it."""
    return 64 if isa.amx else QUAD


def depth_of(k: Known, isa: Isa) -> Known:
    """k, padded to whole steps."""
    step = step_of(isa)
    return expressible(dims.mul(dims.ceildiv(k, step), step))


def panel_nbytes(depth: Known, nr: int) -> Known:
    return expressible(dims.mul(nr, dims.add(depth, QUAD)))


# -- the right operand


def _quads_params(unit: str, nr: int, axes: int, step: int) -> Params:
    x, batch = MatrixArgs.declared(i8, axes), BatchArgs.declared(axes)
    return {"x": x, "y": (i8,), "batch": batch, "rows": i64, "columns": i64}


@kernel(_quads_params)
def pack_int8_panels(
    k: Kernel, x: MatrixArgs[Buf, Val], y: Buf, batch: BatchArgs[Buf, Val], rows: Val, columns: Val,
    *, unit: str, nr: int, axes: int, step: int,
) -> None:  # fmt: skip
    """y[batch][columns / nr][1 + depth / 4][nr][4] from x[batch][rows][columns]."""
    panels = (columns + (nr - 1)) // nr
    quads = (rows + (step - 1)) // step * (step // QUAD)
    with k.share(batch.count(k) * panels) as at:
        column = at % panels * nr
        matrix = x.at(batch.indices(at // panels))
        panel = y.at(at * (quads + 1) * (nr * QUAD))
        source = QuadPacker(k, matrix.at(column * x.col), x.row, x.col, rows, k.min(columns - column, nr), nr)
        source.fill(panel.at(nr * QUAD), quads, unit)
        sum_columns(k, panel, quads, nr, i8)


class QuadPacker:
    """Packs up to ``nr`` columns of a matrix into a panel, one quad of each column after the other."""

    def __init__(
        self, k: Kernel, x: Buf, x_row: Val, x_col: Val, rows: Val, columns: Val, nr: int, *, flips: bool = False
    ) -> None:
        """``flips``: the bytes take the other sign, shifted by 128."""
        self.k, self.x, self.x_row, self.x_col, self.nr = k, x.as_type(u8), x_row, x_col, nr
        self.rows, self.columns, self.flip = rows, columns, 0x80 if flips else 0

    def fill(self, y: Buf, quads: Val, unit: str) -> None:
        k, y = self.k, y.as_type(u8)
        whole = k.select(self.columns.eq(self.nr), self.rows // QUAD, 0)
        if unit in (COLUMNS, ROWS):
            with k.loop(0, whole) as q:
                (self._interleave if unit == COLUMNS else self._copy)(y.at(q * (self.nr * QUAD)), q * QUAD)
        else:
            whole = k.const(0)
        with k.loop(whole, quads) as q, k.loop(0, self.nr) as j:
            for t in range(QUAD):
                row = q * QUAD + t
                exists = (row < self.rows) & (j < self.columns)
                byte = self.x.load(row * self.x_row + j * self.x_col, mask=exists)
                y.store((q * self.nr + j) * QUAD + t, byte ^ self.flip)

    def _interleave(self, y: Buf, row: Val) -> None:
        rows = [self.x.load((row + t) * self.x_row, self.nr) for t in range(QUAD)]
        y.store(0, interleaved_quads(rows) ^ self.flip)

    def _copy(self, y: Buf, row: Val) -> None:
        with self.k.loop(0, self.nr) as j:
            y.store(j * QUAD, self.x.load(j * self.x_col + row, QUAD) ^ self.flip)


def interleaved_quads(rows: Sequence[Val]) -> Val:
    """Quads from four successive rows of a matrix: element i of each row, then element i + 1, in one vector."""
    nr = rows[0].lanes
    pair = [i // 2 + i % 2 * nr for i in range(2 * nr)]
    quad = [i // 4 * 2 + i % 2 + i % 4 // 2 * 2 * nr for i in range(4 * nr)]
    a, b, c, d = rows
    return a.shuffle(pair, b).shuffle(quad, c.shuffle(pair, d))


def sum_columns(k: Kernel, panel: Buf, quads: Val, nr: int, dtype: DType) -> None:
    """Store the sums of a panel's columns in front of it."""
    ones = k.const(ONES, i32, k.lanes)
    signs = partner_dtype(k.isa), dtype
    for j in range(0, nr, k.lanes):
        total = k.var(k.zeros(i32, k.lanes))
        with k.loop(1, quads + 1) as q:
            columns = k.bitcast(panel.load((q * nr + j) * QUAD, k.lanes * QUAD), i32)
            total.set(dot(k, total.get(), ones, columns, *signs))
        panel.as_type(i32).store(j, total)


def packed_b(p: Problem, nr: int, isa: Isa) -> tuple[list[Step], Matrix]:
    """B in panels of ``nr`` columns, and the steps that pack it in every run: none for a constant, it is prepacked."""

    def spec(axes: int) -> Spec:
        return pack_int8_panels(unit=unit_axis(p.b), nr=nr, axes=axes, step=step_of(isa))

    each = expressible(dims.mul(panel_nbytes(depth_of(p.k, isa), nr), dims.ceildiv(p.n, nr)))
    return packed_b_by(p, spec, i8, each, nr, isa)


# -- the left operand


def _rows_params(unit: str, axes: int, dtype: DType) -> Params:
    numbers = dict.fromkeys(("rows", "columns", "depth"), i64)
    x, batch = MatrixArgs.declared(dtype, axes), BatchArgs.declared(axes)
    return {"x": x, "y": (dtype,), "batch": batch, **numbers}


@kernel(_rows_params)
def pad_int8_rows(
    k: Kernel, x: MatrixArgs[Buf, Val], y: Buf, batch: BatchArgs[Buf, Val], rows: Val, columns: Val, depth: Val,
    *, unit: str, axes: int, dtype: DType,
) -> None:  # fmt: skip
    """y[batch][rows][depth] = x[batch][rows][columns], zero beyond the columns."""
    row_blocks = (rows + (ROW_BLOCK - 1)) // ROW_BLOCK
    with k.share(batch.count(k) * row_blocks) as at:
        index, row = at // row_blocks, at % row_blocks * ROW_BLOCK
        matrix = x.at(batch.indices(index))
        with k.loop(row, k.min(rows, row + ROW_BLOCK)) as r:
            to, source = y.at((index * rows + r) * depth), matrix.at(r * x.row)
            if unit == COLUMNS:
                for t in k.tiles(columns, k.lanes * QUAD):
                    to.store(t, source.load(t))
            else:
                with k.loop(0, columns) as c:
                    to.store(c, source.load(c * x.col))
            with k.loop(columns, depth) as c:
                to.store(c, 0)


def padded_a(p: Problem, isa: Isa) -> tuple[list[Step], Matrix]:
    """A with contiguous rows of whole steps: the operand itself, or a copy and the step that makes it."""
    a, depth = p.a, depth_of(p.k, isa)
    if a.column == 1 and p.k == depth:
        return [], a
    matrix = expressible(dims.mul(p.m, depth))
    strides = tuple(expressible(dims.product((matrix, *p.batch[i + 1 :]))) for i in range(len(p.batch)))
    elements = expressible(dims.product((matrix, *p.batch)))
    to = Storage("temporary", a.dtype, elements)
    spec = pad_int8_rows(unit=unit_axis(a), axes=len(p.batch), dtype=a.dtype)
    args = flat(x=a.operand, y=Ref(to), batch=BatchArgs(p.batch), rows=p.m, columns=p.k, depth=depth)
    why = "rows are not contiguous" if a.column != 1 else f"k is not a multiple of {step_of(isa)}"
    nbytes = expressible(dims.mul(elements, 2))
    step = Step(spec, args, frozenset("y"), p.nodes, nbytes=nbytes, variant=f"A copied: {why}")
    return [step], Matrix(to, 0, strides, depth, 1)

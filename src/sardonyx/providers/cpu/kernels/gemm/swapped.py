"""Matrix products whose results are stored column by column: the transposed product, with the operands swapped.

A Transpose after a product is only addressing of its results, and of what its epilogue reads: neighbouring rows are
adjacent in memory, neighbouring columns far apart. Vectors along the columns would be stored element by element, each
to a line of its own. So (A B)^T is computed as B^T A^T, with the rows of A along the lanes.

On chips with tiles that is for shallow products, whose stores take longer than their sums. Where B^T has many rows,
``gemm.amx_swapped`` multiplies it on tiles.
"""

from __future__ import annotations

from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem
from sardonyx.providers.cpu.kernels.gemm import amx
from sardonyx.providers.cpu.kernels.gemm.contraction import multiply_adds, multiply_adds_refusal
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.language.values import register_dtype
from sardonyx.providers.cpu.program.analysis import DOUBLED, Analysis
from sardonyx.providers.cpu.program.steps import SizeRange, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import replace

SHALLOW, SHALLOW_NARROW, SHALLOW_BY_COLUMNS = 256, 512, 1024
"""Products of a sum up to which stores column by column take longer than what tiles gain by int8 slices, or by an A
that is packed already: in general, with few columns, and where A is stored column by column, too."""
LEAST_TILE_ROWS = 128
"""Rows of B^T from which tiles with three terms gain more than it costs to split A^T."""


def supports(p: Problem, analysis: Analysis) -> Refusal | None:
    return multiply_adds_refusal(p, analysis)


def pays(p: Problem, analysis: Analysis) -> Refusal | None:
    if not is_by_columns(p):
        return Refusal("results are not stored column by column")
    if isinstance(p.n, int) and p.n <= 1:
        return Refusal("a single column")
    if amx.supports(p, analysis) is None and amx.pays(p, analysis) is None and not is_shallow(p):
        return Refusal("deep enough for tiles")
    if isinstance(p.m, int):
        return Refusal("rows do not fill a vector") if p.m < _least(p, analysis) else None
    if p.weight is None or int(p.b.storage.elements) > DOUBLED:
        return Refusal("rows may be few, and B is not a constant of which two layouts are stored")
    return None


def few_rows(p: Problem, analysis: Analysis) -> SizeRange | None:
    """The numbers of rows that do not fill a vector, where rows are known at run time only; else None."""
    return None if isinstance(p.m, int) else SizeRange(p.m, most=_least(p, analysis) - 1)


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    return multiply_adds(swapped(p), analysis)


def is_by_columns(p: Problem) -> bool:
    return bool(p.outputs) and all(each.row == 1 and each.column != 1 for each in p.outputs)


def is_shallow(p: Problem) -> bool:
    is_a_by_columns = p.a.row == 1 and p.a.column != 1
    most = SHALLOW_BY_COLUMNS if is_a_by_columns else SHALLOW_NARROW if is_narrow(p) else SHALLOW
    return isinstance(p.k, int) and p.k <= most


def is_narrow(p: Problem) -> bool:
    return not isinstance(p.n, int) or p.n < LEAST_TILE_ROWS


def swapped(p: Problem) -> Problem:
    extra, outputs = (tuple(map(_transposed, each)) for each in (p.extra, p.outputs))
    return replace(p, m=p.n, n=p.m, a=_transposed(p.b), b=_transposed(p.a), extra=extra, outputs=outputs)


def _least(p: Problem, analysis: Analysis) -> int:
    """The number of rows that fills a vector."""
    return lanes_of(analysis.isa.lanes, register_dtype(p.a.dtype))


def _transposed(matrix: Matrix) -> Matrix:
    return replace(matrix, row=matrix.column, column=matrix.row)

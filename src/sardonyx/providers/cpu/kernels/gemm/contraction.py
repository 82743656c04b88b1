"""Matrix products of groups: what all kernels ask of a contraction, and the steps of those on vectors.

AMX            bf16 terms, as many as the precision asks for (``gemm.amx``); at three terms and with constant weights,
               int8 slices (``gemm.int8_slices``)
multiply-adds  vectors, for every type (``gemm.vector``), from B in panels of the accumulator's type, or of a narrower
               one if B is stored so or the precision allows bf16
int8           8-bit integers with i32 sums, on AMX (``quantized.gemm_amx``) or vectors (``quantized.gemm``)

Where the number of rows is known only at run time, few rows may take multiply-adds and more rows AMX. The last bits of
a row then depend on the number of rows, but never on the number of threads.
"""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.lower.groups import Apply, Contraction
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, Matrix, Problem, problem
from sardonyx.providers.cpu.kernels.gemm import amx, split_ahead, vector
from sardonyx.providers.cpu.kernels.gemm.pack import packed_a, packed_b
from sardonyx.providers.cpu.kernels.split.bf16 import PANEL, is_weight_representable
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.values import bf16, f16, f32, f64, i8, i32, i64, register_dtype, u8, u32, u64
from sardonyx.providers.cpu.program.analysis import DOUBLED, Analysis
from sardonyx.providers.cpu.program.steps import SizeRange, Step
from sardonyx.providers.cpu.program.variants import Refusal

SMALL = 1 << 17
"""Weights of a product that are read so quickly that to split its rows would take longer."""
SUMMED = (f32, f64, f16, bf16, i32, i64, u32, u64)


def problem_of(group: Contraction, analysis: Analysis) -> Problem:
    return analysis.once("problem", group, problem)


def types_refusal(a: DType, b: DType) -> str | None:
    """Why operands of these types are not multiplied by any kernel; None if they are."""
    if a in (i8, u8) and b is i8:
        return None
    for dtype in (a, b):
        if dtype not in SUMMED:
            return f"sums of {dtype} products are not compiled"
    return None if register_dtype(a) is register_dtype(b) else f"{a} times {b} is not compiled"


def refusal(group: Contraction) -> Refusal | None:
    """Why no kernel computes a contraction: its types, or a reduction in its epilogue."""
    if not all(isinstance(step, Apply) for step in group.epilogue.steps):
        return Refusal("a reduction follows the sums")
    reason = types_refusal(group.a.dtype, group.b.dtype)
    return None if reason is None else Refusal(reason)


def panels_for_both(p: Problem, analysis: Analysis) -> Matrix | None:
    """A constant B in f32 panels that tiles and multiply-adds both read; None if B is not stored so."""
    isa, dtype = analysis.isa, register_dtype(p.a.dtype)
    if not amx.is_in_panels(p, analysis) or vector.MicroTileShape.of(isa, dtype, p.n).columns(isa, dtype) != PANEL:
        return None
    return split_ahead.panels(p, analysis)


def few_rows(p: Problem, analysis: Analysis) -> SizeRange | None:
    """The numbers of rows for which vectors are quicker than tiles, where rows are known at run time only.

    None if tiles take every number of rows. Recurrences often have the rows of a single step.
    """
    least = amx.LEAST_ROWS[amx.terms(p, analysis)]
    is_recurrent = all(node.onnx_op in ("LSTM", "GRU", "RNN") for node in p.nodes)
    if least == 1 or isinstance(p.m, int) or p.weight is None:
        return None
    is_small = int(p.b.storage.elements) <= (DOUBLED if is_recurrent or analysis.is_repeated else SMALL)
    return SizeRange(p.m, most=least - 1) if is_small or panels_for_both(p, analysis) is not None else None


def few_rows_steps(p: Problem, analysis: Analysis) -> list[Step]:
    """The steps on vectors of a contraction whose rows are few in this run; other runs multiply it on tiles."""
    return multiply_adds(p, analysis, panels_for_both(p, analysis), is_few=True)


def multiply_adds_refusal(p: Problem, analysis: Analysis) -> Refusal | None:
    return Refusal("8-bit integers have kernels of their own") if p.b.dtype is i8 else None


def multiply_adds(p: Problem, analysis: Analysis, panels: Matrix | None = None, *, is_few: bool = False) -> list[Step]:
    """The steps of a contraction on vectors.

    ``panels`` is B, if it is packed in f32 panels already. ``is_few``: rows are few, so less code is compiled.
    """
    isa, epilogue = analysis.isa, Epilogue.of(p)
    dtype = register_dtype(p.a.dtype)
    is_own = panels is None and p.weight is not None and isinstance(p.n, int)
    shape = (
        vector.MicroTileShape.fitted(isa, dtype, int(p.n), is_matrix=True)
        if is_own
        else vector.MicroTileShape.of(isa, dtype, p.n)
    )
    shape = shape.low if is_few else shape
    stored, why = storage_dtype(p, analysis)
    before_a, a = packed_a(p, dtype, isa)
    before_b, b = packed_b(p, stored, shape.columns(isa, dtype), isa) if panels is None else ([], panels)
    spec = vector.gemm(dtype=dtype, b_dtype=stored, epilogue=epilogue, shape=shape)
    args = flat(
        a=a.operand, b=b.panels, batch=BatchArgs(p.batch), m=p.m, n=p.n, depth=p.k,
        row_block_nbytes=isa.l2_nbytes // 2, operands=operands_of(p.extra, p.outputs),
    )  # fmt: skip
    scratch = vector.scratch_nbytes(shape, isa, dtype, stored)
    nbytes = dims.known(dims.mul(b.storage.elements, stored.bits // 8)) or 0
    variant = f"{shape.rows} x {shape.vectors} vectors of {dtype}: {why}"
    step = Step(spec, args, epilogue.writes, p.nodes, scratch, p.flops, nbytes, variant)
    return [*before_a, *before_b, step]


def storage_dtype(p: Problem, analysis: Analysis) -> tuple[DType, str]:
    """The type in which B's panels are stored, and why."""
    b, isa = p.b, analysis.isa
    tensor = p.weight
    if tensor is None:
        return register_dtype(b.dtype), "B is packed at run time"
    if analysis.precision == "medium" and b.dtype is f32 and is_weight_representable(tensor.peek()):
        return bf16, "B in bf16, as the precision allows"
    no_tiles = "tiles do not pay or do not carry it" if isa.amx else f"no tiles on {isa.name}"
    return b.dtype, no_tiles if b.dtype in (f32, f16, bf16) else "exact"

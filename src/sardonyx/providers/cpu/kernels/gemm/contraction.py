"""Selects the kernel of a contraction, and the steps that pack its operands.

AMX            bf16 terms, as many as the precision asks for (``gemm.amx``); at three terms and with constant weights,
               int8 slices (``gemm.int8_slices``)
multiply-adds  vectors, for every type (``gemm.vector``), from B in panels of the accumulator's type, or of a narrower
               one if B is stored so or the precision allows bf16
int8           8-bit integers with i32 sums, on AMX (``quantized.gemm_amx``) or vectors (``quantized.gemm``)

Where the number of rows is known only at run time, few rows may take multiply-adds and more rows AMX. The last bits of
a row then depend on the number of rows, but never on the number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from sardonyx.dtypes import DType
from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.lower.groups import Apply, Contraction
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem, batch_args, problem
from sardonyx.providers.cpu.kernels.gemm import amx, int8_slices, split_ahead, vector
from sardonyx.providers.cpu.kernels.gemm.pack import packed_a, packed_b
from sardonyx.providers.cpu.kernels.quantized import gemm as quantized_gemm
from sardonyx.providers.cpu.kernels.quantized import gemm_amx as quantized_gemm_amx
from sardonyx.providers.cpu.kernels.split.bf16 import PANEL, is_weight_representable
from sardonyx.providers.cpu.language.values import bf16, f16, f32, f64, i8, i32, i64, register_dtype, u8, u32, u64
from sardonyx.providers.cpu.program.steps import DOUBLED, Only, Step, Target, either

SMALL = 1 << 17
"""Weights of a product that are read so quickly that to split its rows would take longer."""
SUMMED = (f32, f64, f16, bf16, i32, i64, u32, u64)


def supports(a: DType, b: DType) -> str | None:
    """Why operands of these types are not multiplied here; None if they are."""
    if a in (i8, u8) and b is i8:
        return None
    for dtype in (a, b):
        if dtype not in SUMMED:
            return f"sums of {dtype} products are not compiled"
    return None if register_dtype(a) is register_dtype(b) else f"{a} times {b} is not compiled"


def steps(group: Contraction, target: Target) -> list[Step]:
    reason = _refusal(group)
    if reason is not None:
        raise NotImplemented(reason, where=", ".join(node.op_type for node in group.nodes))
    p = problem(group)
    if p.b.dtype is i8:
        return quantized_gemm_amx.steps(p, target) if target.isa.amx else quantized_gemm.steps(p, target)
    found = _on_tiles(p, target)
    if found is None:
        return multiply_adds(p, target)
    if found.terms is None:
        many = partial(int8_slices.steps, p)
    else:
        many = partial(amx.steps, p, found.terms, panels=found.panels)
    if found.few is None:
        return many(target)
    return either(found.few, target, partial(multiply_adds, p, panels=found.panels, is_few=True), many)


def _refusal(group: Contraction) -> str | None:
    if not all(isinstance(step, Apply) for step in group.epilogue.steps):
        return "a reduction follows the sums"
    return supports(group.a.dtype, group.b.dtype)


@dataclass(frozen=True)
class OnTiles:
    """A contraction on tiles."""

    problem: Problem
    terms: int | None
    """In bf16 terms; None: in slices."""
    few: Only | None
    """The rows for which it is not."""
    panels: Matrix | None
    """A constant B in a layout that tiles and multiply-adds both read, where there is one."""


def on_tiles(group: Contraction, target: Target) -> OnTiles | None:
    """How a contraction is carried out on tiles; None where it is not."""
    try:
        return None if _refusal(group) is not None else _on_tiles(problem(group), target)
    except NotImplemented:  # sizes that are too long expressions
        return None


def _on_tiles(p: Problem, target: Target) -> OnTiles | None:
    terms = None if p.b.dtype is i8 else amx.terms_for(p, target)
    if terms is None:
        return None
    panels = _shared(p, terms, target)
    few = _few_rows(p, terms, target, panels is not None)
    uses_int8_slices = not amx.is_in_panels(p, terms, target) and int8_slices.takes(p, terms, target)
    return OnTiles(p, None if uses_int8_slices else terms, few, panels)


def _shared(p: Problem, terms: int, target: Target) -> Matrix | None:
    """A constant B in a layout that tiles and multiply-adds both read, where there is one."""
    isa, dtype = target.isa, register_dtype(p.a.dtype)
    if not amx.is_in_panels(p, terms, target) or vector.MicroTileShape.of(isa, dtype, p.n).columns(isa, dtype) != PANEL:
        return None
    return split_ahead.panels(p, isa)


def _few_rows(p: Problem, terms: int, target: Target, is_shared: bool) -> Only | None:
    """How many rows are too few for tiles, where only the run tells: recurrences often go by the single step."""
    least, is_recurrent = amx.LEAST_ROWS[terms], all(node.op_type in ("LSTM", "GRU", "RNN") for node in p.nodes)
    if least == 1 or isinstance(p.m, int) or p.weight is None:
        return None
    is_small = int(p.b.storage.elements) <= (DOUBLED if is_recurrent or target.is_repeated else SMALL)
    return Only(p.m, most=least - 1) if is_shared or is_small else None


def multiply_adds(p: Problem, target: Target, panels: Matrix | None = None, *, is_few: bool = False) -> list[Step]:
    """The contraction on vectors; ``panels`` is B, if others have it there."""
    isa, epilogue = target.isa, Epilogue.of(p)
    dtype = register_dtype(p.a.dtype)
    is_own = panels is None and p.weight is not None and isinstance(p.n, int)
    shape = (
        vector.MicroTileShape.fitted(isa, dtype, int(p.n), is_matrix=True)
        if is_own
        else vector.MicroTileShape.of(isa, dtype, p.n)
    )
    shape = shape.low if is_few else shape
    stored, why = storage_dtype(p, target)
    before_a, a = packed_a(p, dtype)
    before_b, b = packed_b(p, stored, shape.columns(isa, dtype), isa) if panels is None else ([], panels)
    spec = vector.gemm(dtype=dtype, b_dtype=stored, epilogue=epilogue, shape=shape)
    right = {name: value for name, value in b.args("b").items() if name not in ("b_row", "b_col")}
    args = {
        **a.args("a"), **right, **batch_args(p.batch), "m": p.m, "n": p.n, "depth": p.k,
        "row_block_nbytes": isa.l2_nbytes // 2, **epilogue.args(p),
    }  # fmt: skip
    scratch = vector.scratch_nbytes(shape, isa, dtype, stored)
    nbytes = dims.known(dims.mul(b.storage.elements, stored.bits // 8)) or 0
    variant = f"{shape.rows} x {shape.vectors} vectors of {dtype}: {why}"
    step = Step(spec, args, epilogue.writes, p.nodes, scratch, p.flops, nbytes, variant)
    return [*before_a, *before_b, step]


def storage_dtype(p: Problem, target: Target) -> tuple[DType, str]:
    """The type in which B's panels are stored, and why."""
    b, isa = p.b, target.isa
    tensor = p.weight
    if tensor is None:
        return register_dtype(b.dtype), "B is packed at run time"
    if target.precision == "medium" and b.dtype is f32 and is_weight_representable(tensor.peek()):
        return bf16, "B in bf16, as the precision allows"
    no_tiles = "tiles do not pay or do not carry it" if isa.amx else f"no tiles on {isa.name}"
    return b.dtype, no_tiles if b.dtype in (f32, f16, bf16) else "exact"

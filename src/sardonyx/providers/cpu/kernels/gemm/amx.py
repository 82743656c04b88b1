"""Matrix products on AMX tiles, from operands split into bf16 terms (``split.bf16``).

A product of f32 numbers is the sum of the products of their terms that matter: 1 with one term (bf16), 3 with two
(error about 2^-16), 6 with three (error below that of f32 sums). The micro-kernel (``split.bf16_micro_kernel``) holds
16 rows by 32 columns of sums and advances along k in steps of 32.

**Order of sums.** Each element adds the products of step 0, step 1, ... in the order of ``PRODUCTS``, in K-blocks of
``KC_STEPS`` steps. With one or two terms, a K-block continues from the sums of the one before. With three terms it
starts at zero and is added to them, since six additions a step would otherwise round at the size of the whole sum.
Results do not depend on rows, threads or blocking.

The loops, their cache blocking and the epilogue are in ``gemm.amx_kernel``.
"""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, Problem
from sardonyx.providers.cpu.kernels.gemm import split_ahead
from sardonyx.providers.cpu.kernels.gemm.amx_kernel import FACTORS_NBYTES, AmxGemmArgs, gemm_amx, is_pipelined
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import SCRATCH_NBYTES
from sardonyx.providers.cpu.kernels.gemm.macro_tile import Blocking
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import Panels
from sardonyx.providers.cpu.kernels.split.bf16 import (
    STEP,
    TiledOperand,
    split_a,
    split_b,
    with_packed_outputs,
)
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import (
    PRODUCTS,
    SCHEDULES,
)
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.values import bf16, f16, f32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import replace

TERMS = {"medium": 1, "high": 2, "highest": 3}
"""bf16 terms by precision."""

EXACT_TERMS = {bf16: 1, f16: 2}
"""bf16 terms that represent a narrow type exactly."""

KC_STEPS = {1: 6, 2: 6, 3: 8}
"""Steps of a K-block, by terms. With one term, this K-block and the next fit into half of L1. With three, each K-block
costs a store and an addition of its sums."""

PIPELINED_KC_STEPS = 12
"""Steps of a K-block of one term with a pipelined epilogue, which needs L1, too: the next K-block is prefetched into
L2."""

LEAST_ROWS = {1: 1, 2: 8, 3: 40}
"""Rows from which AMX is faster than f32 multiply-adds. Few rows are limited by memory, where one term reads half the
bytes of f32 and three read 1.5 times as many."""
LEAST_COLUMNS = 64
"""Columns from which the gain in products, 0.02 cycles each with three terms, outweighs the splitting of A, about one
cycle for a number."""
LEAST_OF_BOTH = {1: 64, 2: 64, 3: 80}
"""Rows and columns from which that holds where B is split at each run too, by terms."""
LEAST_DEPTH = STEP
"""Products of a sum from which one fills a step."""


def term_count(precision: str, *dtypes: DType) -> int:
    """bf16 terms of an operand: as many as the precision asks for, or as represent these types exactly."""
    return min(TERMS[precision], max(EXACT_TERMS.get(dtype, 3) for dtype in dtypes))


def terms(p: Problem, analysis: Analysis) -> int:
    """The bf16 terms that the operands are split into."""
    return term_count(analysis.precision, p.a.dtype, p.b.dtype)


def supports(p: Problem, analysis: Analysis) -> Refusal | None:
    """Why operands cannot be multiplied in bf16 terms; None if they can.

    Chips without tiles may have dot products of bf16 pairs on vectors, which multiply one term.
    """
    isa = analysis.isa
    if not isa.amx and not isa.bf16_dot:
        return Refusal(f"no tiles on {isa.name}")
    if not isa.amx and terms(p, analysis) != 1:
        return Refusal(f"products of bf16 pairs have one term, the precision {analysis.precision} takes more")
    if any(x.dtype not in (f32, bf16, f16) for x in (p.a, p.b)):
        return Refusal("of other types than f32, f16 and bf16")
    if p.weight is not None and identity(p.weight) in analysis.unrepresentable:
        return Refusal("bf16 terms cannot represent a weight")
    return None


def pays(p: Problem, analysis: Analysis) -> Refusal | None:
    """Why f32 multiply-adds are quicker than tiles; None if tiles are quicker."""
    count = terms(p, analysis)
    rows, columns = (LEAST_OF_BOTH[count],) * 2 if p.weight is None else (LEAST_ROWS[count], LEAST_COLUMNS)
    limits = (("rows", p.m, rows), ("columns", p.n, columns), ("depth", p.k, LEAST_DEPTH))
    small = [f"{size} {name}" for name, size, low in limits if isinstance(size, int) and size < low]
    return Refusal(f"too small for tiles: {', '.join(small)}") if small else None


def is_in_panels(p: Problem, analysis: Analysis) -> bool:
    """Whether a constant B is stored in f32 panels, which tiles and multiply-adds both read (``gemm.split_ahead``).

    That is for products whose rows are known at run time only and may be few: few rows are much faster from panels than
    from tiles, and many rows a little slower. Rows that are a single named size, such as a batch, are taken to be few
    at times. Rows that are a product of sizes, such as the tokens of a batch, are taken to be many, unless the part
    runs step by step (``Analysis.is_stepwise``).
    """
    rows, count = p.m, terms(p, analysis)
    if count != split_ahead.TERMS or p.weight is None or isinstance(rows, int):
        return False
    is_single = len(rows.terms) == 1 and all(len(names) == 1 for names in rows.terms)
    is_long = any(times >= LEAST_ROWS[count] for times in rows.terms.values())
    return (is_single or analysis.is_stepwise) and not is_long


def with_packed_panels(p: Problem, analysis: Analysis) -> Problem:
    """The problem with packed tiles among its outputs, for those that are packed for their consumer."""
    outputs, expression = with_packed_outputs(p.outputs, p.expression, analysis, lambda _, found: Panels.over(found))
    return replace(p, outputs=outputs, expression=expression)


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    """The steps of a contraction on tiles: packing A and B where that is needed, and the product."""
    terms = term_count(analysis.precision, p.a.dtype, p.b.dtype)
    made, p = [y.storage for y in p.outputs], with_packed_panels(p, analysis)
    epilogue, blocking = Epilogue.of(p), Blocking.of(terms * 2, p.k, analysis.isa)
    schedule, k_block = SCHEDULES[terms], KC_STEPS[terms]
    has_pipelined = is_pipelined(schedule, epilogue, analysis.isa)
    if has_pipelined and terms == 1:
        schedule, k_block = replace(schedule, level=2), PIPELINED_KC_STEPS
    before_a, a = split_a(p, terms, analysis)
    panels = split_ahead.panels(p, analysis) if is_in_panels(p, analysis) else None
    if panels is not None:
        b, before_b = TiledOperand(panels.storage, panels.batch, None, ()), list[Step]()
    else:
        before_b, b = split_b(p, terms, analysis)
    packed = analysis.packed_operands.get(p.a.storage)
    a_dtype = p.a.dtype if packed is None or a is not packed.tiled else None
    b_dtype = None if b.flags is None else p.b.dtype
    spec = gemm_amx(
        terms=terms, a_dtype=a_dtype, b_dtype=b_dtype, panels=None if panels is None else panels.dtype,
        epilogue=epilogue, schedule=schedule,
    )  # fmt: skip
    a_source, b_source = (None if dtype is None else x.operand for dtype, x in ((a_dtype, p.a), (b_dtype, p.b)))
    args = AmxGemmArgs[Ref, Known](
        a.operand, b.operand, a_source, b_source, BatchArgs(p.batch), p.m, p.n, p.k, blocking.rows, blocking.columns,
        k_block, operands_of(p.extra, p.outputs),
    )  # fmt: skip
    unit = "tiles" if analysis.isa.amx else "vectors of pairs"
    why = f"{analysis.precision}: {len(PRODUCTS[terms])} products of {terms} bf16 terms on {unit}"
    if a_dtype is None:
        why += "; A packed by its producer"
    why += "".join(f"; {analysis.packed_operands[s].description}" for s in made if s in analysis.packed_operands)
    nbytes = expressible(dims.mul(b.tiles.elements, b.tiles.dtype.itemsize))
    scratch = SCRATCH_NBYTES + FACTORS_NBYTES + blocking.scratch_nbytes(1, 1 + has_pipelined)
    scratch += 0 if panels is None else split_ahead.scratch_nbytes(k_block)
    step = Step(spec, flat(args=args), epilogue.writes, p.nodes, scratch, p.flops, nbytes, why)
    return [*before_a, *before_b, step]

"""Flash attention on AMX tiles, with operands as bf16 terms (``split``).

A work item is 32 query rows of a head. A thread's work items are adjacent, and it packs the keys and values of a head
into its own scratch memory when it reaches the first of them: this needs no extra step, barrier or temporary tensor,
and the packed tiles are in the thread's own L2.

    scores[row, key]      = q k^T                        micro-tiles of 32 x 32 over the width, accumulated from zero
    p                     = exp(scores - max)            along rows, after softcap, mask and causality, in f32
    out_sums[row, column] = correction * out_sums + p v  micro-tiles of 32 x 32 over a block of keys, added in f32

A tile product may sum its pairs in any order if both operands agree. 32 numbers of a row are packed as pairs (i, i +
16), so that two vectors make a row of a tile without a shuffle. Only keys are transposed, 16 by 16.

A few rows are left to ``attention.few_rows``, which reads keys and values once and packs nothing.

**Prefetch.** Rows of a head are far apart in memory, so the hardware prefetcher does not find the next ones. During the
softmax of a block, the operands of the next block and the outputs of this one are prefetched.

If the consumer is a matrix product, results are stored packed for it (``gemm.packed_epilogue``), with a flag for each
row and head.

**Tiny numbers.** If the keys or the values of a head, or a block of rows, have numbers too small for bf16 terms, they
are split again, multiplied by a power of two; the products are multiplied by its reciprocal.

**f32 fallback.** Masks are added to f32 scores and never become bf16. If q, k or v has other numbers that bf16 terms
cannot represent (``split``), the products of that block of rows are computed in f32.
"""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.lower.groups import Attention, View
from sardonyx.providers.cpu.kernels.attention.amx_block import QueryBlock
from sardonyx.providers.cpu.kernels.attention.amx_head import KEYS, AmxHead, scratch_nbytes
from sardonyx.providers.cpu.kernels.attention.amx_mask import MaskScores
from sardonyx.providers.cpu.kernels.attention.config import AttentionArgs, params
from sardonyx.providers.cpu.kernels.attention.operands import Operands
from sardonyx.providers.cpu.kernels.gemm.amx import TERMS
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import (
    PANEL,
)
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import (
    PRODUCTS,
    TILES,
)
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, f16, f32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal


def supports(group: Attention, analysis: Analysis) -> Refusal | None:
    if not analysis.isa.amx:
        return Refusal(f"no tiles on {analysis.isa.name}")
    if any(v.dtype not in (f32, bf16, f16) for v in (group.q, group.k, group.v, group.out)):
        return Refusal("of other types than f32, f16 and bf16")
    return None


def mask_class(mask: View | None) -> str:
    """``none``, ``rows`` (contiguous along keys) or ``any``."""
    if mask is None:
        return "none"
    return "rows" if mask.strides[3] == 1 else "any"


def steps(group: Attention, analysis: Analysis) -> list[Step]:
    operands, terms = Operands.of(group, analysis), TERMS[analysis.precision]
    packed, products, plural = operands.packed, len(PRODUCTS[terms]), "" if terms == 1 else "s"
    spec = attention_amx(
        **operands.statics, packed_terms=0 if packed is None else packed.terms, has_unpacked=operands.has_unpacked,
        mask=mask_class(group.mask), terms=terms,
    )  # fmt: skip
    how = f"{products} product{plural} of {terms} bf16 term{plural} on tiles, {PANEL} rows by {KEYS} keys"
    variant = f"{analysis.precision}: {how}" + ("" if packed is None else f"; {packed.description}")
    scratch = scratch_nbytes(terms, group.k.shape[2], group.q.shape[3], group.v.shape[3])
    return [*operands.before, operands.step(spec, scratch, variant)]


@kernel(params)
def attention_amx(
    k: Kernel, args: AttentionArgs[Buf, Val], *, dtypes: tuple[DType, ...], mask: str, mask_dtype: DType, causal: bool,
    softcap: float, terms: int, packed_terms: int, has_unpacked: bool,
) -> None:  # fmt: skip
    """``mask`` is its access class (``mask_class``).

    Results are stored packed in ``packed_terms`` bf16 terms unless that is 0, and unpacked if ``has_unpacked``.
    """
    tiles, heads, rows, shared = Tiles(k), args.heads, args.rows, args.shared
    tiles.configure(count=TILES)
    blocks = ceil_div(rows, PANEL)
    head = AmxHead(k, tiles, args, terms)
    current = k.var(-1)
    units = args.batch * heads * blocks

    def place(unit: Val) -> tuple[Val, Val, Val]:
        return unit // (heads * blocks), unit // blocks % heads, unit % blocks * PANEL

    with k.share(units) as unit:
        b, h, first = place(unit)
        head.locate(b, h // shared)
        which = unit // blocks // shared
        with k.when(current.ne(which)):
            current.set(which)
            head.split()
        block = QueryBlock(head, b, h, first, rows)
        b_after, h_after, _ = place(k.min(unit + blocks, units - 1))
        ahead = block.prefetch_reads(*place(k.min(unit + 1, units - 1)), *head.operands(b_after, h_after // shared))
        if has_unpacked:
            ahead += block.prefetch_writes()
        if packed_terms:
            ahead += block.prefetch_packed(heads, rows, packed_terms)
        masking = MaskScores(block, mask, args.mask, causal, softcap)
        visible = masking.visible(k.min(args.keys, first + PANEL + args.past) if causal else args.keys)
        with k.loop(0, visible, KEYS) as start:
            count = k.min(visible - start, KEYS)
            block.scores(start, count)
            masking.emit(start, count, args.past)
            block.softmax(start, count, ahead)
            block.accumulate_values(start, count)
        if has_unpacked:
            block.finish()
        if packed_terms:
            block.store_packed(heads, rows, packed_terms)
    tiles.release()

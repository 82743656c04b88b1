"""The kernel variants of each kind of group, and the choice among them.

The table lists variants in order of preference. The first one that supports a group, and pays for it, takes it; the
record of the choice says why those before it did not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from sardonyx.errors import NotImplemented, Reporting
from sardonyx.lower.groups import (
    Attention,
    BitCast,
    CentredConvolution,
    Contraction,
    Convolution,
    CountedGather,
    CumulativeSum,
    Custom,
    Fill,
    Forest,
    Gather,
    GatherElements,
    GridSample,
    Group,
    IntegerConvolution,
    LinearAttention,
    Loop,
    NonMaxSuppression,
    NonZero,
    Pool,
    RandomStream,
    Recurrence,
    Resample,
    RoiAlign,
    Scatter,
    TopK,
    Unique,
)
from sardonyx.providers.cpu.kernels.attention import amx as attention_amx
from sardonyx.providers.cpu.kernels.attention import few_rows, linear
from sardonyx.providers.cpu.kernels.attention import vector as attention_vector
from sardonyx.providers.cpu.kernels.common import custom
from sardonyx.providers.cpu.kernels.common.matrices import Problem
from sardonyx.providers.cpu.kernels.conv import (
    depthwise_nchw,
    depthwise_nhwc,
    direct,
    dot_product,
    im2col,
    nhwc,
    on_tiles,
    pointwise_depthwise,
    pointwise_nchw,
    stem,
    strided_windows,
    summed_pair,
    winograd_nchw,
    winograd_nhwc,
)
from sardonyx.providers.cpu.kernels.conv import int8_slices as conv_int8_slices
from sardonyx.providers.cpu.kernels.gemm import (
    amx,
    blocks_amx,
    blocks_few_rows,
    blocks_pack,
    blocks_vector,
    contraction,
    int8_slices,
    swapped,
)
from sardonyx.providers.cpu.kernels.gemm.contraction import problem_of
from sardonyx.providers.cpu.kernels.image import grid_sample, grid_sample_nhwc, pool_nchw, pool_nhwc, resize, roi_align
from sardonyx.providers.cpu.kernels.index import cumulative_sum, gather, nms, nonzero, scatter, top_k, unique
from sardonyx.providers.cpu.kernels.loops import copy, fill, interleave, loop, random_stream
from sardonyx.providers.cpu.kernels.quantized import conv as quantized_conv
from sardonyx.providers.cpu.kernels.quantized import conv_nhwc as quantized_conv_nhwc
from sardonyx.providers.cpu.kernels.quantized import depthwise_dot, gemm_amx_pipelined
from sardonyx.providers.cpu.kernels.quantized import depthwise_nhwc as quantized_depthwise
from sardonyx.providers.cpu.kernels.quantized import gemm as quantized_gemm
from sardonyx.providers.cpu.kernels.quantized import gemm_amx as quantized_gemm_amx
from sardonyx.providers.cpu.kernels.recurrent import recurrence
from sardonyx.providers.cpu.kernels.trees import forest
from sardonyx.providers.cpu.program.analysis import Analysis, either
from sardonyx.providers.cpu.program.steps import SizeRange, Step
from sardonyx.providers.cpu.program.variants import Choice, FewSizes, Refusal, Variant

Taken = Callable[[Problem, Analysis], Refusal | None]


def _product(name: str, steps: Callable[[Problem, Analysis], list[Step]], supports: Taken, **more: Any) -> Variant:
    """A variant whose kernel takes a contraction as a ``Problem``."""

    def refusal(group: Contraction, analysis: Analysis) -> Refusal | None:
        return contraction.refusal(group) or supports(problem_of(group, analysis), analysis)

    def of_problem(take: Callable[[Problem, Analysis], Any]) -> Callable[[Contraction, Analysis], Any]:
        return lambda group, analysis: take(problem_of(group, analysis), analysis)

    taken = {key: of_problem(take) for key, take in more.items() if key != "few"}
    return Variant(name, of_problem(steps), refusal, few=more.get("few"), **taken)


_FEW_ROWS = FewSizes(
    lambda group, analysis: contraction.few_rows(problem_of(group, analysis), analysis), ("gemm.vector",)
)
_FEW_FOR_BLOCKS = FewSizes(
    lambda group, analysis: blocks_few_rows.few_rows(problem_of(group, analysis), analysis), ("gemm.blocks_few_rows",)
)
_FEW_OUTPUTS = FewSizes(im2col.few_output_sizes, ("conv.dot_product", "conv.winograd_nhwc", "conv.nhwc", "conv.im2col"))
_FEW_FOR_LANES = FewSizes(
    lambda group, analysis: swapped.few_rows(problem_of(group, analysis), analysis), ("gemm.vector",)
)
_FEW_QUERIES = FewSizes(few_rows.few_rows, ("attention.few_rows",))

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {
    Attention: (
        Variant("attention.few_rows", few_rows.steps, pays=few_rows.pays),
        Variant("attention.amx", attention_amx.steps, attention_amx.supports, few=_FEW_QUERIES),
        Variant("attention.vector", attention_vector.steps, few=_FEW_QUERIES),
    ),
    BitCast: (Variant("loops.bit_cast", loop.bit_cast_steps),),
    Contraction: (
        _product("quantized.gemm_amx_pipelined", gemm_amx_pipelined.steps, gemm_amx_pipelined.supports),
        _product("quantized.gemm_amx", quantized_gemm_amx.steps, quantized_gemm_amx.supports),
        _product("quantized.gemm", quantized_gemm.steps, quantized_gemm.supports),
        _product("gemm.blocks_amx", blocks_amx.steps, blocks_amx.supports, pays=blocks_amx.pays, few=_FEW_FOR_BLOCKS),
        _product("gemm.blocks_few_rows", blocks_few_rows.steps, blocks_pack.refusal, pays=blocks_few_rows.pays),
        _product("gemm.blocks_vector", blocks_vector.steps, blocks_pack.refusal, few=_FEW_FOR_BLOCKS),
        _product("gemm.int8_slices", int8_slices.steps, int8_slices.supports, pays=int8_slices.pays, few=_FEW_ROWS),
        _product("gemm.amx", amx.steps, amx.supports, pays=amx.pays, few=_FEW_ROWS),
        _product("gemm.swapped", swapped.steps, swapped.supports, pays=swapped.pays, few=_FEW_FOR_LANES),
        _product(
            "gemm.vector",
            contraction.multiply_adds,
            contraction.multiply_adds_refusal,
            few_steps=contraction.few_rows_steps,
        ),
    ),
    Convolution: (
        Variant("conv.im2col", im2col.steps, im2col.supports, im2col.pays),
        Variant(
            "conv.strided_windows",
            strided_windows.steps,
            strided_windows.supports,
            strided_windows.pays,
            few=_FEW_OUTPUTS,
        ),
        Variant("conv.int8_slices", conv_int8_slices.steps, conv_int8_slices.supports, on_tiles.pays, few=_FEW_OUTPUTS),
        Variant("conv.on_tiles", on_tiles.steps, on_tiles.supports, on_tiles.pays, few=_FEW_OUTPUTS),
        Variant("conv.stem", stem.steps, stem.supports),
        Variant("conv.dot_product", dot_product.steps, dot_product.supports, dot_product.pays),
        Variant("conv.winograd_nhwc", winograd_nhwc.steps, winograd_nhwc.supports, winograd_nhwc.pays),
        Variant("conv.nhwc", nhwc.steps, nhwc.supports, dot_product.filter_lanes_refusal),
        Variant(
            "conv.winograd_nchw", winograd_nchw.steps, winograd_nchw.supports, winograd_nchw.pays, few=_FEW_OUTPUTS
        ),
        Variant("conv.depthwise_nhwc", depthwise_nhwc.steps, depthwise_nhwc.supports),
        Variant("conv.depthwise_nchw", depthwise_nchw.steps, depthwise_nchw.supports),
        Variant("conv.pointwise_nchw", pointwise_nchw.steps, pointwise_nchw.supports, few=_FEW_OUTPUTS),
        Variant("conv.direct", direct.steps, direct.supports, few=_FEW_OUTPUTS),
    ),
    CountedGather: (Variant("index.counted_gather", nonzero.counted_gather_steps),),
    CumulativeSum: (Variant("index.cumulative_sum", cumulative_sum.steps),),
    Custom: (Variant("common.custom", custom.steps),),
    Fill: (Variant("loops.fill", fill.steps),),
    Forest: (Variant("trees.forest", forest.steps),),
    Gather: (Variant("index.gather", gather.steps),),
    GatherElements: (Variant("index.gather_elements", gather.gather_elements_steps),),
    GridSample: (
        Variant("image.grid_sample_nhwc", grid_sample_nhwc.steps, grid_sample_nhwc.supports, grid_sample_nhwc.pays),
        Variant("image.grid_sample", grid_sample.steps),
    ),
    CentredConvolution: (
        Variant("quantized.depthwise_dot", depthwise_dot.steps, depthwise_dot.supports),
        Variant("quantized.depthwise_nhwc", quantized_depthwise.steps, quantized_depthwise.supports),
    ),
    IntegerConvolution: (
        Variant("conv.on_tiles", on_tiles.steps, on_tiles.supports),
        Variant("quantized.conv_nhwc", quantized_conv_nhwc.steps, quantized_conv_nhwc.supports),
        Variant("quantized.conv", quantized_conv.steps),
    ),
    LinearAttention: (Variant("attention.linear", linear.steps),),
    Loop: (
        Variant("loops.interleave", interleave.steps, interleave.supports),
        Variant("loops.copy", copy.steps, copy.supports),
        Variant("loops.loop", loop.fused_steps),
    ),
    NonMaxSuppression: (Variant("index.nms", nms.steps),),
    NonZero: (Variant("index.nonzero", nonzero.steps),),
    Pool: (
        Variant("image.pool_nhwc", pool_nhwc.steps, pool_nhwc.supports),
        Variant("image.pool_nchw", pool_nchw.steps, pool_nchw.supports),
    ),
    RandomStream: (Variant("loops.random_stream", random_stream.steps),),
    Recurrence: (Variant("recurrent.recurrence", recurrence.steps),),
    Resample: (Variant("image.resize", resize.steps),),
    RoiAlign: (Variant("image.roi_align", roi_align.steps),),
    Scatter: (Variant("index.scatter", scatter.steps),),
    TopK: (Variant("index.top_k", top_k.steps),),
    Unique: (Variant("index.unique", unique.steps),),
}

PAIRS = (
    Variant(pointwise_depthwise.NAME, pointwise_depthwise.steps),
    Variant(summed_pair.NAME, summed_pair.steps),
)
"""Variants that carry out two groups at once, by ``pipeline``."""


def by_name() -> dict[str, Variant]:
    return {variant.name: variant for variants in (*VARIANTS.values(), PAIRS) for variant in variants}


def choose(group: Group, analysis: Analysis) -> Choice:
    """The variant that carries out a group, with the refusals before it; raises ``NotImplemented`` if none does."""
    with Reporting("compile", group.nodes[-1] if group.nodes else None):
        policy, refusals = analysis.target.policy, list[tuple[str, str]]()
        for variant in VARIANTS[type(group)]:
            found = policy.refusal(variant.name) or _refusal(variant, group, analysis)
            if found is None:
                return Choice(variant, tuple(refusals), _few(variant, group, analysis))
            refusals.append((variant.name, found.reason))
        for variant in VARIANTS[type(group)]:  # no forced variant supports the group: any that is not forbidden
            if variant.name not in policy.forbidden and _refusal(variant, group, analysis) is None:
                return Choice(variant, tuple(refusals), _few(variant, group, analysis))
        raise NotImplemented(refusals[-1][1], where=", ".join(node.op_type for node in group.nodes))


def _refusal(variant: Variant, group: Group, analysis: Analysis) -> Refusal | None:
    is_forced = variant.name in analysis.target.policy.forced
    return variant.supports(group, analysis) or (None if is_forced else variant.pays(group, analysis))


def _few(variant: Variant, group: Group, analysis: Analysis) -> tuple[SizeRange, Variant] | None:
    """The sizes that another variant takes at run time, and that variant; None if ``variant`` takes all sizes."""
    sizes = None if variant.few is None else variant.few.sizes(group, analysis)
    if variant.few is None or sizes is None:
        return None
    known = by_name()
    *others, last = (known[name] for name in variant.few.variants)
    for other in others:
        if analysis.target.policy.allows(other.name) and _refusal(other, group, analysis) is None:
            return sizes, other
    takes_last = analysis.target.policy.allows(last.name) and last.supports(group, analysis) is None
    return (sizes, last) if takes_last else None


def steps_of(group: Group, analysis: Analysis) -> list[Step]:
    """The steps that carry out a group, by the variant that was chosen, or is chosen now for a group by itself."""
    choice = analysis.choices.get(id(group)) or choose(group, analysis)
    if choice.is_part_of_another:
        return []
    with Reporting("compile", group.nodes[-1] if group.nodes else None):
        steps = choice.variant.steps
        if choice.few is None:
            made = steps(group, analysis)
        else:
            sizes, other = choice.few
            made = either(sizes, analysis, partial(other.few_steps or other.steps, group), partial(steps, group))
    return [replace(step, choice=choice) for step in made]

"""Convolutions."""

from sardonyx.lower.groups import Convolution, Group
from sardonyx.providers.cpu.kernels.conv import (
    depthwise_nchw,
    depthwise_nhwc,
    direct,
    dot_product,
    im2col,
    int8_slices,
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
from sardonyx.providers.cpu.program.variants import FewSizes, Variant

_FEW_OUTPUTS = FewSizes(im2col.few_output_sizes, ("conv.dot_product", "conv.winograd_nhwc", "conv.nhwc", "conv.im2col"))

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {
    Convolution: (
        Variant("conv.im2col", im2col.steps, im2col.supports, im2col.pays),
        Variant(
            "conv.strided_windows",
            strided_windows.steps,
            strided_windows.supports,
            strided_windows.pays,
            few=_FEW_OUTPUTS,
        ),
        Variant("conv.int8_slices", int8_slices.steps, int8_slices.supports, on_tiles.pays, few=_FEW_OUTPUTS),
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
}

PAIRS = (
    Variant(pointwise_depthwise.NAME, pointwise_depthwise.steps),
    Variant(summed_pair.NAME, summed_pair.steps),
)
"""Variants that carry out two groups at once, by ``pipeline``."""

"""Convolutions of quantized images."""

from sardonyx.lower.groups import CentredConvolution, Group, IntegerConvolution
from sardonyx.providers.cpu.kernels.conv import on_tiles
from sardonyx.providers.cpu.kernels.quantized import conv, conv_nhwc, depthwise_dot, depthwise_nhwc
from sardonyx.providers.cpu.program.variants import Variant

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {
    CentredConvolution: (
        Variant("quantized.depthwise_dot", depthwise_dot.steps, depthwise_dot.supports),
        Variant("quantized.depthwise_nhwc", depthwise_nhwc.steps, depthwise_nhwc.supports),
    ),
    IntegerConvolution: (
        Variant("conv.on_tiles", on_tiles.steps, on_tiles.supports),
        Variant("quantized.conv_nhwc", conv_nhwc.steps, conv_nhwc.supports),
        Variant("quantized.conv", conv.steps),
    ),
}

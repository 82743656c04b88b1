"""Depthwise convolution of quantized NHWC images (``common.nhwc_window``): channels along the lanes.

Bytes minus their zero point are multiplied by f32 weights, so that sums are exact and padding is skipped. An image is
read once, as bytes; a vector of it serves all outputs of a micro-tile that see it.
"""

from __future__ import annotations

from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.lower.groups import CentredConvolution
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.nhwc_window import NhwcWindow, NhwcWindowConfig
from sardonyx.providers.cpu.kernels.conv import nhwc
from sardonyx.providers.cpu.kernels.conv.depthwise_nhwc import DepthwiseNhwcArgs, DepthwiseWindow, weights_of
from sardonyx.providers.cpu.kernels.conv.image_epilogue import writes_of
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, f32
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal


def supports(group: CentredConvolution, analysis: Analysis) -> Refusal | None:
    if not nhwc.is_depthwise(group) or group.w.shape[0] != group.groups:
        return Refusal("not one filter for each channel")
    if found := nhwc.suitability(group):
        return found
    return None if NhwcWindow.of(group, analysis) is not None else Refusal("the image or a result is not NHWC")


def steps(group: CentredConvolution, analysis: Analysis) -> list[Step]:
    found = NhwcWindow.of(group, analysis)
    assert found is not None
    config, geometry = found.config, found.geometry
    before, weights = weights_of(group, config, analysis.isa)
    spec = conv_depthwise_bytes(config=config, x_dtype=found.x_dtype, epilogue=found.epilogue)
    flops = dims.known(dims.product((2 * config.taps.count, *group.box))) or 0
    variant = f"{config.pixels} pixels x a vector of channels, {group.x.dtype}"
    args = DepthwiseBytesArgs(DepthwiseNhwcArgs(found.operand, Ref(weights.storage)), Ref.of(group.zero))
    writes = writes_of(found.epilogue)
    return [*before, Step(spec, flat(args=args), writes, group.nodes, 0, flops, geometry.nbytes, variant)]


class DepthwiseBytesArgs(Arguments[M, N]):
    """The parameters of ``conv_depthwise_bytes``."""

    is_inline: ClassVar[bool] = True
    window: DepthwiseNhwcArgs[M, N]
    zero: M


def _params(config: NhwcWindowConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    return {"args": DepthwiseBytesArgs(DepthwiseNhwcArgs.declared(config, x_dtype, epilogue), Memory(x_dtype))}


@kernel(_params)
def conv_depthwise_bytes(
    k: Kernel, args: DepthwiseBytesArgs[Buf, Val], *, config: NhwcWindowConfig, x_dtype: DType, epilogue: Epilogue
) -> None:
    ByteWindow(k, config, epilogue, args).slide()


class ByteWindow(DepthwiseWindow):
    """A depthwise window over bytes."""

    def __init__(
        self, k: Kernel, config: NhwcWindowConfig, epilogue: Epilogue, args: DepthwiseBytesArgs[Buf, Val]
    ) -> None:
        super().__init__(k, config, epilogue, args.window.image, args.window.w)
        self.zero = k.splat(k.cast(args.zero.load(), f32), self.lanes)

    def load(self, pixel: Buf, t: Tile) -> Val:
        """A vector of channels of an input pixel, minus the zero point."""
        return self.k.cast(pixel.load(t), f32) - self.zero

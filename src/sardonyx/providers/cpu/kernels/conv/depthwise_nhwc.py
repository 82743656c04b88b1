"""Depthwise convolution of NHWC images (``common.nhwc_window``): channels along the lanes.

The weights are packed as [channels / lanes][taps][lanes], zero beyond the last channel.
"""

from __future__ import annotations

from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem
from sardonyx.providers.cpu.kernels.common.nhwc_window import (
    NhwcWindow,
    NhwcWindowArgs,
    NhwcWindowConfig,
    SlidingWindow,
    supports_packed_images,
)
from sardonyx.providers.cpu.kernels.common.window import refusal
from sardonyx.providers.cpu.kernels.conv import nhwc
from sardonyx.providers.cpu.kernels.conv.image_epilogue import writes_of
from sardonyx.providers.cpu.kernels.gemm.pack import packed_b
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    if not nhwc.is_depthwise(group) or group.w.shape[0] != group.groups:
        return Refusal("not one filter for each channel")
    is_nhwc = NhwcWindow.of(group, analysis) is not None
    return refusal(group) or (None if is_nhwc else Refusal("the image or a result is not NHWC"))


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    isa, found = analysis.isa, NhwcWindow.of(group, analysis)
    assert found is not None
    config, geometry = found.config, found.geometry
    before, weights = weights_of(group, config, isa)
    spec = conv_depthwise_nhwc(config=config, x_dtype=found.x_dtype, epilogue=found.epilogue)
    flops = dims.known(dims.product((2 * config.taps.count, *group.box))) or 0
    variant = f"{config.pixels} pixels x a vector of channels"
    args = DepthwiseNhwcArgs(found.operand, Ref(weights.storage))
    writes = writes_of(found.epilogue)
    return [*before, Step(spec, flat(args=args), writes, group.nodes, 0, flops, geometry.nbytes, variant)]


def weights_of(group: Convolution, config: NhwcWindowConfig, isa: Isa) -> tuple[list[Step], Matrix]:
    """The filters in panels of a vector of channels, and the steps that pack them: none for constants."""
    matrix = Matrix(group.w.storage, group.w.offset, (), 1, config.taps.count)
    depth = config.taps.count
    problem = Problem(group.nodes, (), 0, group.w.shape[0], depth, matrix, matrix, group.epilogue, (), ())
    return packed_b(problem, config.dtype, config.lanes(isa), isa)


def exchanges_packed_images(group: Convolution, analysis: Analysis) -> bool:
    """Whether a convolution is depthwise, and may read and write packed images of one bf16 term."""
    is_depthwise = group.groups > 1 and group.w.shape[1] == 1 and group.w.shape[0] == group.groups
    return is_depthwise and supports_packed_images(group, analysis)


class DepthwiseNhwcArgs(Arguments[M, N]):
    """The parameters of ``conv_depthwise_nhwc``."""

    is_inline: ClassVar[bool] = True
    image: NhwcWindowArgs[M, N]
    w: M


def _params(config: NhwcWindowConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    return {"args": DepthwiseNhwcArgs(NhwcWindowArgs.declared(config, x_dtype, epilogue), Memory(config.dtype))}


@kernel(_params)
def conv_depthwise_nhwc(
    k: Kernel, args: DepthwiseNhwcArgs[Buf, Val], *, config: NhwcWindowConfig, x_dtype: DType, epilogue: Epilogue
) -> None:
    DepthwiseWindow(k, config, epilogue, args.image, args.w).slide()


class DepthwiseWindow(SlidingWindow):
    """A filter for each channel."""

    def __init__(
        self, k: Kernel, config: NhwcWindowConfig, epilogue: Epilogue, args: NhwcWindowArgs[Buf, Val], w: Buf
    ) -> None:
        super().__init__(k, config, epilogue, args)
        self.w = w

    def weight(self, channel: Val, tap: Val) -> Val:
        return self.w.load((channel * self.taps.count) + tap * self.lanes, self.lanes)

    def add(self, total: Val, seen: Val, weight: Val | None) -> Val:
        assert weight is not None
        return self.k.multiply_add(weight, seen, total)

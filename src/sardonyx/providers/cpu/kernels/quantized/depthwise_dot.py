"""Depthwise convolution of quantized NHWC images by dot products of four taps (``quantized.depthwise_dot_kernel``).

Four input rows are interleaved byte by byte, so that a lane has four taps of a column for one channel. A dot product
adds them to the i32 sum of an output; an interleaved column serves all outputs that see it.

Constants are packed for blocks of 4 vectors of channels, and a last one of half vectors where few channels are left:

    [kernel column][output row and four input rows][4][lanes][4] weights, [3][4][lanes] start, factor and offset

A *start* is what sums begin with: minus the zero point times the sum of the weights. Interleaving leaves the channels
of a row of 16 bytes in groups of four, one in each of the 4 vectors; constants have that order.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from sardonyx.ir import dims
from sardonyx.lower.groups import CentredConvolution
from sardonyx.providers.cpu.kernels.common.nhwc_window import NhwcWindow
from sardonyx.providers.cpu.kernels.conv import nhwc
from sardonyx.providers.cpu.kernels.conv.image_epilogue import writes_of
from sardonyx.providers.cpu.kernels.quantized.depthwise_dot_kernel import (
    QUAD,
    DepthwiseDotArgs,
    DepthwiseDotConfig,
    conv_depthwise_dot,
)
from sardonyx.providers.cpu.kernels.quantized.rescale import Rescale
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.values import i8
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.prepack import aligned
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record

Array = np.ndarray[Any, Any]
MAX_TAPS = 49
"""Taps of a window, which are unrolled, at most."""
NUMBERS = 3
"""Numbers of each channel beside its weights: start, factor, offset."""


class _Constants(Record):
    """The integers and reals of each channel."""

    weights: Array
    """[channels][y][x]"""
    start: Array
    factor: Array
    offset: Array


def supports(group: CentredConvolution, analysis: Analysis) -> Refusal | None:
    isa = analysis.isa
    if isa.name not in ("amx", "avx512", "avx2") or not isa.byte_dot:
        return Refusal(f"no dot product of unsigned and signed bytes on {isa.name}")
    if not nhwc.is_depthwise(group) or group.w.shape[0] != group.groups:
        return Refusal("not one filter for each channel")
    if found := nhwc.suitability(group):
        return found
    *deep, kernel_y, kernel_x = (1, *group.window.kernel)
    rank = len(group.window.kernel)
    if any(n != 1 for n in deep) or kernel_y * kernel_x > MAX_TAPS or (rank == 3 and _has_padded_depth(group)):
        return Refusal("the window is deep, or has too many taps")
    if group.zero.storage.tensor is None or not isinstance(group.zero.offset, int):
        return Refusal("the zero point is not constant")
    rescale = Rescale.of(group)
    if rescale is None or _constants(group, rescale) is None:
        return Refusal("the sums are not scaled to bytes by constants for each channel, or weights are no i8")
    return None if _window(rescale, analysis) is not None else Refusal("the image or a result is not NHWC")


def _has_padded_depth(group: CentredConvolution) -> bool:
    """Whether windows may lie before or after the planes of an image."""
    last = dims.mul(dims.sub(group.box[2], 1), group.window.strides[0])
    return group.window.pads[0] != 0 or not dims.at_least(dims.sub(dims.sub(group.x.shape[2], 1), last), 0)


def _window(rescale: Rescale, analysis: Analysis) -> NhwcWindow | None:
    found = NhwcWindow.of(rescale.rest, analysis)
    return None if found is None or found.config.is_blocked else found


def _constants(group: CentredConvolution, rescale: Rescale) -> _Constants | None:
    channels = int(group.w.shape[0])
    tensor, zero = group.w.storage.tensor, group.zero.storage.tensor
    assert tensor is not None and zero is not None
    given = rescale.units, rescale.factor, rescale.offset
    units, factor, offset = (rescale.per_channel(view, channels) for view in given)
    count = int(np.prod([int(d) for d in group.w.shape]))
    content = np.asarray(tensor.peek()).reshape(-1)[int(group.w.offset) :][:count].reshape(channels, -1)
    if units is None or factor is None or offset is None or not ((content >= -128) & (content <= 127)).all():
        return None
    *_, kernel_y, kernel_x = (1, *group.window.kernel)
    weights = content.astype(np.int64)
    point = int(np.asarray(zero.peek()).reshape(-1)[int(group.zero.offset)]) + (128 if group.x.dtype is i8 else 0)
    start = units.astype(np.int64) - point * weights.sum(1)
    return _Constants(weights.astype(np.int8).reshape(channels, kernel_y, kernel_x), start, factor, offset)


def steps(group: CentredConvolution, analysis: Analysis) -> list[Step]:
    isa, rescale = analysis.isa, Rescale.of(group)
    assert rescale is not None
    found, constants = _window(rescale, analysis), _constants(group, rescale)
    assert found is not None and constants is not None
    config = DepthwiseDotConfig.of(found, int(group.w.shape[0]), rescale.to, has_zero=rescale.zero is not None)
    content = _packed(constants, config, isa.lanes)
    key = ("depthwise dot", hashlib.sha256(content.tobytes()).hexdigest())
    made = Packed("constant", i8, content.size, group.w.storage.value, key=key, make=lambda: content)
    zero = None if rescale.zero is None else Ref.of(rescale.zero)
    args = DepthwiseDotArgs(found.operand, Ref(made), Ref.of(group.zero), zero)
    spec = conv_depthwise_dot(config=config, window=found.config, x_dtype=found.x_dtype, epilogue=found.epilogue)
    flops = dims.known(dims.product((2 * config.taps.count, *group.box))) or 0
    variant = f"{config.pixels} pixels, dot products of four taps, {group.x.dtype}"
    scratch = QUAD * isa.lanes
    writes = writes_of(found.epilogue)
    return [Step(spec, flat(args=args), writes, group.nodes, scratch, flops, found.geometry.nbytes, variant)]


def _packed(c: _Constants, config: DepthwiseDotConfig, lanes: int) -> Array:
    parts = [_block(c, config, first, count) for first, count in config.blocks(lanes)]
    out = aligned(sum(part.size for part in parts), i8)
    out[:] = np.concatenate(parts)
    return out


def _block(c: _Constants, config: DepthwiseDotConfig, first: int, lanes: int) -> Array:
    """The constants of 4 vectors of channels from ``first`` on."""
    vector, row, within = np.meshgrid(np.arange(QUAD), np.arange(lanes // QUAD), np.arange(QUAD), indexing="ij")
    channel = (first + QUAD * QUAD * row + QUAD * vector + within).reshape(-1)
    exists = channel < config.channels
    at = np.where(exists, channel, 0)
    weights = np.zeros((config.taps.kernel[2], len(config.slots), channel.size, QUAD), np.int8)
    for slot, (_, taps) in enumerate(config.slots):
        for i, tap in enumerate(taps):
            if tap is not None:
                weights[:, slot, :, i] = np.where(exists, c.weights[at, tap].T, 0)
    numbers = [np.where(exists, v[at], 0) for v in (c.start, c.factor, c.offset)]
    words = [numbers[0].astype(np.int32), *(v.astype(np.float32) for v in numbers[1:])]
    return np.concatenate([weights.reshape(-1), *(v.view(np.int8) for v in words)])

"""Pooling over images that lie pixel by pixel (``pixels``): lanes are channels.

The largest of a large window is found in two steps: along the rows of the image, and across what came of that. Numbers
in one part that pass from a convolution on tiles to another are compared as integers, 32 at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Expression, Pool, Storage, Window
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.common.nhwc_window import (
    NhwcWindow,
    NhwcWindowConfig,
    SlidingWindow,
    nhwc_window_params,
)
from sardonyx.providers.cpu.kernels.common.window import AXES
from sardonyx.providers.cpu.kernels.conv.packed_image import BLOCK
from sardonyx.providers.cpu.kernels.math.reducers import extreme, lowest
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, bf16, i16, i64, register_dtype, u16
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

MAX, MEAN = "max", "mean"
"""Kinds; the third, ``sum``, is a mean that is not divided."""
MAGNITUDE, INFINITY, MINUS_INFINITY = 0x7FFF, 0x7F80, 0xFF80
"""Bits of bf16."""
LARGE = 20
"""Taps of a window from which on two steps are faster."""


def steps(group: Pool, counted: dict[str, Ref | Known | float], target: Target) -> list[Step] | None:
    """None where channels of the image are not neighbours. ``counted`` are the arguments of ``counted_params``."""
    found = NhwcWindow.of(group, target, allow_nchw_output=True)
    if found is None:
        return None
    if group.kind == MAX and found.config.taps.count >= LARGE and (halves := _halves(group)) is not None:
        both = [steps(half, counted, target) for half in halves]
        if all(both):  # the second may not be done pixel by pixel: of results one wide that lie plane by plane
            return [step for half in both for step in half or ()]
    config, epilogue = found.config, found.epilogue
    if group.kind == MAX and _are_bits(found):
        config = replace(config, dtype=i16, compares_bits=True)
    flops = dims.known(dims.product((config.taps.count, *group.box))) or 0
    spec = pool_nhwc(kind=group.kind, config=config, x_dtype=found.x_dtype, epilogue=epilogue)
    variant = f"{config.pixels} pixels x {'32' if config.compares_bits else 'a vector of'} channels"
    args = {**found.args, **counted}
    writes = epilogue.writes | ({"image"} if config.terms else set())
    return [Step(spec, args, writes, group.nodes, 0, flops, found.geometry.nbytes, variant)]


def _are_bits(found: NhwcWindow) -> bool:
    """Whether an image in one part becomes another, and nothing else."""
    config, channels, epilogue = found.config, found.args["channels"], found.epilogue
    is_whole = isinstance(channels, int) and channels % BLOCK == 0
    is_alone = len(epilogue.names) == 1 and not epilogue.expression.steps
    return config.is_blocked and config.terms == 1 and found.x_dtype is bf16 and is_whole and is_alone


def _halves(group: Pool) -> tuple[Pool, Pool] | None:
    """The largest along the last axis, and along the others; None where all taps are on one side."""
    x, window = group.x, group.window
    count = len(window.kernel) - 1
    if window.kernel[-1] == 1 or max(window.kernel[:-1], default=1) == 1:
        return None
    batch, channels, *size = x.shape
    shape = (batch, *size[:-1], group.box[-1], channels)
    elements = dims.known(dims.product(shape))
    if elements is None:
        return None
    row = views.dense(Storage("temporary", x.dtype, elements), shape)
    row = views.permuted(row, (0, len(shape) - 1, *range(1, len(shape) - 1)))
    ones, zeros = (1,) * count, (0,) * count
    along = Window(
        (*ones, window.kernel[-1]), (*ones, window.strides[-1]), (*ones, window.dilations[-1]),
        (*zeros, window.pads[-1]),
    )  # fmt: skip
    across = Window(
        (*window.kernel[:-1], 1), (*window.strides[:-1], 1), (*window.dilations[:-1], 1), (*window.pads[:-1], 0)
    )
    kept = Expression((register_dtype(x.dtype),), (), (0,))
    first = replace(group, epilogue=kept, extra=(), outputs=(row,), window=along)
    return first, replace(group, x=row, window=across)


def counted_params(kind: str) -> Params:
    """The parts of the padding that means count."""
    return {f"{what}_{a}": i64 for a in AXES for what in ("before", "after")} if kind == MEAN else {}


def _params(kind: str, config: NhwcWindowConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    return {**nhwc_window_params(config, x_dtype, epilogue), **counted_params(kind)}


@kernel(_params)
def pool_nhwc(
    k: Kernel, *, kind: str, config: NhwcWindowConfig, x_dtype: DType, epilogue: Epilogue, **memory: Any
) -> None:
    largest = _LargestBits if config.compares_bits else _Largest
    (largest if kind == MAX else _Mean if kind == MEAN else _Sum)(k, config, epilogue, memory).slide()


class _Sum(SlidingWindow):
    def add(self, total: Val, seen: Val, weight: Val | None) -> Val:
        return total + seen


class _Mean(_Sum):
    def counts(self, place: Sequence[Val]) -> Val:
        found = [self._count(axis, p) for axis, p in enumerate(place)]
        return self.k.cast(found[0] * found[1] * found[2], self.config.dtype)

    def _count(self, axis: int, place: Val) -> Val:
        before, after = (number(self.memory, f"{what}_{AXES[axis]}") for what in ("before", "after"))
        start = place * self.taps.strides[axis] - self.pad[axis]
        first, last = self.range(axis, start, -before, self.size[axis] + after)
        return last - first

    def result(self, total: Val, counted: Val | None) -> Val:
        assert counted is not None
        return total / counted


class _Largest(SlidingWindow):
    @property
    def neutral(self) -> float:
        return lowest(self.config.dtype)

    def add(self, total: Val, seen: Val, weight: Val | None) -> Val:
        return extreme(self.k, total, seen, largest=True)


class _LargestBits(SlidingWindow):
    """The bits of bf16 are ordered like integers if those of negative numbers are turned round. NaN are the largest:
    they lose their sign.
    """

    @property
    def neutral(self) -> float:
        return (MINUS_INFINITY ^ MAGNITUDE) - (1 << 16)

    def load(self, pixel: Buf, t: Tile) -> Val:
        k, bits = self.k, pixel.as_type(u16).load(t)
        magnitude = bits & MAGNITUDE
        return self._turned(k.bitcast(k.select(magnitude > INFINITY, magnitude, bits), i16))

    def add(self, total: Val, seen: Val, weight: Val | None) -> Val:
        return self.k.max(total, seen)

    def result(self, total: Val, counted: Val | None) -> Val:
        return self.k.bitcast(self._turned(total), u16)

    def _turned(self, bits: Val) -> Val:
        """From bits to their order, and back."""
        return bits ^ ((bits >> 15) & MAGNITUDE)

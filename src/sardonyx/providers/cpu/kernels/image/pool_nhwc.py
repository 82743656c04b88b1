"""Pooling of NHWC images: channels along the lanes (``common.nhwc_window``).

A large window takes two steps: along image rows, then across the results; a mean is a mean of means.
Images of one bf16 term that an AMX convolution packed for another are compared as integers, 32 channels at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Expression, Pool, Storage, Window
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.nhwc_window import (
    NhwcWindow,
    NhwcWindowArgs,
    NhwcWindowConfig,
    SlidingWindow,
)
from sardonyx.providers.cpu.kernels.conv.image_epilogue import writes_of
from sardonyx.providers.cpu.kernels.conv.packed_image import BLOCK
from sardonyx.providers.cpu.kernels.math.reducers import extreme, lowest
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, bf16, i16, i64, register_dtype, u16
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import replace

MAX, MEAN = "max", "mean"
"""Kinds of pooling; the third, ``sum``, is a mean without the division."""
MAGNITUDE, INFINITY, MINUS_INFINITY = 0x7FFF, 0x7F80, 0xFF80
"""Bit patterns of bf16: the mask of all bits but the sign, and both infinities."""
MIN_SEPARABLE_TAPS, MIN_SEPARABLE_SUM_TAPS = 20, 1024
"""Taps of a window from which on two steps are faster: of max pooling, and of others, which round once more."""


def supports(group: Pool, analysis: Analysis) -> Refusal | None:
    is_nhwc = NhwcWindow.of(group, analysis, allow_nchw_output=True) is not None
    return epilogue_refusal(group) or (None if is_nhwc else Refusal("the image is not NHWC"))


def epilogue_refusal(group: Pool) -> Refusal | None:
    is_pointwise = all(isinstance(step, Apply) for step in group.epilogue.steps)
    return None if is_pointwise else Refusal("a reduction follows a pooling")


def steps(group: Pool, analysis: Analysis) -> list[Step]:
    found = NhwcWindow.of(group, analysis, allow_nchw_output=True)
    assert found is not None
    if (
        found.config.taps.count >= (MIN_SEPARABLE_TAPS if group.kind == MAX else MIN_SEPARABLE_SUM_TAPS)
        and (halves := _separated(group)) is not None
        # the second half has no kernel where its outputs are NCHW and one column wide
        and all(supports(half, analysis) is None for half in halves)
    ):
        return [step for half in halves for step in steps(half, analysis)]
    config, epilogue = found.config, found.epilogue
    if group.kind == MAX and _moves_packed_bits(found):
        config = replace(config, dtype=i16, compares_bits=True)
    flops = dims.known(dims.product((config.taps.count, *group.box))) or 0
    spec = pool_nhwc(kind=group.kind, config=config, x_dtype=found.x_dtype, epilogue=epilogue)
    variant = f"{config.pixels} pixels x {'32' if config.compares_bits else 'a vector of'} channels"
    args = PoolNhwcArgs(found.operand, counted_padding(group))
    return [Step(spec, flat(args=args), writes_of(epilogue), group.nodes, 0, flops, found.geometry.nbytes, variant)]


def _moves_packed_bits(found: NhwcWindow) -> bool:
    """Whether a packed image of one bf16 term becomes another one, without an epilogue and in whole channel blocks."""
    config, channels, epilogue = found.config, found.operand.channels, found.epilogue
    is_whole = isinstance(channels, int) and channels % BLOCK == 0
    is_alone = len(epilogue.names) == 1 and not epilogue.expression.steps
    return config.is_blocked and config.terms == 1 and found.x_dtype is bf16 and is_whole and is_alone


def _separated(group: Pool) -> tuple[Pool, Pool] | None:
    """Pooling along the last axis, and then along the others; None where either has only one tap."""
    x, window = group.x, group.window
    count = len(window.kernel) - 1
    if window.kernel[-1] == 1 or max(window.kernel[:-1], default=1) == 1:
        return None
    batch, channels, *size = x.shape
    shape = (batch, *size[:-1], group.box[-1], channels)
    elements = dims.known(dims.product(shape))
    if elements is None:
        return None
    dtype = x.dtype if group.kind == MAX else register_dtype(x.dtype)
    row = views.dense(Storage("temporary", dtype, elements), shape)
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
    ends_along, ends_across = (None, None) if group.ends is None else ((*zeros, group.ends[-1]), (*group.ends[:-1], 0))
    first = replace(group, epilogue=kept, extra=(), outputs=(row,), window=along, ends=ends_along)
    return first, replace(group, x=row, window=across, ends=ends_across)


class CountedPadding(Arguments[M, N]):
    """How much of the padding counts as elements of a mean, in front of an axis and after it."""

    before: N
    after: N


def counted_padding(group: Pool) -> tuple[CountedPadding[Ref, Known], ...] | None:
    """How much of the padding of a mean counts as elements, for each axis; None of other kinds."""
    if group.kind != MEAN:
        return None
    lead = (0,) * (3 - len(group.window.pads))
    before, after = ((0,) * 3,) * 2 if group.ends is None else (lead + group.window.pads, lead + group.ends)
    return tuple(CountedPadding(*both) for both in zip(before, after, strict=True))


def counted_padding_declared(kind: str) -> tuple[CountedPadding[Memory, DType], ...] | None:
    return (CountedPadding(i64, i64),) * 3 if kind == MEAN else None


class PoolNhwcArgs(Arguments[M, N]):
    """The parameters of ``pool_nhwc``."""

    is_inline: ClassVar[bool] = True
    image: NhwcWindowArgs[M, N]
    counted: tuple[CountedPadding[M, N], ...] | None
    """For means, the padding that counts along each axis; else None."""


def _params(kind: str, config: NhwcWindowConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    return {"args": PoolNhwcArgs(NhwcWindowArgs.declared(config, x_dtype, epilogue), counted_padding_declared(kind))}


@kernel(_params)
def pool_nhwc(
    k: Kernel,
    args: PoolNhwcArgs[Buf, Val],
    *,
    kind: str,
    config: NhwcWindowConfig,
    x_dtype: DType,
    epilogue: Epilogue,
) -> None:
    if args.counted is not None:
        _Mean(k, config, epilogue, args.image, args.counted).slide()
        return
    largest = _LargestBits if config.compares_bits else _Largest
    (largest if kind == MAX else _Sum)(k, config, epilogue, args.image).slide()


class _Sum(SlidingWindow):
    def add(self, total: Val, seen: Val, weight: Val | None) -> Val:
        return total + seen


class _Mean(_Sum):
    def __init__(
        self, k: Kernel, config: NhwcWindowConfig, epilogue: Epilogue, args: NhwcWindowArgs[Buf, Val],
        counted: tuple[CountedPadding[Buf, Val], ...],
    ) -> None:  # fmt: skip
        super().__init__(k, config, epilogue, args)
        self.counted = counted

    def counts(self, place: Sequence[Val]) -> Val:
        found = [self._count(axis, p) for axis, p in enumerate(place)]
        return self.k.cast(found[0] * found[1] * found[2], self.config.dtype)

    def _count(self, axis: int, place: Val) -> Val:
        counted, start = self.counted[axis], place * self.taps.strides[axis] - self.pad[axis]
        first, last = self.range(axis, start, -counted.before, self.size[axis] + counted.after)
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
    """Compares bf16 bit patterns as i16. They are ordered as the numbers are once the magnitude bits of negative ones
    are inverted. NaN lose their sign, and so are the largest.
    """

    @property
    def neutral(self) -> float:
        return (MINUS_INFINITY ^ MAGNITUDE) - (1 << 16)

    def load(self, pixel: Buf, t: Tile) -> Val:
        k, bits = self.k, pixel.as_type(u16).load(t)
        magnitude = bits & MAGNITUDE
        return self._ordered(k.bitcast(k.select(magnitude > INFINITY, magnitude, bits), i16))

    def add(self, total: Val, seen: Val, weight: Val | None) -> Val:
        return self.k.max(total, seen)

    def result(self, total: Val, counted: Val | None) -> Val:
        return self.k.bitcast(self._ordered(total), u16)

    def _ordered(self, bits: Val) -> Val:
        """Maps bf16 bit patterns to integers that have the order of the numbers, and these integers back."""
        return bits ^ ((bits >> 15) & MAGNITUDE)

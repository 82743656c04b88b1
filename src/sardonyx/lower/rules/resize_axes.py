"""Taps and weights of Resize along one axis: scalar programs, and the tables that they fill."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.expression_builder import work_type
from sardonyx.lower.groups import PolyphaseFilter, TapTable, View
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.rules.reduce import Rows, apply
from sardonyx.lower.rules.tables import Number, table, tabulated
from sardonyx.lower.sizes import Refused, expressible, maximum, mul
from sardonyx.records import Record, replace

MAX_FACTOR = 8
"""The largest integer factor for which a polyphase filter is used instead of tables."""
CROP = "tf_crop_and_resize"
_SHIFT_INVARIANT = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "half_pixel_symmetric")
"""Transformations that are shift-invariant for an integer factor: ``factor`` outputs further is one input further."""
_RADIUS = {"nearest": 0, "linear": 1, "cubic": 2}


class ResizeOptions(Record):
    """The attributes of a Resize node."""

    mode: str
    transform: str
    rounding: str
    a: float
    antialias: bool
    exclude_outside: bool
    """Taps outside of the image have weight 0; otherwise they read the nearest element."""
    work: DType

    @staticmethod
    def of(node: Node, dtype: DType) -> ResizeOptions:
        get = node.attrs.get
        mode = str(get("mode", "nearest"))
        if mode not in _RADIUS or (mode == "nearest" and get("antialias", 0)):
            raise Refused(f"Resize of mode {mode!r} is not compiled")
        if mode != "nearest" and (dtype is dtypes.bool_ or (dtype.is_integer and dtype.bits == 64)):
            raise Refused(f"Resize of {dtype} by weights is not compiled")
        return ResizeOptions(
            mode,
            str(get("coordinate_transformation_mode", "half_pixel")),
            str(get("nearest_mode", "round_prefer_floor")),
            float(get("cubic_coeff_a", -0.75)),
            bool(get("antialias", 0)),
            bool(get("exclude_outside", 0)),
            work_type(dtype) if dtype.is_float or dtype.bits == 8 else dtypes.f64,
        )

    @property
    def precision(self) -> DType:
        """The type of coordinates: with f32, ties are rounded as in other engines."""
        return dtypes.f32 if self.mode == "nearest" or self.transform == CROP else dtypes.f64


class Axis(Record):
    """An axis of ``size`` elements resized to ``output``; without a scale, the scale is their ratio."""

    size: Known
    output: Known
    scale: float | None
    roi: tuple[Number, Number] | None = None

    @property
    def numbers(self) -> tuple[Number, ...]:
        scale: tuple[Number, ...] = () if self.scale is None else (self.scale,)
        return (self.size, self.output, *scale, *(self.roi or ()))

    @property
    def factor(self) -> int | None:
        """The integer factor of an axis that is enlarged by one, without a region of interest; else None."""
        found = dims.exact_div(self.output, self.size)
        exact = isinstance(found, int) and self.scale in (None, found) and self.roi is None
        return found if exact and isinstance(found, int) else None

    def taps(self, options: ResizeOptions) -> Known:
        """The largest number of taps of a position."""
        radius = _RADIUS[options.mode]
        if not options.antialias:
            return max(2 * radius, 1)
        if self.scale is not None:
            return 2 * math.ceil(radius / min(self.scale, 1.0))
        widened = dims.neg(dims.floordiv(mul(-radius, self.size), self.output))
        return mul(2, maximum(radius, expressible(widened)))


# -- scalar programs of an output position and the numbers of its axis


def _coordinate(
    e: Emitter, position: Expr, *numbers: Expr, options: ResizeOptions, given: bool
) -> tuple[Expr, Expr, Expr]:
    """The input coordinate of an output position, the axis' size, and the scale; ``given``: ``numbers`` have a
    scale."""
    size, output, *rest = numbers
    ratio = rest.pop(0) if given else e.cast(output, dtypes.f64) / e.cast(size, dtypes.f64)
    x, n, m, scale = (e.cast(v, options.precision) for v in (position, size, output, ratio))
    width, half = scale * n, (x + 0.5) / scale - 0.5
    transform = options.transform
    if transform == "half_pixel":
        return half, n, scale
    if transform == "pytorch_half_pixel":
        return e.where(e.ne(width, 1), half, -0.5), n, scale
    if transform == "asymmetric":
        return x / scale, n, scale
    if transform == "tf_half_pixel_for_nn":
        return (x + 0.5) / scale, n, scale
    if transform == "half_pixel_symmetric":
        return n / 2 * (1 - m / width) + (x + 0.5) / scale - 0.5, n, scale
    if transform == "align_corners":
        return e.where(e.ne(width, 1), x * (n - 1) / (width - 1), 0), n, scale
    if transform == CROP:
        start, stop = (e.cast(v, options.precision) for v in rest)
        span = (stop - start) * (n - 1)
        return start * (n - 1) + e.where(e.ne(width, 1), x * span / (width - 1), span / 2), n, scale
    raise Refused(f"Resize: coordinate_transformation_mode {transform!r} is not known")


def _nearest(e: Emitter, position: Expr, *numbers: Expr, options: ResizeOptions, given: bool) -> Expr:
    """The nearest input index. Fractions within 1e-6 of 0.5 count as ties, since the division rounds."""
    at, n, _ = _coordinate(e, position, *numbers, options=options, given=given)
    floor = e.floor(at)
    if options.rounding == "round_prefer_floor":
        at = e.where(at - floor - 0.5 > 1e-6, floor + 1, floor)
    elif options.rounding == "round_prefer_ceil":
        at = e.where(at - floor - 0.5 >= -1e-6, floor + 1, floor)
    elif options.rounding in ("floor", "ceil"):
        at = floor if options.rounding == "floor" else e.ceil(at)
    else:
        raise Refused(f"Resize: nearest_mode {options.rounding!r} is not known")
    return e.cast(e.clamp(at, 0, n - 1), dtypes.i64)


def _first(e: Emitter, position: Expr, taps: Expr, *numbers: Expr, options: ResizeOptions, given: bool) -> Expr:
    """The index of the first tap."""
    at, n, _ = _coordinate(e, position, *numbers, options=options, given=given)
    count = e.cast(taps, options.precision)
    return e.cast(e.clamp(e.floor(at) + 1 - count / 2, 1 - count, n - 1), dtypes.i64)


def _weight(
    e: Emitter, tap: Expr, position: Expr, taps: Expr, *numbers: Expr, options: ResizeOptions, given: bool
) -> Expr:
    at, n, scale = _coordinate(e, position, *numbers, options=options, given=given)
    floor = e.floor(at)
    ahead = e.cast(tap, options.precision) + 1 - e.cast(taps, options.precision) / 2
    far = ahead - (at - floor)
    far = e.abs(far * e.minimum(scale, 1) if options.antialias else far)
    weight = e.clamp(1 - far, 0, 1) if options.mode == "linear" else keys(e, far, options.a)
    if options.exclude_outside:
        element = floor + ahead
        weight = e.where((element >= 0) & (element < n), weight, 0)
    return e.cast(weight, options.work)


def keys(e: Emitter, far: Expr, a: float) -> Expr:
    """Keys' cubic convolution kernel at a distance."""
    near = ((a + 2) * far - (a + 3)) * far * far + 1
    return e.where(far <= 1, near, e.where(far < 2, ((a * far - 5 * a) * far + 8 * a) * far - 4 * a, 0))


def outside(e: Emitter, position: Expr, *numbers: Expr, options: ResizeOptions, given: bool) -> Expr:
    at, n, _ = _coordinate(e, position, *numbers, options=options, given=given)
    return (at < 0) | (at > n - 1)


# -- tables and filters


def along(low: Lowering, axis: Axis, options: ResizeOptions) -> TapTable | PolyphaseFilter:
    factor = axis.factor
    if (
        factor is not None
        and 1 < factor <= MAX_FACTOR
        and options.transform in _SHIFT_INVARIANT
        and not options.exclude_outside
    ):
        found = polyphase_filter(factor, replace(options, antialias=False))
        if found is not None:
            return found
    numbers, given = axis.numbers, axis.scale is not None
    if options.mode == "nearest":
        return TapTable(
            table(low, (axis.output,), _nearest, *numbers, dtype=dtypes.i64, options=options, given=given), None
        )
    taps = axis.taps(options)
    firsts = table(low, (axis.output,), _first, taps, *numbers, dtype=dtypes.i64, options=options, given=given)
    weights = table(low, (taps, axis.output), _weight, taps, *numbers, dtype=options.work, options=options, given=given)
    return TapTable(firsts, _normalized(low, weights) if options.antialias or options.exclude_outside else weights)


@lru_cache(maxsize=64)
def polyphase_filter(factor: int, options: ResizeOptions) -> PolyphaseFilter | None:
    """The polyphase filter of an axis that is enlarged by an integer factor; None if its taps or weights are not
    periodic."""
    size, middle = 32, 16 * factor
    taps, length = Axis(size, size * factor, None).taps(options), size * factor
    assert isinstance(taps, int)
    numbers = (size, length) if options.mode == "nearest" else (taps, size, length)
    find = trace(
        _nearest if options.mode == "nearest" else _first, (True,) * (1 + len(numbers)), options=options, given=False
    )
    found = tabulated(find, (length,), numbers, dtypes.i64)
    place, phase = np.divmod(np.arange(length), factor)
    firsts = found[middle : middle + factor] - 16
    if (found != np.clip(place + firsts[phase], 1 - taps, size - 1)).any():
        return None
    if options.mode == "nearest":
        return PolyphaseFilter(factor, tuple(firsts.tolist()), None)
    weigh = trace(_weight, (True,) * (2 + len(numbers)), options=options, given=False)
    weights = tabulated(weigh, (taps, length), numbers, dtypes.f64)
    one = weights[:, middle : middle + factor]
    if np.abs(weights - one[:, phase]).max() > 1e-6:
        return None
    return PolyphaseFilter(factor, tuple(firsts.tolist()), tuple(map(tuple, one.T.tolist())))


def _over_total(e: Emitter, x: Expr, total: Expr) -> Expr:
    return x / e.where(e.eq(total, 0), 1, total)


def _normalized(low: Lowering, weights: View) -> View:
    """Weights normalized so that those of a position sum to 1."""
    known = weights.storage.tensor
    if known is not None:
        w = known.numpy()
        total = w.sum(axis=0)
        return low.constant(Tensor.of(w / np.where(total == 0, 1, total)))
    rows = Rows(low, weights, [0])
    value, out = rows.body.operand(rows.x), low.temporary(weights.dtype, weights.shape)
    total = rows.body.reduce("sum", value, weights.dtype)
    rows.store((apply(rows.body, _over_total, value, total, dtype=weights.dtype), rows.full(out)))
    return out

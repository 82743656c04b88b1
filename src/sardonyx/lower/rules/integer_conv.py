"""Exact convolutions of 8-bit integers with zero points, in i32.

The image is padded with its zero point p, so that the sum over a window of (x - p)(w - q) is  S - p (W - k q) - q X,
where S, W and X are the sums of x w, of w and of x over the window. X is a convolution with ones, and needed only if q
is not 0. Depthwise convolutions have too few products to gain from integer instructions; they are computed in f32,
which represents their sums exactly, of bytes minus their zero point (``CentredConvolution``).
"""

from __future__ import annotations

import math

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle
from sardonyx.lower.groups import CentredConvolution, IntegerConvolution, View, Window
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.conv import per_channel, windowed
from sardonyx.lower.rules.conv_transpose import phases
from sardonyx.lower.rules.integer import (
    BYTES,
    Product,
    Term,
    as_real,
    as_signed,
    combined,
    constant_of,
    minus_zero_points,
    zero_point,
)
from sardonyx.lower.rules.reduce import apply, plus
from sardonyx.lower.sizes import Refused, expressible

EXACT = 1 << 24
"""f32 represents all integers below this."""


def _centred(e: Emitter, x: Expr, zero: Expr) -> Expr:
    return e.cast(x, dtypes.f32) - e.cast(zero, dtypes.f32)


class _Convolution:
    """An exact convolution: its operands, and the epilogue that corrects for zero points."""

    def __init__(
        self, low: Lowering, x: View, w: View, window: Window, groups: int, out: View, zero: View, w_zero: View | None
    ) -> None:
        """``zero`` is one element of the image's type; the weights' zero point is one, or one for each filter."""
        self.low, self.x, self.w, self.window, self.groups, self.out, self.zero = low, x, w, window, groups, out, zero
        self.terms = expressible(dims.mul(self.w.shape[1], math.prod(self.window.kernel)))
        w_zeros = None if w_zero is None else self.quantization_parameter(w_zero)
        self.in_f32 = self.w.shape[1] == 1 and self.groups > 1 and math.prod(self.window.kernel) * 255**2 < EXACT
        if self.in_f32:
            self.product = Product(low, self.out.shape, dtypes.f32)
            w_zeros = low.scalar(0, w.dtype) if w_zeros is None else w_zeros
            self.w = self._as_f32(self.w, views.inserted(w_zeros, 1) if w_zeros.shape else w_zeros)
        else:
            self.product = Product(low, self.out.shape)
            self._subtract_zero_points(w_zeros)

    def _subtract_zero_points(self, w_zeros: View | None) -> None:
        low, offset = self.low, 128 if self.w.dtype is dtypes.u8 else 0
        if offset:
            self.w = as_signed(low, self.w)
        p, q = zero_point(low, self.zero, 0), zero_point(low, w_zeros, offset)
        if not p.is_zero:
            flat = low.reshaped(self.w, (self.w.shape[0], self.terms))
            self.product.subtract(p, minus_zero_points(low, self.per_filter(Term.rows(low, flat)), q, self.terms))
        if not q.is_zero:
            self.product.subtract(q, Term(self.window_sums()))

    def _as_f32(self, view: View, zero: View) -> View:
        """Integers minus their zero point, in f32."""
        low = self.low
        known, other = constant_of(view), constant_of(zero)
        if known is not None and other is not None:
            return low.constant(combined(dtypes.f32, lambda x, z: x.astype(np.float32) - z, known, other))
        out, body = low.temporary(dtypes.f32, view.shape), ExpressionBuilder()
        args = [body.operand(low.fit(v, view.shape)) for v in (view, zero)]
        low.loop(view.shape, body, [(apply(body, _centred, *args, dtype=dtypes.f32), out)])
        return out

    def quantization_parameter(self, view: View) -> View:
        """A scalar, or one number for each filter with axes for the image."""
        if view.shape in ((), (1,)):
            return self.low.reshaped(view, ())
        if len(view.shape) != 1:
            raise Refused("a scale or zero point of the weights is not a vector")
        self.low.require("there is not one scale or zero point for each filter", view.shape[0], self.w.shape[0])
        for _ in self.window.kernel:
            view = views.inserted(view, len(view.shape))
        return view

    def per_filter(self, term: Term) -> Term:
        """One number for each filter, with axes for the image."""
        shape = (*term.view.shape, *[1] * len(self.window.kernel))
        known = term.known
        if known is None:
            return Term(self.low.reshaped(term.view, shape))
        whole = tuple(int(d) for d in shape)
        return Term.of(self.low, Tensor(known.dtype, whole, lambda: known.numpy().reshape(whole)))

    def window_sums(self) -> View:
        """The sum of the image over every window, for the group of each filter."""
        low, box = self.low, self.out.shape
        shape = [d for d in self.w.shape[1:] if isinstance(d, int)]
        if len(shape) != len(self.w.shape) - 1:
            raise Refused("the number of channels of the weights is not known before the run")
        ones = low.constant(Tensor.of(np.ones([self.groups, *shape], np.int8)))
        sums = low.temporary(dtypes.i32, (box[0], self.groups, *box[2:]))
        self._emit(ones, ExpressionBuilder([dtypes.i32]), ~0, sums)
        filters = expressible(dims.exact_div(box[1], self.groups))
        expanded: tuple[Known, ...] = (box[0], self.groups, filters, *box[2:])
        each = low.fit(views.inserted(sums, 2), expanded)
        return views.selected(each, 1) if self.groups == 1 else low.reshaped(each, box)

    def finish(self) -> None:
        self._emit(self.w, self.product.body, self.product.result, self.out)

    def _emit(self, w: View, body: ExpressionBuilder, result: Handle, out: View) -> None:
        given = (
            (self.low.node,),
            body.expression([result]),
            tuple(body.views),
            (out,),
            self.x,
            w,
            self.window,
            self.groups,
        )
        self.low.groups.append((CentredConvolution if self.in_f32 else IntegerConvolution)(*given, self.zero))


def _bytes(low: Lowering, image: int, weights: int) -> tuple[View, View]:
    """The image and the weights, by their numbers as inputs."""
    x, w = low.view(low.input(image)), low.view(low.input(weights))
    if x.dtype not in BYTES or w.dtype not in BYTES:
        raise Refused(f"{low.node.op_type} of {x.dtype} times {w.dtype} is not compiled")
    return x, w


def _single(low: Lowering, value: Value | None, dtype: DType) -> View:
    return low.scalar(0, dtype) if value is None else low.reshaped(low.view(value), ())


def _convolution(
    low: Lowering, node: Node, x: View, w: View, x_zero: Value | None, w_zero: Value | None
) -> _Convolution:
    w, window, groups = windowed(low, node, x, w)
    zero, point = _single(low, x_zero, x.dtype), None if w_zero is None else low.view(w_zero)
    return _Convolution(low, x, w, window, groups, low.make(node.output), zero, point)


@rule("ConvInteger")
def conv_integer(low: Lowering, node: Node) -> None:
    _convolution(low, node, *_bytes(low, 0, 1), node.input(2), node.input(3)).finish()


@rule("ConvTransposeInteger", domain="sardonyx")
def conv_transpose_integer(low: Lowering, node: Node) -> None:
    x, w = _bytes(low, 0, 1)
    groups, rank = node.attrs.get("group", 1), len(x.shape) - 2
    zero, out = _single(low, node.input(2), x.dtype), low.make(node.output)
    points = None if node.input(3) is None else _for_filters(low, low.view(low.input(3)), groups)
    nothing = points
    if points is not None and points.shape:
        for axis in range(1, rank + 2):
            nothing = views.inserted(nothing or points, axis)
    for phase in phases(low, node, x, w, out, nothing):
        _Convolution(low, x, phase.w, phase.window, groups, phase.out, zero, points).finish()


def _for_filters(low: Lowering, view: View, groups: int) -> View:
    """A scalar, or one number for each filter of all groups, where those of groups are alike."""
    if view.shape in ((), (1,)):
        return low.reshaped(view, ())
    known = constant_of(view)
    if known is not None and len(view.shape) == 1:
        return low.constant(Tensor(known.dtype, (groups * known.shape[0],), lambda: np.tile(known.numpy(), groups)))
    if len(view.shape) != 1 or not isinstance(view.shape[0], int):
        raise Refused("a zero point of the weights is not a vector")
    every = low.temporary(view.dtype, (groups, view.shape[0]))
    low.copy(view, every)
    return low.reshaped(every, (groups * view.shape[0],))


@rule("QLinearConv")
def qlinear_conv(low: Lowering, node: Node) -> None:
    c = _convolution(low, node, *_bytes(low, 0, 3), low.input(2), low.input(5))
    p, bias = c.product, node.input(8)
    if bias is not None:
        operand = p.body.operand(per_channel(low, low.view(bias), c.out.shape))
        p.result = apply(p.body, plus, p.result, operand, dtype=dtypes.i32)
    scales = [low.reshaped(low.view(low.input(1)), ()), c.quantization_parameter(low.view(low.input(4)))]
    scales.append(low.reshaped(low.view(low.input(6)), ()))
    zero = low.reshaped(low.view(low.input(7)), ())
    p.requantize([as_real(low, v) for v in scales], zero, c.out.dtype)
    c.finish()

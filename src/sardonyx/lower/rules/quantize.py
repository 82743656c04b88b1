"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.rules.pointwise import as_type, saturated
from sardonyx.lower.rules.reduce import Rows, apply
from sardonyx.lower.sizes import Refused


def requantized(e: Emitter, x: Expr, zero: Expr | None = None, *, to: DType, clamp: bool = True) -> Expr:
    """x + zero in a quantized type, saturated; ``x`` is in units of the scale, and rounded half to even for integers.

    Without ``clamp``, what an 8-bit float cannot hold becomes what its cast makes of it.
    """
    if to.is_integer and to.bits <= 16:
        return e.quantize(e.cast(x, dtypes.f32), None, zero, to)
    if not to.is_integer:
        x = e.cast(x, dtypes.f32)
        moved = x if zero is None else x + e.cast(zero, dtypes.f32)
        return saturated(e, moved, to=to) if clamp or to.bits != 8 else e.cast(moved, to)
    rounded = e.round(x)
    low, high = (-(1 << (to.bits - 1)), 1 << (to.bits - 1)) if to.kind == "int" else (0, 1 << to.bits)
    moved = rounded if zero is None else rounded + e.cast(zero, dtypes.f32)
    return as_type(e, e.clamp(moved, float(low), float(high - 1)), source=dtypes.f32, to=to)


def _quantize(
    e: Emitter, x: Expr, scale: Expr, zero: Expr | None = None, *, work: DType, to: DType, clamp: bool
) -> Expr:
    """The division is done in the type ``work``; what follows in f32, or f64 if ``work`` is."""
    if work is dtypes.f32 and to.is_integer and to.bits <= 16:
        return e.quantize(e.cast(x, work), e.cast(scale, work), zero, to)
    ratio = e.cast(x, work) / e.cast(scale, work)
    if work.bits < 32:
        ratio = e.cast(ratio, work)
    return requantized(e, ratio if work is dtypes.f64 else e.cast(ratio, dtypes.f32), zero, to=to, clamp=clamp)


def _dequantize(
    e: Emitter, x: Expr, scale: Expr, zero: Expr | None = None, *, work: DType, to: DType, is_narrow: bool
) -> Expr:
    if work is dtypes.f32 and is_narrow:
        return as_type(e, e.dequantize(x, e.cast(scale, work), zero), source=work, to=to)
    units = e.cast(x, work)
    if zero is not None:
        units = units - e.cast(zero, work)
    return as_type(e, units * e.cast(scale, work), source=work, to=to)


@rule("QuantizeLinear")
def quantize(low: Lowering, node: Node) -> None:
    scale = low.dtype(low.input(1))
    asked = node.attrs.get("precision", 0)
    if asked not in (0, *(t.onnx for t in dtypes.every() if t.is_float)):
        raise Refused(f"QuantizeLinear: precision {asked} is not a float type")
    if asked:
        work = dtypes.of_onnx(asked)
    elif scale.is_float:
        work = scale if scale.bits >= 16 else dtypes.f32
    else:
        work = dtypes.f64
    to, zero = low.dtype(node.output), node.input(2)
    if zero is not None and low.dtype(zero) is not to:
        raise Refused("QuantizeLinear: output and zero point are of different types")
    _scaled(low, node, _quantize, work=work, to=to, clamp=bool(node.attrs.get("saturate", 1)))


@rule("DequantizeLinear")
def dequantize(low: Lowering, node: Node) -> None:
    source = low.dtype(low.input(0))
    work = dtypes.f64 if source is dtypes.i32 else dtypes.f32
    is_narrow = source.is_integer and source.bits <= 16
    _scaled(low, node, _dequantize, work=work, to=low.dtype(node.output), is_narrow=is_narrow)


def _scaled(low: Lowering, node: Node, fn: object, **attributes: object) -> None:
    """Append loops over the elements with their scales and zero points."""
    out = low.make(node.output)
    given = [v for v in (low.input(1), node.input(2)) if v is not None]
    if len(given) == 2 and not _is_single(low, given[0]):
        if len(low.shape(given[0])) != len(low.shape(given[1])):
            raise Refused(f"{node.op_type}: scale and zero point differ in rank")
        for d, e in zip(low.shape(given[0]), low.shape(given[1]), strict=True):
            low.require(f"{node.op_type}: scale and zero point differ in shape", e, d)
    for x, y, *factors in _blocks(low, node, low.view(low.input(0)), out, given):
        body = ExpressionBuilder()
        args = [body.operand(low.fit(v, y.shape)) for v in (x, *factors)]
        low.loop(y.shape, body, [(apply(body, fn, *args, dtype=out.dtype, **attributes), y)])  # type: ignore[arg-type]


def _is_single(low: Lowering, v: Value) -> bool:
    return low.shape(v) in ((), (1,))


def _blocks(low: Lowering, node: Node, x: View, out: View, given: Sequence[Value]) -> Iterator[list[View]]:
    """Views (x, out, scale, zero point) of equal axes: one for all elements, or one for full blocks and one for the
    rest."""
    factors = [low.view(v) for v in given]
    if all(_is_single(low, v) for v in given):
        yield [x, out, *(low.reshaped(f, ()) for f in factors)]
        return
    if any(_is_single(low, v) for v in given):
        raise Refused(f"{node.op_type}: scale and zero point differ in shape")
    rank, block = len(x.shape), node.attrs.get("block_size", 0)
    axis = axis_of(node.attrs.get("axis", 1), rank)
    if not block:
        for f in factors:
            if len(f.shape) != 1:
                raise Refused(f"{node.op_type}: the scale is not a vector")
            low.require(f"{node.op_type}: the scale does not fit the axis", f.shape[0], x.shape[axis])
        yield [x, out, *(_vector(f, rank - axis - 1) for f in factors)]
        return
    size = x.shape[axis]
    if not isinstance(size, int) or block < 0 or any(len(f.shape) != rank for f in factors):
        raise Refused(f"{node.op_type}: the blocks are not known before the run")
    for f in factors:
        for i, (d, whole) in enumerate(zip(f.shape, x.shape, strict=True)):
            low.require(
                f"{node.op_type}: there is not one scale for each block", d, -(-size // block) if i == axis else whole
            )
    count, rest = divmod(size, block)
    for first, blocks, width in ((0, count, block), (count, 1, rest)):
        if blocks and width:
            yield [
                *(
                    views.split(views.sliced(v, axis, first * block, blocks * width), axis, (blocks, width))
                    for v in (x, out)
                ),
                *(views.inserted(views.sliced(f, axis, first, blocks), axis + 1) for f in factors),
            ]


def _vector(view: View, after: int) -> View:
    for _ in range(after):
        view = views.inserted(view, len(view.shape))
    return view


# DynamicQuantizeLinear


def _range_scale(e: Emitter, least: Expr, most: Expr) -> Expr:
    least, most = e.minimum(least, 0), e.maximum(most, 0)
    return e.where(e.ne(most, least), (most - least) / 255.0, 1.0)


def _range_zero(e: Emitter, least: Expr, scale: Expr) -> Expr:
    units = 0 - e.minimum(least, 0) / scale
    return e.cast(e.cast(e.round(e.clamp(units, 0, 255)), dtypes.i32), dtypes.u8)


@rule("DynamicQuantizeLinear")
def dynamic_quantize(low: Lowering, node: Node) -> None:
    y, scale, zero = (low.make(v) for v in node.outputs)
    quantize_by_range(low, low.view(low.input(0)), y, scale, zero)


def quantize_by_range(low: Lowering, x: View, y: View, scale: View, zero: View, counted: View | None = None) -> None:
    """Quantize f32 to u8 with the scale and zero point of its range, or of that of ``counted``, which are stored."""
    rows = Rows(low, x if counted is None else counted, range(len(x.shape)))
    body, value = rows.body, rows.body.operand(rows.x)
    least, most = (body.reduce(kind, value, dtypes.f32) for kind in ("min", "max"))
    step = apply(body, _range_scale, least, most, dtype=dtypes.f32)
    offset = apply(body, _range_zero, least, step, dtype=dtypes.u8)
    rows.store((step, scale), (offset, zero))
    body = ExpressionBuilder()
    args = [body.operand(low.fit(v, y.shape)) for v in (x, scale, zero)]
    result = apply(body, _quantize, *args, dtype=y.dtype, work=dtypes.f32, to=dtypes.u8, clamp=True)
    low.loop(y.shape, body, [(result, y)])

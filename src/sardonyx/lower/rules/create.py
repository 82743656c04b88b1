"""Tensors that follow from sizes alone."""

from __future__ import annotations

import math

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, work_type
from sardonyx.lower.groups import Fill
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import DataDependent, Refused

LARGEST = (1 << 63) - 1


@rule("Shape", "Size")
def shape(low: Lowering, node: Node) -> None:
    """Reached only if the shape is not known: a known one is a ``Fill`` without this rule."""
    raise DataDependent(f"the {node.op_type.lower()} of the input is not known before the run")


@rule("Range")
def range_(low: Lowering, node: Node) -> None:
    bounds = [v.item() for v in node.inputs if v is not None and v.is_scalar_const]
    step = node.input(2)
    if not all(map(math.isfinite, bounds)) or (step is not None and step.is_scalar_const and step.item() == 0):
        raise Refused("a Range needs finite bounds and a delta other than 0")
    if low.dtype(node.output).is_integer:
        (start,), (delta,) = low.sizes(low.input(0)), low.sizes(low.input(2))
        low.groups.append(Fill((node,), low.make(node.output), start=start, step=delta))
        return
    if node.attrs.get("stash_type", dtypes.f32.onnx) != dtypes.f32.onnx:
        raise Refused("a Range computed in another type than f32 is not compiled")
    out, body = low.make(node.output), ExpressionBuilder()
    operands = (low.reshaped(low.view(low.input(i)), ()) for i in (0, 2))
    args = [body.operand(low.fit(v, out.shape)) for v in (low.indices(out.shape[0]), *operands)]
    program = trace(_range_element, (True,) * 3, to=work_type(out.dtype))
    low.loop(out.shape, body, [(body.apply(program, *args, dtype=out.dtype), out)])


def _range_element(e: Emitter, index: Expr, start: Expr, step: Expr, *, to: DType) -> Expr:
    return e.cast(index, to) * step + start


def _on_diagonal(e: Emitter, row: Expr, column: Expr, *, diagonal: int, to: DType) -> Expr:
    return e.cast(e.eq(column - row, diagonal), to)


@rule("EyeLike")
def eye_like(low: Lowering, node: Node) -> None:
    out, body = low.make(node.output), ExpressionBuilder()
    if len(out.shape) != 2:
        raise Refused("EyeLike needs a matrix")
    rows, columns = (low.indices(size) for size in out.shape)
    args = [body.operand(low.fit(v, out.shape)) for v in (views.inserted(rows, 1), columns)]
    program = trace(_on_diagonal, (True,) * 2, diagonal=node.attrs.get("k", 0), to=out.dtype)
    low.loop(out.shape, body, [(body.apply(program, *args, dtype=out.dtype), out)])


@rule("ConstantOfShape")
def constant_of_shape(low: Lowering, node: Node) -> None:
    value = node.attrs.get("value")
    number = low.scalar(0, dtypes.f32) if value is None else low.reshaped(low.constant(value), ())
    low.alias(node.output, low.fit(number, low.shape(node.output)))


def _triangle_element(e: Emitter, x: Expr, row: Expr, column: Expr, diagonal: Expr, *, upper: bool) -> Expr:
    ahead = column - row
    return e.where(ahead >= diagonal if upper else ahead <= diagonal, x, 0)


@rule("Trilu")
def trilu(low: Lowering, node: Node) -> None:
    x, out, body = low.view(low.input(0)), low.make(node.output), ExpressionBuilder()
    if len(x.shape) < 2:
        raise Refused("Trilu needs at least two axes")
    k = 0 if node.input(1) is None else low.one_size(low.input(1))
    rows, columns = low.indices(x.shape[-2]), low.indices(x.shape[-1])
    operands = (x, views.inserted(rows, 1), columns, low.number(k))
    args = [body.operand(low.fit(v, x.shape)) for v in operands]
    program = trace(_triangle_element, (True,) * 4, upper=bool(node.attrs.get("upper", 1)))
    low.loop(x.shape, body, [(body.apply(program, *args, dtype=out.dtype), out)])


def _one_hot_element(
    e: Emitter, index: Expr, position: Expr, depth: Expr, off: Expr, on: Expr, *, dtype: DType
) -> Expr:
    whole = e.cast(e.minimum(index, LARGEST) if dtype.name == "u64" else index, dtypes.i64)
    is_hot = e.eq(e.where(whole < 0, whole + depth, whole), position)
    return e.where(is_hot & ~e.isnan(index) if dtype.is_float else is_hot, on, off)


@rule("OneHot")
def one_hot(low: Lowering, node: Node) -> None:
    indices, out, body = low.view(low.input(0)), low.make(node.output), ExpressionBuilder()
    depth = low.one_size(low.input(1))
    low.require_least("OneHot: the depth is not at least 1", depth, 1)
    axis = axis_of(node.attrs.get("axis", -1), len(out.shape))
    position = low.indices(depth)
    for _ in out.shape[axis + 1 :]:
        position = views.inserted(position, len(position.shape))
    values = low.view(low.input(2))
    if values.shape != (2,):
        raise Refused("values must be two")
    operands = (
        views.inserted(indices, axis),
        position,
        low.number(depth),
        *(views.selected(values, 0, i) for i in (0, 1)),
    )
    args = [body.operand(low.fit(v, out.shape)) for v in operands]
    program = trace(_one_hot_element, (True,) * 5, dtype=indices.dtype)
    low.loop(out.shape, body, [(body.apply(program, *args, dtype=out.dtype), out)])


@rule("Constant")
def constant(low: Lowering, node: Node) -> None:
    value = node.attrs.get("value")
    if value is None:
        raise Refused("a Constant that is no tensor is not compiled")
    low.alias(node.output, low.constant(value))

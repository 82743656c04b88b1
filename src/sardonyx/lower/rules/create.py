"""Tensors that follow from sizes alone."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.lower import views
from sardonyx.lower.body import Body
from sardonyx.lower.groups import Fill
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import Refused


@rule("Shape", "Size")
def shape(low: Lowering, node: Node) -> None:
    """What is known of these needs no rule."""
    raise Refused(f"the {node.op_type.lower()} of the input is not known before the run")


@rule("Range")
def range_(low: Lowering, node: Node) -> None:
    if not low.dtype(node.output).is_integer:
        raise Refused("a Range of reals is not compiled")
    (start,), (step,) = low.sizes(low.input(0)), low.sizes(low.input(2))
    low.groups.append(Fill((node,), low.make(node.output), start=start, step=step))


@rule("ConstantOfShape")
def constant_of_shape(low: Lowering, node: Node) -> None:
    value = node.attrs.get("value")
    number = low.scalar(0, dtypes.f32) if value is None else low.reshaped(low.constant(value), ())
    low.alias(node.output, low.fit(number, low.shape(node.output)))


def _kept(e: Emitter, x: Expr, row: Expr, column: Expr, diagonal: Expr, *, upper: bool) -> Expr:
    ahead = column - row
    return e.where(ahead >= diagonal if upper else ahead <= diagonal, x, 0)


@rule("Trilu")
def trilu(low: Lowering, node: Node) -> None:
    x, out, body = low.view(low.input(0)), low.make(node.output), Body()
    if len(x.shape) < 2:
        raise Refused("Trilu needs at least two axes")
    (k,) = (0,) if node.input(1) is None else low.sizes(low.input(1))
    rows, columns = low.indices(x.shape[-2]), low.indices(x.shape[-1])
    operands = (x, views.inserted(rows, 1), columns, low.number(k))
    args = [body.operand(low.fit(v, x.shape)) for v in operands]
    program = trace(_kept, (True,) * 4, upper=bool(node.attrs.get("upper", 1)))
    low.loop(x.shape, body, [(body.apply(program, *args, dtype=out.dtype), out)])


def _chosen(e: Emitter, index: Expr, position: Expr, depth: Expr, off: Expr, on: Expr) -> Expr:
    index = e.cast(index, dtypes.i64)
    return e.where(e.eq(e.where(index < 0, index + depth, index), position), on, off)


@rule("OneHot")
def one_hot(low: Lowering, node: Node) -> None:
    indices, out, body = low.view(low.input(0)), low.make(node.output), Body()
    (depth,) = low.sizes(low.input(1))
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
        *(views.removed(values, 0, i) for i in (0, 1)),
    )
    args = [body.operand(low.fit(v, out.shape)) for v in operands]
    low.loop(out.shape, body, [(body.apply(trace(_chosen, (True,) * 5), *args, dtype=out.dtype), out)])


@rule("Constant")
def constant(low: Lowering, node: Node) -> None:
    value = node.attrs.get("value")
    if value is None:
        raise Refused("a Constant that is no tensor is not compiled")
    low.alias(node.output, low.constant(value))

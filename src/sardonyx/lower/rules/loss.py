"""Training losses: the log-probability of each target class, gathered, weighted and reduced."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import Gather, GatherElements, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.gather import OUTSIDE
from sardonyx.lower.rules.reduce import Rows, apply, divide, minus
from sardonyx.lower.sizes import Refused


def _safe(e: Emitter, target: Expr, *, ignored: int | None) -> Expr:
    """The class index to gather: 0 for ignored targets, OUTSIDE for negative ones."""
    target = e.cast(target, dtypes.i64)
    checked = e.where(target < 0, OUTSIDE, target)
    return checked if ignored is None else e.where(e.eq(target, ignored), 0, checked)


def _weight(e: Emitter, target: Expr, weight: Expr, *, ignored: int | None, to: DType) -> Expr:
    weight = e.cast(weight, to)
    return weight if ignored is None else e.where(e.eq(target, ignored), 0, weight)


def _weighted(e: Emitter, target: Expr, picked: Expr, weight: Expr, *, ignored: int | None, to: DType) -> Expr:
    loss = -e.cast(picked, to) * weight
    return loss if ignored is None else e.where(e.eq(target, ignored), 0, loss)


@rule("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(low: Lowering, node: Node) -> None:
    _likelihood(low, node, low.view(low.input(0)))


@rule("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    if len(x.shape) < 2:
        raise Refused("the scores need a batch and a class axis")
    alive = len(node.outputs) > 1 and not node.outputs[1].is_dead
    work = work_type(x.dtype)
    exact = low.temporary(work, x.shape)
    rows = Rows(low, x, [1])
    body, value = rows.body, rows.body.operand(rows.x)
    shifted = apply(body, minus, value, body.reduce("max", value, work), dtype=work)
    total = body.reduce("sum", apply(body, Emitter.exp, shifted, dtype=work), work)
    log = apply(body, Emitter.log, total, dtype=work)
    stores = [(apply(body, minus, shifted, log, dtype=work), rows.full(exact))]
    if alive:
        out = low.make(node.outputs[1])
        stores.append((apply(body, minus, shifted, log, dtype=out.dtype), rows.full(out)))
    rows.store(*stores)
    _likelihood(low, node, exact)


def _likelihood(low: Lowering, node: Node, x: View) -> None:
    target, weight, ignored = low.view(low.input(1)), node.input(2), node.attrs.get("ignore_index")
    box = (*x.shape[:1], *x.shape[2:])
    if len(x.shape) < 2 or len(target.shape) != len(box):
        raise Refused("the targets do not have an axis for each of the input's but the classes")
    for size, whole in zip(target.shape, box, strict=True):
        low.require("the targets have the wrong shape", size, whole)
    safe, picked, work = low.temporary(dtypes.i64, box), low.temporary(x.dtype, box), work_type(x.dtype)
    body = ExpressionBuilder()
    found = apply(body, _safe, body.operand(target), dtype=dtypes.i64, ignored=ignored)
    low.loop(box, body, [(found, safe)])
    low.groups.append(GatherElements((node,), x, views.inserted(safe, 1), 1, views.inserted(picked, 1)))
    of_class = _weights(low, weight, x, safe)
    is_reduced, out = node.attrs.get("reduction", "mean") != "none", low.make(node.outputs[0])
    rows = Rows(low, picked, range(len(box)) if is_reduced else [])
    body, label, each = rows.body, rows.operand(target), work if is_reduced else out.dtype
    weights = apply(body, _weight, label, rows.operand(of_class), dtype=work, ignored=ignored, to=work)
    loss = apply(body, _weighted, label, body.operand(rows.x), weights, dtype=each, ignored=ignored, to=work)
    place = rows.row(out, keepdims=False) if rows.axes else rows.full(out)
    rows.store((_reduced(body, node, loss, weights, work, out.dtype), place))


def _weights(low: Lowering, weight: Value | None, x: View, safe: View) -> View:
    """The weight of each target's class."""
    if weight is None:
        return low.scalar(1, x.dtype)
    given = low.view(weight)
    if len(given.shape) != 1:
        raise Refused("the weights are not a vector")
    low.require("one weight for each class", given.shape[0], x.shape[1])
    out = low.temporary(given.dtype, safe.shape)
    low.groups.append(Gather((low.node,), given, safe, 0, out))
    return out


def _reduced(body: ExpressionBuilder, node: Node, loss: Handle, weights: Handle, work: DType, out: DType) -> Handle:
    kind = node.attrs.get("reduction", "mean")
    if kind == "none":
        return loss
    if kind == "sum":
        return body.reduce("sum", loss, out)
    if kind != "mean":
        raise Refused(f"{node.op_type}: there is no reduction {kind!r}")
    total, count = (body.reduce("sum", x, work) for x in (loss, weights))
    return apply(body, divide, total, count, dtype=out)

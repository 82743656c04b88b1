"""Training optimizers: the learning rate of the step, then a loop for each tensor."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx import dtypes
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower.expression_builder import ExpressionBuilder, work_type
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.reduce import apply
from sardonyx.lower.sizes import Refused
from sardonyx.ops.training import TRAINING

_Scalar = Callable[..., Expr]


def _regularized(e: Emitter, x: Expr, gradient: Expr, *, norm: float) -> Expr:
    return x * norm + gradient if norm else gradient


def _adagrad_rate(e: Emitter, r: Expr, t: Expr, *, decay: float) -> Expr:
    return e.cast(r, dtypes.f64) / (e.cast(t, dtypes.f64) * decay + 1)


def _squares_added(e: Emitter, gradient: Expr, history: Expr) -> Expr:
    return history + gradient * gradient


def _scaled_step(
    e: Emitter, x: Expr, rate: Expr, direction: Expr, history: Expr, *, epsilon: float, post: float
) -> Expr:
    y = x - e.cast(rate, x) * direction / (e.sqrt(history) + epsilon)
    return y * (1 - post) if post else y


@rule("Adagrad", domain=TRAINING)
def adagrad(low: Lowering, node: Node) -> None:
    attrs = node.attrs
    rate = _rate(low, node, _adagrad_rate, decay=attrs.get("decay_factor", 0.0))
    for (x, gradient, history), (new_x, new_history) in _each(low, node, 3):
        body, work = ExpressionBuilder(), work_type(x.dtype)
        at = body.operand(x)
        g = apply(body, _regularized, at, body.operand(gradient), dtype=work, norm=attrs.get("norm_coefficient", 0.0))
        h = apply(body, _squares_added, g, body.operand(history), dtype=work)
        args = (at, body.operand(low.fit(rate, x.shape)), g, h)
        y = apply(body, _scaled_step, *args, dtype=x.dtype, epsilon=attrs.get("epsilon", 1e-6), post=0.0)
        low.loop(x.shape, body, [(y, new_x), (h, new_history)])


def _adam_rate(e: Emitter, r: Expr, t: Expr, *, alpha: float, beta: float) -> Expr:
    rate, steps = e.cast(r, dtypes.f64), e.cast(t, dtypes.f64)
    alphas, betas = (e.exp(steps * e.log(steps * 0 + base)) if base else steps * 0 for base in (alpha, beta))
    return e.where(steps > 0, rate * e.sqrt(1 - betas) / (1 - alphas), rate)


def _mixed(e: Emitter, old: Expr, new: Expr, *, keep: float) -> Expr:
    return old * keep + new * (1 - keep)


def _mixed_squares(e: Emitter, old: Expr, new: Expr, *, keep: float) -> Expr:
    return old * keep + new * new * (1 - keep)


@rule("Adam", domain=TRAINING)
def adam(low: Lowering, node: Node) -> None:
    attrs = node.attrs
    alpha, beta = attrs.get("alpha", 0.9), attrs.get("beta", 0.999)
    epsilon, post = attrs.get("epsilon", 1e-6), attrs.get("norm_coefficient_post", 0.0)
    rate = _rate(low, node, _adam_rate, alpha=alpha, beta=beta)
    for (x, gradient, velocity, history), (new_x, new_velocity, new_history) in _each(low, node, 4):
        body, work = ExpressionBuilder(), work_type(x.dtype)
        at = body.operand(x)
        g = apply(body, _regularized, at, body.operand(gradient), dtype=work, norm=attrs.get("norm_coefficient", 0.0))
        v = apply(body, _mixed, body.operand(velocity), g, dtype=work, keep=alpha)
        h = apply(body, _mixed_squares, body.operand(history), g, dtype=work, keep=beta)
        args = (at, body.operand(low.fit(rate, x.shape)), v, h)
        y = apply(body, _scaled_step, *args, dtype=x.dtype, epsilon=epsilon, post=post)
        low.loop(x.shape, body, [(y, new_x), (v, new_velocity), (h, new_history)])


def _new_velocity(e: Emitter, velocity: Expr, gradient: Expr, t: Expr, *, alpha: float, beta: float) -> Expr:
    return velocity * alpha + e.where(t > 0, gradient * beta, gradient)


def _momentum_step(
    e: Emitter, x: Expr, r: Expr, gradient: Expr, velocity: Expr, *, alpha: float, nesterov: bool
) -> Expr:
    return x - e.cast(r, x) * (gradient + velocity * alpha if nesterov else velocity)


@rule("Momentum", domain=TRAINING)
def momentum(low: Lowering, node: Node) -> None:
    attrs = node.attrs
    if attrs.get("mode") not in ("standard", "nesterov"):
        raise Refused("the mode is neither standard nor nesterov")
    rate, count = low.view(low.input(0)), low.view(low.input(1))
    for (x, gradient, velocity), (new_x, new_velocity) in _each(low, node, 3):
        body, work = ExpressionBuilder(), work_type(x.dtype)
        at = body.operand(x)
        g = apply(body, _regularized, at, body.operand(gradient), dtype=work, norm=attrs["norm_coefficient"])
        old, before = body.operand(velocity), body.operand(low.fit(count, x.shape))
        v = apply(body, _new_velocity, old, g, before, dtype=work, alpha=attrs["alpha"], beta=attrs["beta"])
        args = (at, body.operand(low.fit(rate, x.shape)), g, v)
        nesterov = attrs["mode"] == "nesterov"
        y = apply(body, _momentum_step, *args, dtype=x.dtype, alpha=attrs["alpha"], nesterov=nesterov)
        low.loop(x.shape, body, [(y, new_x), (v, new_velocity)])


def _rate(low: Lowering, node: Node, fn: _Scalar, **attributes: float) -> View:
    """The learning rate of this step, from the given rate and the number of steps so far."""
    r, t = low.view(low.input(0)), low.view(low.input(1))
    rate, body = low.temporary(dtypes.f64, (1,)), ExpressionBuilder()
    args = [body.operand(low.fit(v, (1,))) for v in (r, t)]
    low.loop((1,), body, [(apply(body, fn, *args, dtype=dtypes.f64, **attributes), rate)])
    return rate


def _each(low: Lowering, node: Node, groups: int) -> list[tuple[list[View], list[View]]]:
    """For each tensor: views of it, its gradient and its states, and of the new tensor and states."""
    count, left = divmod(len(node.inputs) - 2, groups)
    if left or len(node.outputs) != count * (groups - 1):
        raise Refused("the inputs do not come in equal groups")
    found = []
    for i in range(count):
        read = [low.view(low.input(2 + i + count * g)) for g in range(groups)]
        for view in read[1:]:
            low.require_shape(
                f"{node.op_type}: gradients and states have their tensor's shape", view.shape, read[0].shape
            )
        if not all(v.dtype.is_float and v.dtype is read[0].dtype for v in read):
            raise Refused("a tensor, its gradient and its states have different types")
        found.append((read, [low.make(node.outputs[i + count * g]) for g in range(groups - 1)]))
    return found

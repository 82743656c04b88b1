"""Pooling over windows; over whole images it is a reduction."""

from __future__ import annotations

import math

from sardonyx import dtypes
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import Pool, View, Window
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.pool_indices import max_pool_indices
from sardonyx.lower.rules.reduce import Rows, apply, pool_whole
from sardonyx.lower.rules.window import window_of
from sardonyx.lower.sizes import Refused, product

MAX_ROWS = 128
"""Rows of a window: the kernels unroll them."""


@rule("MaxPool", "AveragePool")
def pool(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    if len(x.shape) < 3:
        raise Refused(f"{node.op_type}: the input has no spatial axes")
    if x.dtype is dtypes.bool_ or (node.op_type == "AveragePool" and not x.dtype.is_float):
        raise Refused(f"{node.op_type} of {x.dtype} is not compiled")
    sizes = low.shape(node.outputs[0])[2:]
    window, ends = window_of(low, node, x.shape[2:], sizes, node.attrs["kernel_shape"])
    out = low.make(node.outputs[0])
    if window.kernel == x.shape[2:] and all(d == 1 for d in sizes) and not any((*window.pads, *ends)):
        pool_whole(low, x, out, is_mean=node.op_type == "AveragePool")
    else:
        _require_few_rows(node, window)
        body = ExpressionBuilder([work_type(x.dtype) if x.dtype.is_float else x.dtype])
        kind = "max" if node.op_type == "MaxPool" else "mean"
        counted = ends if node.attrs.get("count_include_pad", 0) else None
        low.groups.append(Pool((node,), body.expression([~0]), (), (out,), kind, x, window, counted))
    if len(node.outputs) > 1 and not node.outputs[1].is_dead:
        max_pool_indices(low, node, x, window, out, low.make(node.outputs[1]))


def _require_few_rows(node: Node, window: Window) -> None:
    if math.prod(window.kernel[:-1]) > MAX_ROWS:
        raise Refused(f"{node.op_type}: the window has more than {MAX_ROWS} rows")


def _exponent(node: Node) -> int:
    p: int = node.attrs.get("p", 2)
    if p < 1:
        raise Refused(f"{node.op_type}: p is not at least 1")
    return p


def _power(e: Emitter, x: Expr, *, p: int) -> Expr:
    x = e.abs(x)
    return x if p == 1 else x * x if p == 2 else e.pow(x, p)


def _root(e: Emitter, x: Expr, *, p: int) -> Expr:
    return x if p == 1 else e.sqrt(x) if p == 2 else e.pow(x, 1 / p)


@rule("LpPool")
def lp_pool(low: Lowering, node: Node) -> None:
    """A loop for the powers, a sum pool, and the roots in its epilogue."""
    x, p = low.view(low.input(0)), _exponent(node)
    if len(x.shape) < 3 or not x.dtype.is_float or p < 1:
        raise Refused(f"LpPool of power {p} of {x.dtype} is not compiled")
    out, work = low.make(node.output), work_type(x.dtype)
    window, _ = window_of(low, node, x.shape[2:], out.shape[2:], node.attrs["kernel_shape"])
    _require_few_rows(node, window)
    powers = _powers(low, x, p)
    body = ExpressionBuilder([work])
    result = apply(body, _root, ~0, dtype=out.dtype, p=p)
    low.groups.append(Pool((node,), body.expression([result]), (), (out,), "sum", powers, window, None))


def _powers(low: Lowering, x: View, p: int) -> View:
    body, work = ExpressionBuilder(), work_type(x.dtype)
    powers = low.temporary(work, x.shape)
    low.loop(x.shape, body, [(apply(body, _power, body.operand(x), dtype=work, p=p), powers)])
    return powers


@rule("GlobalLpPool")
def global_lp_pool(low: Lowering, node: Node) -> None:
    x, out, p = low.view(low.input(0)), low.make(node.output), _exponent(node)
    rows, work = Rows(low, x, range(2, len(x.shape))), work_type(x.dtype)
    body = rows.body
    total = body.reduce("sum", apply(body, _power, body.operand(rows.x), dtype=work, p=p), work)
    rows.store((apply(body, _root, total, dtype=out.dtype, p=p), rows.row(out, keepdims=True)))


def _normalized(e: Emitter, squares: Expr, x: Expr, *, bias: float, alpha: float, beta: float) -> Expr:
    level = bias + squares * alpha
    if beta == 0.5:
        return x / e.sqrt(level)
    return x / (e.sqrt(level) * e.sqrt(e.sqrt(level)) if beta == 0.75 else e.pow(level, beta))


@rule("LRN")
def lrn(low: Lowering, node: Node) -> None:
    """A sum pool over channels: the input as an image (channels, pixels) with windows along the channels."""
    x, get = low.view(low.input(0)), node.attrs.get
    size = get("size", 0)
    if len(x.shape) < 2 or size < 1 or not x.dtype.is_float:
        raise Refused("LRN needs a channel axis and a positive size")
    out, work = low.make(node.output), work_type(x.dtype)
    before, after = (size - 1) // 2, size // 2
    if isinstance(x.shape[1], int):  # no channel has more than all others around it
        before, after = min(before, max(x.shape[1] - 1, 0)), min(after, max(x.shape[1] - 1, 0))
    window = Window((before + 1 + after, 1), (1, 1), (1, 1), (before, 0))
    _require_few_rows(node, window)
    shape = (x.shape[0], 1, x.shape[1], product(x.shape[2:]))
    image, powers, target = (low.reshaped(v, shape) for v in (x, _powers(low, x, 2), out))
    body = ExpressionBuilder([work])
    factors = {"bias": get("bias", 1.0), "alpha": get("alpha", 1e-4) / size, "beta": get("beta", 0.75)}
    result: Handle = apply(body, _normalized, ~0, body.operand(image), dtype=out.dtype, **factors)
    expression = body.expression([result])
    low.groups.append(Pool((node,), expression, tuple(body.views), (target,), "sum", powers, window, None))

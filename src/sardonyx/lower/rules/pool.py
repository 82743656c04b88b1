"""Pooling over windows; over whole images it is a reduction."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx import dtypes
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import Pool, View, Window
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.pool_indices import max_pool_indices
from sardonyx.lower.rules.reduce import Rows, apply, divide, pool_whole
from sardonyx.lower.rules.window import clipped, require_near, window_of
from sardonyx.lower.sizes import Refused, product
from sardonyx.ops import window as ops_window
from sardonyx.ops.pool import averaged_taps


@rule("MaxPool", "AveragePool")
def pool(low: Lowering, node: Node) -> None:
    x = low.view(low.input(0))
    if len(x.shape) < 3:
        raise Refused(f"{node.op_type}: the input has no spatial axes")
    if x.dtype is dtypes.bool_ or (node.op_type == "AveragePool" and not x.dtype.is_float):
        raise Refused(f"{node.op_type} of {x.dtype} is not compiled")
    sizes, is_max = low.shape(node.outputs[0])[2:], node.op_type == "MaxPool"
    stated, ends = window_of(low, node, x.shape[2:], sizes, node.attrs["kernel_shape"])
    counts_padding = not is_max and bool(node.attrs.get("count_include_pad", 0))
    window, counted = clipped(stated, x.shape[2:], sizes), None
    if counts_padding and window != stated:
        counted = _counted(low, x, stated, ends, sizes)
        window = stated if counted is None else window
    require_near(node.op_type, window)
    out = low.make(node.outputs[0])
    if window.kernel == x.shape[2:] and all(d == 1 for d in sizes) and not any(window.pads):
        pool_whole(low, x, out, is_mean=not is_max, counted=counted)
    else:
        work = work_type(x.dtype) if x.dtype.is_float else x.dtype
        body = ExpressionBuilder([work])
        kind = "max" if is_max else "mean" if counted is None else "sum"
        result: Handle = ~0
        if counted is not None:
            result = apply(body, divide, ~0, body.operand(low.fit(counted, out.shape)), dtype=work)
        after = ends if counts_padding and counted is None else None
        expression = body.expression([result])
        low.groups.append(Pool((node,), expression, tuple(body.views), (out,), kind, x, window, after))
    if len(node.outputs) > 1 and not node.outputs[1].is_dead:
        max_pool_indices(low, node, x, window, out, low.make(node.outputs[1]))


def _counted(low: Lowering, x: View, window: Window, ends: Sequence[Known], out: Sequence[Known]) -> View | None:
    """How many elements, padding included, the mean of each output counts, if all sizes are known: a constant that
    broadcasts to the result.
    """
    known = [tuple(d for d in each if isinstance(d, int)) for each in (x.shape[2:], window.pads, ends, out)]
    if any(len(each) < len(out) for each in known):
        return None
    size, begin, end, output = known
    seen = ops_window.Window(size, window.kernel, window.strides, window.dilations, begin, end, output)
    counts = averaged_taps(seen, count_include_pad=True)
    return low.constant(Tensor.of(counts.astype(work_type(x.dtype).numpy)))


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
    window = clipped(window, x.shape[2:], out.shape[2:])
    require_near(node.op_type, window)
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
    require_near(node.op_type, window)
    shape = (x.shape[0], 1, x.shape[1], product(x.shape[2:]))
    image, powers, target = (low.reshaped(v, shape) for v in (x, _powers(low, x, 2), out))
    body = ExpressionBuilder([work])
    factors = {"bias": get("bias", 1.0), "alpha": get("alpha", 1e-4) / size, "beta": get("beta", 0.75)}
    result: Handle = apply(body, _normalized, ~0, body.operand(image), dtype=out.dtype, **factors)
    expression = body.expression([result])
    low.groups.append(Pool((node,), expression, tuple(body.views), (target,), "sum", powers, window, None))

"""Matrix products."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import Contraction, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.reduce import apply, plus, times
from sardonyx.lower.sizes import Refused


@rule("MatMul")
def matmul(low: Lowering, node: Node) -> None:
    a, b, out = low.view(low.input(0)), low.view(low.input(1)), low.make(node.output)
    if not a.shape or not b.shape:
        raise Refused("MatMul: an operand has no axes")
    if len(a.shape) == 1:
        a, out = views.inserted(a, 0), views.inserted(out, len(out.shape) - (len(b.shape) > 1))
    if len(b.shape) == 1:
        b, out = views.inserted(b, 1), views.inserted(out, len(out.shape))
    batch, (m, n), k = out.shape[:-2], out.shape[-2:], a.shape[-1]
    low.require("MatMul: the shapes of the operands do not fit", b.shape[-2], k)
    a, b = low.fit(a, (*batch, m, k)), low.fit(b, (*batch, k, n))
    if out.dtype.is_float:
        body = ExpressionBuilder([work_type(out.dtype)])
        contraction(low, a, b, body, ~0, out)
        return
    _integers(low, a, b, None, out)


def _integers(low: Lowering, a: View, b: View, c: View | None, out: View) -> None:
    """a b + c with wrapping integer sums: a loop with a reduction over k."""
    body, lead, (m, n), k = ExpressionBuilder(), len(out.shape) - 2, out.shape[-2:], a.shape[-1]
    rows = views.inserted(a, lead + 1, n)
    columns = views.inserted(views.permuted(b, (*range(lead), lead + 1, lead)), lead, m)
    total = body.reduce(
        "sum", apply(body, times, body.operand(rows), body.operand(columns), dtype=out.dtype), out.dtype
    )
    if c is not None:
        total = apply(
            body, plus, total, body.operand(views.inserted(low.fit(c, out.shape), lead + 2, k)), dtype=out.dtype
        )
    low.loop((*out.shape[:-2], m, n, k), body, [(total, out)], reduced=1)


def contraction(low: Lowering, a: View, b: View, body: ExpressionBuilder, result: Handle, out: View) -> None:
    """Append a contraction. Batch axes along which ``b`` is broadcast are merged into the rows."""
    while len(a.shape) > 2 and b.strides[-3] == 0 and all(views.is_mergeable(v, len(v.shape) - 3) for v in (a, out)):
        a, out = (views.merged(v, len(v.shape) - 3) for v in (a, out))
        b = views.selected(b, len(b.shape) - 3)
    *batch, m, n = out.shape
    k: Known = a.shape[-1]
    expression = body.expression([result])
    low.groups.append(
        Contraction((low.node,), expression, tuple(body.views), (out,), tuple(batch), m, n, k, a, b)
    )  # fmt: skip


def _scaled(e: Emitter, x: Expr, *, alpha: float) -> Expr:
    return x * alpha


def _shifted(e: Emitter, x: Expr, c: Expr, *, alpha: float, beta: float) -> Expr:
    return (x if alpha == 1 else x * alpha) + (c if beta == 1 else c * beta)


@rule("Gemm")
def gemm(low: Lowering, node: Node) -> None:
    a, b, out = low.view(low.input(0)), low.view(low.input(1)), low.make(node.output)
    alpha, beta = node.attrs.get("alpha", 1.0), node.attrs.get("beta", 1.0)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise Refused("Gemm: A and B must be matrices")
    a = views.permuted(a, (1, 0)) if node.attrs.get("transA", 0) else a
    b = views.permuted(b, (1, 0)) if node.attrs.get("transB", 0) else b
    low.require("Gemm: the shapes of the operands do not fit", b.shape[0], a.shape[1])
    c = node.input(2)
    if not out.dtype.is_float:
        if alpha != 1 or beta not in (0, 1):
            raise Refused("Gemm of integers with real factors is not compiled")
        _integers(low, a, b, None if c is None or not beta else low.view(c), out)
        return
    body = ExpressionBuilder([work_type(out.dtype)])
    result: Handle = ~0
    if c is not None and beta != 0:
        operand = body.operand(low.fit(low.view(c), out.shape))
        result = apply(body, _shifted, result, operand, dtype=out.dtype, alpha=alpha, beta=beta)
    elif alpha != 1:
        result = apply(body, _scaled, result, dtype=out.dtype, alpha=alpha)
    contraction(low, a, b, body, result, out)

"""Attention with the score matrix in memory: for models that output the scores, and in f64."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, work_type
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.rules.matmul import contraction
from sardonyx.lower.rules.pointwise import as_type, converted
from sardonyx.lower.rules.reduce import Rows, apply, exp_minus, finite_or_zero, plus
from sardonyx.lower.sizes import Refused


def _scaled(e: Emitter, x: Expr, *, scale: float) -> Expr:
    return x * scale


def _capped(e: Emitter, x: Expr, *, cap: float) -> Expr:
    return e.tanh(x / cap) * cap


def _over(e: Emitter, x: Expr, total: Expr) -> Expr:
    """x / total; 0 for a row that sees no key."""
    return x / e.where(e.eq(total, 0), 1, total)


def unfused_attention(
    low: Lowering, node: Node, q: View, k: View, v: View, bias: View | None, scale: float, out: View,
    seen: Value | None,
) -> None:  # fmt: skip
    """Scores, softmax and product with the values as separate groups; ``seen`` is the output for the scores, of the
    stage that ``qk_matmul_output_mode`` selects.
    """
    work, mode = work_type(q.dtype, k.dtype, v.dtype), node.attrs.get("qk_matmul_output_mode", 0)
    soft = dtypes.f64 if node.attrs.get("softmax_precision") == dtypes.f64.onnx else work
    if mode not in range(4):
        raise Refused(f"qk_matmul_output_mode {mode} is not known")
    if len({t is dtypes.f64 for t in (q.dtype, k.dtype, v.dtype)}) > 1:
        raise Refused("Attention of f64 and narrower types is not compiled")
    batch, heads, rows, _ = q.shape
    key_heads, keys = k.shape[1:3]
    shared = dims.floordiv(heads, key_heads)
    assert shared is not None
    split = (key_heads, shared)
    scores = low.temporary(work, (batch, heads, rows, keys))
    _product(low, views.split(q, 1, split), views.permuted(k, (0, 1, 3, 2)), views.split(scores, 1, split), work, scale)

    table = Rows(low, scores, [3])
    stages = _stages(table, node.attrs.get("softcap", 0.0), bias, work, soft)
    weights = low.temporary(soft, scores.shape)
    stores = [(stages[3], table.full(weights))]
    shown = None if seen is None else low.make(seen)
    is_intermediate = mode in (1, 2) and stages[mode] != stages[0]
    if shown is not None and is_intermediate:
        shown_value = apply(table.body, as_type, stages[mode], dtype=shown.dtype, source=work, to=shown.dtype)
        stores.append((shown_value, table.full(shown)))
    table.store(*stores)
    if shown is not None and not is_intermediate:
        converted(low, weights if mode == 3 else scores, shown)
    if soft is not work:
        narrow = low.temporary(work, weights.shape)
        converted(low, weights, narrow)
        weights = narrow
    _product(low, views.split(weights, 1, split), v, views.split(out, 1, split), work, 1.0)


def _stages(table: Rows, cap: float, bias: View | None, work: DType, soft: DType) -> list[int]:
    """The scores as they are, capped, with the bias added, and their softmax, as ``qk_matmul_output_mode`` counts."""
    body = table.body
    value = body.operand(table.x)
    stages = [value]
    if cap:
        value = apply(body, _capped, value, dtype=work, cap=cap)
    stages.append(value)
    if bias is not None:
        value = apply(body, plus, value, table.operand(bias), dtype=work)
    stages.append(value)
    if soft is not work:
        value = apply(body, as_type, value, dtype=soft, source=work, to=soft)
    top = apply(body, finite_or_zero, body.reduce("max", value, soft), dtype=soft)
    raised = apply(body, exp_minus, value, top, dtype=soft)
    stages.append(apply(body, _over, raised, body.reduce("sum", raised, soft), dtype=soft))
    return stages


def _product(low: Lowering, a: View, b: View, out: View, work: DType, scale: float) -> None:
    """A batched product in which the heads of a key head share ``b``."""
    body = ExpressionBuilder([work])
    result = ~0 if scale == 1 else apply(body, _scaled, ~0, dtype=out.dtype, scale=scale)
    b = low.fit(views.inserted(b, 2), (*out.shape[:3], *b.shape[2:]))
    contraction(low, a, b, body, result, out)

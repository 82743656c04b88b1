"""Attention masks: the given mask, causality, sliding windows and counts of valid keys as one additive mask."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.rules.reduce import INFINITY, apply
from sardonyx.lower.sizes import Refused, sub
from sardonyx.optimize.guards import Guard


def is_positional(node: Node) -> bool:
    """Whether keys are hidden by more than a mask and causality: by a window or a count of valid keys."""
    window = max(node.attrs.get("left_window_size", -1), node.attrs.get("right_window_size", -1))
    return node.input(6) is not None or window >= 0


def given_mask(low: Lowering, node: Node, shape: tuple[Known, ...], dtype: DType) -> View | None:
    """The mask that the model gives, broadcast to all scores: bools, or numbers to add. Keys beyond it are hidden."""
    if node.input(3) is None:
        return None
    mask = low.view(low.input(3))
    if not mask.shape or len(mask.shape) > 4:
        raise Refused("a mask has one to four axes")
    missing = _missing(low, mask.shape[-1], shape[-1])
    if missing or mask.dtype not in (dtypes.bool_, dtype):
        wide, body = low.temporary(dtype, (*mask.shape[:-1], shape[-1])), ExpressionBuilder()
        here = views.sliced(wide, len(mask.shape) - 1, 0, mask.shape[-1])
        value = apply(body, _as_bias, body.operand(mask), dtype=dtype, is_flag=mask.dtype is dtypes.bool_, to=dtype)
        low.loop(mask.shape, body, [(value, here)])
        if missing:
            low.copy(low.scalar(-INFINITY, dtype), views.sliced(wide, len(mask.shape) - 1, mask.shape[-1], missing))
        mask = wide
    return low.fit(mask, shape)


def _missing(low: Lowering, have: Known, keys: Known) -> Known:
    """The number of keys beyond the end of a mask, which are hidden.

    A length that only the run tells is guarded to be that of the keys.
    """
    if have == keys:
        return 0
    if isinstance(have, int):
        missing = sub(keys, have)
        low.require_least("Attention: the mask is longer than the keys", missing, 0)
        return missing
    low.guard("Attention: the mask does not cover all keys", Guard(have, (keys,)))
    return 0


def _as_bias(e: Emitter, mask: Expr, *, is_flag: bool, to: DType) -> Expr:
    return e.where(mask, e.cast(mask, to) * 0, -INFINITY) if is_flag else e.cast(mask, to)


def _mask_element(
    e: Emitter, row: Expr, key: Expr, rows: Expr, past: Expr, *rest: Expr,
    is_counted: bool, is_causal: bool, left: int, right: int, is_flag: bool, to: DType,
) -> Expr:  # fmt: skip
    """0, or the mask, if the query sees the key; else -inf."""
    if is_counted:
        count = e.cast(rest[0], dtypes.i64)
        past, seen, rest = count - rows, key < count, rest[1:]
    else:
        seen = key >= 0
    ahead = key - (row + past)
    if is_causal:
        seen = seen & (ahead <= 0)
    if left >= 0:
        seen = seen & (ahead >= -left)
    if right >= 0:
        seen = seen & (ahead <= right)
    bias = _as_bias(e, rest[0], is_flag=is_flag, to=to) if rest else e.cast(key, to) * 0
    return e.where(seen, bias, -INFINITY)


def combined_mask(low: Lowering, node: Node, shape: tuple[Known, ...], past: Known, dtype: DType) -> View:
    """Everything that hides keys, as numbers to add. Batch and heads are broadcast if all have the same mask."""
    batch, heads, rows, keys = shape
    mask, counts, attrs = given_mask(low, node, shape, dtype), node.input(6), node.attrs
    given = None if counts is None else low.view(counts)
    if given is not None:
        if len(given.shape) != 1:
            raise Refused("nonpad_kv_seqlen needs one count for each batch")
        low.require("Attention: nonpad_kv_seqlen needs one value per batch", given.shape[0], batch)
    box = (
        batch if given is not None or (mask is not None and mask.strides[0] != 0) else 1,
        heads if mask is not None and mask.strides[1] != 0 else 1, rows, keys,
    )  # fmt: skip
    operands = [views.inserted(low.indices(rows), 1), low.indices(keys), low.number(rows), low.number(past)]
    if given is not None:
        for _ in range(3):
            given = views.inserted(given, len(given.shape))
        operands.append(given)
    if mask is not None:
        operands.append(View(mask.storage, box, mask.strides, mask.offset))
    out, body = low.temporary(dtype, box), ExpressionBuilder()
    args = [body.operand(low.fit(v, box)) for v in operands]
    value = apply(
        body, _mask_element, *args, dtype=dtype,
        is_counted=given is not None, is_causal=bool(attrs.get("is_causal", 0)),
        left=attrs.get("left_window_size", -1), right=attrs.get("right_window_size", -1),
        is_flag=mask is not None and mask.dtype is dtypes.bool_, to=dtype,
    )  # fmt: skip
    low.loop(box, body, [(value, out)])
    return low.fit(out, shape)

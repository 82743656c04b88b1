"""CausalConvWithState and LinearAttention, which carry a state from token to token."""

from __future__ import annotations

import math

from sardonyx import dtypes
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import Convolution, LinearAttention, View, Window
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.attention import heads_first
from sardonyx.lower.rules.conv import per_channel
from sardonyx.lower.rules.reduce import apply, plus
from sardonyx.lower.sizes import Refused, add


def _silu(e: Emitter, x: Expr) -> Expr:
    return x * e.sigmoid(x)


@rule("CausalConvWithState")
def causal_conv_with_state(low: Lowering, node: Node) -> None:
    """The past inputs and the new ones concatenated, and a depthwise convolution of that."""
    x, w = low.view(low.input(0)), low.view(low.input(1))
    if len(x.shape) != 3 or len(w.shape) != 3 or not isinstance(w.shape[2], int) or w.shape[2] < 1:
        raise Refused("CausalConvWithState: the input is not (batch, channels, length)")
    if node.attrs.get("activation", "none") not in ("none", "silu", "swish"):
        raise Refused("CausalConvWithState: the activation is not known")
    (batch, channels, length), taps = x.shape, w.shape[2]
    if not isinstance(channels, int):
        raise Refused("CausalConvWithState: the channels are not known before the run")
    low.require_shape("CausalConvWithState: the weights do not fit", w.shape[:2], (channels, 1))
    row = low.temporary(x.dtype, (batch, channels, add(length, taps - 1)))
    past, before = node.input(3), views.sliced(row, 2, 0, taps - 1)
    if past is not None and taps > 1:
        state = low.view(past)
        low.require_shape(
            "CausalConvWithState: past_state has the wrong shape", state.shape, (batch, channels, taps - 1)
        )
        low.copy(state, before)
    elif taps > 1:
        low.copy(low.scalar(0, x.dtype), before)
    low.copy(x, views.sliced(row, 2, taps - 1, length))
    if len(node.outputs) > 1 and not node.outputs[1].is_dead:
        low.alias(node.outputs[1], views.sliced(row, 2, length, taps - 1))
    out = low.make(node.outputs[0])
    body, bias = ExpressionBuilder([work_type(out.dtype)]), node.input(2)
    result: Handle = ~0
    if bias is not None:
        result = apply(body, plus, result, body.operand(per_channel(low, low.view(bias), out.shape)), dtype=out.dtype)
    if node.attrs.get("activation", "none") != "none":
        result = apply(body, _silu, result, dtype=out.dtype)
    dense = _dense(low, w)
    window = Window((taps,), (1,), (1,), (0,))
    expression = body.expression([result])
    low.groups.append(Convolution((node,), expression, tuple(body.views), (out,), row, dense, window, channels))


def _dense(low: Lowering, view: View) -> View:
    if views.is_dense(view):
        return view
    out = low.temporary(view.dtype, view.shape)
    low.copy(view, out)
    return out


@rule("LinearAttention")
def linear_attention(low: Lowering, node: Node) -> None:
    attrs, rule_ = node.attrs, node.attrs.get("update_rule", "gated_delta")
    heads, key_heads = attrs["q_num_heads"], attrs["kv_num_heads"]
    decay, beta = node.input(4), node.input(5)
    if rule_ not in ("linear", "gated", "delta", "gated_delta") or heads < 1 or key_heads < 1 or heads % key_heads:
        raise Refused("LinearAttention: the update rule or the number of heads is not supported")
    if rule_.startswith("gated") != (decay is not None) or rule_.endswith("delta") != (beta is not None):
        raise Refused("LinearAttention: the update rule does not fit the inputs")
    given = [low.view(low.input(i)) for i in range(3)]
    if any(len(v.shape) != 3 or v.dtype is dtypes.f64 for v in given):
        raise Refused("LinearAttention of other than three axes, or in f64, is not compiled")
    q, k, v = (
        heads_first(_with_contiguous_rows(low, x), n) for x, n in zip(given, (heads, key_heads, key_heads), strict=True)
    )
    batch, _, tokens, width = q.shape
    fit = "LinearAttention: query, key and value do not fit each other"
    low.require_shape(fit, k.shape, (batch, key_heads, tokens, width))
    low.require_shape(fit, v.shape[:3], k.shape[:3])
    state = (batch, key_heads, width, v.shape[3])
    past = None if node.input(3) is None else _with_contiguous_rows(low, low.view(low.input(3)))
    if past is not None:
        low.require_shape("LinearAttention: past_state has the wrong shape", past.shape, state)
    decays = None if decay is None else _per_token(low, _exponentials(low, low.view(decay)), k.shape)
    betas = None if beta is None else views.selected(_per_token(low, low.view(beta), (*k.shape[:3], 1)), 3)
    out = heads_first(low.make(node.outputs[0]), heads)
    shown = len(node.outputs) > 1 and not node.outputs[1].is_dead
    present = low.make(node.outputs[1]) if shown else low.temporary(dtypes.f32, state)
    assert isinstance(width, int)
    scale = attrs.get("scale", 0.0) or 1 / math.sqrt(width or 1)
    low.groups.append(LinearAttention((node,), q, k, v, decays, betas, past, out, present, scale))


def _with_contiguous_rows(low: Lowering, view: View) -> View:
    return view if view.strides[-1] == 1 else _dense(low, view)


def _exponentials(low: Lowering, decay: View) -> View:
    out, body = low.temporary(dtypes.f32, decay.shape), ExpressionBuilder()
    low.loop(decay.shape, body, [(apply(body, Emitter.exp, body.operand(decay), dtype=dtypes.f32), out)])
    return out


def _per_token(low: Lowering, gate: View, shape: tuple[Known, ...]) -> View:
    """A gate (batch, tokens, features), where features are heads, 1 or heads * width, broadcast to (batch, heads,
    tokens, width).
    """
    if len(gate.shape) != 3 or not isinstance(gate.shape[2], int) or not isinstance(shape[1], int):
        raise Refused("LinearAttention: a gate is not (batch, tokens, features)")
    return low.fit(heads_first(gate, min(gate.shape[2], shape[1])), shape)

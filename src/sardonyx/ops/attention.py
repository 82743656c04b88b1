"""Scaled dot-product attention with masks and caches, rotary embeddings, and linear attention."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import Array, compute_type, narrow, require, require_below, widen
from sardonyx.ops.registry import op

_NEG_INF = -np.inf


def _split_heads(what: str, x: Array, heads: int | None) -> Array:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    require(heads is not None and heads > 0, f"{what}: 3-D inputs need a number of heads", got=heads)
    assert heads is not None
    fits = x.ndim == 3 and x.shape[2] % heads == 0
    require(fits, f"{what}: the hidden size is no multiple of the heads", expected=heads, got=x.shape)
    return np.asarray(x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(0, 2, 1, 3))


def _merge_heads(x: Array) -> Array:
    return np.asarray(x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3]))


def _scores_shape(what: str, q: Array, k: Array, v: Array) -> tuple[int, int, int, int]:
    """(batch, query heads, queries, keys), for inputs that fit each other."""
    batch, heads, length, size = q.shape
    kv_heads, total = k.shape[1], k.shape[2]
    fits = k.shape[0] == batch and k.shape[3] == size and v.shape[:3] == k.shape[:3]
    require(fits, f"{what}: Q, K and V do not fit each other", got=(q.shape, k.shape, v.shape))
    fits = heads % kv_heads == 0 if kv_heads else heads == 0
    require(fits, f"{what}: query heads are no multiple of key heads", expected=kv_heads, got=heads)
    return batch, heads, length, total


def _unpadded(what: str, lengths: Array, shape: tuple[int, ...]) -> Array:
    """The number of keys of each batch entry that are no padding."""
    require(lengths.shape == shape[:1], f"{what}: nonpad_kv_seqlen needs one value per batch", got=lengths.shape)
    return lengths


def _mask_bias(mask: Array, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """A boolean or additive mask as an additive one, its last axis padded with -inf."""
    bias = np.where(mask, 0.0, _NEG_INF).astype(dtype) if mask.dtype == bool else mask.astype(dtype)
    missing = shape[-1] - bias.shape[-1] if bias.ndim else 0
    if missing > 0:
        bias = np.pad(bias, [(0, 0)] * (bias.ndim - 1) + [(0, missing)], constant_values=_NEG_INF)
    fits = bias.ndim <= 4 and all(n in (1, m) for n, m in zip(bias.shape[::-1], shape[::-1], strict=False))
    require(fits, "Attention: attn_mask does not broadcast to the scores", expected=shape, got=mask.shape)
    return bias


def _position_bias(
    shape: tuple[int, ...], offset: Array, causal: bool, left: int, right: int, dtype: np.dtype[np.generic]
) -> Array:
    """0 where a query attends to a key, -inf elsewhere: (batch or 1, 1, length, total)."""
    ahead = np.arange(shape[3]) - (np.arange(shape[2])[:, None] + offset.reshape(-1, 1, 1, 1))
    allowed = np.ones(ahead.shape, bool)
    if causal:
        allowed &= ahead <= 0
    if left >= 0:
        allowed &= ahead >= -left
    if right >= 0:
        allowed &= ahead <= right
    return np.where(allowed, 0.0, _NEG_INF).astype(dtype)


def _padding_bias(total: int, lengths: Array, dtype: np.dtype[np.generic]) -> Array:
    """0 for the first ``lengths`` keys, -inf for the others: (batch, 1, 1, total)."""
    return np.where(np.arange(total) < lengths.reshape(-1, 1, 1, 1), 0.0, _NEG_INF).astype(dtype)


def _scaled_products(q: Array, k: Array, scale: float | None, dtype: np.dtype[Any]) -> Array:
    """Queries times keys; each side is multiplied with the root of the scale, so that the products do not overflow."""
    factor = dtype.type(math.sqrt(scale if scale is not None else 1 / math.sqrt(q.shape[3] or 1)))
    return _grouped_product(q.astype(dtype) * factor, (k.astype(dtype) * factor).swapaxes(2, 3))


def _grouped_product(a: Array, b: Array) -> Array:
    """A product for each query head; those that share a key head are rows of one product."""
    batch, heads, length, inner = a.shape
    kv_heads = b.shape[1]
    rows = a.reshape(batch, kv_heads, heads // max(kv_heads, 1) * length, inner)
    return np.asarray(np.matmul(rows, b).reshape(batch, heads, length, b.shape[3]))


def _softmax(x: Array) -> Array:
    """Softmax along the last axis; a row of -inf gives zeros."""
    top = x.max(axis=-1, keepdims=True, initial=_NEG_INF)
    y = np.exp(x - np.where(np.isneginf(top), 0, top))
    total = y.sum(axis=-1, keepdims=True)
    y /= np.where(total == 0, 1, total)
    return np.asarray(y)


@op("Attention")
def attention(
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    outputs: int = 1,
) -> tuple[Array, ...]:
    what, dtype, packed = "Attention", q.dtype, q.ndim == 3
    require(q.ndim in (3, 4) and k.ndim == v.ndim == q.ndim, f"{what}: Q, K and V must all be 3-D or 4-D", got=q.shape)
    require((past_key is None) == (past_value is None), f"{what}: past_key and past_value go together")
    require(past_key is None or nonpad_kv_seqlen is None, f"{what}: nonpad_kv_seqlen cannot be combined with a past")
    if packed:
        q = _split_heads(what, q, q_num_heads)
        k, v = _split_heads(what, k, kv_num_heads), _split_heads(what, v, kv_num_heads)
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    shape, work = _scores_shape(what, q, k, v), compute_type(q, k, v)
    check_elements(math.prod(shape), work, f"scores of {what}")
    offset = np.array([past]) if nonpad_kv_seqlen is None else _unpadded(what, nonpad_kv_seqlen, shape) - shape[2]
    biases = []
    if attn_mask is not None:
        biases.append(_mask_bias(attn_mask, shape, work))
    if is_causal or left_window_size >= 0 or right_window_size >= 0:
        biases.append(_position_bias(shape, offset, bool(is_causal), left_window_size, right_window_size, work))
    if nonpad_kv_seqlen is not None:
        biases.append(_padding_bias(shape[3], nonpad_kv_seqlen, work))
    bias = reduce(np.add, biases) if biases else None

    products = _scaled_products(q, k, scale, work)
    capped = np.tanh(products / work.type(softcap)) * work.type(softcap) if softcap > 0 else products
    biased = capped if bias is None else capped + bias
    in_f64 = softmax_precision is not None and dtypes.of_onnx(softmax_precision) is dtypes.f64
    weights = _softmax(biased.astype(np.float64) if in_f64 else biased).astype(work, copy=False)
    if bias is not None:
        weights = np.where(np.isneginf(bias.max(axis=-1, keepdims=True, initial=_NEG_INF)), 0, weights)
    y = _grouped_product(weights, v.astype(work, copy=False))
    result = narrow(_merge_heads(y) if packed else y, dtype)
    if outputs < 4:
        return result, k, v
    require(0 <= qk_matmul_output_mode <= 3, f"{what}: unknown qk_matmul_output_mode", got=qk_matmul_output_mode)
    return result, k, v, narrow((products, capped, biased, weights)[qk_matmul_output_mode], dtype)


@op("RotaryEmbedding")
def rotary_embedding(
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    """Pairs of features rotated by an angle that depends on the position."""
    what = "RotaryEmbedding"
    require(x.ndim in (3, 4), f"{what}: the input must be 3-D or 4-D", got=x.shape)
    wide = widen(_split_heads(what, x, num_heads) if x.ndim == 3 else x)
    size = rotary_embedding_dim or wide.shape[3]
    require(size % 2 == 0 and 0 < size <= wide.shape[3], f"{what}: the rotated size must be even", got=size)
    cos, sin = widen(cos_cache), widen(sin_cache)
    if position_ids is not None:
        require_below(min(len(cos), len(sin)), position_ids, f"{what}: a position is out of range")
        cos, sin = cos[position_ids], sin[position_ids]
    expected = (wide.shape[0], wide.shape[2], size // 2)
    fits = cos.shape == sin.shape == expected
    require(fits, f"{what}: the caches do not fit the input", expected=expected, got=(cos.shape, sin.shape))
    cos, sin = cos[:, None], sin[:, None]
    y = wide.copy()
    ends = (slice(0, size, 2), slice(1, size, 2)) if interleaved else (slice(0, size // 2), slice(size // 2, size))
    a, b = wide[..., ends[0]], wide[..., ends[1]]
    y[..., ends[0]] = cos * a - sin * b
    y[..., ends[1]] = sin * a + cos * b
    return narrow(_merge_heads(y) if x.ndim == 3 else y, x.dtype)


@op("LinearAttention")
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    chunk_size: int = 64,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    """A state of key-value products, decayed and corrected per token, read by the queries."""
    what = "LinearAttention"
    _check_update_rule(what, update_rule, decay, beta)
    q = _split_heads(what, widen(query), q_num_heads)
    k, v = _split_heads(what, widen(key), kv_num_heads), _split_heads(what, widen(value), kv_num_heads)
    fits = q_num_heads % kv_num_heads == 0
    require(fits, f"{what}: q_num_heads is no multiple of kv_num_heads", expected=kv_num_heads, got=q_num_heads)
    batch, _, length, size = q.shape
    fits = k.shape == (batch, kv_num_heads, length, size) and v.shape[:3] == k.shape[:3]
    require(fits, f"{what}: query, key and value do not fit each other", got=(query.shape, key.shape, value.shape))
    shape = (batch, kv_num_heads, size, v.shape[3])
    fits = past_state is None or past_state.shape == shape
    require(fits, f"{what}: past_state has the wrong shape", expected=shape)
    state = np.zeros(shape, q.dtype) if past_state is None else widen(past_state)
    fade = rate = None
    if decay is not None:
        fade = np.exp(_per_token(what, "decay", widen(decay), q, kv_num_heads, (kv_num_heads, kv_num_heads * size)))
    if beta is not None:
        rate = _per_token(what, "beta", widen(beta), q, kv_num_heads, (kv_num_heads, 1))
    factor = q.dtype.type(scale or 1 / math.sqrt(size or 1))
    readers = (q * factor).reshape(batch, kv_num_heads, q_num_heads // kv_num_heads, length, size)
    y, state = _linear_recurrence(readers, k, v, state, fade, rate)
    output = _merge_heads(y.reshape(batch, q_num_heads, length, v.shape[3]))
    return narrow(output, query.dtype), narrow(state, query.dtype if past_state is None else past_state.dtype)


def _check_update_rule(what: str, rule: str, decay: Array | None, beta: Array | None) -> None:
    require(rule in ("linear", "gated", "delta", "gated_delta"), f"{what}: unknown update_rule", got=rule)
    for name, gate, wanted in (("decay", decay, rule.startswith("gated")), ("beta", beta, rule.endswith("delta"))):
        require(wanted == (gate is not None), f"{what}: update_rule {rule!r} and the {name} input disagree")


def _linear_recurrence(
    q: Array, k: Array, v: Array, state: Array, fade: Array | None, rate: Array | None
) -> tuple[Array, Array]:
    """What the queries (batch, key heads, query heads of each, length, size) read, and the last state."""
    y = np.empty(q.shape[:-1] + v.shape[3:], q.dtype)
    for t in range(q.shape[3]):
        if fade is not None:
            state = state * fade[:, :, t, :, None]
        write = v[:, :, t]
        if rate is not None:
            known = np.matmul(k[:, :, t, None], state)[:, :, 0]
            write = rate[:, :, t] * (write - known)
        state = state + k[:, :, t, :, None] * write[:, :, None]
        y[:, :, :, t] = np.matmul(q[:, :, :, t], state)
    return y, state


def _per_token(what: str, name: str, x: Array, q: Array, heads: int, widths: tuple[int, int]) -> Array:
    """A packed gate as (batch, heads or 1, length, features or 1)."""
    fits = x.ndim == 3 and x.shape[:2] == (q.shape[0], q.shape[2]) and x.shape[2] in widths
    require(fits, f"{what}: {name} has the wrong shape", expected=(q.shape[0], q.shape[2], widths), got=x.shape)
    return _split_heads(what, x, min(x.shape[2], heads))

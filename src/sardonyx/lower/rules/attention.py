"""Attention and rotary position embeddings."""

from __future__ import annotations

import math

from sardonyx import dtypes
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, work_type
from sardonyx.lower.groups import Attention, Gather, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.attention_mask import combined_mask, given_mask, is_positional
from sardonyx.lower.rules.attention_scores import unfused_attention
from sardonyx.lower.rules.reduce import apply
from sardonyx.lower.sizes import Refused, add, sub

_FIT = "Attention: Q, K and V do not fit each other"


def heads_first(view: View, heads: int | None) -> View:
    """(batch, length, heads * width) as (batch, heads, length, width); a view of four axes is returned as it is."""
    if len(view.shape) == 4:
        return view
    hidden = view.shape[2] if len(view.shape) == 3 else None
    if not heads or not isinstance(hidden, int) or hidden % heads:
        raise Refused("the hidden size is not a known multiple of the number of heads")
    return views.permuted(views.split(view, 2, (heads, hidden // heads)), (0, 2, 1, 3))


def _live_output(node: Node, i: int) -> Value | None:
    return node.outputs[i] if i < len(node.outputs) and not node.outputs[i].is_dead else None


@rule("Attention")
def attention(low: Lowering, node: Node) -> None:
    attrs = node.attrs
    q = heads_first(low.view(low.input(0)), attrs.get("q_num_heads"))
    k, v = (heads_first(low.view(low.input(i)), attrs.get("kv_num_heads")) for i in (1, 2))
    _require_fit(low, q, k, v)
    past: Known = 0
    if node.input(4) is not None:
        past, k, v = _with_past(low, node, k, v)
    else:
        for i, new in ((1, k), (2, v)):
            if (value := _live_output(node, i)) is not None:
                low.alias(value, new)
    (batch, heads, rows, width), keys = q.shape, k.shape[2]
    shape, work = (batch, heads, rows, keys), work_type(q.dtype, k.dtype, v.dtype)
    scale, out = _scale(attrs.get("scale"), width), heads_first(low.make(node.outputs[0]), attrs.get("q_num_heads"))
    causal = bool(attrs.get("is_causal", 0))
    needs_scores = (
        not isinstance(width, int) or _live_output(node, 3) is not None or work is dtypes.f64
        or attrs.get("softmax_precision") == dtypes.f64.onnx
        or not q.dtype is k.dtype is v.dtype
    )  # fmt: skip
    if is_positional(node) or (needs_scores and (causal or node.input(3) is not None)):
        mask: View | None = combined_mask(low, node, shape, past, work)
        causal = False
    else:
        mask = given_mask(low, node, shape, work)
    if needs_scores:
        unfused_attention(low, node, q, k, v, mask, scale, out, _live_output(node, 3))
        return
    softcap = attrs.get("softcap", 0.0)
    low.groups.append(Attention((node,), q, k, v, mask, out, scale, causal, softcap, past))


def _scale(given: float | None, width: Known) -> float:
    if given is not None:
        return given
    if not isinstance(width, int):
        raise Refused("the size of a head, which is not known before the run, decides the scale")
    return 1 / math.sqrt(width or 1)


def _require_fit(low: Lowering, q: View, k: View, v: View) -> None:
    batch, heads, _, width = q.shape
    shared = k.shape[1]
    if isinstance(heads, int) and isinstance(shared, int):
        fits = shared != 0 and heads % shared == 0
    else:
        fits = shared in (1, heads)
    if not fits:
        raise Refused("the number of query heads is not a known multiple of that of key heads")
    for size, whole in ((k.shape[0], batch), (k.shape[3], width), *zip(v.shape[:3], k.shape[:3], strict=True)):
        low.require(_FIT, size, whole)


def _with_past(low: Lowering, node: Node, k: View, v: View) -> tuple[Known, View, View]:
    """The length of the past, and keys and values with the past before them."""
    if node.input(6) is not None:
        raise Refused("nonpad_kv_seqlen cannot be combined with a past")
    old = low.view(low.input(4)), low.view(low.input(5))
    for before, new in zip(old, (k, v), strict=True):
        for axis in (0, 1, 3):
            low.require(_FIT, before.shape[axis], new.shape[axis])
    past = old[0].shape[2]
    low.require(_FIT, old[1].shape[2], past)
    keys = add(past, k.shape[2])
    k, v = (_appended(low, old[i], new, keys, _live_output(node, i + 1)) for i, new in enumerate((k, v)))
    return past, k, v


def _appended(low: Lowering, old: View, new: View, keys: Known, value: Value | None) -> View:
    """Old and new keys (or values) concatenated along the sequence."""
    shape = (*new.shape[:2], keys, new.shape[3])
    whole = low.temporary(new.dtype, shape) if value is None else low.make(value)
    whole = View(whole.storage, shape, whole.strides, whole.offset)
    for part, start in ((old, 0), (new, old.shape[2])):
        target = views.sliced(whole, 2, start, part.shape[2])
        low.copy(View(part.storage, target.shape, part.strides, part.offset), target)
    return whole


def _first(e: Emitter, a: Expr, b: Expr, cos: Expr, sin: Expr) -> Expr:
    return cos * a - sin * b


def _second(e: Emitter, a: Expr, b: Expr, cos: Expr, sin: Expr) -> Expr:
    return sin * a + cos * b


@rule("RotaryEmbedding")
def rotary_embedding(low: Lowering, node: Node) -> None:
    """One loop over pairs of features that writes both results of each rotation."""
    heads = node.attrs.get("num_heads")
    x, out = (heads_first(v, heads) for v in (low.view(low.input(0)), low.make(node.output)))
    batch, _, length, width = x.shape
    if not isinstance(width, int):
        raise Refused("the size of a head is not known before the run")
    size = node.attrs.get("rotary_embedding_dim", 0) or width
    if size % 2 or not 0 < size <= width:
        raise Refused("the rotated size must be even")
    half = size // 2
    rotations = [_rotations(low, low.input(i), node.input(3), (batch, length, half)) for i in (1, 2)]

    def pair(view: View) -> tuple[View, View]:
        if node.attrs.get("interleaved", 0):
            return views.sliced(view, 3, 0, half, 2), views.sliced(view, 3, 1, half, 2)
        return views.sliced(view, 3, 0, half), views.sliced(view, 3, half, half)

    body, box = ExpressionBuilder(), (*x.shape[:3], half)
    args = [body.operand(v) for v in (*pair(x), *(low.fit(views.inserted(t, 1), box) for t in rotations))]
    results = [apply(body, fn, *args, dtype=out.dtype) for fn in (_first, _second)]
    low.loop(box, body, list(zip(results, pair(out), strict=True)))
    if size < width:
        rest = sub(width, size)
        low.copy(views.sliced(x, 3, size, rest), views.sliced(out, 3, size, rest))


def _rotations(low: Lowering, cache: Value, positions: Value | None, shape: tuple[Known, ...]) -> View:
    """Sines or cosines of each position: (batch, length, half of the rotated size)."""
    view = low.view(cache)
    if positions is not None:
        if len(view.shape) != 2:
            raise Refused("the caches have no row for each position")
        index = low.view(positions)
        rows = low.temporary(view.dtype, (*index.shape, view.shape[1]))
        low.groups.append(Gather((low.node,), view, index, 0, rows))
        view = rows
    if len(view.shape) != 3:
        raise Refused("the caches do not fit the input")
    for size, wanted in zip(view.shape, shape, strict=True):
        low.require("RotaryEmbedding: the caches do not fit the input", size, wanted)
    return view

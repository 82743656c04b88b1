"""Attention as onnxruntime's operators, with the preceding projections or their biases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.optimize.fusion import Refused, require
from sardonyx.optimize.fusions.attention_parts import same, scale_of
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.spelling import MICROSOFT
from sardonyx.optimize.spelling.attention_mask import Padding, bias, hides_rows, padding
from sardonyx.records import Record

Spelled: TypeAlias = tuple[str, tuple["Value | None", ...], dict[str, Any]]
"""An operator, its inputs, and its specific attributes."""

SHARED_ATTRIBUTES = {"scale", "q_num_heads", "kv_num_heads", "is_causal", "softmax_precision"}
"""Attributes of Attention that onnxruntime's operators have too; others must have their defaults."""


@optimization("SpellAttention")
def spell_attention(graph: Graph, log: Log) -> None:
    """Attention(x @ wq + bq, x @ wk + bk, x @ wv + bv)  ->  com.microsoft Attention(x, [wq wk wv], [bq bk bv])."""
    _each(graph, log, _as_attention)


@optimization("SpellMultiHeadAttention")
def spell_multi_head_attention(graph: Graph, log: Log) -> None:
    """Attention(q + bq, k + bk, v + bv)  ->  com.microsoft MultiHeadAttention(q, k, v, [bq bk bv])."""
    _each(graph, log, _as_multi_head)


def _each(graph: Graph, log: Log, spell: Callable[[Builder, Node], Spelled | None]) -> None:
    for node in list(graph.nodes):
        for _, sub in node.subgraphs():
            _each(sub, log, spell)
        if node.op_type == "Attention" and not node.domain:
            op = Builder(graph, node, prefix=node.name, origin=node.origin)
            try:
                _spell(op, node, spell, log)
            except Refused as e:
                for made in reversed(op.made):
                    graph.remove(made)
                log.declined(node, str(e))


def _spell(op: Builder, node: Node, spell: Callable[[Builder, Node], Spelled | None], log: Log) -> None:
    _require_supported(node)
    mask = node.input(3)
    require(mask is None or not hides_rows(mask), "a row without keys is 0, but not in onnxruntime's operators", mask)
    spelled = spell(op, node)
    if spelled is None:
        return
    op_type, inputs, sizes = spelled
    attrs: dict[str, Any] = {"num_heads": node.attrs["q_num_heads"], "scale": scale_of(node), **sizes}
    if node.attrs.get("is_causal", 0):
        attrs["unidirectional"] = 1
    if (keys := _padding(node)) is not None:
        attrs["mask_filter_value"] = keys.fill
    count = len(node.outputs) if node.input(4) is not None else 1
    outs = op.call(MICROSOFT, op_type, *inputs, outputs=count, **attrs)
    new = outs if isinstance(outs, tuple) else (outs,)
    log.replace(op.graph, [node], node.outputs[:count], new, op.made, f"Attention -> {MICROSOFT} {op_type}")


def _as_attention(op: Builder, node: Node) -> Spelled | None:
    packed = None if node.input(4) is not None else _packed(op, [_part(x) for x in node.inputs[:3]])
    if packed is None:
        return None
    x, weight, term, sizes = packed
    keys, bias_of_scores = _masks(op, node)
    return "Attention", (x, weight, term, keys, None, bias_of_scores), {"qkv_hidden_sizes": sizes}


def _as_multi_head(op: Builder, node: Node) -> Spelled:
    parts = [_part(x) for x in node.inputs[:3]]
    inputs = (*_with_biases(op, parts), *_masks(op, node), node.input(4), node.input(5))
    return "MultiHeadAttention", inputs, {}


def _padding(node: Node) -> Padding | None:
    mask = node.input(3)
    return padding(mask) if mask is not None and node.input(4) is None else None


def _masks(op: Builder, node: Node) -> tuple[Value | None, Value | None]:
    """The mask of keys, or the bias of scores."""
    keys = _padding(node)
    if keys is None:
        return None, bias(op, node)
    return keys.keys if keys.keys.dtype is dtypes.i32 else op.Cast(keys.keys, to=dtypes.i32.onnx), None


def _require_supported(node: Node) -> None:
    q, k, v = node.inputs[:3]
    assert q is not None and k is not None and v is not None
    require(q.dtype is dtypes.f32, "onnxruntime has no kernel for the element type", q)
    heads = node.attrs.get("q_num_heads")
    require(q.rank == 3 and heads is not None, "heads are split outside of it", q)
    require(heads == node.attrs["kv_num_heads"], f"query heads share key heads, and {_not_grouped(node)}", k)
    require(node.input(6) is None, "the lengths of keys are given", node.input(6))
    require(node.attrs.get("softmax_precision", 1) == dtypes.f32.onnx, "the softmax has another type", q)
    for name in node.attrs.keys() - SHARED_ATTRIBUTES:
        require(node.attrs[name] == (-1 if name.endswith("window_size") else 0), f"{name} is set", q)
    require(scale_of(node) is not None, "the default scale depends on an unknown head size", q)
    assert q.shape is not None and k.shape is not None
    square = node.input(4) is not None or same(q.shape[1], k.shape[1])
    causal = node.attrs.get("is_causal", 0)
    require(not causal or square, "a causal mask over keys of another length", k)
    require(not causal or node.input(3) is None, "a causal mask combined with another, which may be lower", k)
    read = [out for out in node.outputs[1 if node.input(4) is None else 3 :] if not out.is_dead]
    require(not read, "an output that onnxruntime's operators do not have is read", read[0] if read else None)


def _not_grouped(node: Node) -> str:
    """Why onnxruntime's GroupQueryAttention, its operator for shared heads, is not equivalent."""
    q, mask = node.inputs[0], node.input(3)
    assert q is not None and q.shape is not None
    if node.input(4) is not None and 1 not in q.shape[:2]:
        return "GroupQueryAttention takes a cache of several examples for one new token at a time only"
    if mask is not None:
        return "GroupQueryAttention is causal besides the mask, which differs in rows that hide every key"
    return "GroupQueryAttention asks for the lengths of keys, which are more nodes"


class Part(Record):
    """Q, K or V as ``source[..., columns] (@ weight) (+ bias)``, weight and bias being constants."""

    value: Value
    product: Value
    """The value before its bias."""
    source: Value
    weight: Value | None = None
    bias: Value | None = None
    columns: tuple[int, int | None] = (0, None)
    """The columns of ``weight`` and ``bias`` for this part, if one product is split into several."""


def _part(x: Value | None) -> Part:
    assert x is not None
    split = x.producer if x.producer is not None and x.producer.onnx_op == "Split" else None
    if split is not None and (whole := split.inputs[0]) is not None and whole.rank == 3 and len(split.outputs) == 3:
        inner = _projection(whole)
        columns = _columns(split, x)
        if inner.weight is not None and columns is not None:
            return Part(x, x, inner.source, inner.weight, inner.bias, columns)
    return _projection(x)


def _columns(split: Node, x: Value) -> tuple[int, int] | None:
    widths = [out.shape[-1] if out.shape is not None else None for out in split.outputs]
    private = all(len(out.consumers) == 1 and not out.is_output for out in split.outputs)
    if split.attrs.get("axis", 0) not in (2, -1) or not private or not all(isinstance(w, int) for w in widths):
        return None
    ends = np.cumsum([0, *widths])
    return int(ends[x.index]), int(ends[x.index + 1])


def _projection(x: Value) -> Part:
    """x as product and bias; also as a Gemm of flattened rows."""
    node, term, product = x.producer, None, x
    if node is not None and node.onnx_op == "Add" and _is_private(x):
        for a, b in (node.inputs, node.inputs[::-1]):
            if (
                a is not None
                and b is not None
                and b.is_const
                and b.rank == 1
                and _width(b) == _width(x)
                and a.rank == 3
            ):
                term, product = b, a
    node = product.producer
    if node is not None and node.onnx_op == "MatMul" and _is_private(product):
        source, weight = node.inputs
        if source is not None and weight is not None and source.rank == 3 and weight.is_const and weight.rank == 2:
            return Part(x, product, source, weight, term)
    rows = _gemm(product) if term is None else None
    return rows or Part(x, product, x, None, term)


def _gemm(x: Value) -> Part | None:
    """Reshape(Gemm(Reshape(source), weight, bias)) whose result keeps the source's leading axes."""
    node = x.producer
    gemm = node.inputs[0].producer if node is not None and node.onnx_op == "Reshape" and node.inputs[0] else None
    if gemm is None or gemm.onnx_op != "Gemm" or gemm.inputs[0] is None or not _is_private(x):
        return None
    flat, source = gemm.inputs[0].producer, None
    if flat is not None and flat.onnx_op == "Reshape":
        source = flat.inputs[0]
    weight, term = gemm.inputs[1], gemm.input(2)
    usual = all(gemm.attrs.get(name, one) == one for name, one in (("alpha", 1.0), ("beta", 1.0), ("transA", 0)))
    if source is None or source.shape is None or x.shape is None or not usual or gemm.attrs.get("transB", 0):
        return None
    if len(source.shape) != 3 or source.shape[:2] != x.shape[:2] or None in x.shape[:2]:
        return None
    if weight is None or not weight.is_const or term is None or not term.is_const or _width(term) != _width(x):
        return None
    return Part(x, x, source, weight, term) if weight.shape and weight.shape[0] == source.shape[2] else None


def _is_private(x: Value) -> bool:
    return len(x.uses) == 1 and not x.is_output


def _width(x: Value) -> Any:
    return x.shape[-1] if x.shape else None


def _packed(op: Builder, parts: list[Part]) -> tuple[Value, Value, Value, list[int]] | None:
    """The common source, the concatenated weights and biases, and the width of each part."""
    if any(p.weight is None or p.source is not parts[0].source for p in parts):
        return None
    weights = [p.weight for p in parts if p.weight is not None]
    sizes = [w for w in (_width(p.value) for p in parts) if isinstance(w, int)]
    first = weights[0].const
    assert first is not None
    if len(sizes) < 3 or sizes[0] != sizes[1] or any(w.dtype is not weights[0].dtype for w in weights):
        return None
    whole = parts[0].weight is parts[2].weight and _cover(parts)
    weight = (
        parts[0].weight if whole else op.const(_joined([(p.weight, p.columns) for p in parts], sizes, first.shape[0]))
    )
    term = parts[0].bias if whole and parts[0].bias is not None else _biases(op, parts, sizes)
    assert weight is not None and term is not None
    return parts[0].source, weight, term, sizes


def _cover(parts: list[Part]) -> bool:
    """Whether the parts make up the whole weight, in order."""
    return [p.columns[0] for p in parts] == [0, parts[0].columns[1], parts[1].columns[1]]


def _with_biases(op: Builder, parts: list[Part]) -> tuple[Value, Value, Value, Value | None]:
    """Q, K and V before their biases, and the concatenated biases; the values themselves if there are no biases."""
    sizes = [w for w in (_width(p.value) for p in parts) if isinstance(w, int)]
    if len(sizes) < 3 or not any(p.product is not p.value for p in parts):
        return parts[0].value, parts[1].value, parts[2].value, None
    terms = [Part(p.value, p.product, p.source, None, p.bias if p.product is not p.value else None) for p in parts]
    return parts[0].product, parts[1].product, parts[2].product, _biases(op, terms, sizes)


def _biases(op: Builder, parts: list[Part], sizes: list[int]) -> Value:
    return op.const(_joined([(p.bias, p.columns) for p in parts], sizes))


def _joined(
    parts: list[tuple[Value | None, tuple[int, int | None]]], sizes: list[int], rows: int | None = None
) -> Tensor:
    """Concatenated constants, with zeros for missing ones; computed when the model is written."""
    lead = () if rows is None else (rows,)

    def fetch() -> np.ndarray[Any, Any]:
        arrays = [np.zeros((*lead, n), np.float32) for n in sizes]
        for i, (value, columns) in enumerate(parts):
            if value is not None:
                arrays[i] = value.numpy()[..., slice(*columns)]
        return np.concatenate(arrays, axis=-1)

    return Tensor(dtypes.f32, (*lead, sum(sizes)), fetch)

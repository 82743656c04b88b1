"""Fuses attention with batch and heads flattened into one axis, as older exporters and decomposed Einsums write it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.attention import SWAP, attend, masked
from sardonyx.optimize.fusions.attention_parts import same
from sardonyx.optimize.fusions.masks import Dim, typed
from sardonyx.optimize.pattern import Match, Var


class Flat(Var):
    """Matches a value with three axes, by name."""

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        if value is not None and value.rank == 3:
            yield from super().match(value, m)


@fusion
class FuseFlatAttention(Fusion):
    """Reshape(Softmax(mask(MatMul(q, k^T))) @ v)  ->  Reshape(Attention(q, k, v)).

    The products are over (batch * heads, length, size). Scores may have four axes while they are masked, and may be
    computed as k @ q^T and transposed.
    """

    def pattern(self, op: Any, to: Any) -> Any:
        raw = op.MatMul(Flat("a"), Flat("b"))
        opened = op.either(op.call("", "Reshape", raw, Var("r4"), name="open"), raw)
        transposed = op.either(op.call("", "Transpose", opened, perm=SWAP, name="transposed"), opened)
        closed = op.maybe("Reshape", masked(op, transposed), Var("r3"), name="scores")
        soft = op.Softmax(closed, axis=lambda a: a in (-1, 2, 3))
        weights = op.maybe("Reshape", soft, Var("w3"), name="weights")
        return op.call("", "Reshape", op.MatMul(weights, Flat("v"), name="product"), to, name="out")

    def rewrite(self, op: Builder, m: Match) -> Any:
        found = {pattern.name: node for pattern, node in m.nodes.items() if pattern.name}
        heads = self._heads(m, found)
        for name in {"open", "scores", "weights"} & found.keys():
            x, y = found[name].inputs[0], found[name].outputs[0]
            assert x is not None
            kept = x.shape and y.shape and x.shape[-2:] == y.shape[-2:] and None not in x.shape[-2:]
            require(kept, "a Reshape changes more than batch and heads", y)
        hidden = any(name.startswith(("mask", "fill")) for name in m.values)
        require("open" in found or not hidden, "the mask has batch and heads in one axis", m.a)
        q3, k3 = (m.a, m.b) if "transposed" not in found else (m.b, m.a)
        q, k = (_open(op, x, heads, swap=x is m.b) for x in (q3, k3))
        y = typed(attend(op, m, q, k, _open(op, m.v, heads)))
        out = found["out"]
        result = out.outputs[0]
        if result.shape is not None and result.shape == y.shape and None not in y.shape:
            return y
        plain = m.to.is_const and (0 not in m.to.numpy().tolist() or bool(out.attrs.get("allowzero", 0)))
        require(plain, "the result takes sizes from a value over three axes", m.to)
        return op.Reshape(y, m.to, allowzero=out.attrs.get("allowzero"))

    def _heads(self, m: Match, found: Any) -> tuple[Dim, Dim]:
        """Batch and heads, from any value in which they are separate axes."""
        shapes = [found["open"].outputs[0].shape] if "open" in found else []
        for x in (m.a, m.b, m.v):
            source = _source(x, "Reshape") or _source(_source(x, "Transpose"), "Reshape")
            shapes.append(None if source is None else source.shape)
        known = [s for s in shapes if s is not None and len(s) == 4 and None not in s]
        require(known, "no value has batch and heads as separate axes", m.a)
        return known[0][0], known[0][1]


def _source(x: Value | None, op_type: str) -> Value | None:
    return x.producer.inputs[0] if x is not None and x.producer is not None and x.producer.onnx_op == op_type else None


def _open(op: Builder, x: Value, heads: tuple[Dim, Dim], *, swap: bool = False) -> Value:
    """(batch * heads, rows, columns) as (batch, heads, rows, columns), optionally with the last two axes swapped."""
    inner = _source(x, "Transpose")
    if inner is not None and x.producer is not None and x.producer.attrs.get("perm") == [0, 2, 1]:
        return _open(op, inner, heads, swap=not swap)
    assert x.shape is not None
    source = _source(x, "Reshape")
    batch, count = heads
    if source is not None and source.shape == (batch, count, *x.shape[1:]) and None not in source.shape:
        return typed(op.Transpose(source, perm=SWAP)) if swap else source
    sizes = [count, *x.shape[1:]]
    require(all(isinstance(n, int) for n in sizes), "sizes are not known where batch and heads are split", x)
    y = typed(op.Reshape(x, op.const([-1, *(n for n in sizes if isinstance(n, int))])))
    require(y.shape is not None and same(y.shape[0], batch), "batch and heads are not split", x)
    return typed(op.Transpose(y, perm=SWAP)) if swap else y

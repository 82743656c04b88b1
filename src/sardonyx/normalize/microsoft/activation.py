"""Gelu and its fusions, and the activations that fused operators name in an attribute."""

from __future__ import annotations

from typing import Any

from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_input
from sardonyx.normalize.microsoft.body import MICROSOFT, like, sum_given
from sardonyx.normalize.registry import expand

PARAMETERS = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "ScaledTanh": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
"""Activations that are one ai.onnx operator (except ScaledTanh), with their parameters."""


def activate(op: Builder, node: Node, x: Value, kind: str | None, params: dict[str, float]) -> Any:
    """Apply the activation ``kind`` to ``x``, with those of ``params`` that it has."""
    if not kind:
        return x
    typed = required_input(node, 0)
    if kind == "Clip":
        return op.Clip(x, like(op, params["alpha"], typed), like(op, params["beta"], typed))
    if kind == "Silu":
        return op.Swish(x)
    if kind == "ScaledTanh":
        alpha, beta = (like(op, params.get(p, 1.0), typed) for p in ("alpha", "beta"))
        return op.Mul(alpha, op.Tanh(op.Mul(beta, x)))
    if kind not in PARAMETERS:
        raise InvalidGraph(f"unknown activation {kind!r}", where=node.label, expected=", ".join(PARAMETERS))
    attrs: dict[str, Any] = {p: params[p] for p in PARAMETERS[kind] if p in params}
    return op.call("", kind, x, **attrs)


@expand("Gelu", domain=MICROSOFT)
def gelu(op: Builder, node: Node) -> Any:
    """x/2 * (1 + erf(x / sqrt 2))."""
    return op.Gelu(required_input(node, 0))


@expand("FastGelu", domain=MICROSOFT)
def fast_gelu(op: Builder, node: Node) -> Any:
    """The tanh form of Gelu of x + bias."""
    return op.Gelu(sum_given(op, required_input(node, 0), node.input(1)), approximate="tanh")


@expand("BiasGelu", domain=MICROSOFT)
def bias_gelu(op: Builder, node: Node) -> Any:
    return op.Gelu(op.Add(required_input(node, 0), required_input(node, 1)))


@expand("QuickGelu", domain=MICROSOFT)
def quick_gelu(op: Builder, node: Node) -> Any:
    """x * sigmoid(alpha x)."""
    return op.Swish(required_input(node, 0), alpha=node.attrs.get("alpha", 1.702))


@expand("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(op: Builder, node: Node) -> Any:
    product = op.MatMul(required_input(node, 0), required_input(node, 1))
    return op.Gelu(sum_given(op, product, node.input(2)), approximate="tanh")


@expand("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(op: Builder, node: Node) -> Any:
    """left * gelu(right), of the two halves of x + bias."""
    biased = op.Add(required_input(node, 0), required_input(node, 1))
    left, right = op.Split(biased, outputs=2, axis=-1, num_outputs=2)
    return op.Mul(left, op.Gelu(right))


@expand("BiasAdd", domain=MICROSOFT)
def bias_add(op: Builder, node: Node) -> Any:
    return sum_given(op, required_input(node, 0), required_input(node, 1), required_input(node, 2))


@expand("BiasDropout", domain=MICROSOFT)
def bias_dropout(op: Builder, node: Node) -> tuple[Value, ...]:
    """dropout(x + bias) + residual."""
    biased = op.Add(required_input(node, 0), required_input(node, 1))
    dropped, mask = op.Dropout(biased, node.input(3), node.input(4), outputs=2, seed=node.attrs.get("seed"))
    return (sum_given(op, dropped, node.input(2)), mask)[: len(node.outputs)]


@expand("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(op: Builder, node: Node) -> Any:
    """softmax over the axes from ``axis`` on, taken together, of x + bias, which Add broadcasts."""
    x, bias = required_input(node, 0), required_input(node, 1)
    axis = node.attrs.get("axis", 1)
    summed = op.Add(x, bias)
    if x.rank is not None and axis in (-1, x.rank - 1):
        return op.Softmax(summed, axis=-1)
    flat = op.Softmax(op.Flatten(summed, axis=axis), axis=-1)
    return op.Reshape(flat, op.Shape(x))

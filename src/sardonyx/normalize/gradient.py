"""ai.onnx.preview.training.Gradient, expanded to the nodes of reverse-mode differentiation.

The node names a value ``y`` and values ``xs`` of its graph; its outputs are dy/dx. The forward nodes between them are
found in the graph, copied if the node's inputs are not the values that it names, and traversed backwards by the rules
below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from sardonyx.errors import InvalidGraph, NotImplemented
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value

DOMAIN = "ai.onnx.preview.training"

Rule: TypeAlias = Callable[[Builder, Node, "Value"], "tuple[Value | None, ...]"]
"""Gradients of a node's inputs from the gradient of its first output; None for an input without one."""

RULES: dict[str, Rule] = {}


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    def register(fn: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, fn))
        return fn

    return register


def expand_gradients(graph: Graph) -> None:
    """Replace every Gradient node of a normalized graph."""
    for node in list(graph.nodes):
        for _, sub in node.subgraphs():
            expand_gradients(sub)
        if node.op_type == "Gradient" and node.domain == DOMAIN:
            _expand(graph, node)


def _expand(graph: Graph, node: Node) -> None:
    named = {v.name: v for v in graph.inputs} | graph.initializers
    named |= {out.name: out for n in graph.nodes for out in n.outputs}
    xs, zs = node.attrs.get("xs", []), node.attrs.get("zs", [])
    try:
        y, sources = named[node.attrs["y"]], [named[name] for name in (*xs, *zs)]
    except KeyError as e:
        raise InvalidGraph("Gradient names a value that its graph lacks", where=node.label, got=str(e)) from None
    if len(sources) != len(node.inputs):
        raise InvalidGraph("Gradient has one input for each of xs and zs", where=node.label, got=len(node.inputs))
    forward = _ancestors(y, set(sources))
    _hoist(graph, node, forward)
    op = Builder(graph, node, prefix=node.name or "gradient", origin=node.origin)
    env = {s: v for s, v in zip(sources, node.inputs, strict=True) if v is not None}
    if any(env[s] is not s for s in sources):
        forward = [_copy(op, n, env) for n in forward]
    grads = _backward(op, forward, env.get(y, y), node)
    for out, source in zip(node.outputs, sources, strict=False):
        x = env[source]
        found = grads.get(x)
        graph.replace_uses(out, op.Mul(x, op.CastLike(0.0, x)) if found is None else found)
    graph.remove(node)


def _ancestors(y: Value, stop: set[Value]) -> list[Node]:
    """The nodes that compute ``y``, in topological order, up to the values in ``stop``."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(y.producer, False)] if y.producer is not None and y not in stop else []
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            read = (v for v in node.inputs if v is not None and v not in stop)
            stack += [(v.producer, False) for v in read if v.producer is not None]
    return order


def _hoist(graph: Graph, node: Node, forward: list[Node]) -> None:
    """Move the forward nodes in front of the Gradient node."""
    before: set[Node] = set()
    for n in graph.nodes:
        if n is node:
            break
        before.add(n)
    if node in forward:
        raise InvalidGraph("Gradient differentiates a value that depends on its own result", where=node.label)
    for n in forward:
        if n not in before:
            graph.move(n, before=node)


def _copy(op: Builder, node: Node, env: dict[Value, Value]) -> Node:
    inputs = [None if v is None else env.get(v, v) for v in node.inputs]
    made = op.call(node.domain, node.op_type, *inputs, outputs=len(node.outputs), **node.attrs)
    for old, new in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=True):
        new.type = old.type
        env[old] = new
    return op.made[-1]


def _backward(op: Builder, forward: list[Node], y: Value, gradient: Node) -> dict[Value, Value]:
    ones = op.Expand(op.CastLike(1.0, y), op.Shape(y))
    grads: dict[Value, Value] = {y: ones}
    for node in reversed(forward):
        if not node.outputs or node.outputs[0] not in grads:
            continue
        fn = RULES.get(node.op_type) if not node.domain else None
        if fn is None:
            raise NotImplemented(
                f"Gradient knows no derivative of {node.op_type}", where=gradient.label, got=node.label,
                hint=f"it knows {', '.join(sorted(RULES))}",
            )  # fmt: skip
        for v, g in zip(node.inputs, fn(op, node, grads[node.outputs[0]]), strict=False):
            if v is not None and g is not None:
                grads[v] = g if v not in grads else op.Add(grads[v], g)
    return grads


def _args(node: Node) -> tuple[Value, ...]:
    return tuple(v for v in node.inputs if v is not None)


def _like(op: Builder, number: float, x: Value) -> Value:
    like: Value = op.CastLike(number, x)
    return like


def _unbroadcast(op: Builder, grad: Value, x: Value) -> Value:
    """Sum a gradient over the axes along which ``x`` was repeated."""
    if x.shape is not None and x.shape == grad.shape and None not in x.shape:
        return grad
    full, own = op.Shape(grad), op.Shape(x)
    missing = op.Sub(op.Shape(full), op.Shape(own))
    padded = op.Concat(op.Expand(op.const([1]), missing), own, axis=0)
    axes = op.Reshape(op.NonZero(op.Not(op.Equal(padded, full))), op.const([-1]))
    summed: Value = op.Reshape(op.ReduceSum(grad, axes, keepdims=1, noop_with_empty_axes=1), own)
    return summed


@rule("Identity", "Dropout")
def _identity(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return (dy,)


@rule("Add", "Sub")
def _add(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    a, b = _args(node)
    db = op.Neg(dy) if node.op_type == "Sub" else dy
    return _unbroadcast(op, dy, a), _unbroadcast(op, db, b)


@rule("Sum")
def _sum(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return tuple(_unbroadcast(op, dy, v) for v in _args(node))


@rule("Mul")
def _mul(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    a, b = _args(node)
    return _unbroadcast(op, op.Mul(dy, b), a), _unbroadcast(op, op.Mul(dy, a), b)


@rule("Div")
def _div(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    a, b = _args(node)
    da = op.Div(dy, b)
    return _unbroadcast(op, da, a), _unbroadcast(op, op.Neg(op.Div(op.Mul(da, a), b)), b)


@rule("Pow")
def _pow(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    a, b = _args(node)
    exponent = op.CastLike(b, a)
    da = op.Mul(dy, op.Mul(exponent, op.Pow(a, op.Sub(exponent, _like(op, 1.0, a)))))
    if b.dtype is None or not b.dtype.is_float:
        return _unbroadcast(op, da, a), None
    return _unbroadcast(op, da, a), _unbroadcast(op, op.Mul(dy, op.Mul(node.outputs[0], op.Log(a))), b)


@rule("Neg")
def _neg(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return (op.Neg(dy),)


@rule("Exp")
def _exp(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return (op.Mul(dy, node.outputs[0]),)


@rule("Log")
def _log(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return (op.Div(dy, *_args(node)),)


@rule("Sqrt")
def _sqrt(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    y = node.outputs[0]
    return (op.Div(dy, op.Add(y, y)),)


@rule("Abs")
def _abs(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return (op.Mul(dy, op.Sign(*_args(node))),)


@rule("Sin")
def _sin(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return (op.Mul(dy, op.Cos(*_args(node))),)


@rule("Cos")
def _cos(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return (op.Neg(op.Mul(dy, op.Sin(*_args(node)))),)


@rule("Relu")
def _relu(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    y = node.outputs[0]
    return (op.Mul(dy, op.CastLike(op.Greater(y, _like(op, 0.0, y)), dy)),)


@rule("Sigmoid")
def _sigmoid(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    y = node.outputs[0]
    return (op.Mul(dy, op.Mul(y, op.Sub(_like(op, 1.0, y), y))),)


@rule("Tanh")
def _tanh(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    y = node.outputs[0]
    return (op.Mul(dy, op.Sub(_like(op, 1.0, y), op.Mul(y, y))),)


@rule("Softplus")
def _softplus(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return (op.Mul(dy, op.Sigmoid(*_args(node))),)


@rule("Softmax")
def _softmax(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    y, axis = node.outputs[0], node.attrs.get("axis", -1)
    inner = op.ReduceSum(op.Mul(dy, y), op.const([axis]), keepdims=1)
    return (op.Mul(op.Sub(dy, inner), y),)


@rule("MatMul")
def _matmul(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    a, b = _args(node)
    if a.rank is None or b.rank is None or a.rank < 2 or b.rank < 2:
        raise NotImplemented("Gradient of MatMul needs operands of known rank, at least 2", where=node.label)
    da, db = op.MatMul(dy, _swapped(op, b)), op.MatMul(_swapped(op, a), dy)
    return _unbroadcast(op, da, a), _unbroadcast(op, db, b)


def _swapped(op: Builder, x: Value) -> Value:
    assert x.rank is not None
    perm = list(range(x.rank))
    perm[-1], perm[-2] = perm[-2], perm[-1]
    swapped: Value = op.Transpose(x, perm=perm)
    return swapped


@rule("Gemm")
def _gemm(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    a, b = _args(node)[:2]
    c = node.input(2)
    ta, tb = node.attrs.get("transA", 0), node.attrs.get("transB", 0)
    scaled = op.Mul(dy, _like(op, node.attrs.get("alpha", 1.0), dy))
    da = op.Gemm(b, scaled, transA=tb, transB=1) if ta else op.Gemm(scaled, b, transB=1 - tb)
    db = op.Gemm(scaled, a, transA=1, transB=ta) if tb else op.Gemm(a, scaled, transA=1 - ta)
    dc = None if c is None else _unbroadcast(op, op.Mul(dy, _like(op, node.attrs.get("beta", 1.0), dy)), c)
    return da, db, dc


@rule("ReduceSum", "ReduceMean")
def _reduce(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    x = node.inputs[0]
    assert x is not None
    kept = op.call("", node.op_type, x, node.input(1), **{**node.attrs, "keepdims": 1})
    spread = op.Expand(op.Reshape(dy, op.Shape(kept)), op.Shape(x))
    if node.op_type == "ReduceMean":
        share = op.Div(op.Size(x), op.Size(kept))
        spread = op.Div(spread, op.CastLike(share, spread))
    return spread, None


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return op.Reshape(dy, op.Shape(node.inputs[0]), allowzero=1), None


@rule("Transpose")
def _transpose(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    perm = node.attrs.get("perm")
    return (op.Transpose(dy, perm=None if perm is None else np.argsort(perm).tolist()),)


@rule("Expand")
def _expand_rule(op: Builder, node: Node, dy: Value) -> tuple[Value | None, ...]:
    return _unbroadcast(op, dy, _args(node)[0]), None

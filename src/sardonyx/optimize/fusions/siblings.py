"""Convolutions of few filters side by side: one convolution fills the vectors that each alone leaves empty."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.optimize.fusions.affine import lazy
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import attribute

FEWEST, FEW = 3, 16
"""Convolutions from which on they are joined; filters that fill a vector, so that those with fewer are."""


@optimization("JoinConvs")
def join_convs(graph: Graph, log: Log) -> None:
    """Conv(x, u), Conv(x, v), Conv(x, w)  ->  Split(Conv(x, u and v and w))."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            join_convs(sub, log)
        if node.graph is None or not _has_few_filters(node):
            continue
        x = node.inputs[0]
        assert x is not None
        siblings = [n for n in x.consumers if n.graph is graph and _has_few_filters(n) and _is_like(n, node)]
        if len(siblings) >= FEWEST and _comes_first(graph, node, siblings):
            _join(graph, node, x, siblings, 1, log)


@optimization("JoinDepthwiseConvs")
def join_depthwise_convs(graph: Graph, log: Log) -> None:
    """Conv(part, w) of all parts of Split(x), channel by channel  ->  Split(Conv(x, all of the weights))."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            join_depthwise_convs(sub, log)
        if node.op_type != "Split" or node.domain or int(attribute(node, "axis")) != 1:
            continue
        readers = [out.consumers for out in node.outputs]
        if not all(len(found) == 1 and not out.is_output for found, out in zip(readers, node.outputs, strict=True)):
            continue
        convs = [found[0] for found in readers]
        x = node.inputs[0]
        if x is not None and all(n.graph is graph and _is_depthwise(n) and _is_like(n, convs[0]) for n in convs):
            first = next(n for n in graph.nodes if n in convs)
            _join(graph, first, x, convs, sum(_weight(n).shape[0] for n in convs), log)


def _is_convolution(node: Node) -> bool:
    if node.op_type != "Conv" or node.domain or not all(v is None or v.is_const for v in node.inputs[1:]):
        return False
    return len(_weight(node).shape) >= 3


def _has_few_filters(node: Node) -> bool:
    return _is_convolution(node) and int(attribute(node, "group")) == 1 and _weight(node).shape[0] < FEW


def _is_depthwise(node: Node) -> bool:
    return _is_convolution(node) and _weight(node).shape[:2] == (int(attribute(node, "group")), 1)


def _is_like(a: Node, b: Node) -> bool:
    """Whether two differ in their filters alone."""
    ours, theirs = ({k: v for k, v in n.attrs.items() if k != "group"} for n in (a, b))
    u, v = _weight(a), _weight(b)
    return ours == theirs and u.shape[1:] == v.shape[1:] and u.dtype is v.dtype


def _comes_first(graph: Graph, node: Node, siblings: Sequence[Node]) -> bool:
    return next(n for n in graph.nodes if n in siblings) is node


def _weight(node: Node) -> Tensor:
    w = node.inputs[1]
    assert w is not None and w.const is not None
    return w.const


def _join(graph: Graph, first: Node, x: Value, convs: Sequence[Node], group: int, log: Log) -> None:
    """One convolution of ``x`` in the place of several, in front of the first of them."""
    weights, biases = [_weight(n) for n in convs], [n.input(2) for n in convs]
    filters, dtype = [w.shape[0] for w in weights], weights[0].dtype
    origin = tuple(dict.fromkeys(name for n in convs for name in n.origin))
    op = Builder(graph, first, prefix=first.name or first.outputs[0].name, origin=origin)
    shape = (sum(filters), *weights[0].shape[1:])
    w = lazy(dtype, shape, lambda: np.concatenate([t.numpy() for t in weights]), weights[0].name)
    b = None
    if any(v is not None for v in biases):
        given = [np.zeros(n, dtype.numpy) if v is None else v.numpy() for v, n in zip(biases, filters, strict=True)]
        b = np.concatenate(given)
    joined = op.Conv(x, w, b, **{**first.attrs, "group": group})
    made = first.output.type
    if isinstance(made, TensorType) and made.shape is not None:
        joined.type = TensorType(made.dtype, (made.shape[0], sum(filters), *made.shape[2:]))
    parts = op.Split(joined, filters, axis=1, outputs=len(convs))
    log.replace(graph, convs, [n.output for n in convs], parts, op.made, f"{len(convs)} Conv -> Conv + Split")

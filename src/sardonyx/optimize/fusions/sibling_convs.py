"""Convolutions of the same input are merged where each has too few filters to fill a vector with output channels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.optimize.fusion import Refused, require
from sardonyx.optimize.fusions.affine import lazy
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import attribute

MIN_SIBLINGS = 3
"""Fewer convolutions are not worth the Split after the merged one."""

VECTOR_FILTERS = 16
"""Filters that fill a vector: a convolution with this many gains nothing from being merged."""


@optimization("JoinConvs")
def join_convs(graph: Graph, log: Log) -> None:
    """Conv(x, u), Conv(x, v), Conv(x, w)  ->  Split(Conv(x, Concat(u, v, w)))."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            join_convs(sub, log)
        if node.graph is None or not _is_conv(node) or _why_not_small(node) is not None:
            continue
        x = node.inputs[0]
        assert x is not None
        convs = [n for n in x.consumers if n.graph is graph and _is_conv(n)]
        siblings = [n for n in convs if _why_no_sibling(n, node) is None]
        if len(convs) == 1 or next(n for n in graph.nodes if n in siblings) is not node:
            continue
        try:
            _require_enough(x, node, convs, siblings)
        except Refused as why:
            log.declined(node, str(why))
        else:
            _join(graph, node, x, siblings, 1, log)


@optimization("JoinDepthwiseConvs")
def join_depthwise_convs(graph: Graph, log: Log) -> None:
    """Depthwise Conv(s_i, w_i) of every output s_i of Split(x)  ->  Split(Conv(x, Concat(w_0, w_1, ...)))."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            join_depthwise_convs(sub, log)
        if node.op_type != "Split" or node.domain or int(attribute(node, "axis")) != 1:
            continue
        x = node.inputs[0]
        if x is None or not any(_is_depthwise(n) for out in node.outputs for n in out.consumers):
            continue
        try:
            convs = _depthwise_readers(graph, node)
        except Refused as why:
            log.declined(node, str(why))
            continue
        first = next(n for n in graph.nodes if n in convs)
        _join(graph, first, x, convs, sum(_weight(n).shape[0] for n in convs), log)


def _require_enough(x: Value, node: Node, convs: Sequence[Node], siblings: Sequence[Node]) -> None:
    others = (f"; {n.label} {why}" for n in convs if (why := _why_no_sibling(n, node)) is not None)
    found = f"of the convolutions of {x.name}, {len(siblings)} can be merged, {MIN_SIBLINGS} are needed"
    require(len(siblings) >= MIN_SIBLINGS, found + next(others, ""))


def _depthwise_readers(graph: Graph, split: Node) -> list[Node]:
    """The depthwise convolution that reads each output of a Split."""
    convs: list[Node] = []
    for out in split.outputs:
        require(not out.is_output, "an output of the Split is a graph output", out)
        require(len(out.consumers) == 1, f"an output of the Split has {len(out.consumers)} readers", out)
        conv = out.consumers[0]
        require(conv.graph is graph and _is_depthwise(conv), f"{conv.label} is not a depthwise convolution", out)
        require(not convs or _is_like(conv, convs[0]), "the windows or attributes of the convolutions differ", out)
        convs.append(conv)
    return convs


def _is_conv(node: Node) -> bool:
    return node.op_type == "Conv" and not node.domain


def _has_constant_weights(node: Node) -> bool:
    """Whether weights and bias are constants, and the kernel's shape is known."""
    return all(v is None or v.is_const for v in node.inputs[1:]) and len(_weight(node).shape) >= 3


def _why_not_small(node: Node) -> str | None:
    if not _has_constant_weights(node):
        return "has weights that are not constant"
    if int(attribute(node, "group")) != 1:
        return "is grouped"
    filters = _weight(node).shape[0]
    return None if filters < VECTOR_FILTERS else f"has {filters} filters, which fill a vector"


def _why_no_sibling(node: Node, first: Node) -> str | None:
    """Why a convolution cannot be merged with a small one of the same input."""
    return _why_not_small(node) or (None if _is_like(node, first) else "has another window or other attributes")


def _is_depthwise(node: Node) -> bool:
    is_constant = _is_conv(node) and _has_constant_weights(node)
    return is_constant and _weight(node).shape[:2] == (int(attribute(node, "group")), 1)


def _is_like(a: Node, b: Node) -> bool:
    """Whether two convolutions differ in their filters and groups only."""
    ours, theirs = ({k: v for k, v in n.attrs.items() if k != "group"} for n in (a, b))
    u, v = _weight(a), _weight(b)
    return ours == theirs and u.shape[1:] == v.shape[1:] and u.dtype is v.dtype


def _weight(node: Node) -> Tensor:
    w = node.inputs[1]
    assert w is not None and w.const is not None
    return w.const


def _join(graph: Graph, first: Node, x: Value, convs: Sequence[Node], group: int, log: Log) -> None:
    """Replace convolutions by one of ``x`` and a Split of its channels, inserted before the first of them."""
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
    merged = op.Conv(x, w, b, **{**first.attrs, "group": group})
    made = first.output.type
    if isinstance(made, TensorType) and made.shape is not None:
        merged.type = TensorType(made.dtype, (made.shape[0], sum(filters), *made.shape[2:]))
    outputs = op.Split(merged, filters, axis=1, outputs=len(convs))
    log.replace(graph, convs, [n.output for n in convs], outputs, op.made, f"{len(convs)} Conv -> Conv + Split")

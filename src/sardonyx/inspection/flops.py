"""Operations of a graph whose sizes are known, node by node. A multiply-add is two operations."""

from __future__ import annotations

import math
from collections.abc import Callable

from sardonyx.ir.graph import Graph, Node, Value

_MOVES = """
Cast CastLike Concat Constant ConstantOfShape DepthToSpace Expand Flatten Gather GatherElements GatherND Identity If
Loop NonZero OneHot Optional OptionalGetElement OptionalHasElement Pad Range Reshape ReverseSequence Scan Scatter
ScatterElements ScatterND SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
Shape Size Slice SpaceToDepth Split SplitToSequence Squeeze Tile Transpose Trilu Unsqueeze ZipMap
"""
_REDUCES = """
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
ArgMax ArgMin GlobalAveragePool GlobalMaxPool
"""
FREE = frozenset(_MOVES.split())
"""Operators that move data or hold bodies."""
REDUCTIONS = frozenset(_REDUCES.split())
"""One operation for each element that they read."""


class Unknown(Exception):
    """The sizes of a node are not known."""


def count(graph: Graph) -> tuple[dict[str, int], int]:
    """Operations by operator, and the number of nodes whose sizes are unknown."""
    found: dict[str, int] = {}
    unknown = 0
    for node in graph.all_nodes():
        try:
            made = node_flops(node)
        except Unknown:
            unknown += 1
            continue
        if made:
            found[node.op_type] = found.get(node.op_type, 0) + made
    return dict(sorted(found.items(), key=lambda item: -item[1])), unknown


def node_flops(node: Node) -> int:
    """The operations of one node of the newest opset. Raises Unknown if a size is not known."""
    if node.op_type in FREE:
        return 0
    rule = RULES.get(node.op_type)
    if rule is not None:
        return rule(node)
    if node.op_type in REDUCTIONS:
        return math.prod(_shape(node.input(0)))
    return sum(math.prod(_shape(v)) for v in node.outputs if v.dtype is not None)


def _shape(value: Value | None) -> tuple[int, ...]:
    if value is None or value.shape is None or not all(isinstance(d, int) for d in value.shape):
        raise Unknown
    return tuple(d for d in value.shape if isinstance(d, int))


def _matmul(node: Node) -> int:
    a, out = _shape(node.input(0)), _shape(node.outputs[0])
    return 2 * math.prod(out) * (a[-1] if a else 1)


def _gemm(node: Node) -> int:
    a, out = _shape(node.input(0)), _shape(node.outputs[0])
    depth = a[0] if node.attrs.get("transA") else a[-1]
    return 2 * math.prod(out) * depth + (math.prod(out) if node.input(2) is not None else 0)


def _conv(node: Node) -> int:
    """A weight is multiplied once for each output pixel; it has the input channels of one group."""
    weights = _shape(node.input(3 if node.op_type == "QLinearConv" else 1))
    out = _shape(node.outputs[0])
    bias = node.input(8 if node.op_type == "QLinearConv" else 2)
    is_biased = bias is not None and node.op_type != "ConvInteger"
    return 2 * math.prod(out) * math.prod(weights[1:]) + (math.prod(out) if is_biased else 0)


def _conv_transpose(node: Node) -> int:
    """A weight is multiplied once for each input pixel."""
    x, weights = _shape(node.input(0)), _shape(node.input(1))
    return 2 * math.prod(x) * math.prod(weights[1:])


def _attention(node: Node) -> int:
    q, v, out = _shape(node.input(0)), _shape(node.input(2)), _shape(node.outputs[0])
    if len(q) == 4:
        queries, width = q[0] * q[1] * q[2], q[3]
        keys = v[2] + (_shape(node.input(4))[2] if node.input(4) is not None else 0)
        return 2 * queries * keys * (width + out[3])
    keys = v[1] + (_shape(node.input(4))[2] if node.input(4) is not None else 0)
    return 2 * q[0] * q[1] * keys * (q[2] + out[2])


def _recurrent(node: Node) -> int:
    """The products of every step with the inputs and with the state."""
    x, w, r = (_shape(node.input(i)) for i in (0, 1, 2))
    steps = x[0] * x[1]
    return 2 * steps * (math.prod(w) + math.prod(r))


def _pool(node: Node) -> int:
    return math.prod(_shape(node.outputs[0])) * math.prod(node.attrs.get("kernel_shape", (1,)))


def _einsum(node: Node) -> int:
    """A product for every combination of indices; the order of products may need fewer."""
    equation = node.attrs.get("equation", "")
    equation = equation.decode() if isinstance(equation, bytes) else str(equation)
    if "." in equation:
        raise Unknown
    sizes: dict[str, int] = {}
    for term, value in zip(equation.split("->")[0].replace(" ", "").split(","), node.inputs, strict=False):
        sizes.update(zip(term, _shape(value), strict=False))
    return 2 * math.prod(sizes.values())


def _trees(node: Node) -> int:
    """A comparison for each level of each tree, as if all leaves were at the depth of a balanced tree."""
    rows = _shape(node.input(0))[0]
    roots = node.attrs.get("tree_roots") or sorted(set(node.attrs.get("nodes_treeids", [0])))
    nodes = len(node.attrs.get("nodes_featureids") or [1])
    depth = max(1, math.ceil(math.log2(max(2, nodes / max(1, len(roots))))))
    return rows * len(roots) * depth


RULES: dict[str, Callable[[Node], int]] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
    "Gemm": _gemm,
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _conv),
    "ConvTranspose": _conv_transpose,
    "Attention": _attention,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _pool),
    "Einsum": _einsum,
    **dict.fromkeys(("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"), _trees),
}

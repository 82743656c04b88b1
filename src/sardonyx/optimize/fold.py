"""Constant folding, with result sizes checked before anything is computed."""

from __future__ import annotations

import numpy as np

from sardonyx import limits
from sardonyx.errors import SardonyxError
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType
from sardonyx.ops import registry
from sardonyx.ops.infer import infer_node
from sardonyx.optimize.manager import Log, optimization

MAX_NBYTES = 8 << 20
"""Largest result that is stored instead of its node, and largest input that is read for it."""

HEAVY = frozenset(
    {"Einsum", "MatMul", "Gemm", "Conv", "ConvTranspose", "Det", "LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"}
)
HEAVY_ELEMENTS = 1 << 20
"""Largest input of operators whose work grows faster than their inputs."""

BOUNDED = frozenset({"NonZero", "Compress", "Unique", "NonMaxSuppression"})
"""Operators whose result has no inferable shape, but is never much larger than the inputs."""

NOT_FOLDED = frozenset({"DequantizeLinear", "QuantizeLinear"})
"""Folding these would undo a quantization that providers use."""


@optimization("FoldConstants")
def fold_constants(graph: Graph, log: Log) -> None:
    """Evaluate nodes whose inputs are all constants."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            fold_constants(sub, log)
        if any(v is not None and not v.is_const for v in node.inputs) or not _is_foldable(node):
            continue
        reason = _too_much(node)
        if reason is None:
            reason = _fold(graph, node, log)
        if reason is not None:
            log.declined(node, reason)


def _is_foldable(node: Node) -> bool:
    meaning = registry.find(node.domain, node.op_type)
    return (
        meaning is not None
        and meaning.pure
        and node.onnx_op not in NOT_FOLDED
        and not any(True for _ in node.subgraphs())
    )


def _too_much(node: Node) -> str | None:
    """The reason why this node is not folded, from sizes alone."""
    inputs = [v.const for v in node.inputs if v is not None and v.const is not None]
    if any(_weight(t) > MAX_NBYTES for t in inputs):
        return f"an input is larger than {MAX_NBYTES} bytes"
    if node.op_type in HEAVY and any(t.size > HEAVY_ELEMENTS for t in inputs):
        return f"an input has more than {HEAVY_ELEMENTS} elements"
    infer_node(node)
    for out in node.outputs:
        if out.is_dead or node.onnx_op in BOUNDED:
            continue
        nbytes = _nbytes(out)
        if nbytes is None:
            return "the size of its result is not known before it runs"
        if nbytes > MAX_NBYTES:
            return f"its result would be {nbytes} bytes"
    return None


def _weight(tensor: Tensor) -> int:
    """Bytes of a constant, including its strings."""
    return sum(map(len, tensor.numpy().flat)) if tensor.dtype.kind == "string" else tensor.nbytes


def _nbytes(value: Value) -> int | None:
    return value.type.nbytes if isinstance(value.type, TensorType) else None


def _fold(graph: Graph, node: Node, log: Log) -> str | None:
    try:
        results = Program([node], [], node.outputs, bind).run([], RunContext(budget=limits.current()))
    except SardonyxError as e:
        return f"computing it fails: {e}"
    if not all(isinstance(r, np.ndarray) or out.is_dead for r, out in zip(results, node.outputs, strict=True)):
        return "its result is not a tensor"
    pairs = [(out, array) for out, array in zip(node.outputs, results, strict=True) if not out.is_dead]
    folded = [graph.add_const(Tensor.of(array.copy(), out.name), out.name) for out, array in pairs]
    log.replace(graph, [node], [out for out, _ in pairs], folded, [], "computed once, when the model was loaded")
    return None

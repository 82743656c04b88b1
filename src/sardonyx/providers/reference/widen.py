"""Runs half-precision networks in single precision between the values that are stored in half precision.

In a chain of operators that compute in f32 anyway, intermediate values need no rounding to half: they stay f32, and a
cast back to half remains only if a value has a reader outside the chain. The result is more accurate, and faster.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType

HALVES = (dtypes.f16, dtypes.bf16)

STARTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Contractions: their sums are f32 in any case, so they start a chain."""

FOLLOWS = STARTS | {
    "Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Exp", "Log", "Erf", "Abs", "Neg", "Relu", "LeakyRelu", "PRelu",
    "Elu", "Selu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Softplus", "Gelu", "Clip", "Softmax",
    "LogSoftmax", "BatchNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization",
    "GroupNormalization", "LRN", "AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean",
    "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "Sum", "Mean", "Concat", "Identity", "Flatten", "Reshape",
    "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "Expand", "Tile", "Pad", "DepthToSpace",
    "SpaceToDepth", "Where", "Resize", "Dropout", "Shape", "Size",
}  # fmt: skip
"""Operators with the same semantics in f32: they extend a chain that reaches them. A Cast ends it."""


def widen(graph: Graph, nodes: list[Node]) -> None:
    """Rewrite the half-precision nodes among ``nodes``."""
    wide: dict[Value, Value] = {}
    computed: set[Value] = set()
    for node in nodes:
        halves = [v for v in node.inputs if _is_half(v)]
        if node.domain or not halves:
            continue
        if node.onnx_op not in STARTS and not (node.onnx_op in FOLLOWS and any(v in computed for v in halves)):
            continue
        op = Builder(graph, node, prefix=node.name or node.outputs[0].name, origin=node.origin)
        inputs = [_widened(op, v, wide) if v is not None and _is_half(v) else v for v in node.inputs]
        results = op.call(node.domain, node.op_type, *inputs, outputs=len(node.outputs), **node.attrs)
        for old, new in zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True):
            if not _is_half(old):
                new.type = old.type
                graph.replace_uses(old, new)
                continue
            assert isinstance(old.type, TensorType)
            new.type = TensorType(dtypes.f32, old.type.shape)
            back = op.Cast(new, to=old.type.dtype.onnx)
            back.type = old.type
            wide[back] = new
            computed.add(back)
            graph.replace_uses(old, back)
        graph.remove(node)
    for node in list(graph.reversed_nodes()):
        if node.onnx_op == "Cast" and node.output.is_dead:
            graph.remove(node)


def _is_half(value: Value | None) -> bool:
    return value is not None and value.dtype in HALVES


def _widened(op: Builder, value: Value, wide: dict[Value, Value]) -> Value:
    found = wide.get(value)
    if found is None:
        assert isinstance(value.type, TensorType)
        if value.is_const and value.const is not None:
            fetch = partial(_as_f32, value.const)
            found = op.graph.add_const(Tensor(dtypes.f32, value.const.shape, fetch, name=value.name), value.name)
        else:
            found = op.Cast(value, to=dtypes.f32.onnx)
            found.type = TensorType(dtypes.f32, value.type.shape)
        wide[value] = found
    return found


def _as_f32(half: Tensor) -> Any:
    return half.numpy().astype(dtypes.f32.numpy)

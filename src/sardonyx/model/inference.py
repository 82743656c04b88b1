"""Types and shapes of a whole skeleton, worked out by onnx."""

from __future__ import annotations

import onnx
from onnx import TensorProto, defs, shape_inference

from sardonyx.errors import BrokenGraph
from sardonyx.ir.shape import count
from sardonyx.model.protos import every_node
from sardonyx.model.types import MAX_RANK

MAX_PROPAGATED = 1 << 20
"""Elements that inference may compute in all."""

_CARRIERS = frozenset({"Add", "Cast", "Gather", "Identity", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze"})
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)


def newest_opsets() -> dict[str, int]:
    """The newest versions that onnx knows."""
    return {"": defs.onnx_opset_version(), "ai.onnx.ml": defs.onnx_ml_opset_version()}


def inferred(proto: onnx.ModelProto, opsets: dict[str, int]) -> onnx.ModelProto:
    """The model with the types and shapes that onnx can add; a contradiction of types is an error."""
    for domain, version in newest_opsets().items():
        if domain not in opsets:
            proto.opset_import.add(domain=domain, version=version)
    try:
        return shape_inference.infer_shapes(proto, check_type=True, data_prop=propagates_little(proto.graph))
    except shape_inference.InferenceError as e:
        raise BrokenGraph(f"This is an invalid model. Type Error: {e}") from None
    except Exception as e:
        raise BrokenGraph(f"types cannot be inferred: {e}") from None


def propagates_little(graph: onnx.GraphProto) -> bool:
    """Whether the integer tensors that inference computes beside shapes stay small.

    A chain of Concat doubles them, and a Range is as long as a number in it says.
    """
    sizes = {t.name: count(t.dims) for t in graph.initializer if t.data_type in _INTEGERS and not t.data_location}
    total = 0
    for node in every_node(graph.node):
        if node.op_type == "Range":
            return False
        if node.op_type == "Shape":
            size = MAX_RANK
        elif node.op_type == "Constant":
            size = node.ByteSize()
        elif node.op_type == "Concat":
            size = sum(sizes.get(name, 0) for name in node.input)
        elif node.op_type in _CARRIERS:
            size = max((sizes.get(name, 0) for name in node.input), default=0)
        else:
            continue
        total += size
        if total > MAX_PROPAGATED:
            return False
        sizes.update(dict.fromkeys(node.output, size))
    return True

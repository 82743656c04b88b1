"""How operators depend on the order of their inputs' axes."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from sardonyx.ir.graph import Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.optimize.pattern import attribute

Perm: TypeAlias = "list[int]"
"""As in Transpose: axis i of the result is axis perm[i] of the input."""

UNARY = frozenset({
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Clip", "Cos",
    "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log",
    "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu",
})  # fmt: skip
"""Elementwise in their first input."""

BROADCASTING = frozenset({
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
})  # fmt: skip
"""Elementwise in all inputs."""

BY_AXIS = frozenset({
    "ArgMax", "ArgMin", "Concat", "DequantizeLinear", "Hardmax", "LogSoftmax", "QuantizeLinear", "Softmax", "Split",
})  # fmt: skip
"""Operators with an axis attribute."""

REDUCTIONS = frozenset({
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
})  # fmt: skip

MEMBERS = UNARY | BROADCASTING | BY_AXIS | REDUCTIONS | {"Pad", "Slice"}

AXES_INPUT = {**dict.fromkeys(REDUCTIONS, 1), "Pad": 3, "Slice": 3}


def perm_of(node: Node | None) -> Perm | None:
    """The permutation of a Transpose; None for another node, or if the rank is unknown or does not match."""
    if node is None or node.op_type != "Transpose" or node.domain:
        return None
    perm = node.attrs.get("perm")
    rank = node.inputs[0].rank if node.inputs[0] is not None else None
    if perm is None:
        return None if rank is None else list(reversed(range(rank)))
    return perm if rank in (None, len(perm)) else None


def composed(first: Perm, second: Perm) -> Perm:
    """Two permutations as one: Transpose(Transpose(x, first), second)."""
    return [first[axis] for axis in second]


def inverse(perm: Perm) -> Perm:
    return [perm.index(i) for i in range(len(perm))]


def is_data(node: Node, i: int) -> bool:
    """Whether input ``i`` has the axes of the result."""
    return i == 0 or node.onnx_op in BROADCASTING or node.onnx_op == "Concat"


def member_rank(node: Node) -> int | None:
    """The rank of a node that could work in any order of axes; None for other nodes."""
    if node.domain or node.op_type not in MEMBERS:
        return None
    rank = node.outputs[0].rank
    if rank is None or rank < 2 or any(out.rank != rank for out in node.outputs):
        return None
    if any(v is not None and is_data(node, i) and not _fits(node, v, rank) for i, v in enumerate(node.inputs)):
        return None
    if node.onnx_op in BY_AXIS:
        return rank if _axis_can_move(node) else None
    if node.onnx_op in AXES_INPUT:
        return rank if _axes_can_move(node) else None
    return rank


def _fits(node: Node, v: Value, rank: int) -> bool:
    if v.rank == rank:
        return True
    return node.onnx_op in BROADCASTING and v.rank is not None and (v.rank == 0 or (v.is_const and v.rank < rank))


def _axis_can_move(node: Node) -> bool:
    if node.onnx_op in ("ArgMax", "ArgMin"):
        return bool(attribute(node, "keepdims"))
    return not (node.onnx_op in ("QuantizeLinear", "DequantizeLinear") and attribute(node, "block_size"))


def _axes_can_move(node: Node) -> bool:
    if node.onnx_op in REDUCTIONS and not attribute(node, "keepdims"):
        return False
    axes = node.input(AXES_INPUT[node.op_type])
    if axes is not None:
        return axes.is_const
    if node.onnx_op == "Pad":
        pads = node.input(1)
        return pads is not None and pads.is_const
    return node.onnx_op in REDUCTIONS


def permuted_inputs(node: Node, order: Perm) -> tuple[list[Any], dict[str, Any]]:
    """A node's inputs and attributes for another order of axes; inputs with the axes of the result are unchanged."""
    inputs: list[Any] = list(node.inputs)
    attrs, at = dict(node.attrs), inverse(order)
    if node.onnx_op in BY_AXIS:
        attrs["axis"] = at[int(attribute(node, "axis")) % len(order)]
    elif node.onnx_op in AXES_INPUT:
        i = AXES_INPUT[node.op_type]
        axes = node.input(i)
        if axes is not None:
            inputs[i] = np.array([at[a % len(order)] for a in axes.numpy().tolist()], axes.numpy().dtype)
        elif node.onnx_op == "Pad":
            inputs[1] = inputs[1].numpy().reshape(2, -1)[:, order].reshape(-1)
    return inputs, attrs


def permuted_const(value: Value, order: Perm, rank: int) -> Tensor:
    """A constant operand in another order of axes, at full rank."""
    tensor = value.const
    assert tensor is not None
    shape = (1,) * (rank - len(tensor.shape)) + tensor.shape
    return transposed(tensor, shape, order)


def transposed(tensor: Tensor, shape: tuple[int, ...], order: Perm) -> Tensor:
    """A constant reshaped and transposed on first use."""
    return Tensor(
        tensor.dtype,
        tuple(shape[axis] for axis in order),
        lambda: np.asarray(tensor.numpy().reshape(shape).transpose(order), order="C"),
        name=tensor.name,
    )

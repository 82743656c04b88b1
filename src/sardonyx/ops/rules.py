"""Shape and type inference by our own rules: fast, and able to handle symbolic dimensions.

A rule takes a node, and the known elements of small integer tensors, and returns one type per output; None if it cannot
tell. An unknown dimension is None too. Rules may raise on invalid nodes: the caller leaves the error to the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.dims import Dim
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.shape import Shape
from sardonyx.ir.types import TensorType, ValueType

Content: TypeAlias = "Callable[[Value], np.ndarray[Any, Any] | None]"
"""The known elements of a small integer tensor: an object array of int, ``Expr``, or None for an unknown element."""

Result: TypeAlias = "Sequence[ValueType | None] | None"
Rule: TypeAlias = "Callable[[Node, Content], Result]"

RULES: dict[tuple[str, str], Rule] = {}


class Undecided(Exception):
    """A rule lacks the information that it needs."""


def rule(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Register the inference rule of operators, by default of ai.onnx."""

    def register(fn: Rule) -> Rule:
        for op_type in op_types:
            assert (domain, op_type) not in RULES, op_type
            RULES[domain, op_type] = fn
        return fn

    return register


def tensor(node: Node, i: int = 0) -> TensorType:
    """The type of an input, which must be a tensor."""
    v = node.input(i)
    if v is None or not isinstance(v.type, TensorType):
        raise Undecided
    return v.type


def like(t: TensorType, shape: Shape | None) -> TensorType:
    return TensorType(t.dtype, shape)


def shaped(node: Node, i: int = 0) -> Shape:
    """The shape of an input, whose rank must be known."""
    shape = tensor(node, i).shape
    if shape is None:
        raise Undecided
    return shape


def elements(node: Node, i: int, content: Content) -> list[Dim] | None:
    """The known elements of an input; None if even their number is unknown, or if the input is absent."""
    v = node.input(i)
    if v is None:
        return None
    array = content(v)
    if array is not None:
        return list(array.reshape(-1))
    shape = v.shape
    return [None] * shape[0] if shape and len(shape) == 1 and isinstance(shape[0], int) and shape[0] <= 64 else None


def numbers(node: Node, i: int, content: Content) -> list[int] | None:
    """The elements of an input if all are known; None if it is absent."""
    if node.input(i) is None:
        return None
    found = elements(node, i, content)
    if found is None or not all(isinstance(n, int) for n in found):
        raise Undecided
    return [n for n in found if isinstance(n, int)]


def broadcast(shapes: Iterable[Shape | None]) -> Shape | None:
    """The shape of the result of broadcasting these shapes."""
    result: list[Dim] = []
    for shape in shapes:
        if shape is None:
            return None
        if tuple(result) == shape:
            continue
        lack = len(shape) - len(result)
        if lack > 0:
            result = [*shape[:lack], *result]
            shape = shape[lack:]
        start = len(result) - len(shape)
        for i, d in enumerate(shape, start):
            result[i] = dims.broadcast(result[i], d)
    return tuple(result)


def axis_of(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise Undecided
    return axis % rank


SAME = (
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Erf", "Exp", "Log", "Sqrt", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign",
    "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Softmax", "LogSoftmax",
    "Hardmax", "Gelu", "HardSwish", "HardSigmoid", "Clip", "CumSum", "Elu", "Celu", "Selu", "Softplus", "Softsign",
    "Swish", "Mish", "ThresholdedRelu", "Not", "BitwiseNot", "Reciprocal", "LpNormalization", "PRelu", "Shrink",
    "MeanVarianceNormalization", "InstanceNormalization", "GroupNormalization", "Trilu",
    "CumProd", "ScatterND", "ScatterElements", "TensorScatter", "LRN", "ReverseSequence", "Identity",
)  # fmt: skip


@rule(*SAME)
def _same(node: Node, content: Content) -> Result:
    v = node.inputs[0]
    return [v.type if v is not None else None]


@rule("LayerNormalization")
def _layer_normalization(node: Node, content: Content) -> Result:
    x = tensor(node)
    stash = TensorType(dtypes.of_onnx(node.attrs.get("stash_type", 1)))
    if x.shape is not None:
        rank, axis = len(x.shape), node.attrs.get("axis", -1)
        if not -rank <= axis < rank:
            raise Undecided
        stash = TensorType(stash.dtype, (*x.shape[: axis % rank], *[1] * (rank - axis % rank)))
    return [x, stash, stash]


@rule("BatchNormalization", "Dropout")
def _same_of_one(node: Node, content: Content) -> Result:
    return _same(node, content) if all(out.is_dead for out in node.outputs[1:]) else None


@rule("IsNaN", "IsInf")
def _flags(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.bool_, tensor(node).shape)]


@rule(
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Pow",
    "Mod",
    "Max",
    "Min",
    "Sum",
    "Mean",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
)
def _pointwise(node: Node, content: Content) -> Result:
    return [TensorType(tensor(node).dtype, broadcast(tensor(node, i).shape for i in range(len(node.inputs))))]


@rule("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor")
def _compare(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.bool_, broadcast((tensor(node).shape, tensor(node, 1).shape)))]


@rule("Where")
def _where(node: Node, content: Content) -> Result:
    return [TensorType(tensor(node, 1).dtype, broadcast(tensor(node, i).shape for i in range(3)))]


@rule("Cast")
def _cast(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.of_onnx(node.attrs["to"]), tensor(node).shape)]


@rule("RMSNormalization", "CastLike")
def _cast_like(node: Node, content: Content) -> Result:
    return [TensorType(tensor(node, 1).dtype, tensor(node).shape)]


@rule("DequantizeLinear")
def _dequantize(node: Node, content: Content) -> Result:
    to = node.attrs.get("output_dtype")
    return [TensorType(dtypes.of_onnx(to) if to else tensor(node, 1).dtype, tensor(node).shape)]


@rule("QuantizeLinear")
def _quantize(node: Node, content: Content) -> Result:
    to, zero_point = node.attrs.get("output_dtype"), node.input(2)
    dtype = dtypes.of_onnx(to) if to else dtypes.u8 if zero_point is None else tensor(node, 2).dtype
    return [TensorType(dtype, tensor(node).shape)]


@rule("MatMul", "MatMulInteger")
def _matmul(node: Node, content: Content) -> Result:
    a, b = shaped(node), shaped(node, 1)
    rows, columns = a[-2:-1] if len(a) > 1 else (), b[-1:] if len(b) > 1 else ()
    batch = broadcast((a[:-2], b[:-2]))
    dtype = dtypes.i32 if node.op_type == "MatMulInteger" else tensor(node).dtype
    return [TensorType(dtype, None if batch is None else (*batch, *rows, *columns))]


@rule("Gemm")
def _gemm(node: Node, content: Content) -> Result:
    a, b = shaped(node), shaped(node, 1)
    return [
        TensorType(
            tensor(node).dtype, (a[1 if node.attrs.get("transA") else 0], b[0 if node.attrs.get("transB") else 1])
        )
    ]


REDUCTIONS = tuple(
    f"Reduce{kind}" for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
)


@rule(*REDUCTIONS)
def _reduce(node: Node, content: Content) -> Result:
    t, shape, keep = tensor(node), shaped(node), node.attrs.get("keepdims", 1)
    axes = numbers(node, 1, content) or []
    if not axes and node.attrs.get("noop_with_empty_axes"):
        return [t]
    gone = {axis_of(a, len(shape) or 1) for a in axes} or set(range(len(shape)))
    return [like(t, _reduced(shape, gone, keep))]


@rule("ArgMax", "ArgMin")
def _arg(node: Node, content: Content) -> Result:
    shape = shaped(node)
    gone = {axis_of(node.attrs.get("axis", 0), len(shape) or 1)}
    return [TensorType(dtypes.i64, _reduced(shape, gone, node.attrs.get("keepdims", 1)))]


def _reduced(shape: Shape, gone: set[int], keep: int) -> Shape:
    return tuple(1 if i in gone else d for i, d in enumerate(shape) if keep or i not in gone)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(node: Node, content: Content) -> Result:
    shape = shaped(node)
    return [like(tensor(node), (*shape[:2], *(1 for _ in shape[2:])))]


@rule("TopK")
def _top_k(node: Node, content: Content) -> Result:
    t, shape = tensor(node), list(shaped(node))
    k = elements(node, 1, content)
    shape[axis_of(node.attrs.get("axis", -1), len(shape))] = k[0] if k and len(k) == 1 else None
    return [like(t, tuple(shape)), TensorType(dtypes.i64, tuple(shape))]

"""Where quantized operators have their operands, scales and zero points."""

from __future__ import annotations

from sardonyx.records import Record


class Operands(Record):
    """An operator on integers, and the operator on reals that it stands for. Operands are triples of input positions:
    integers, scale, zero point.
    """

    kind: str
    operands: tuple[tuple[int, int, int], ...]
    result: tuple[int, int] | None
    """Where scale and zero point of the result are; None if the result is real."""
    bias: int | None = None


_TWO = ((0, 1, 2), (3, 4, 5))
_ONE = ((0, 1, 2),)

INTEGER: dict[str, Operands] = {
    "QLinearConv": Operands("Conv", _TWO, (6, 7), 8),
    "QLinearMatMul": Operands("MatMul", _TWO, (6, 7)),
    "QGemm": Operands("Gemm", _TWO, (7, 8), 6),
    "QLinearAdd": Operands("Add", _TWO, (6, 7)),
    "QLinearMul": Operands("Mul", _TWO, (6, 7)),
    "QLinearSigmoid": Operands("Sigmoid", _ONE, (3, 4)),
    "QLinearLeakyRelu": Operands("LeakyRelu", _ONE, (3, 4)),
    "QLinearSoftmax": Operands("Softmax", _ONE, (3, 4)),
    "QLinearAveragePool": Operands("AveragePool", _ONE, (3, 4)),
    "QLinearGlobalAveragePool": Operands("GlobalAveragePool", _ONE, (3, 4)),
    "QLinearReduceMean": Operands("ReduceMean", _ONE, (3, 4)),
    "QLinearWhere": Operands("Where", ((1, 2, 3), (4, 5, 6)), (7, 8)),
    "QLinearConcat": Operands("Concat", (), (0, 1)),
    "MatMulIntegerToFloat": Operands("MatMul", ((0, 2, 4), (1, 3, 5)), None, 6),
}

DYNAMIC: dict[str, tuple[str, tuple[int, int, int]]] = {"DynamicQuantizeMatMul": ("MatMul", (1, 2, 3))}
"""Operators that quantize their first operand themselves: what they stand for, and where their weight is."""

UNSCALED = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
"""Products of integers whose result is scaled by nodes after them."""

CARRIERS = frozenset(
    {"MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Identity", "Split"}
    | {"Expand", "Tile", "Pad", "Relu", "Concat", "DepthToSpace", "SpaceToDepth"}
)
"""Operators whose integer results have the scale of their first operand."""

WEIGHTED = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1, "Gemm": -1}
"""Operators on reals with a weight as their second operand, and its axis of output channels."""

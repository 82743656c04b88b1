"""Folding y * scale + shift, with one number per channel, into the weights of a product. It comes from a constant
factor or term or a BatchNormalization.

Weights stay lazy: a folded weight is computed on first use, in f32 if it is stored in a narrower type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.optimize.fusion import require
from sardonyx.optimize.pattern import Match, Var, attribute
from sardonyx.records import Record

Array: TypeAlias = "np.ndarray[Any, Any]"
Vector: TypeAlias = "Callable[[], Array]"
"""One number per channel, or one for all, computed on demand."""


class Affine(Record):
    """y * scale + shift; None means 1 and 0."""

    scale: Vector | None = None
    shift: Vector | None = None


class Constant(Var):
    """Matches any constant, by name."""

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        if value is not None and value.is_const:
            yield from super().match(value, m)


def lazy(dtype: DType, shape: tuple[int, ...], compute: Vector, name: str) -> Tensor:
    """A constant computed on demand and rounded once to its type."""
    return Tensor(dtype, shape, lambda: np.asarray(compute(), dtype.numpy, order="C"), name=name)


def wide(tensor: Tensor) -> Array:
    """The elements, in f32 if they are stored in a narrower type."""
    array = tensor.numpy()
    return array if tensor.dtype is dtypes.f64 else array.astype(np.float32)


def constant(value: Value, what: str) -> Tensor:
    require(value.is_const, f"{what} is not a constant", value)
    assert value.const is not None
    return value.const


def per_channel(value: Value, channels: int, rank: int, axis: int) -> Vector:
    """A constant that varies along one axis of the result only, and does not enlarge it."""
    tensor = constant(value, "the operand")
    shape = (1,) * (rank - len(tensor.shape)) + tensor.shape
    fits = len(tensor.shape) <= rank and all(d == 1 or (i == axis and d == channels) for i, d in enumerate(shape))
    require(fits, "the operand is not one number per channel", value)
    return lambda: np.broadcast_to(wide(tensor).reshape(-1), (channels,))


def factor(c: Vector, op_type: str) -> Affine:
    """y * c, y / c."""
    return Affine(scale=c if op_type == "Mul" else lambda: 1 / c())


def term(c: Vector, node: Node, y: Value) -> Affine:
    """y + c, y - c, c - y."""
    if node.onnx_op != "Sub":
        return Affine(shift=c)
    return Affine(shift=lambda: -c()) if node.inputs[0] is y else Affine(lambda: np.array([-1], np.float32), c)


def batch_norm(m: Match, channels: int) -> Affine:
    """The affine function of an inference BatchNormalization, which the match calls ``norm``."""
    node = m.node("norm")
    require(not attribute(node, "training_mode"), "it normalizes by statistics of the batch")
    scale, bias, mean, var = (constant(v, what) for what, v in _statistics(m))
    require(scale.shape == bias.shape == mean.shape == var.shape == (channels,), "its statistics are not per channel")
    epsilon = float(attribute(node, "epsilon"))

    def gain() -> Array:
        found: Array = wide(scale) / np.sqrt(wide(var) + epsilon)
        return found

    return Affine(gain, lambda: wide(bias) - wide(mean) * gain())


def _statistics(m: Match) -> list[tuple[str, Value]]:
    return [("the scale", m.scale), ("the bias", m.bias), ("the mean", m.mean), ("the variance", m.var)]


def normalized(op: Any, y: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """The pattern that ``batch_norm`` interprets."""
    return op.BatchNormalization(y, scale, bias, mean, var, name="norm")

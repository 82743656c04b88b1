"""Quantized values: integers with scale and zero point, as in QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.optimize.fusion import require
from sardonyx.optimize.pattern import Apply, Match, attribute
from sardonyx.records import Record

KERNELS = (dtypes.u8, dtypes.i8)
"""Element types of onnxruntime's integer kernels."""

UNIT_TOLERANCE = 1e-6
"""Relative rounding error of a product of two scales, compared with the scale that a quantizer stored for a bias."""


class Produced(Apply):
    """Matches the result of one of several operators, with any inputs."""

    def __init__(self, *op_types: str, name: str, domain: str = "") -> None:
        super().__init__(op_types, (), name=name, domain=domain)

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        node = value.producer if value is not None else None
        if node is None or node.op_type not in self.op_types or node.domain != self.domain:
            return
        if value is node.outputs[0]:
            yield m.add(self, node)


class Quantized(Record):
    """(q - zero) * scale; scale and zero are constants, per tensor or along one axis."""

    q: Value
    scale: Value
    zero: Value | None

    @property
    def dtype(self) -> DType:
        assert self.q.dtype is not None
        return self.q.dtype

    @property
    def is_per_tensor(self) -> bool:
        return self.scale.is_scalar_const

    def zeros(self) -> Any:
        """The zero points in the shape of the scales."""
        zero = 0 if self.zero is None else self.zero.numpy()
        return np.broadcast_to(np.asarray(zero, self.dtype.numpy), self.scale.numpy().shape)

    def steps(self, op: Builder) -> tuple[Value, Value]:
        """Scale and zero point as inputs of an operator."""
        return self.scale, self.zero if self.zero is not None else op.const(self.zeros())

    def scalars(self, op: Builder) -> tuple[Value, Value]:
        """Scale and zero point of the whole tensor, for a tensor of any shape."""
        assert self.is_per_tensor
        if self.scale.rank == 0 and self.zero is not None and self.zero.rank == 0:
            return self.scale, self.zero
        return op.const(self.scale.numpy().reshape(())), op.const(self.zeros().reshape(()))

    def inputs(self, op: Builder) -> tuple[Value, Value, Value]:
        """Integers, scale and zero point as inputs of an operator."""
        return (self.q, *self.steps(op))


def is_dequantized(v: Value | None) -> bool:
    node = v.producer if v is not None else None
    return node is not None and node.op_type == "DequantizeLinear" and not node.domain


def dequantized(v: Value | None, *, axis: int | None = None) -> Quantized:
    """The quantized value that a float was dequantized from; ``axis`` may have a scale for each index."""
    assert v is not None
    require(is_dequantized(v), "an operand is not dequantized", v)
    node = v.producer
    assert node is not None
    q = node.inputs[0]
    assert q is not None
    return _read(node, q, v, axis)


def quantized(node: Node) -> Quantized:
    """The result of a QuantizeLinear."""
    x = node.inputs[0]
    assert x is not None
    return _read(node, node.output, x, None)


def _read(node: Node, q: Value, real: Value, axis: int | None) -> Quantized:
    scale, zero = node.input(1), node.input(2)
    assert scale is not None
    require(q.dtype in KERNELS, "onnxruntime has no kernel for the integers", q)
    require(real.dtype is dtypes.f32 and scale.dtype is dtypes.f32, "the reals are not known to be f32", real)
    require(scale.is_const, "the scale is not a constant", scale)
    require(zero is None or zero.is_const, "the zero point is not a constant", zero)
    if not scale.is_scalar_const:
        along = axis is not None and q.rank is not None and attribute(node, "axis") % q.rank == axis % q.rank
        require(along and scale.rank == 1, "the kernel supports one scale per tensor only", scale)
    return Quantized(q, scale, zero)


def require_product(a: Quantized, b: Quantized, y: Quantized | None = None) -> None:
    """onnxruntime multiplies u8 by u8 or i8, and i8 by i8, and returns the left operand's type."""
    require(a.dtype is dtypes.u8 or b.dtype is dtypes.i8, "onnxruntime has no kernel for i8 times u8", b.q)
    require(y is None or y.dtype is a.dtype, "the result is of another integer type", y.q if y else None)


def require_same(*values: Quantized) -> None:
    for v in values[1:]:
        require(v.dtype is values[0].dtype, "the integers are of another type", v.q)


def bias_in_units(op: Builder, bias: Value | None, a: Quantized, b: Quantized, axis: int) -> Value | None:
    """A bias with one value per index of an axis of b, as i32 in units of the product of two scales.

    Either it is stored in that form, or the conversion must be exact.
    """
    if bias is None:
        return None
    vector = b.q.shape is not None and bias.shape == (b.q.shape[axis],)
    require(vector and bias.rank == 1, "the bias is not known to be one for each column", bias)
    unit = a.scale.numpy().reshape(()) * b.scale.numpy()
    node = bias.producer
    if node is not None and is_dequantized(bias):
        q, scale, zero = node.inputs[0], node.inputs[1], node.input(2)
        assert q is not None and scale is not None
        require(q.dtype is dtypes.i32 and not attribute(node, "block_size"), "the bias is no i32", q)
        require(scale.is_const, "the scale is not a constant", scale)
        require(zero is None or (zero.is_const and not zero.numpy().any()), "the bias has a zero point", zero)
        fits = scale.const is not None and (scale.const.size == 1 or scale.const.size == unit.size)
        near = fits and np.allclose(scale.numpy().reshape(-1), unit.reshape(-1), rtol=UNIT_TOLERANCE, atol=0)
        require(near, "the bias is in other units than the product", scale)
        return q
    require(bias.is_const and bias.dtype is dtypes.f32, "the bias is neither dequantized nor a constant", bias)
    real = bias.numpy()
    with np.errstate(all="ignore"):
        whole = np.rint(real / unit)
        exact = np.abs(whole) < 2**31
        exact &= (whole * unit).astype(np.float32) == real
    require(exact.all() and whole.shape == real.shape, "the bias is not an integer multiple of the unit", bias)
    return op.const(whole.astype(np.int32))

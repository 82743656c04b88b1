"""Simplifies conversions: CastLike, Cast after Cast, QuantizeLinear after DequantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.pattern import Match, attribute

EXACT_BITS = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
"""Integers with this many bits are exact in a float."""


def represents_all(middle: DType, given: DType) -> bool:
    """Whether ``middle`` represents every value of ``given`` exactly."""
    if given is middle or given.kind == "bool":
        return middle.kind in ("bool", "int", "uint") or middle.name in EXACT_BITS
    if given.is_integer and middle.is_integer:
        signs = middle.kind == given.kind or (given.kind == "uint" and middle.kind == "int")
        return signs and middle.bits - (middle.kind == "int") >= given.bits - (given.kind == "int")
    if given.is_integer and middle.name in EXACT_BITS:
        return given.bits <= EXACT_BITS[middle.name]
    wider = {"f16": ("f32", "f64"), "bf16": ("f32", "f64"), "f32": ("f64",)}
    return middle.name in wider.get(given.name, ())


@fusion
class FoldCastLike(Fusion):
    """CastLike(x, like)  ->  Cast(x), to the type of like."""

    def pattern(self, op: Any, x: Any, like: Any) -> Any:
        return op.CastLike(x, like, name="cast")

    def rewrite(self, op: Builder, m: Match) -> Any:
        require(m.like.dtype is not None, "the type of the example is not known", m.like)
        return op.Cast(m.x, to=m.like.dtype.onnx, **m.node("cast").attrs)


@fusion
class FuseCasts(Fusion):
    """Cast(Cast(x))  ->  Cast(x), if the intermediate type represents every value of x."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Cast(op.Cast(x, name="inner"), name="outer")

    def rewrite(self, op: Builder, m: Match) -> Any:
        middle = dtypes.of_onnx(m.node("inner").attrs["to"])
        require(m.x.dtype is not None, "the type of the input is not known", m.x)
        require(represents_all(middle, m.x.dtype), f"{middle} does not hold every {m.x.dtype}", m.x)
        return op.Cast(m.x, **m.node("outer").attrs)


@fusion
class CancelQuantization(Fusion):
    """QuantizeLinear(DequantizeLinear(q, s, z), s, z)  ->  q."""

    shares = True

    def pattern(self, op: Any, q: Any, s0: Any, s1: Any) -> Any:
        inner = op.DequantizeLinear(q, s0, op.optional("z0"), name="inner")
        return op.QuantizeLinear(inner, s1, op.optional("z1"), name="outer")

    def rewrite(self, op: Builder, m: Match) -> Any:
        inner, outer = m.node("inner"), m.node("outer")
        dtype = m.q.dtype
        require(dtype is not None and dtype is outer.output.dtype, "the integers are of another type", m.q)
        exact = dtype.is_integer and dtype.bits <= 16 and m.s0.dtype is dtypes.f32
        require(exact, "quantizing again would not restore every integer", m.q)
        require(_equal(m.s0, m.s1), "the scales differ", m.s1)
        require(_equal(m.z0, m.z1), "the zero points differ", m.z1)
        placed = all(attribute(inner, key) == attribute(outer, key) for key in ("axis", "block_size"))
        require(placed or m.s0.rank == 0, "they scale another axis", m.s1)
        return m.q


def _equal(a: Value | None, b: Value | None) -> bool:
    """Whether two constants are equal; an omitted one is zero."""
    if a is b:
        return True
    if any(v is not None and not v.is_const for v in (a, b)):
        return False
    left, right = (np.zeros((), np.int64) if v is None else v.numpy() for v in (a, b))
    if a is None or b is None:
        return not left.any() and not right.any()
    return left.dtype == right.dtype and np.array_equal(left, right)

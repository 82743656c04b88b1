"""Simplifications of pointwise expressions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import Constant
from sardonyx.optimize.fusions.axes import UNARY
from sardonyx.optimize.pattern import Match


@fusion
class FuseDivMul(Fusion):
    """1 / x * y  ->  y / x."""

    def pattern(self, op: Any, x: Any, y: Any) -> Any:
        return op.either(1.0 / x, op.Reciprocal(x)) * y

    def rewrite(self, op: Builder, m: Match) -> Any:
        require(m.x.dtype is not None and m.x.dtype.is_float, "a quotient of integers is rounded", m.x)
        return op.Div(m.y, m.x)


@fusion
class FuseNotWhere(Fusion):
    """Where(Not(c), a, b)  ->  Where(c, b, a)."""

    shares = True

    def pattern(self, op: Any, c: Any, a: Any, b: Any) -> Any:
        return op.Where(op.Not(c), a, b)

    def rewrite(self, op: Builder, m: Match) -> Any:
        return op.Where(m.c, m.b, m.a)


class Clamp(Fusion):
    """Expressions that limit x by two constants."""

    def bounded(self, op: Builder, x: Value, low: float, high: float) -> Any:
        """Clip(x, low, high), or Relu(x)."""
        require(x.dtype is not None and (x.dtype.is_float or x.dtype.is_integer), "the type is not known", x)
        assert x.dtype is not None
        if low == 0 and high == math.inf and x.dtype.is_float:
            return op.Relu(x)
        bounds = [None if math.isinf(b) else np.array(b, x.dtype.numpy) for b in (low, high)]
        return op.Clip(x, *bounds)


def _bounds(low: Value | None, high: Value | None) -> tuple[float, float]:
    for bound in (low, high):
        require(bound is None or bound.is_scalar_const, "a bound is not a scalar constant", bound)
    found = (-math.inf if low is None else low.item(), math.inf if high is None else high.item())
    require(found[0] <= found[1], "the bounds cross", low)
    return found


@fusion
class FuseClips(Clamp):
    """Clip(Clip(x, a, b), c, d)  ->  Clip(x, e, f); a Relu counts as Clip(x, 0)."""

    def pattern(self, op: Any, x: Any) -> Any:
        kinds = ("Clip", "Relu")
        inner = op.call("", kinds, x, op.optional("a"), op.optional("b"), name="inner")
        return op.call("", kinds, inner, op.optional("c"), op.optional("d"), name="outer")

    def rewrite(self, op: Builder, m: Match) -> Any:
        a, b = (0, math.inf) if m.node("inner").onnx_op == "Relu" else _bounds(m.a, m.b)
        c, d = (0, math.inf) if m.node("outer").onnx_op == "Relu" else _bounds(m.c, m.d)
        return self.bounded(op, m.x, min(max(a, c), d), min(max(b, c), d))


@fusion
class FoldClipRelu(Clamp):
    """Clip(x, 0)  ->  Relu(x)."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Clip(x, 0.0, op.optional("high"))

    def rewrite(self, op: Builder, m: Match) -> Any:
        require(m.x.dtype is not None and m.x.dtype.is_float, "it is not of floats", m.x)
        require(_bounds(None, m.high)[1] == math.inf, "it has an upper bound", m.high)
        return op.Relu(m.x)


@fusion
class FuseMinMax(Clamp):
    """Min(Max(x, a), b)  ->  Clip(x, a, b), of scalars."""

    def pattern(self, op: Any, x: Any) -> Any:
        low, high = Constant("low"), Constant("high")
        return op.Min(op.Max(x, low), high), op.Max(op.Min(x, high), low)

    def rewrite(self, op: Builder, m: Match) -> Any:
        for bound in (m.low, m.high):
            small = bound.rank is not None and m.x.rank is not None and bound.rank <= m.x.rank
            require(small, "a bound may enlarge the result", bound)
        return self.bounded(op, m.x, *_bounds(m.low, m.high))


@fusion
class FoldShapeOfPointwise(Fusion):
    """Shape(f(x))  ->  Shape(x), for elementwise f."""

    shares = True

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Shape(op.call("", tuple(UNARY), x, op.optional("a"), op.optional("b")), name="shape")

    def rewrite(self, op: Builder, m: Match) -> Any:
        return op.Shape(m.x, **m.node("shape").attrs)


class PowersOfTwo(Constant):
    """Matches floats whose reciprocals are exact."""

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        for found in super().match(value, m):
            c = found.values[self.name]
            if c is not None and c.const is not None and c.const.dtype.is_float and c.const.size <= MAX_ELEMENTS:
                mantissa, exponent = np.frexp(c.numpy().astype(np.float64))
                if np.all((np.abs(mantissa) == 0.5) & (np.abs(exponent) <= MAX_EXPONENT)):
                    yield found


@fusion
class MultiplyByReciprocal(Fusion):
    """x / c  ->  x * (1 / c) for powers of two, where results are bit-identical."""

    def pattern(self, op: Any, x: Any) -> Any:
        return x / PowersOfTwo("c")

    def rewrite(self, op: Builder, m: Match) -> Any:
        return op.Mul(m.x, 1 / m.c.numpy())


MAX_ELEMENTS = 1024
"""Largest divisor that is inspected."""

MAX_EXPONENT = 14
"""Largest power of two whose reciprocal is exact in every float type."""

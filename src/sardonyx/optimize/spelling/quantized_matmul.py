"""Products of 8-bit matrices with float results, and the quantization of their left operand."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import Constant
from sardonyx.optimize.fusions.checks import fits_trailing, root, sizes
from sardonyx.optimize.pattern import Match, Var
from sardonyx.optimize.spelling import MICROSOFT
from sardonyx.optimize.spelling.quantized_values import KERNELS, Produced, dequantized, require_product

BIAS_AT = {"DynamicQuantizeMatMul": 4, "MatMulIntegerToFloat": 6, "MatMulNBits": 5}
"""The bias inputs of products."""


def _product(op: Any, a: Any, b: Any) -> Any:
    return op.MatMulInteger(a, b, op.optional("a_zero"), op.optional("b_zero"))


def _require_factor(scale: Value, b: Value) -> None:
    """Refuse unless the scale is one number, or one per column."""
    columns = sizes(b, -1)
    per_column = columns is not None and scale.shape == columns and b.rank == 2
    require(scale.shape in ((), (1,)) or per_column, "the factor is neither one nor one for each column", scale)
    require(scale.dtype is dtypes.f32, "the factor is no f32", scale)


@fusion
class SpellQGemm(Fusion):
    """QuantizeLinear(Cast(MatMulInteger(a, b) + c) * factor, 1, z)  ->  QGemm(a, b, c), the factor as b's scale."""

    def pattern(self, op: Any, a: Any, b: Any, c: Any, z: Any) -> Any:
        product = _product(op, a, b)
        units = op.Cast(op.either(product + c, product), to=dtypes.f32.onnx) * Constant("factor")
        return op.QuantizeLinear(units, 1.0, z)

    def rewrite(self, op: Builder, m: Match) -> Any:
        for v in (m.a, m.b):
            require(v.rank == 2 and v.dtype in KERNELS, "no matrix of 8-bit integers", v)
        require(m.a.dtype is m.z.dtype, "the result is of another integer type", m.z)
        require(m.a.dtype is dtypes.u8 or m.b.dtype is dtypes.i8, "onnxruntime has no kernel for i8 times u8", m.b)
        _require_factor(m.factor, m.b)
        bias = m.values.get("c")
        require(bias is None or fits_trailing(bias, m.b), "the addend is no bias of the columns", bias)
        one = op.const(np.ones((), np.float32))
        left, right = (m.a, one, _zero(op, m.a_zero, m.a)), (m.b, m.factor, _zero(op, m.b_zero, m.b))
        return op.call(MICROSOFT, "QGemm", *left, *right, bias, one, m.z, alpha=1.0, transA=0, transB=0)


def _zero(op: Builder, zero: Value | None, v: Value) -> Value:
    assert v.dtype is not None
    return op.const(np.zeros((), v.dtype.numpy)) if zero is None else zero


@fusion
class SpellMatMulIntegerToFloat(Fusion):
    """Cast(MatMulInteger(a, b)) * (s * t)  ->  MatMulIntegerToFloat(a, b, s, t)."""

    shares = True

    def pattern(self, op: Any, a: Any, b: Any, s: Any, t: Any) -> Any:
        reals = op.Cast(_product(op, a, b), to=dtypes.f32.onnx, name="reals")
        return reals * (s * t), reals * Constant("factor"), reals * s * t

    def rewrite(self, op: Builder, m: Match) -> Any:
        reals = m.node("reals").output
        require(len(reals.uses) == 1 and not reals.is_output, "the product has other readers", reals)
        for v in (m.a, m.b):
            require(v.rank is not None and v.rank >= 2 and v.dtype in KERNELS, "no matrix of 8-bit integers", v)
        if "factor" in m.values:
            s, t = None, m.factor
        else:
            s, t = (m.s, m.t) if m.s.shape in ((), (1,)) else (m.t, m.s)
            require(s.shape in ((), (1,)), "the left side has more than one scale", s)
        _require_factor(t, m.b)
        require(
            m.a_zero is None or m.a_zero.shape in ((), (1,)), "the left side has more than one zero point", m.a_zero
        )
        scale = op.const(np.ones((), np.float32)) if s is None else s
        return op.call(MICROSOFT, "MatMulIntegerToFloat", m.a, m.b, scale, t, m.a_zero, m.b_zero)


@fusion
class SpellDequantizedMatMul(Fusion):
    """MatMul(DequantizeLinear(a), DequantizeLinear(b)) + bias  ->  MatMulIntegerToFloat(a, b, bias)."""

    shares = True

    def pattern(self, op: Any, a: Any, b: Any, s: Any, t: Any) -> Any:
        left = op.DequantizeLinear(a, s, op.optional("y"))
        right = op.DequantizeLinear(b, t, op.optional("z"))
        gemm = op.Gemm(left, right, Var("bias"), transA=0, transB=0, alpha=1.0, beta=1.0)
        return op.MatMul(left, right), gemm

    def rewrite(self, op: Builder, m: Match) -> Any:
        left, right = root(m).inputs[:2]
        a, b = dequantized(left), dequantized(right, axis=-1)
        require_product(a, b)
        for v in (a.q, b.q):
            require(v.rank is not None and v.rank >= 2, "an operand is no matrix", v)
        require(b.is_per_tensor or b.q.rank == 2, "only a matrix has a scale for each column", b.q)
        bias = m.values.get("bias")
        require(bias is None or fits_trailing(bias, b.q), "the addend is no bias of the columns", bias)
        (s, y), (t, z) = a.scalars(op), b.steps(op)
        return op.call(MICROSOFT, "MatMulIntegerToFloat", a.q, b.q, s, t, y, z, bias)


@fusion
class SpellDynamicQuantizeMatMul(Fusion):
    """MatMulIntegerToFloat of DynamicQuantizeLinear(x), which nothing else reads  ->  DynamicQuantizeMatMul(x)."""

    def pattern(self, op: Any, x: Any, b: Any, t: Any) -> Any:
        a, s, y = (op.DynamicQuantizeLinear(x, output=i) for i in range(3))
        return op.call(MICROSOFT, "MatMulIntegerToFloat", a, b, s, t, y, op.optional("z"))

    def rewrite(self, op: Builder, m: Match) -> Any:
        return op.call(MICROSOFT, "DynamicQuantizeMatMul", m.x, m.b, m.t, m.z)


@fusion
class SpellQuantizedBias(Fusion):
    """MatMulNBits(x) + bias  ->  MatMulNBits with its bias; also for products of 8 bits."""

    def pattern(self, op: Any, bias: Any) -> Any:
        return Produced(*BIAS_AT, domain=MICROSOFT, name="product") + bias

    def rewrite(self, op: Builder, m: Match) -> Any:
        node = m.node("product")
        at = BIAS_AT[node.op_type]
        y = node.output
        require(node.input(at) is None, "there is a bias already", node.input(at))
        require(m.bias.dtype is y.dtype and fits_trailing(m.bias, y), "the addend is no bias of the last axis", m.bias)
        inputs = [*node.inputs, *[None] * (at - len(node.inputs))]
        return op.call(MICROSOFT, node.op_type, *inputs, m.bias, **node.attrs)

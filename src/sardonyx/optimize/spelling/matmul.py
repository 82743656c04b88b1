"""Fuses matrix products with surrounding transposes and factors."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import Constant
from sardonyx.optimize.fusions.checks import number, result
from sardonyx.optimize.pattern import Match
from sardonyx.optimize.spelling import MICROSOFT

KERNELS = (dtypes.f32, dtypes.f64)


def _product(op: Any, a: Any, b: Any) -> Any:
    """MatMul, or what another of these passes has made of it."""
    fused = op.call(MICROSOFT, "FusedMatMul", a, b, transBatchA=None, transBatchB=None, name="matmul")
    return op.either(op.MatMul(a, b, name="matmul"), fused)


def _fused(op: Builder, m: Match, a: Value, b: Value, **changed: Any) -> Any:
    for v in (a, b):
        require(v.dtype in KERNELS, "onnxruntime has no kernel for the element type", v)
        require(v.rank is not None and v.rank >= 2, "an operand is no matrix", v)
    return op.call(MICROSOFT, "FusedMatMul", a, b, **{**m.node("matmul").attrs, **changed})


def _may_swap(perm: list[int] | None) -> bool:
    """Whether a permutation swaps exactly the last two axes; None reverses all axes."""
    return perm is None or (len(perm) >= 2 and perm == [*range(len(perm) - 2), len(perm) - 1, len(perm) - 2])


@fusion
class SpellMatMulTranspose(Fusion):
    """MatMul(Transpose(a), b)  ->  FusedMatMul(a, b, transA=1); also for b."""

    def pattern(self, op: Any, a: Any, b: Any) -> Any:
        left, right = (op.Transpose(v, perm=_may_swap) for v in (a, b))
        return _product(op, left, right), _product(op, left, b), _product(op, a, right)

    def rewrite(self, op: Builder, m: Match) -> Any:
        matmul = m.node("matmul")
        changed = {}
        for key, given, v in zip(("transA", "transB"), matmul.inputs, (m.a, m.b), strict=True):
            if given is v or given is None or given.producer is None:
                continue
            swaps = v.rank == 2 or "perm" in given.producer.attrs
            require(swaps, "the transpose moves other axes than the last two", given)
            changed[key] = 1 - matmul.attrs.get(key, 0)
        return _fused(op, m, m.a, m.b, **changed)


@fusion
class SpellMatMulScale(Fusion):
    """MatMul(a, b) * alpha, MatMul(a * alpha, b)  ->  FusedMatMul(a, b, alpha)."""

    def pattern(self, op: Any, a: Any, b: Any) -> Any:
        y, alpha, divisor = _product(op, a, b), Constant("alpha"), Constant("divisor")
        left, right = (op.either(v * alpha, v / divisor) for v in (a, b))
        return y * alpha, y / divisor, _product(op, left, b), _product(op, a, right)

    def rewrite(self, op: Builder, m: Match) -> Any:
        factor = number(m.alpha, "the factor") if "alpha" in m.values else 1 / number(m.divisor, "the divisor")
        matmul = m.node("matmul")
        require(matmul.outputs[0].rank == result(m).rank, "the factor adds dimensions", result(m))
        return _fused(op, m, m.a, m.b, alpha=factor * matmul.attrs.get("alpha", 1.0))

"""Normalizations written out: LayerNormalization and RMSNormalization."""

from __future__ import annotations

from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.pattern import Match


def _vector(v: Value, what: str) -> None:
    require(v.rank == 1, f"{what} is not 1-D", v)


@fusion
class FuseRMSNorm(Fusion):
    """x / sqrt(mean(x * x) + eps) * scale  ->  RMSNormalization(x, scale)."""

    def pattern(self, op: Any, x: Any, scale: Any, eps: Any) -> Any:
        square = op.either(op.Pow(x, 2.0), x * x)
        root = op.Sqrt(op.ReduceMean(square, axes=[-1], keepdims=1) + eps)
        return op.either(x / root, x * op.Reciprocal(root), x * (1.0 / root)) * scale

    def rewrite(self, op: Builder, m: Match) -> Any:
        require(m.eps.is_scalar_const, "epsilon is not a scalar constant", m.eps)
        _vector(m.scale, "scale")
        return op.RMSNormalization(m.x, m.scale, axis=-1, epsilon=float(m.eps.item()))


@fusion
class FuseLayerNorm(Fusion):
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * scale + bias  ->  LayerNormalization(x, scale, bias)."""

    def pattern(self, op: Any, x: Any, scale: Any, bias: Any, eps: Any) -> Any:
        centred = x - op.ReduceMean(x, axes=[-1], keepdims=1)
        square = op.either(op.Pow(centred, 2.0), centred * centred)
        root = op.Sqrt(op.ReduceMean(square, axes=[-1], keepdims=1) + eps)
        return op.either(centred / root, centred * op.Reciprocal(root)) * scale + bias

    def rewrite(self, op: Builder, m: Match) -> Any:
        require(m.eps.is_scalar_const, "epsilon is not a scalar constant", m.eps)
        _vector(m.scale, "scale")
        _vector(m.bias, "bias")
        return op.LayerNormalization(m.x, m.scale, m.bias, axis=-1, epsilon=float(m.eps.item()))

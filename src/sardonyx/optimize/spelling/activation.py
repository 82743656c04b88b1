"""Gelu and Swish as onnxruntime's operators, with a preceding bias."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.checks import fits_trailing
from sardonyx.optimize.pattern import Match, attribute
from sardonyx.optimize.spelling import MICROSOFT

KERNELS = (dtypes.f32, dtypes.f16)
"""Element types of onnxruntime's activation and normalization kernels."""


def require_kernel(x: Value) -> None:
    require(x.dtype in KERNELS, "onnxruntime has no kernel for the element type", x)


@fusion
class SpellBiasGelu(Fusion):
    """Gelu(x + bias)  ->  BiasGelu(x, bias); FastGelu(x, bias) for the tanh form."""

    def pattern(self, op: Any, x: Any, bias: Any) -> Any:
        return op.Gelu(x + bias, name="gelu")

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_kernel(m.x)
        fast = attribute(m.node("gelu"), "approximate") == "tanh"
        return op.call(MICROSOFT, "FastGelu" if fast else "BiasGelu", m.x, _vector(op, m.bias, m.x))


def _vector(op: Builder, bias: Value, x: Value) -> Value:
    """A bias of the last axis of ``x``: a constant, without leading ones."""
    if fits_trailing(bias, x):
        return bias
    flat = bias.is_const and bias.rank is not None and x.rank is not None and 1 < bias.rank <= x.rank
    shape = bias.shape or ()
    fits = flat and x.shape is not None and shape[-1] == x.shape[-1] and set(shape[:-1]) == {1}
    require(fits, "the addend is no bias of the last axis", bias)
    return op.const(bias.numpy().reshape(-1))


@fusion
class SpellGelu(Fusion):
    """Gelu(x)  ->  com.microsoft Gelu(x); FastGelu(x) for the tanh form."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Gelu(x, name="gelu")

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_kernel(m.x)
        fast = attribute(m.node("gelu"), "approximate") == "tanh"
        return op.call(MICROSOFT, "FastGelu" if fast else "Gelu", m.x)


@fusion
class SpellQuickGelu(Fusion):
    """Swish(x)  ->  QuickGelu(x)."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Swish(x, name="swish")

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_kernel(m.x)
        return op.call(MICROSOFT, "QuickGelu", m.x, alpha=float(attribute(m.node("swish"), "alpha")))

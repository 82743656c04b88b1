"""Fuses written-out reductions: L2 norm, softmax, pooling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.checks import number, require_float, require_shape_of, result, same_shape
from sardonyx.optimize.fusions.norm_forms import axes_of, keeps_axes, require_axes_back, with_axes_restored
from sardonyx.optimize.pattern import Match

MAX_NORM_EPSILON = 1e-7
"""A lower bound of a norm that only prevents a division by zero."""


@fusion
class FuseLpNormalization(Fusion):
    """x / max(l2(x), eps)  ->  LpNormalization(x): the same for norms of at least eps, and for zeros."""

    def pattern(self, op: Any, x: Any, eps: Any, shape: Any) -> Any:
        norm = op.ReduceL2(x, axes=lambda axes: len(axes) == 1, keepdims=1, name="norm")
        bounded = op.either(op.Max(norm, eps), op.Clip(norm, eps, None), op.Clip(norm, eps))
        return x / op.maybe("Expand", bounded, shape)

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x)
        require(0 < number(m.eps, "epsilon") <= MAX_NORM_EPSILON, "the least norm is not tiny", m.eps)
        require(same_shape(result(m), m.x), "the shape is not known to be that of the input", result(m))
        return op.LpNormalization(m.x, axis=axes_of(m.node("norm"))[0], p=2)


@fusion
class FuseGlobalAveragePool(Fusion):
    """mean(x, every axis from 2 on)  ->  GlobalAveragePool(x)."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.ReduceMean(x, axes=lambda axes: len(axes) >= 2, keepdims=1, name="mean")

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x)
        spatial = list(range(2, m.x.rank or 0))
        require(spatial and axes_of(m.node("mean")) == spatial, "the axes are not the spatial ones", m.x)
        return op.GlobalAveragePool(m.x)


@fusion
class FuseSoftmax(Fusion):
    """exp(x - max(x)) / sum(exp(x - max(x)))  ->  Softmax(x)."""

    def pattern(self, op: Any, x: Any, floor: Any, shape: Any, shape2: Any) -> Any:
        def written(keepdims: int) -> Iterator[Any]:
            one_axis: Any = {"axes": lambda axes: len(axes) == 1, "keepdims": keepdims}
            peak = op.ReduceMax(x, **one_axis, name="max")
            peak = op.either(peak, op.Max(peak, floor))
            powers = op.Exp(op.Sub(x, peak if keepdims else with_axes_restored(op, peak, shape), name="lowered"))
            total = op.ReduceSum(powers, **one_axis, name="sum")
            total = total if keepdims else with_axes_restored(op, total, shape2)
            yield op.Div(powers, total, name="share")
            yield powers * op.Reciprocal(total, name="share")

        return *written(keepdims=1), *written(keepdims=0)

    def rewrite(self, op: Builder, m: Match) -> Any:
        require_float(m.x)
        require_shape_of(m, m.x)
        axes = axes_of(m.node("max"))
        require(axes == axes_of(m.node("sum")), "maximum and sum are over different axes", m.x)
        floor = m.values.get("floor")
        require(floor is None or number(floor, "the least maximum") == -np.inf, "the maximum is bounded", floor)
        if not keeps_axes(m.node("max")):
            for v in (m.node("lowered").inputs[1], m.node("share").inputs[-1]):
                require_axes_back(v, m.x, axes)
        return op.Softmax(m.x, axis=axes[0])

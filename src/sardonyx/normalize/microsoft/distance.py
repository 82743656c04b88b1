"""CDist: distances between the rows of two matrices, by scipy's names of metrics.

Euclidean distances are matrix products, |a|^2 - 2ab + |b|^2, which lose precision by cancellation if rows are close to
each other and far from zero. So the mean of B is subtracted from all rows first, and everything is computed in float64.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_input
from sardonyx.normalize.microsoft.body import MICROSOFT, like, refuse
from sardonyx.normalize.registry import expand

Metric = Callable[[Builder, Value, Value], Any]


@expand("CDist", domain=MICROSOFT)
def c_dist(op: Builder, node: Node) -> Any:
    """The distance of each row of A, (n, k), from each row of B, (m, k): (n, m)."""
    metric = node.attrs.get("metric", "sqeuclidean")
    a, b = required_input(node, 0), required_input(node, 1)
    sizes = [v.shape[-1] for v in (a, b) if v.shape]
    if all(isinstance(size, int) for size in sizes) and len({*sizes}) > 1:
        raise InvalidGraph("the rows of CDist's matrices differ in length", where=node.label, got=sizes)
    if metric == "minkowski":
        return _minkowski(op, node, a, b, float(node.attrs.get("p", 2.0)))
    if metric not in METRICS:
        raise refuse(node, f"metric={metric!r}")
    return METRICS[metric](op, a, b)


def _pairs(op: Builder, a: Value, b: Value) -> tuple[Value, Value]:
    return op.Unsqueeze(a, op.const([1])), op.Unsqueeze(b, op.const([0]))


def _summed(op: Builder, terms: Value) -> Any:
    return op.ReduceSum(terms, op.const([2]), keepdims=0)


def _differences(op: Builder, a: Value, b: Value) -> Any:
    return op.Abs(op.Sub(*_pairs(op, a, b)))


def _sqeuclidean(op: Builder, a: Value, b: Value) -> Any:
    wide = [op.Cast(v, to=dtypes.f64.onnx) for v in (a, b)]
    mean = op.ReduceMean(wide[1], op.const([0]), keepdims=1)
    finite = op.LessOrEqual(op.Abs(mean), op.const(sys.float_info.max, np.float64))
    center = op.Where(finite, mean, op.const(0.0, np.float64))
    moved = [op.Sub(v, center) for v in wide]
    norms = [op.ReduceSumSquare(v, op.const([1]), keepdims=1) for v in moved]
    cross = op.Mul(op.MatMul(moved[0], op.Transpose(moved[1], perm=[1, 0])), op.const(-2.0, np.float64))
    squares = op.Add(op.Add(cross, norms[0]), op.Transpose(norms[1], perm=[1, 0]))
    return op.CastLike(op.Max(squares, op.const(0.0, np.float64)), a)


def _euclidean(op: Builder, a: Value, b: Value) -> Any:
    return op.Sqrt(_sqeuclidean(op, a, b))


def _cityblock(op: Builder, a: Value, b: Value) -> Any:
    return _summed(op, _differences(op, a, b))


def _chebyshev(op: Builder, a: Value, b: Value) -> Any:
    return op.ReduceMax(_differences(op, a, b), op.const([2]), keepdims=0)


def _minkowski(op: Builder, node: Node, a: Value, b: Value, p: float) -> Any:
    if not p > 0:
        raise refuse(node, f"p={p}")
    if p in (1, 2, math.inf):
        return {1: _cityblock, 2: _euclidean, math.inf: _chebyshev}[p](op, a, b)
    powers = op.Pow(_differences(op, a, b), like(op, p, a))
    return op.Pow(_summed(op, powers), like(op, 1 / p, a))


def _canberra(op: Builder, a: Value, b: Value) -> Any:
    """sum(|a - b| / (|a| + |b|)), where 0 / 0 is 0."""
    apart, sizes = _differences(op, a, b), op.Add(*_pairs(op, op.Abs(a), op.Abs(b)))
    zero = like(op, 0.0, a)
    return _summed(op, op.Where(op.Equal(sizes, zero), zero, op.Div(apart, sizes)))


def _bray_curtis(op: Builder, a: Value, b: Value) -> Any:
    return op.Div(_cityblock(op, a, b), _summed(op, op.Abs(op.Add(*_pairs(op, a, b)))))


def _cosine(op: Builder, a: Value, b: Value) -> Any:
    """1 - ab / (|a| |b|), which is half the squared distance of rows of length 1."""
    units = [op.Div(v, op.ReduceL2(v, op.const([1]), keepdims=1)) for v in (a, b)]
    return op.Mul(_sqeuclidean(op, *units), like(op, 0.5, a))


def _correlation(op: Builder, a: Value, b: Value) -> Any:
    return _cosine(op, *(op.Sub(v, op.ReduceMean(v, op.const([1]), keepdims=1)) for v in (a, b)))


def _hamming(op: Builder, a: Value, b: Value) -> Any:
    """The share of features that differ."""
    same = op.CastLike(op.Equal(*_pairs(op, a, b)), a)
    return op.Sub(like(op, 1.0, a), op.ReduceMean(same, op.const([2]), keepdims=0))


METRICS: dict[str, Metric] = {
    "braycurtis": _bray_curtis,
    "canberra": _canberra,
    "chebyshev": _chebyshev,
    "cityblock": _cityblock,
    "correlation": _correlation,
    "cosine": _cosine,
    "euclidean": _euclidean,
    "hamming": _hamming,
    "manhattan": _cityblock,
    "sqeuclidean": _sqeuclidean,
}

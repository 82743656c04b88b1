"""Expands support vector machines of ai.onnx.ml to operators of ai.onnx, which are compiled.

They compute in f64, as numpy does: sums cancel, and votes depend on their signs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.ops.ml_scores import ML
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.ml import table
from sardonyx.optimize.pattern import Match

MAX_CLASSES = 32
"""More have so many pairs that most of a table of pairs by support vectors is zeros."""


def floats(attrs: Mapping[str, Any], name: str) -> Any:
    """A list attribute as f64, rounded to f32 as it is stored."""
    return np.array(attrs.get(name, ()), np.float32).astype(np.float64)


def squared_distances(op: Builder, rows: Any, vectors: Any) -> Any:
    """|x|^2 - 2 x v + |v|^2, from the middle of the support vectors: features far from zero would cancel."""
    middle = vectors.mean(axis=0)
    vectors = vectors - middle
    rows = op.Sub(rows, op.const(middle))
    norms, products = op.ReduceSumSquare(rows, op.const([1]), keepdims=1), op.MatMul(rows, op.const(-2 * vectors.T))
    apart = op.Max(op.Add(op.Add(products, norms), op.const((vectors**2).sum(axis=1))), op.const(np.float64(0)))
    return op.Where(op.IsInf(norms), norms, apart)


def kernels_of(op: Builder, x: Value, attrs: Mapping[str, Any], count: int) -> Any:
    """The kernel of each row with each of ``count`` support vectors."""
    rows, features = table(op, x)
    vectors = floats(attrs, "support_vectors")
    require(count > 0 and vectors.size == count * features, "the support vectors do not fit the input", x)
    vectors, rows = vectors.reshape(count, features), op.Cast(rows, to=dtypes.f64.onnx)
    kind, params = attrs.get("kernel_type", "LINEAR"), floats(attrs, "kernel_params")
    require(len(params) <= 3, "there are more than three parameters of the kernel")
    gamma, offset, degree = np.concatenate([params, np.zeros(3 - len(params))]).tolist()
    if kind == "RBF":
        return op.Exp(op.Mul(squared_distances(op, rows, vectors), op.const(np.float64(-gamma))))
    products = op.MatMul(rows, op.const(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return products
    moved = op.Add(op.Mul(products, op.const(np.float64(gamma))), op.const(np.float64(offset)))
    require(kind in ("POLY", "SIGMOID"), f"the kernel {kind} is not known")
    return op.Tanh(moved) if kind == "SIGMOID" else op.Pow(moved, op.const(np.float64(degree)))


@fusion
class ExpandSVMRegressor(Fusion):
    """SVMRegressor(x)  ->  kernels(x) W + rho, or its sign."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.call(ML, "SVMRegressor", x, name="model")

    def rewrite(self, op: Builder, m: Match) -> Any:
        attrs = m.node("model").attrs
        count, weights, rho = attrs.get("n_supports", 0), floats(attrs, "coefficients"), floats(attrs, "rho")
        require(weights.size >= count and rho.size > 0, "there is not one weight for each support vector")
        found = op.MatMul(kernels_of(op, m.x, attrs, count), op.const(weights[:count].reshape(count, 1)))
        score = op.Cast(op.Add(found, op.const(rho[:1])), to=dtypes.f32.onnx)
        if not attrs.get("one_class", 0):
            return score
        return op.Where(op.Greater(score, op.const(0.0)), op.const(1.0), op.const(-1.0))


@fusion
class ExpandSVMClassifier(Fusion):
    """SVMClassifier(x)  ->  labels[argmax(votes)], scores of pairs; without probabilities."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.call(ML, "SVMClassifier", x, name="model")

    def rewrite(self, op: Builder, m: Match) -> Any:
        attrs = m.node("model").attrs
        labels, each = attrs.get("classlabels_ints"), attrs.get("vectors_per_class") or ()
        require(labels and not attrs.get("classlabels_strings"), "labels that are strings are not compiled")
        require(not attrs.get("prob_a"), "probabilities are computed by iteration")
        require(attrs.get("post_transform", "NONE") == "NONE", "scores are transformed")
        n, count = len(labels or ()), sum(each)
        require(len(each) == n and 1 < n <= MAX_CLASSES and min(each) >= 0, "the vectors do not fit the labels")
        pairs, weights = list(combinations(range(n), 2)), floats(attrs, "coefficients")
        require(weights.size == (n - 1) * count, "there is not one weight for each class and support vector")
        require(len(floats(attrs, "rho")) >= len(pairs), "there is not one offset for each pair")
        edges, weights = np.cumsum([0, *each]), weights.reshape(n - 1, count)
        of_pairs, votes, base = np.zeros((count, len(pairs))), np.zeros((len(pairs), n)), np.zeros(n)
        for k, (i, j) in enumerate(pairs):
            first, second = slice(edges[i], edges[i + 1]), slice(edges[j], edges[j + 1])
            of_pairs[first, k], of_pairs[second, k] = weights[j - 1, first], weights[i, second]
            votes[k, i], votes[k, j] = 1, -1
            base[j] += 1
        found = op.MatMul(kernels_of(op, m.x, attrs, count), op.const(of_pairs))
        score = op.Cast(op.Add(found, op.const(floats(attrs, "rho")[: len(pairs)])), to=dtypes.f32.onnx)
        won = op.Cast(op.Greater(score, op.const(0.0)), to=dtypes.f32.onnx)
        tally = op.Gemm(won, op.const(votes.astype(np.float32)), op.const(base.astype(np.float32)))
        label = op.Gather(op.const(np.array(labels, np.int64)), op.ArgMax(tally, axis=1, keepdims=0))
        return label, op.Concat(op.Neg(score), score, axis=1) if n == 2 else score

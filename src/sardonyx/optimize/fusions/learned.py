"""Linear models and scalings of ai.onnx.ml as the operators of ai.onnx that they consist of, which are compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.ops.ml_scores import ML, class_labels
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.pattern import Match


def table(op: Builder, x: Value) -> tuple[Any, int]:
    """Rows of features as f32, and how many features there are."""
    require(x.shape is not None and len(x.shape) == 2, "the input is not known to be a matrix", x)
    features = x.shape[1] if x.shape else None
    require(isinstance(features, int) and features > 0, "the number of features is not known", x)
    require(x.dtype is not None and (x.dtype.is_float or x.dtype.is_integer), "the input is not of numbers", x)
    rows = x if x.dtype is dtypes.f32 else op.Cast(x, to=dtypes.f32.onnx)
    return rows, int(features) if isinstance(features, int) else 0


def scores(op: Builder, node: Node, x: Value, count: int) -> Any:
    """Each row times ``count`` vectors of weights, plus intercepts."""
    rows, features = table(op, x)
    weights = np.array(node.attrs.get("coefficients", ()), np.float32)
    offsets = np.array(node.attrs.get("intercepts") or np.zeros(count), np.float32)
    require(weights.size == count * features and offsets.size == count, "the weights do not fit the input", x)
    return op.Gemm(rows, op.const(weights.reshape(count, features)), op.const(offsets), transB=1)


def transformed(op: Builder, x: Any, name: str, count: int) -> Any:
    require(name in ("NONE", "SOFTMAX", "LOGISTIC"), f"the transform {name} has no operator")
    if name == "NONE" or count == 1:
        return x
    return op.Softmax(x, axis=1) if name == "SOFTMAX" else op.Sigmoid(x)


@fusion
class ExpandLinearClassifier(Fusion):
    """LinearClassifier(x)  ->  labels[argmax(x W + b)], transform(x W + b)."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.call(ML, "LinearClassifier", x, name="model")

    def rewrite(self, op: Builder, m: Match) -> Any:
        node = m.node("model")
        labels = class_labels(node.attrs.get("classlabels_strings"), node.attrs.get("classlabels_ints"))
        require(labels is not None and labels.dtype != object, "labels that are strings are not compiled")
        assert labels is not None
        count = len(node.attrs.get("intercepts") or ()) or len(labels)
        require(1 < count <= len(labels), "there is a single score, or one without a label")
        name = node.attrs.get("post_transform", "NONE")
        found = scores(op, node, m.x, count)
        label = op.Gather(op.const(labels), op.ArgMax(found, axis=1, keepdims=0))
        return label, transformed(op, found, name, count)


@fusion
class ExpandLinearRegressor(Fusion):
    """LinearRegressor(x)  ->  transform(x W + b)."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.call(ML, "LinearRegressor", x, name="model")

    def rewrite(self, op: Builder, m: Match) -> Any:
        node = m.node("model")
        count = node.attrs.get("targets", 1)
        return transformed(op, scores(op, node, m.x, count), node.attrs.get("post_transform", "NONE"), count)


@fusion
class ExpandNormalizer(Fusion):
    """Normalizer(x)  ->  x / size(x), where rows of size 0 stay."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.call(ML, "Normalizer", x, name="norm")

    def rewrite(self, op: Builder, m: Match) -> Any:
        sizes = {"MAX": op.ReduceMax, "L1": op.ReduceL1, "L2": op.ReduceL2}
        norm = m.node("norm").attrs.get("norm", "MAX")
        require(norm in sizes, f"the norm {norm} is not known")
        rows, _ = table(op, m.x)
        size = sizes[norm](rows, op.const([1]), keepdims=1)
        return op.Div(rows, op.Where(op.Equal(size, op.const(0.0)), op.const(1.0), size))


@fusion
class ExpandScaler(Fusion):
    """Scaler(x)  ->  (x - offset) * scale."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.call(ML, "Scaler", x, name="scaler")

    def rewrite(self, op: Builder, m: Match) -> Any:
        attrs = m.node("scaler").attrs
        rows, features = table(op, m.x)
        offset, scale = (np.array(attrs.get(name, ()), np.float32) for name in ("offset", "scale"))
        require({offset.size, scale.size} <= {1, features}, "there is not one offset and scale for each feature", m.x)
        return op.Mul(op.Sub(rows, op.const(offset)), op.const(scale))

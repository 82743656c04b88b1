"""Expands ai.onnx.ml's models to operators of ai.onnx, which are compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import SardonyxError
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.ops.ml_scores import ML, class_labels
from sardonyx.ops.ml_tree import Model, from_nodes
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.pattern import Match

CLASS_PARTS = ("treeids", "nodeids", "weights", "weights_as_tensor")


def table(op: Builder, x: Value) -> tuple[Any, int]:
    """Rows of features as f32, and the number of features."""
    require(x.shape is not None and len(x.shape) == 2, "the input is not known to be a matrix", x)
    features = x.shape[1] if x.shape else None
    require(isinstance(features, int) and features > 0, "the number of features is not known", x)
    require(x.dtype is not None and (x.dtype.is_float or x.dtype.is_integer), "the input is not of numbers", x)
    rows = x if x.dtype is dtypes.f32 else op.Cast(x, to=dtypes.f32.onnx)
    return rows, int(features) if isinstance(features, int) else 0


def scores(op: Builder, node: Node, x: Value, count: int) -> Any:
    """Each row times ``count`` weight vectors, plus intercepts."""
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
    """Normalizer(x)  ->  x / norm(x); rows of norm 0 are unchanged."""

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


@fusion
class ExpandTwoClassTrees(Fusion):
    """TreeEnsembleClassifier(x) of two classes  ->  Where(score > threshold, labels), transform(scores).

    Where only one class has weights, its score decides: above one half if no weight is negative, as a probability, and
    else above zero. The first class then stands for the second, as gradient boosting is exported.
    """

    def pattern(self, op: Any, x: Any) -> Any:
        return op.call(ML, "TreeEnsembleClassifier", x, name="model")

    def rewrite(self, op: Builder, m: Match) -> Any:
        attrs = m.node("model").attrs
        labels, name = integer_labels(attrs), attrs.get("post_transform", "NONE")
        require(len(labels) == 2, "there are more than two classes, or there is only one")
        require(m.x.dtype is not dtypes.f64, "scores in f64 are rounded at the end", m.x)
        both = as_regressor(attrs, 2)
        model = model_of(both)
        require(model is not None and bool(len(model[1].leaf)), "the trees have no weights")
        assert model is not None
        classes, is_probability = set(model[1].target.tolist()), bool((model[1].weight >= 0).all())
        base, threshold = base_values(attrs), 0.5 if is_probability else 0.0
        if len(classes) == 2:
            threshold, labels = 0.0, np.array([0, 1])
            wanted = both
        else:
            wanted = {**both, "n_targets": 1, "target_ids": [0] * len(both["target_ids"])}
        require(reaches_all(wanted), "a row may miss a class that has weights", m.x)
        if 1 in classes:
            require(not base.size, "base values of a second class are not added")
            found = op.call(ML, "TreeEnsembleRegressor", m.x, **both)
            score = op.Gather(found, op.const(1), axis=1)
            return decided(op, score, threshold, labels), transformed(op, found, name, 2)
        require(base.size < 2, "base values of a second class are not added")
        require(name in ("NONE", "LOGISTIC"), f"the transform {name} of one score has no operator")
        found = with_base_values(op, op.call(ML, "TreeEnsembleRegressor", m.x, **wanted), attrs)
        other = op.Sub(op.const(1.0), found) if is_probability and name == "NONE" else op.Neg(found)
        label = decided(op, op.Squeeze(found, op.const([1])), threshold, labels)
        return label, transformed(op, op.Concat(other, found, axis=1), name, 2)


def integer_labels(attrs: dict[str, Any]) -> Any:
    """The labels of a classifier's classes."""
    labels = class_labels(attrs.get("classlabels_strings"), attrs.get("classlabels_int64s"))
    require(labels is not None and labels.dtype != object, "labels that are strings are not compiled")
    return labels


def decided(op: Builder, score: Any, threshold: float, labels: Any) -> Any:
    """The second label where the score is above the threshold, else the first."""
    return op.Where(op.Greater(score, op.const(threshold)), *(op.const(np.int64(labels[i])) for i in (1, 0)))


def as_regressor(attrs: dict[str, Any], targets: int) -> dict[str, Any]:
    """The attributes of a TreeEnsembleRegressor whose targets are a classifier's classes."""
    names = {"class_ids": "target_ids", **{f"class_{n}": f"target_{n}" for n in CLASS_PARTS}}
    kept = {name: value for name, value in attrs.items() if name.startswith("nodes_")}
    kept |= {new: attrs[old] for old, new in names.items() if old in attrs}
    return {**kept, "n_targets": targets}


def without(attrs: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in attrs.items() if name not in names}


def model_of(attrs: dict[str, Any]) -> Model | None:
    """The trees and their weights; None for an invalid forest."""
    try:
        return from_nodes(attrs)
    except (SardonyxError, LookupError, ValueError, TypeError, OverflowError):
        return None


def reaches_all(attrs: dict[str, Any]) -> bool:
    """Whether every row gets a weight for every target; False for an invalid forest."""
    model = model_of(attrs)
    return model is not None and model[1].reach_every_target(model[0])


def base_values(attrs: dict[str, Any]) -> Any:
    """A forest's base values."""
    tensor = attrs.get("base_values_as_tensor")
    found = attrs.get("base_values", ()) if tensor is None else tensor.numpy()
    return np.array(found, np.float32).reshape(-1)


def with_base_values(op: Builder, found: Any, attrs: dict[str, Any]) -> Any:
    """Scores plus a forest's base values."""
    base = base_values(attrs)
    return op.Add(found, op.const(base)) if base.size else found


@fusion
class ExpandTreeRegressor(Fusion):
    """TreeEnsembleRegressor(x)  ->  transform(TreeEnsembleRegressor(x) + base)."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.call(ML, "TreeEnsembleRegressor", x, name="model")

    def rewrite(self, op: Builder, m: Match) -> Any:
        attrs = m.node("model").attrs
        tail = ("base_values", "base_values_as_tensor", "post_transform")
        require(any(name in attrs for name in tail), "nothing follows the trees")
        require(m.x.dtype is not dtypes.f64, "scores in f64 are rounded at the end", m.x)
        count = attrs.get("n_targets", 1)
        require(count == 1 or reaches_all(attrs), "a row may miss a target", m.x)
        found = op.call(ML, "TreeEnsembleRegressor", m.x, **without(attrs, *tail))
        return transformed(op, with_base_values(op, found, attrs), attrs.get("post_transform", "NONE"), count)


@fusion
class ExpandTreeClassifier(Fusion):
    """TreeEnsembleClassifier(x) of more than two classes  ->  labels[argmax(scores)], transform(scores)."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.call(ML, "TreeEnsembleClassifier", x, name="model")

    def rewrite(self, op: Builder, m: Match) -> Any:
        attrs = m.node("model").attrs
        labels = integer_labels(attrs)
        require(len(labels) > 2, "two classes are decided by special rules")
        require(m.x.dtype is not dtypes.f64, "scores in f64 are rounded at the end", m.x)
        kept = as_regressor(attrs, len(labels))
        require(reaches_all(kept), "a row may miss a class", m.x)
        found = with_base_values(op, op.call(ML, "TreeEnsembleRegressor", m.x, **kept), attrs)
        label = op.Gather(op.const(labels), op.ArgMax(found, axis=1, keepdims=0))
        return label, transformed(op, found, attrs.get("post_transform", "NONE"), len(labels))

"""Inference for ai.onnx.ml."""

from __future__ import annotations

from sardonyx import dtypes
from sardonyx.ir import dims
from sardonyx.ir.graph import Node
from sardonyx.ir.types import TensorType
from sardonyx.ops.ml_scores import ML, class_labels
from sardonyx.ops.rules import Content, Result, rule, shaped, tensor


@rule("TreeEnsemble", "TreeEnsembleRegressor", domain=ML)
def forest(node: Node, content: Content) -> Result:
    """One score for each row and target; a vector is one row."""
    shape, dtype = shaped(node), tensor(node).dtype if node.op_type == "TreeEnsemble" else dtypes.f32
    return [TensorType(dtype, (shape[0] if len(shape) == 2 else 1, node.attrs.get("n_targets", 1)))]


@rule("TreeEnsembleClassifier", domain=ML)
def classes(node: Node, content: Content) -> Result:
    """A label for each row, and a score for each row and class."""
    shape = shaped(node)
    rows = shape[0] if len(shape) == 2 else 1
    labels = class_labels(node.attrs.get("classlabels_strings"), node.attrs.get("classlabels_int64s"))
    if labels is None:
        return None
    dtype = dtypes.string if labels.dtype == object else dtypes.i64
    return [TensorType(dtype, (rows,)), TensorType(dtypes.f32, (rows, len(labels)))]


@rule("Binarizer", "Imputer", domain=ML)
def _same(node: Node, content: Content) -> Result:
    return [tensor(node)]


@rule("Scaler", "Normalizer", domain=ML)
def _scaled(node: Node, content: Content) -> Result:
    return [TensorType(dtypes.f32, shaped(node))]


@rule("OneHotEncoder", domain=ML)
def _one_hot(node: Node, content: Content) -> Result:
    """A new last axis with one element for each category."""
    kind = "strings" if tensor(node).dtype is dtypes.string else "int64s"
    return [TensorType(dtypes.f32, (*shaped(node), len(node.attrs.get(f"cats_{kind}", ()))))]


@rule("LabelEncoder", domain=ML)
def _encoded(node: Node, content: Content) -> Result:
    types = {"values_strings": dtypes.string, "values_int64s": dtypes.i64, "values_floats": dtypes.f32}
    given = node.attrs.get("values_tensor")
    dtype = given.dtype if given is not None else next((types[name] for name in types if name in node.attrs), None)
    return None if dtype is None else [TensorType(dtype, shaped(node))]


@rule("FeatureVectorizer", domain=ML)
def _vectorized(node: Node, content: Content) -> Result:
    """The rows of all inputs side by side; a vector is one row."""
    shapes = [shaped(node, i) for i in range(len(node.inputs))]
    widths = node.attrs.get("inputdimensions") or [dims.product(s[1:] if len(s) > 1 else s) for s in shapes]
    rows = shapes[0][0] if len(shapes[0]) > 1 else 1
    return [TensorType(dtypes.f32, (rows, dims.total(widths)))]


@rule("ArrayFeatureExtractor", domain=ML)
def _extracted(node: Node, content: Content) -> Result:
    """A column for each index; a vector is one row."""
    shape, picks = shaped(node), shaped(node, 1)
    return [TensorType(tensor(node).dtype, (*(shape[:-1] if len(shape) > 1 else (1,)), dims.product(picks)))]

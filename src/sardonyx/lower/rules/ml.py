"""Binarizer, Imputer, OneHotEncoder, LabelEncoder, FeatureVectorizer and ArrayFeatureExtractor of ai.onnx.ml."""

from __future__ import annotations

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder
from sardonyx.lower.groups import Gather, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.gather import OUTSIDE
from sardonyx.lower.rules.reduce import apply
from sardonyx.lower.sizes import Refused, add, minimum, product, sub, total
from sardonyx.ops.ml import floor_in, labels_by_index
from sardonyx.ops.ml_scores import ML


def _list(low: Lowering, node: Node, name: str, dtype: DType) -> View:
    """A list attribute as a constant."""
    return low.constant(Tensor.of(np.array(node.attrs.get(name, ()), dtype.numpy)))


def _per_feature(low: Lowering, numbers: View, x: View) -> View:
    """One number for all features, or one for each."""
    if not x.shape:
        raise Refused("features need an axis")
    if numbers.shape != (1,):
        low.require("one number for each feature", numbers.shape[0], x.shape[-1])
    return low.fit(numbers, x.shape)


def _as_shaped(low: Lowering, node: Node) -> tuple[View, View]:
    """The input, and the output, which has its shape."""
    x, out = low.view(low.input(0)), low.make(node.output)
    low.require_shape(f"{node.op_type}: the stated shape", out.shape, x.shape)
    return x, out


def _above(e: Emitter, x: Expr, *, threshold: float, to: DType) -> Expr:
    return e.cast(x > threshold, to)


@rule("Binarizer", domain=ML)
def binarizer(low: Lowering, node: Node) -> None:
    (x, out), body = _as_shaped(low, node), ExpressionBuilder()
    threshold = node.attrs.get("threshold", 0.0)
    if not x.dtype.is_float:
        threshold = floor_in(threshold, np.iinfo(x.dtype.numpy))
        if threshold is None:
            raise Refused("an integer is above all or none of its type")
    value = apply(body, _above, body.operand(x), dtype=out.dtype, threshold=threshold, to=out.dtype)
    low.loop(x.shape, body, [(value, out)])


def _imputed(e: Emitter, x: Expr, value: Expr, *, missing: float) -> Expr:
    return e.where(e.isnan(x) if missing != missing else e.eq(x, missing), value, x)


@rule("Imputer", domain=ML)
def imputer(low: Lowering, node: Node) -> None:
    (x, out), body = _as_shaped(low, node), ExpressionBuilder()
    kind = "float" if x.dtype.is_float else "int64"
    missing = node.attrs.get(f"replaced_value_{kind}", 0.0 if x.dtype.is_float else 0)
    values = _per_feature(low, _list(low, node, f"imputed_value_{kind}s", x.dtype), x)
    value = apply(body, _imputed, body.operand(x), body.operand(values), dtype=out.dtype, missing=missing)
    low.loop(x.shape, body, [(value, out)])


def _is_category(e: Emitter, x: Expr, category: Expr, *, to: DType) -> Expr:
    return e.cast(e.eq(e.cast(x, dtypes.i64), category), to)


@rule("OneHotEncoder", domain=ML)
def one_hot_encoder(low: Lowering, node: Node) -> None:
    x, out = low.view(low.input(0)), low.make(node.output)
    categories = _list(low, node, "cats_int64s", dtypes.i64)
    if not node.attrs.get("zeros", 1):
        raise Refused("zeros=0: other values than the categories are an error")
    if len(set(node.attrs.get("cats_int64s", ()))) != categories.shape[0]:
        raise Refused("a category is named twice")
    low.require_shape("OneHotEncoder: the stated shape", out.shape, (*x.shape, *categories.shape))
    body = ExpressionBuilder()
    code = body.operand(low.fit(views.inserted(x, len(x.shape)), out.shape))
    hot = apply(body, _is_category, code, body.operand(low.fit(categories, out.shape)), dtype=out.dtype, to=out.dtype)
    low.loop(out.shape, body, [(hot, out)])


MAX_LABELS = 1 << 16
"""Elements of a LabelEncoder's table: from the least key to the largest."""


def _place(e: Emitter, x: Expr, least: Expr, default: Expr) -> Expr:
    x = e.cast(x, dtypes.i64)
    return e.where((x >= least) & (x < least + default), x - least, default)


@rule("LabelEncoder", domain=ML)
def label_encoder(low: Lowering, node: Node) -> None:
    """A lookup of integers; the default is the last row of the table."""
    x, out = _as_shaped(low, node)
    found = labels_by_index(MAX_LABELS, **node.attrs) if x.dtype.is_integer and x.dtype.name != "u64" else None
    if found is None:
        raise Refused("keys that are no integers, or lie far apart, or values that are strings are not compiled")
    least, labels = found
    table, at, body = low.constant(Tensor.of(labels)), low.temporary(dtypes.i64, x.shape), ExpressionBuilder()
    if table.dtype is not out.dtype:
        raise Refused("the stated type is not that of the values")
    # Operands rather than literals: an exported forest has hundreds of tables, which share one kernel.
    bounds = (body.operand(low.fit(low.scalar(n, dtypes.i64), x.shape)) for n in (least, len(labels) - 1))
    index = apply(body, _place, body.operand(x), *bounds, dtype=dtypes.i64)
    low.loop(x.shape, body, [(index, at)])
    low.groups.append(Gather((node,), table, at, 0, out))


def _cast(e: Emitter, x: Expr, *, to: DType) -> Expr:
    return e.cast(x, to)


@rule("FeatureVectorizer", domain=ML)
def feature_vectorizer(low: Lowering, node: Node) -> None:
    """The inputs side by side, each cut or filled with zeros to its width."""
    tables = [_rows(low, low.view(low.input(i))) for i in range(len(node.inputs))]
    widths = node.attrs.get("inputdimensions") or [table.shape[1] for table in tables]
    if len(widths) != len(tables) or any(isinstance(width, int) and width < 0 for width in widths):
        raise Refused("inputdimensions does not fit the inputs")
    out = low.make(node.output)
    start: Known = 0
    low.require_shape("FeatureVectorizer: the stated shape", out.shape, (tables[0].shape[0], total(widths)))
    for x, width in zip(tables, widths, strict=True):
        rows, columns = x.shape
        low.require("FeatureVectorizer: the inputs have different numbers of rows", rows, out.shape[0])
        kept, body = minimum(columns, width), ExpressionBuilder()
        value = apply(body, _cast, body.operand(views.sliced(x, 1, 0, kept)), dtype=out.dtype, to=out.dtype)
        low.loop((rows, kept), body, [(value, views.sliced(out, 1, start, kept))])
        if kept != width:
            low.copy(low.scalar(0, out.dtype), views.sliced(out, 1, add(start, kept), sub(width, kept)))
        start = add(start, width)


def _rows(low: Lowering, x: View) -> View:
    """A matrix; a vector is one row."""
    rows, features = (x.shape[0], x.shape[1:]) if len(x.shape) > 1 else (1, x.shape)
    return low.reshaped(x, (rows, product(features)))


def _not_negative(e: Emitter, index: Expr) -> Expr:
    index = e.cast(index, dtypes.i64)
    return e.where(index < 0, OUTSIDE, index)


@rule("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(low: Lowering, node: Node) -> None:
    x, picks, out = low.view(low.input(0)), low.view(low.input(1)), low.make(node.output)
    if not x.shape:
        raise Refused("features need an axis")
    x = views.inserted(x, 0) if len(x.shape) == 1 else x
    column, features = low.input(1), x.shape[-1]
    if column.is_scalar_const and isinstance(features, int) and 0 <= column.item() < features:
        axis = len(x.shape) - 1
        low.alias(node.output, views.sliced(x, axis, int(column.item()), 1))
        return
    count: Known = product(picks.shape)
    low.require_least("ArrayFeatureExtractor: there is no index", count, 1)
    low.require_shape("ArrayFeatureExtractor: the stated shape", out.shape, (*x.shape[:-1], count))
    picks = low.reshaped(picks, (count,))
    index, body = low.temporary(dtypes.i64, (count,)), ExpressionBuilder()
    low.loop((count,), body, [(apply(body, _not_negative, body.operand(picks), dtype=dtypes.i64), index)])
    low.groups.append(Gather((node,), x, index, len(x.shape) - 1, out))

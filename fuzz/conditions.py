"""What a node and its operands in a run must be like for a difference to be explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fuzz.draws import is_float

Operands = Sequence[Any]
"""What is fed, or constant; None for an operand that another node makes, or that is left out."""


def operands(graph: onnx.GraphProto, node: onnx.NodeProto, feeds: Mapping[str, Any]) -> list[Any]:
    known = {i.name: numpy_helper.to_array(i) for i in graph.initializer if i.name in node.input}
    for made in graph.node:
        if made.op_type == "Constant" and made.output[0] in node.input:
            value = _attributes(made).get("value")
            known |= {} if value is None else {made.output[0]: numpy_helper.to_array(value)}
    return [feeds.get(name, known.get(name)) for name in node.input]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def is_sparse(node: onnx.NodeProto, given: Operands) -> bool:
    """Whether windows that are padded to cover the input leave gaps between them."""
    attrs = _attributes(node)
    if not attrs.get("auto_pad", b"").startswith(b"SAME"):
        return False
    weights = given[1] if len(given) > 1 else None
    kernel = attrs.get("kernel_shape") or ([] if weights is None else weights.shape[2:])
    strides = attrs.get("strides", [])
    dilations = attrs.get("dilations") or [1] * len(kernel)
    return any(s > (k - 1) * d + 1 for k, s, d in zip(kernel, strides, dilations, strict=False))


def is_dilated(node: onnx.NodeProto, _: Operands) -> bool:
    return any(d > 1 for d in _attributes(node).get("dilations", ()))


def is_dilated_same(node: onnx.NodeProto, given: Operands) -> bool:
    return _attributes(node).get("auto_pad", b"").startswith(b"SAME") and is_dilated(node, given)


def is_weighted(node: onnx.NodeProto, _: Operands) -> bool:
    """Whether a resized image is of weighted sums."""
    return _attributes(node).get("mode") in (b"linear", b"bilinear", b"cubic")


def has_large_recurrence(node: onnx.NodeProto, given: Operands) -> bool:
    """Whether a step may multiply an error in the state."""
    weights = given[2] if node.op_type in ("RNN", "GRU", "LSTM") and len(given) > 2 else None
    return weights is not None and bool((np.abs(weights.astype(np.float64)).sum(-1) > 4).any())


def wraps_and_crops(node: onnx.NodeProto, given: Operands) -> bool:
    """Whether a Pad that wraps an axis around has a negative pad too."""
    pads = given[1] if node.op_type == "Pad" and len(given) > 1 else None
    return _attributes(node).get("mode") == b"wrap" and pads is not None and bool((pads < 0).any())


def is_scaled_crop(node: onnx.NodeProto, _: Operands) -> bool:
    mode = _attributes(node).get("coordinate_transformation_mode")
    return mode == b"tf_crop_and_resize" and len(node.input) == 3


def repeats_axes_of_nothing(node: onnx.NodeProto, given: Operands) -> bool:
    """Whether a reduction of an empty tensor names an axis twice."""
    x = given[0] if given else None
    if not node.op_type.startswith("Reduce") or x is None or x.size:
        return False
    named = given[1] if len(given) > 1 else np.array(_attributes(node).get("axes", ()))
    axes = [int(a) % x.ndim for a in named.ravel()] if named is not None and x.ndim else []
    return len(set(axes)) < len(axes)


def has_fractional_indices(node: onnx.NodeProto, given: Operands) -> bool:
    indices = given[0]
    if node.op_type != "OneHot" or indices is None or not is_float(indices.dtype):
        return False
    with np.errstate(all="ignore"):
        real = indices.astype(np.float64)
        return bool((np.isfinite(real) & (real != np.trunc(real))).any())


def is_past_doubles(node: onnx.NodeProto, given: Operands) -> bool:
    """Whether a Range of integers has a span that a double rounds."""
    if node.op_type != "Range" or any(x is None or x.dtype.kind not in "iu" for x in given):
        return False
    span = abs(int(given[1].item()) - int(given[0].item()))
    return span > 1 << 53


def has_no_steps(node: onnx.NodeProto, given: Operands) -> bool:
    """Whether a Scan of opset 8 has scan inputs of length 0."""
    count = _attributes(node).get("num_scan_inputs", 0)
    scanned = [x for x in given[-count:] if x is not None] if count else []
    return node.op_type == "Scan" and any(x.ndim > 1 and x.shape[1] == 0 for x in scanned)


def reduces_nan(node: onnx.NodeProto, given: Operands) -> bool:
    reals = [x for x in given if x is not None and is_float(x.dtype)]
    return _attributes(node).get("reduction") in (b"min", b"max") and any(np.isnan(x).any() for x in reals)


def has_other_spaces(node: onnx.NodeProto, given: Operands) -> bool:
    """Whether text without a delimiter has white space beside the space."""
    if node.op_type != "StringSplit" or _attributes(node).get("delimiter") or given[0] is None:
        return False
    words = [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in given[0].ravel()]
    return any(c.isspace() and c != " " for word in words for c in word)


def skips_everything(node: onnx.NodeProto, _: Operands) -> bool:
    return _attributes(node).get("max_skip_count") == (1 << 63) - 1


def has_one_probit_score(node: onnx.NodeProto, _: Operands) -> bool:
    """Whether a classifier of two classes turns a single score by PROBIT."""
    attrs = _attributes(node)
    labels = next((attrs[name] for name in attrs if name.startswith("classlabels_")), ())
    single = len(attrs.get("intercepts", [0])) == 1 and not attrs.get("prob_a")
    return attrs.get("post_transform") == b"PROBIT" and len(labels) == 2 and single


def has_low_scores(node: onnx.NodeProto, given: Operands) -> bool:
    """Whether a LinearRegressor's scores lie so far below 0 that 1 - 1 / (1 + exp(score)) has few digits."""
    attrs = _attributes(node)
    if attrs.get("post_transform") != b"LOGISTIC" or given[0] is None or "coefficients" not in attrs:
        return False
    rows = np.atleast_2d(given[0]).astype(np.float64)
    weights = np.array(attrs["coefficients"]).reshape(attrs.get("targets", 1), -1)
    if weights.shape[1] != rows.shape[1]:
        return False
    scores = rows @ weights.T + np.array(attrs.get("intercepts", 0.0))
    return bool((scores < -8).all())


def has_empty_threshold(_: onnx.NodeProto, given: Operands) -> bool:
    """Whether a NonMaxSuppression is given a threshold of no elements."""
    return any(x is not None and np.size(x) == 0 for x in given[3:5])

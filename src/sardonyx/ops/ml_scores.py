"""Post-processing of raw scores of ai.onnx.ml's classifiers and regressors, as in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph

Array = np.ndarray[Any, Any]

ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""In the order of TreeEnsemble's numbers."""


def logistic(x: Array) -> Array:
    positive = 1 / (1 + np.exp(-np.abs(x)))
    return np.where(x < 0, 1 - positive, positive).astype(x.dtype)


def probit(x: Array) -> Array:
    """sqrt(2) * erfinv(2x - 1), by Winitzki's approximation of erfinv with a = 0.147, in single precision."""
    y = 2 * x.astype(np.float32) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.log((1 - y) * (1 + y))
        v = np.float32(2 / (3.14159 * 0.147)) + 0.5 * log
        inverse = np.sqrt(-v + np.sqrt(v * v - log / 0.147))
    return np.asarray(np.where(y < 0, -1.41421356 * inverse, 1.41421356 * inverse), x.dtype)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def softmax_zero(x: Array) -> Array:
    """A softmax over the nonzero scores; zeros stay zero."""
    top = x.max(axis=-1, keepdims=True, initial=-np.inf)
    live = np.abs(x) > 1e-7
    e = np.where(live, np.exp(x - top), x * np.exp(-top))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(e / np.where(live, e, 0).sum(axis=-1, keepdims=True), x.dtype)


_BY_NAME = {"SOFTMAX": softmax, "LOGISTIC": logistic, "SOFTMAX_ZERO": softmax_zero, "PROBIT": probit}


def transform(scores: Array, name: str) -> Array:
    """The transform of rows of scores; a single score is changed by PROBIT only."""
    if name not in TRANSFORMS:
        raise InvalidGraph(f"post_transform {name!r} is not known", expected=", ".join(TRANSFORMS))
    if name == "NONE" or (scores.shape[-1] == 1 and name != "PROBIT"):
        return scores
    return _BY_NAME[name](scores)


def pair(score: Array, name: str, *, complement: bool) -> Array:
    """Two columns from the score of the second class; the first is its complement to 1, or its negative."""
    first = 1 - score if complement else -score
    if name == "LOGISTIC":
        return np.concatenate([logistic(-score), logistic(score)], axis=-1)
    columns = np.concatenate([first, score], axis=-1).astype(score.dtype)
    return probit(columns) if name == "PROBIT" else columns


def class_labels(strings: Sequence[str] | None, ints: Sequence[int] | None) -> Array | None:
    """The class labels as an array to index; None if the node has none."""
    if strings:
        return np.array(strings, dtype=object)
    return np.array(ints, np.int64) if ints else None


def rows(x: Array, features: int | None = None) -> Array:
    """The input as (rows, features): a vector is one row."""
    if x.ndim not in (1, 2):
        raise InvalidArgument("a vector or a matrix of features is needed", got=f"rank {x.ndim}")
    table = x.reshape(1, -1) if x.ndim == 1 else x
    if features is not None and table.shape[1] != features:
        raise InvalidArgument("the number of features differs from the model's", expected=features, got=table.shape[1])
    return table

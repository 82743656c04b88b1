"""Linear models and support vector machines."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.ops.distances import squared_distances
from sardonyx.ops.identity_cache import IdentityCache
from sardonyx.ops.ml_scores import ML, class_labels, logistic, pair, rows, transform
from sardonyx.ops.registry import op

Array = np.ndarray[Any, Any]
F32 = np.float32

LONG = 64
_ARRAYS = IdentityCache(128)


@op("LinearRegressor", domain=ML)
def linear_regressor(
    x: Array, *, coefficients: Any = (), intercepts: Any = (), targets: int = 1, post_transform: str = "NONE"
) -> Array:
    scores = _products(x, coefficients, targets)
    if len(intercepts):
        scores = scores + _vector(intercepts, targets, "intercepts")
    return transform(scores, post_transform)


@op("LinearClassifier", domain=ML)
def linear_classifier(
    x: Array,
    *,
    coefficients: Any,
    intercepts: Any = (),
    classlabels_ints: Any = None,
    classlabels_strings: Any = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Array, Array]:
    """The class of the largest score; a single score above zero is the second class."""
    labels = class_labels(classlabels_strings, classlabels_ints)
    count = len(intercepts) or (1 if labels is None else len(labels))
    _matrix(coefficients, count, "coefficients")
    scores = _products(x, coefficients, count)
    if len(intercepts):
        scores = scores + np.array(intercepts, F32)
    if count == 1:
        two = labels if labels is not None and len(labels) == 2 else np.array([0, 1])
        chosen = two[(scores[:, 0] > 0).astype(int)]
        if two is labels:
            return chosen, pair(scores, post_transform, complement=True)
        return chosen, transform(scores, post_transform)
    if labels is None or len(labels) < count:
        raise InvalidGraph("LinearClassifier has more scores than labels", expected=count)
    return labels[scores.argmax(axis=1)], transform(scores, post_transform)


@op("SVMRegressor", domain=ML)
def svm_regressor(
    x: Array,
    *,
    coefficients: Any = (),
    kernel_params: Any = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Any = (),
    support_vectors: Any = (),
) -> Array:
    """One score per row. The post transform is ignored, as in onnxruntime."""
    offset = _vector(rho, None, "rho")[0]
    if n_supports > 0:
        vectors = _matrix(support_vectors, n_supports, "support_vectors")
        kernels = _kernel(rows(x, vectors.shape[1]).astype(F32), vectors, kernel_type, kernel_params)
        scores = kernels @ _vector(coefficients, n_supports, "coefficients")[:n_supports] + offset
    else:
        weights = _vector(coefficients, None, "coefficients")
        scores = rows(x, len(weights)).astype(F32) @ weights + offset
    column: Array = scores.reshape(-1, 1).astype(F32)
    return np.where(column > 0, F32(1), F32(-1)) if one_class else column


@op("SVMClassifier", domain=ML)
def svm_classifier(
    x: Array,
    *,
    classlabels_ints: Any = None,
    classlabels_strings: Any = None,
    coefficients: Any = (),
    kernel_params: Any = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Any = (),
    prob_b: Any = (),
    rho: Any = (),
    support_vectors: Any = (),
    vectors_per_class: Any = (),
) -> tuple[Array, Array]:
    """libsvm's pairwise vote or, without support vectors, liblinear's largest score."""
    labels = class_labels(classlabels_strings, classlabels_ints)
    if labels is None:
        raise InvalidGraph("SVMClassifier has no class labels")
    n = len(labels)
    if sum(vectors_per_class) <= 0:
        weights = _matrix(coefficients, n, "coefficients")
        scores = rows(x, weights.shape[1]).astype(F32) @ weights.T + _vector(rho, None, "rho")[0]
        chosen = scores.argmax(axis=1)
        if n == 2:
            limit = scores.max(axis=1)
            chosen = np.where(limit >= 0.5 if min(coefficients) >= 0 else limit > 0, 1, chosen)
        return labels[chosen], transform(scores, post_transform)
    if len(vectors_per_class) != n or min(vectors_per_class) < 0:
        raise InvalidGraph("vectors_per_class does not fit the labels", expected=n, got=list(vectors_per_class))
    vectors = _matrix(support_vectors, sum(vectors_per_class), "support_vectors")
    kernels = _kernel(rows(x, vectors.shape[1]).astype(F32), vectors, kernel_type, kernel_params)
    scores, votes = _pairwise(kernels, vectors_per_class, coefficients, rho)
    chosen = labels[votes.argmax(axis=1)]
    if len(prob_a):
        pairs = n * (n - 1) // 2
        a, b = _vector(prob_a, pairs, "prob_a"), _vector(prob_b, pairs, "prob_b")
        return chosen, transform(_probabilities(scores, a, b, n), post_transform)
    if n == 2:
        return chosen, pair(scores, post_transform, complement=post_transform != "NONE")
    return chosen, transform(scores, post_transform)


def _pairwise(kernels: Array, per_class: Any, coefficients: Any, rho: Any) -> tuple[Array, Array]:
    """The decision of every pair (i, j), i < j, and the votes each class gets from them."""
    n, edges = len(per_class), np.concatenate([[0], np.cumsum(per_class)])
    table = _matrix(coefficients, n - 1, "coefficients", columns=int(edges[-1]))
    offsets = _vector(rho, n * (n - 1) // 2, "rho")
    scores = np.empty((len(kernels), n * (n - 1) // 2), F32)
    votes = np.zeros((len(kernels), n), np.int64)
    for k, (i, j) in enumerate(itertools.combinations(range(n), 2)):
        of_i, of_j = slice(edges[i], edges[i + 1]), slice(edges[j], edges[j + 1])
        total = (kernels[:, of_i] * table[j - 1, of_i]).sum(axis=1, dtype=np.float64)
        total += (kernels[:, of_j] * table[i, of_j]).sum(axis=1, dtype=np.float64) + offsets[k]
        scores[:, k] = total
        votes[:, i] += total > 0
        votes[:, j] += ~(total > 0)
    return scores, votes


def _probabilities(scores: Array, a: Array, b: Array, n: int) -> Array:
    """Class probabilities from pairwise ones, by libsvm's fixed-point iteration (Wu, Lin and Weng, 2004)."""
    r = np.zeros((len(scores), n, n), F32)
    upper = np.triu_indices(n, 1)
    won = np.clip(1 - logistic(scores * a[: scores.shape[1]] + b[: scores.shape[1]]), F32(1e-7), F32(1 - 1e-7))
    r[:, upper[0], upper[1]], r[:, upper[1], upper[0]] = won, 1 - won
    lost = r.transpose(0, 2, 1)
    q = -lost * r
    diagonal = np.arange(n)
    q[:, diagonal, diagonal] = (lost * lost).sum(axis=2)
    p = np.full((len(scores), n), F32(1 / n))
    live = np.arange(len(scores))
    for _ in range(100):
        ql, pl = q[live], p[live]
        qp = (ql @ pl[:, :, None])[:, :, 0]
        pqp = (pl * qp).sum(axis=1)
        going = np.abs(qp - pqp[:, None]).max(axis=1, initial=0) >= F32(0.005 / n)
        live, ql, pl, qp, pqp = live[going], ql[going], pl[going], qp[going], pqp[going]
        if not len(live):
            break
        for t in range(n):
            step = (pqp - qp[:, t]) / ql[:, t, t]
            pl[:, t] += step
            pqp = (pqp + step * (step * ql[:, t, t] + 2 * qp[:, t])) / (1 + step) / (1 + step)
            qp = (qp + step[:, None] * ql[:, t]) / (1 + step)[:, None]
            pl /= (1 + step)[:, None]
        p[live] = pl
    return p


def _kernel(x: Array, vectors: Array, kind: str, params: Any) -> Array:
    """The kernel of each row with each support vector, in float64."""
    gamma, coef0, degree = (float(F32(p)) for p in (*params, *(0.0, 0.0, 0.0)[len(params) :]))
    x, vectors = x.astype(np.float64), vectors.astype(np.float64)
    if kind == "RBF":
        return np.asarray(np.exp(-gamma * squared_distances(x, vectors)))
    product: Array = x @ vectors.T
    if kind == "POLY":
        base = gamma * product + coef0
        return base * base * base if degree == 3 else np.asarray(np.power(base, degree))
    return np.asarray(np.tanh(gamma * product + coef0)) if kind == "SIGMOID" else product


def _products(x: Array, coefficients: Any, count: int) -> Array:
    """Each row times ``count`` weight vectors; weights beyond the input's features are ignored."""
    table = rows(x).astype(F32)
    features = table.shape[1]
    weights = _array(coefficients)
    if weights.size < count * features:
        raise InvalidArgument(
            "the input has more features than the model", expected=weights.size // max(count, 1), got=features
        )
    products: Array = table @ weights[: count * features].reshape(count, features).T
    return products


def _array(values: Any) -> Array:
    """A list attribute as an array; that of a long one is made once."""
    return _ARRAYS.get(_as_f32, values) if isinstance(values, list) and len(values) >= LONG else _as_f32(values)


def _as_f32(values: Any) -> Array:
    return np.array(values, F32)


def _vector(values: Any, least: int | None, name: str) -> Array:
    array = _array(values)
    if array.ndim != 1 or len(array) < (least or 1):
        raise InvalidGraph(f"attribute {name!r} is too short", expected=least or 1, got=array.size)
    return array


def _matrix(values: Any, count: int, name: str, *, columns: int | None = None) -> Array:
    array = _array(values)
    if count <= 0 or not array.size or array.size % count or (columns is not None and array.size != count * columns):
        raise InvalidGraph(f"attribute {name!r} has the wrong size", expected=f"{count} rows", got=array.size)
    return array.reshape(count, -1)

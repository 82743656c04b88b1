"""Training losses: NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss."""

from __future__ import annotations

import numpy as np

from sardonyx import errors
from sardonyx.ops.precision import Array, narrow, require, widen
from sardonyx.ops.registry import op


def _likelihood(
    what: str, log_prob: Array, target: Array, weight: Array | None, ignore_index: int | None, reduction: str
) -> Array:
    """Minus the log-probability of each target, weighted by its class and reduced."""
    expected = log_prob.shape[:1] + log_prob.shape[2:]
    require(log_prob.ndim >= 2, f"{what}: the input needs a batch and a class axis", got=log_prob.shape)
    require(target.shape == expected, f"{what}: the targets have the wrong shape", expected=expected, got=target.shape)
    classes = log_prob.shape[1]
    fits = weight is None or weight.shape == (classes,)
    require(fits, f"{what}: one weight per class", expected=(classes,), got=None if weight is None else weight.shape)
    counted = np.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    wrong = counted & ((target < 0) | (target >= classes))
    if wrong.any():
        limits = f"0 to {classes - 1}" + ("" if ignore_index is None else f", or {ignore_index}")
        raise errors.InvalidArgument(f"{what}: a target is out of range", expected=limits, got=int(target[wrong][0]))
    safe = np.where(counted, target, 0).astype(np.int64)
    picked = np.take_along_axis(log_prob, safe[:, None], axis=1)[:, 0]
    weights = (np.ones(classes, log_prob.dtype) if weight is None else weight.astype(log_prob.dtype))[safe] * counted
    loss = np.where(counted, -picked * weights, 0)
    if reduction == "mean":
        return np.asarray(loss.sum() / weights.sum())
    if reduction in ("sum", "none"):
        return np.asarray(loss.sum()) if reduction == "sum" else loss
    raise errors.InvalidArgument(f"{what}: unknown reduction", expected="mean, sum or none", got=reduction)


@op("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(
    x: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Array:
    loss = _likelihood("NegativeLogLikelihoodLoss", widen(x), target, weight, ignore_index, reduction)
    return narrow(loss, x.dtype)


@op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    scores: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Array, Array]:
    what = "SoftmaxCrossEntropyLoss"
    require(scores.ndim >= 2, f"{what}: the scores need a batch and a class axis", got=scores.shape)
    shifted = widen(scores) - widen(scores).max(axis=1, keepdims=True, initial=-np.inf)
    log_prob = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = _likelihood(what, log_prob, labels, weights, ignore_index, reduction)
    return narrow(loss, scores.dtype), narrow(log_prob, scores.dtype)

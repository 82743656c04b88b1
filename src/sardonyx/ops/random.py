"""Operators that draw random numbers.

A node's ``seed`` starts a stream of its own. Meanings keep no state: without ``generator`` a seeded node draws the
beginning of its stream at every call. Whoever wants the stream to advance from run to run, as onnxruntime's does,
keeps ``stream(seed)`` with the node and passes it as ``generator``. Nodes without a seed share one process-wide stream,
which ``set_seed`` restarts. Streams are numpy's ``RandomState``, whose values ONNX's own cases of Dropout expect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import RandomState

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument
from sardonyx.ops.axes import Array, scalar, widen_floats
from sardonyx.ops.limits import check_elements
from sardonyx.ops.reduce import softmax
from sardonyx.ops.registry import op

_shared = RandomState()


def set_seed(seed: int) -> None:
    """Restart the stream of the nodes that have no seed."""
    _shared.seed(int(seed) & 0xFFFFFFFF)


def stream(seed: float | None) -> RandomState:
    """The stream of a node with this seed attribute."""
    return _shared if seed is None or math.isnan(seed) else RandomState(int(seed) & 0xFFFFFFFF)


def _type(dtype: int | None, like: Array | None = None) -> np.dtype[Any]:
    if dtype is not None:
        return dtypes.of_onnx(dtype).numpy
    assert like is not None
    return like.dtype


def _normal(rng: RandomState, shape: Sequence[int], dtype: np.dtype[Any], mean: float, scale: float) -> Array:
    check_elements(math.prod(shape), np.dtype(np.float64), "a random tensor")
    return (rng.standard_normal(tuple(shape)) * scale + mean).astype(dtype)


def _uniform(rng: RandomState, shape: Sequence[int], dtype: np.dtype[Any], low: float, high: float) -> Array:
    check_elements(math.prod(shape), np.dtype(np.float64), "a random tensor")
    return (rng.random_sample(tuple(shape)) * (high - low) + low).astype(dtype)


@op("RandomNormal", pure=False)
def random_normal(
    *,
    shape: Sequence[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    generator: RandomState | None = None,
) -> Array:
    return _normal(generator or stream(seed), shape, _type(dtype), mean, scale)


@op("RandomNormalLike", pure=False)
def random_normal_like(
    x: Array,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    generator: RandomState | None = None,
) -> Array:
    return _normal(generator or stream(seed), x.shape, _type(dtype, x), mean, scale)


@op("RandomUniform", pure=False)
def random_uniform(
    *,
    shape: Sequence[int],
    dtype: int = 1,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    generator: RandomState | None = None,
) -> Array:
    return _uniform(generator or stream(seed), shape, _type(dtype), low, high)


@op("RandomUniformLike", pure=False)
def random_uniform_like(
    x: Array,
    *,
    dtype: int | None = None,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    generator: RandomState | None = None,
) -> Array:
    return _uniform(generator or stream(seed), x.shape, _type(dtype, x), low, high)


@op("Bernoulli", pure=False)
def bernoulli(
    x: Array, *, dtype: int | None = None, seed: float | None = None, generator: RandomState | None = None
) -> Array:
    """1 with probability x, else 0."""
    draw = (generator or stream(seed)).random_sample(x.shape)
    return np.asarray(draw < widen_floats(x)).astype(_type(dtype, x))


@op("Multinomial", pure=False)
def multinomial(
    x: Array,
    *,
    dtype: int = 6,
    sample_size: int = 1,
    seed: float | None = None,
    generator: RandomState | None = None,
) -> Array:
    """Classes drawn by unnormalized log-probabilities, ``sample_size`` for each row."""
    if x.ndim != 2 or x.shape[1] == 0 or sample_size < 1:
        raise InvalidArgument("Multinomial needs [batch, classes] and samples", got=f"{list(x.shape)}, {sample_size}")
    check_elements(x.shape[0] * sample_size, np.dtype(np.float64), "the result of Multinomial")
    bounds = np.cumsum(softmax(x.astype(np.float64)), axis=1)
    draws = (generator or stream(seed)).random_sample((x.shape[0], sample_size)) * bounds[:, -1:]
    picks = [np.searchsorted(b, d, side="right") for b, d in zip(bounds, draws, strict=True)]
    classes: Array = np.array(picks, np.int64).reshape(draws.shape)
    return classes.astype(_type(dtype))


@op("Dropout", pure=False)
def dropout(
    x: Array,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    *,
    seed: float | None = None,
    generator: RandomState | None = None,
    outputs: int = 1,
) -> tuple[Array, ...]:
    """The input itself, unless in training: then elements are dropped with probability ``ratio``, the rest scaled."""
    drop = 0.5 if ratio is None else float(scalar(ratio, "Dropout: ratio"))
    if training_mode is None or not scalar(training_mode, "Dropout: training_mode") or drop == 0:
        return (x, np.ones(x.shape, bool)) if outputs > 1 else (x,)
    if not 0 <= drop < 1:
        raise InvalidArgument("Dropout: ratio out of range", expected="[0, 1)", got=drop)
    mask = (generator or stream(seed)).random_sample(x.shape) >= drop
    return (widen_floats(x) * mask / (1 - drop)).astype(x.dtype), mask

"""Operators that draw random numbers.

Number i of a stream is a function of the seed and i: ten rounds of Philox2x32 give two 32-bit words. That function, and
the conversion of the words to floats, is a scalar program, so every provider draws the same numbers. Dropout alone
draws from numpy's ``RandomState``, whose values ONNX's own test cases expect.

A node's ``seed`` starts a stream of its own. The functions here keep no state: without ``generator``, a seeded node
draws the start of its stream in every call. A stream advances from run to run, as onnxruntime's does, if
``stream(seed)`` is kept with the node and passed as ``generator``. Nodes without a seed share one stream per process;
``set_seed`` restarts it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import dtypes, forks
from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.ir.scalar import Emitter, Expr, run_numpy, trace
from sardonyx.ops.axes import Array, scalar, widen_floats
from sardonyx.ops.limits import check_elements
from sardonyx.ops.registry import op

if TYPE_CHECKING:
    from numpy.random import RandomState  # numpy imports it when it is asked for

_MULTIPLIER, _WEYL, _LOW = 0xD256D193, 0x9E3779B9, 0xFFFFFFFF
_ROUNDS = 10
_U64 = dtypes.of_name("u64")


class Stream:
    """The position in a sequence of random numbers. ``words`` are the seed and the index of the next number."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.words: Array = np.array([seed & _LOW, 0], np.int64)
        self._lock = forks.lock()

    def restart(self, seed: int) -> None:
        with self._lock:
            self.words[:] = seed & _LOW, 0
            self.__dict__.pop("legacy", None)

    def take(self, count: int) -> tuple[int, int]:
        """Reserve ``count`` numbers; returns the seed and the index of the first."""
        with self._lock:
            seed, first = self.words.tolist()
            self.words[1] += count
        return seed, first

    @forks.cached_property
    def legacy(self) -> RandomState:
        return np.random.RandomState(int(self.words[0]))


shared = Stream(int.from_bytes(os.urandom(4), "little"))
"""The stream of nodes without a seed."""


def set_seed(seed: int) -> None:
    """Restart the stream of nodes without a seed."""
    shared.restart(int(seed))


def stream(seed: float | None) -> Stream:
    """The stream of a node with this seed attribute."""
    return Stream(int(seed)) if seed is not None and math.isfinite(seed) else shared


# Scalar programs over the index of an element, the index of the first draw, and the seed


def _words(e: Emitter, index: Expr, first: Expr, seed: Expr) -> tuple[Expr, Expr]:
    """Two random 32-bit words, as u64."""
    counter, key = e.cast(index + first, _U64), e.cast(seed, _U64)
    a, b = counter & _LOW, e.shr(counter, 32)
    for _ in range(_ROUNDS):
        wide = a * _MULTIPLIER
        a, b = e.shr(wide, 32) ^ key ^ b, wide & _LOW
        key = (key + _WEYL) & _LOW
    return a, b


def _top(e: Emitter, word: Expr, work: DType) -> Expr:
    """The first 24 bits of a word."""
    return e.cast(e.cast(e.shr(word, 8), dtypes.i32), work)


def _unit(e: Emitter, words: tuple[Expr, Expr], work: DType) -> Expr:
    """A uniform number in [0, 1): 24 bits, or 53 in f64."""
    a, b = words
    if work is dtypes.f32:
        return _top(e, a, work) * 2.0**-24
    return (e.cast(e.shr(a, 5), work) * 2.0**26 + e.cast(e.shr(b, 6), work)) * 2.0**-53


def uniform(e: Emitter, index: Expr, first: Expr, seed: Expr, *, low: float, high: float, work: DType) -> Expr:
    return _unit(e, _words(e, index, first, seed), work) * (high - low) + low


def normal(e: Emitter, index: Expr, first: Expr, seed: Expr, *, mean: float, scale: float, work: DType) -> Expr:
    """Box-Muller: one word for the radius and one for the angle."""
    a, b = _words(e, index, first, seed)
    distance = e.sqrt(e.log((_top(e, a, work) + 1) * 2.0**-24) * -2)
    return distance * e.cos(_top(e, b, work) * (2 * math.pi * 2.0**-24)) * scale + mean


def flag(e: Emitter, index: Expr, first: Expr, seed: Expr, p: Expr, *, work: DType, to: DType) -> Expr:
    """1 with probability p, else 0."""
    return e.cast(_unit(e, _words(e, index, first, seed), work) < e.cast(p, work), to)


def gumbel(e: Emitter, index: Expr, first: Expr, seed: Expr, x: Expr) -> Expr:
    """x plus Gumbel noise: the class with the largest sum is drawn with probability proportional to exp(x)."""
    unit = (_top(e, _words(e, index, first, seed)[0], dtypes.f64) + 0.5) * 2.0**-24
    return e.cast(x, dtypes.f64) - e.log(-e.log(unit))


def work_of(dtype: DType) -> DType:
    return dtypes.f64 if dtype is dtypes.f64 else dtypes.f32


def _draw(
    generator: Stream, shape: Sequence[int], fn: Callable[..., Expr], *operands: Array, **attributes: Any
) -> Array:
    if any(n < 0 for n in shape):
        raise InvalidArgument("a random tensor of negative size", got=list(shape))
    count = math.prod(shape)
    check_elements(count, np.dtype(np.float64), "a random tensor")
    seed, first = generator.take(count)
    index = np.arange(count, dtype=np.int64).reshape(tuple(shape))
    program = trace(fn, (True,) * (3 + len(operands)), **attributes)
    return run_numpy(program, index, np.asarray(first), np.asarray(seed), *operands)


def type_of(dtype: int | None, like: DType | None = None) -> DType:
    if dtype is not None:
        try:
            return dtypes.of_onnx(dtype)
        except KeyError:
            raise InvalidGraph("ONNX has no such type of elements", got=dtype) from None
    assert like is not None
    return like


@op("RandomNormal", pure=False)
def random_normal(
    *,
    shape: Sequence[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    generator: Stream | None = None,
) -> Array:
    target = type_of(dtype)
    found = _draw(generator or stream(seed), shape, normal, mean=mean, scale=scale, work=work_of(target))
    return found.astype(target.numpy)


@op("RandomNormalLike", pure=False)
def random_normal_like(
    x: Array,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    generator: Stream | None = None,
) -> Array:
    target = type_of(dtype, dtypes.of_numpy(x.dtype))
    return random_normal(shape=x.shape, dtype=target.onnx, mean=mean, scale=scale, generator=generator or stream(seed))


@op("RandomUniform", pure=False)
def random_uniform(
    *,
    shape: Sequence[int],
    dtype: int = 1,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    generator: Stream | None = None,
) -> Array:
    target = type_of(dtype)
    found = _draw(generator or stream(seed), shape, uniform, low=low, high=high, work=work_of(target))
    return found.astype(target.numpy)


@op("RandomUniformLike", pure=False)
def random_uniform_like(
    x: Array,
    *,
    dtype: int | None = None,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    generator: Stream | None = None,
) -> Array:
    target = type_of(dtype, dtypes.of_numpy(x.dtype))
    return random_uniform(shape=x.shape, dtype=target.onnx, low=low, high=high, generator=generator or stream(seed))


@op("Bernoulli", pure=False)
def bernoulli(
    x: Array, *, dtype: int | None = None, seed: float | None = None, generator: Stream | None = None
) -> Array:
    """1 with probability x, else 0."""
    source = dtypes.of_numpy(x.dtype)
    work, to = work_of(source), type_of(dtype, source)
    return _draw(generator or stream(seed), x.shape, flag, x, work=work, to=to).astype(to.numpy)


@op("Multinomial", pure=False)
def multinomial(
    x: Array,
    *,
    dtype: int = 6,
    sample_size: int = 1,
    seed: float | None = None,
    generator: Stream | None = None,
) -> Array:
    """Classes drawn by unnormalized log-probabilities, ``sample_size`` for each row."""
    if x.ndim != 2 or x.shape[1] == 0 or sample_size < 1:
        raise InvalidArgument("Multinomial needs [batch, classes] and samples", got=f"{list(x.shape)}, {sample_size}")
    scores = _draw(generator or stream(seed), (x.shape[0], sample_size, x.shape[1]), gumbel, x[:, None])
    classes: Array = np.argmax(scores, axis=2)
    return classes.astype(type_of(dtype).numpy)


@op("Dropout", pure=False)
def dropout(
    x: Array,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    *,
    seed: float | None = None,
    generator: Stream | None = None,
    outputs: int = 1,
) -> tuple[Array, ...]:
    """The input, except in training: there elements are dropped with probability ``ratio`` and the rest is scaled."""
    drop = 0.5 if ratio is None else float(scalar(ratio, "Dropout: ratio"))
    if training_mode is None or not scalar(training_mode, "Dropout: training_mode") or drop == 0:
        return (x, np.ones(x.shape, bool)) if outputs > 1 else (x,)
    if not 0 <= drop < 1:
        raise InvalidArgument("Dropout: ratio out of range", expected="[0, 1)", got=drop)
    mask = (generator or stream(seed)).legacy.random_sample(x.shape) >= drop
    return (widen_floats(x) * mask / (1 - drop)).astype(x.dtype), mask

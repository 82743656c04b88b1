"""Discrete Fourier transforms as matrix products with constants.

Short rows are multiplied with the whole DFT matrix. Longer rows, of length n1 * n2, take Cooley-Tukey steps: transforms
of the n2 interleaved rows of length n1, a multiplication with twiddle factors, and transforms of the n1 rows of length
n2, which may be long again. Lengths without small divisors use Bluestein's algorithm, a convolution with a chirp whose
length is a power of two.

Long rows are *planar*: (rows, parts, n), all real parts of a row before its imaginary parts. Their transform is a view
(rows, 2, *sizes) whose last axes, in row-major order, are the frequencies.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering
from sardonyx.lower.rules.matmul import contraction
from sardonyx.lower.rules.reduce import apply, times
from sardonyx.lower.sizes import mul, product

Array = np.ndarray[Any, Any]

MAX_DIRECT = 1 << 18
"""Elements of a DFT matrix with which rows are multiplied as a whole: 1 MB, which stays in L2."""
MAX_RADIX = 64
"""The largest n1 of a Cooley-Tukey step."""
MAX_PRIME = 512
"""The largest length without small divisors that takes a matrix instead of Bluestein's algorithm."""
MAX_LENGTH = 1 << 20
"""Longer transforms are not compiled: each step has constants of 16 bytes for each point."""


def twiddles(steps: Array, length: int) -> Array:
    """exp(2 pi i steps / length); integer steps are reduced modulo the length first, so that large ones stay exact."""
    return np.asarray(np.exp(2j * np.pi * (steps % length) / length))


@lru_cache(maxsize=64)
def matrix(
    points: int, parts: int, bins: int, results: int, length: int, sign: int, scale: float, planar: bool, dtype: DType
) -> Tensor:
    """The DFT matrix from ``points`` inputs of 1 or 2 parts to ``bins`` outputs: rows (point, part), columns (bin,
    part)."""
    w = twiddles(sign * np.outer(np.arange(points), np.arange(bins)), length) * scale
    table = np.empty((points, 2, bins, 2))
    table[:, 0, :, 0], table[:, 0, :, 1], table[:, 1, :, 0], table[:, 1, :, 1] = w.real, w.imag, -w.imag, w.real
    table = table[:, :parts, :, :results]
    table = table.transpose(1, 0, 3, 2) if planar else table
    return Tensor.of(table.reshape(points * parts, bins * results).astype(dtype.numpy))


@lru_cache(maxsize=64)
def half_matrix(bins: int, parts: int, length: int, dtype: DType) -> Tensor:
    """The matrix of the inverse transform from the first half of a spectrum to a real signal."""
    k = np.arange(bins)
    weight = np.where((k == 0) | (2 * k == length), 1, 2) / length
    w = twiddles(np.outer(k, np.arange(length)), length) * weight[:, None]
    table = np.stack([w.real, -w.imag], axis=1)[:, :parts]
    return Tensor.of(table.reshape(bins * parts, length).astype(dtype.numpy))


def rows_times(low: Lowering, rows: View, table: View, out: View) -> None:
    """Multiply the rows along the last axis with a matrix, into the rows of ``out``."""
    if len(rows.shape) == 1:
        rows, out = views.inserted(rows, 0), views.inserted(out, 0)
    table = low.fit(table, (*rows.shape[:-2], *table.shape))
    contraction(low, rows, table, ExpressionBuilder([table.dtype]), ~0, out)


def radix(n: int) -> int | None:
    """The n1 of a Cooley-Tukey step; n if one matrix product is enough, None if n has no small divisor."""
    if n <= MAX_RADIX:
        return n
    found = [d for d in range(2, MAX_RADIX + 1) if n % d == 0]
    if not found:
        return n if n <= MAX_PRIME else None
    return min(found, key=lambda d: d + n // d if n <= MAX_RADIX * MAX_RADIX else -d)


def _real_part(e: Emitter, a: Expr, b: Expr, cos: Expr, sin: Expr) -> Expr:
    return a * cos - b * sin


def _imaginary_part(e: Emitter, a: Expr, b: Expr, cos: Expr, sin: Expr) -> Expr:
    return a * sin + b * cos


class Fourier:
    """Transforms of one type and sign."""

    def __init__(self, low: Lowering, dtype: DType, sign: int) -> None:
        self.low, self.dtype, self.sign = low, dtype, sign

    def transform(self, x: View, scale: float = 1.0) -> View:
        """The transform of dense planar rows; real rows have one part."""
        rows, parts, n = x.shape
        assert isinstance(n, int) and isinstance(parts, int)
        first = radix(n)
        if first is None:
            return self.bluestein(x, scale)
        table = self.low.constant(matrix(first, parts, first, 2, first, self.sign, scale, True, self.dtype))
        if first == n:
            out = self.low.temporary(self.dtype, (rows, 2 * n))
            rows_times(self.low, self.low.reshaped(x, (rows, parts * n)), table, out)
            return views.split(out, 1, (2, n))
        rest = n // first
        columns = views.permuted(self.low.reshaped(x, (rows, parts * first, rest)), (0, 2, 1))
        half = self.low.temporary(self.dtype, (rows, rest, 2 * first))
        rows_times(self.low, columns, table, half)
        twiddled = self.low.temporary(self.dtype, (rows, first, 2, rest))
        angles = twiddles(self.sign * np.outer(np.arange(first), np.arange(rest)), n)
        source = views.permuted(views.split(half, 2, (2, first)), (0, 3, 2, 1))
        self.multiply(source, angles, twiddled)
        deeper = self.transform(self.low.reshaped(twiddled, (mul(rows, first), 2, rest)))
        split = views.split(deeper, 0, (rows, first))
        return views.permuted(split, (0, *range(2, len(split.shape)), 1))

    def multiply(self, x: View, by: Array, out: View) -> None:
        """Multiply points (rows.., parts, n) with complex constants; real points have one part."""
        axis = len(x.shape) - 2
        cos, sin = (
            self.low.constant(Tensor.of(np.ascontiguousarray(part).astype(self.dtype.numpy)))
            for part in (by.real, by.imag)
        )
        results = [views.selected(out, axis, part) for part in (0, 1)]
        box, body = results[0].shape, ExpressionBuilder()
        points = [body.operand(views.selected(x, axis, part)) for part in range(2) if x.shape[axis] == 2 or not part]
        angles = [body.operand(self.low.fit(v, box)) for v in (cos, sin)]
        if len(points) == 1:
            values = [apply(body, times, points[0], angle, dtype=self.dtype) for angle in angles]
        else:
            values = [apply(body, fn, *points, *angles, dtype=self.dtype) for fn in (_real_part, _imaginary_part)]
        self.low.loop(box, body, list(zip(values, results, strict=True)))

    def bluestein(self, x: View, scale: float) -> View:
        """Bluestein's algorithm: with jk = (j^2 + k^2 - (k - j)^2) / 2 the transform is a convolution."""
        rows, _, n = x.shape
        assert isinstance(n, int)
        size = 1 << (2 * n - 2).bit_length()
        chirp = twiddles(self.sign * np.arange(n) ** 2, 2 * n)
        padded = self.low.temporary(self.dtype, (rows, 2, size))
        self.multiply(x, chirp, views.sliced(padded, 2, 0, n))
        self.low.copy(self.low.scalar(0, self.dtype), views.sliced(padded, 2, n, size - n))
        other = np.zeros(size, complex)
        other[:n], other[size - n + 1 :] = chirp.conj(), chirp[:0:-1].conj()
        spectrum = self.dense(Fourier(self.low, self.dtype, -1).transform(padded))
        mixed = self.low.temporary(self.dtype, (rows, 2, size))
        self.multiply(spectrum, np.fft.fft(other) * (scale / size), mixed)
        back = self.dense(Fourier(self.low, self.dtype, 1).transform(mixed))
        out = self.low.temporary(self.dtype, (rows, 2, n))
        self.multiply(views.sliced(back, 2, 0, n), chirp, out)
        return out

    def dense(self, x: View) -> View:
        """A transform as dense planar rows."""
        if len(x.shape) == 3:
            return x
        out = self.low.temporary(self.dtype, x.shape)
        self.low.copy(x, out)
        return self.low.reshaped(out, (*x.shape[:2], product(x.shape[2:])))


def planar(low: Lowering, x: View, length: int, dtype: DType, window: View | None) -> View:
    """Rows (.., points, parts) as planar rows of ``length``, padded with zeros and multiplied with the window."""
    *rest, points, parts = x.shape
    assert isinstance(points, int)
    out = low.temporary(dtype, (*rest, parts, length))
    swapped = views.permuted(x, (*range(len(rest)), len(rest) + 1, len(rest)))
    body = ExpressionBuilder()
    value: Handle = body.operand(swapped)
    if window is not None:
        value = apply(body, times, value, body.operand(low.fit(window, swapped.shape)), dtype=dtype)
    elif x.dtype is not dtype:
        value = apply(body, _as, value, dtype=dtype, to=dtype)
    low.loop(swapped.shape, body, [(value, views.sliced(out, len(rest) + 1, 0, points))])
    if length > points:
        low.copy(low.scalar(0, dtype), views.sliced(out, len(rest) + 1, points, length - points))
    return low.reshaped(out, (product(rest), parts, length))


def _as(e: Emitter, x: Expr, *, to: DType) -> Expr:
    return e.cast(x, to)


def is_direct(points: int, parts: int, bins: int, results: int) -> bool:
    return points * parts * bins * results <= MAX_DIRECT

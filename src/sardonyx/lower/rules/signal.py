"""DFT, STFT, MelWeightMatrix and window functions."""

from __future__ import annotations

import math

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, work_type
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.rules.fourier import MAX_LENGTH, Fourier, half_matrix, is_direct, matrix, planar, rows_times
from sardonyx.lower.rules.pointwise import converted
from sardonyx.lower.rules.reduce import apply, times
from sardonyx.lower.sizes import DataDependent, Refused, mul, product, sub
from sardonyx.ops import signal


@rule("DFT")
def dft(low: Lowering, node: Node) -> None:
    x, out, rank = low.view(low.input(0)), low.make(node.output), len(low.shape(low.input(0)))
    at = -2 if node.input(2) is None else low.one_number(low.input(2))
    axis = axis_of(at, rank)
    if rank < 2 or axis == rank - 1 or x.shape[-1] not in (1, 2):
        raise Refused("DFT: the last axis is not that of real and imaginary parts")
    inverse, onesided = bool(node.attrs.get("inverse", 0)), bool(node.attrs.get("onesided", 0))
    if onesided and not inverse and x.shape[-1] != 1:
        raise Refused("DFT: a one-sided transform needs real input")
    order = [*(i for i in range(rank - 1) if i != axis), axis, rank - 1]
    x, out = views.permuted(x, order), views.permuted(out, order)
    points = _number(x.shape[-2], "DFT: the length")
    if node.input(1) is not None:
        length = low.one_number(low.input(1))
    else:
        length = 2 * (points - 1) if inverse and onesided else points
    if not 1 <= length <= MAX_LENGTH:
        raise Refused(f"DFT of {length} points is not compiled")
    used = min(points, length // 2 + 1 if inverse and onesided else length)
    x = views.sliced(x, rank - 2, 0, used)
    if inverse and onesided:
        _from_half(low, x, out, length)
    else:
        _transform(low, x, out, length, 1 if inverse else -1, None)


@rule("STFT")
def stft(low: Lowering, node: Node) -> None:
    """A transform of frames, which are an overlapping view of the signal."""
    signal, out, window = low.view(low.input(0)), low.make(node.output), node.input(2)
    signal = views.inserted(signal, 2) if len(signal.shape) == 2 else signal
    if len(signal.shape) != 3 or signal.shape[2] not in ((1,) if node.attrs.get("onesided", 1) else (1, 2)):
        raise Refused("STFT: the signal is not (batch, length, 1 or 2)")
    step = low.one_number(low.input(1))
    weights = None if window is None else low.view(window)
    if node.input(3) is not None:
        length = low.one_number(low.input(3))
    else:
        length = _number(signal.shape[1] if weights is None else weights.shape[0], "STFT: the length of a frame")
    if step < 1 or not 1 <= length <= MAX_LENGTH:
        raise Refused(f"STFT of frames of {length} points every {step} is not compiled")
    low.require_least("STFT: frames must fit into the signal", sub(signal.shape[1], length), 0)
    if weights is not None:
        low.require("STFT: window and frame_length differ", weights.shape[0], length)
    (batch, _, parts), (along, next_, apart) = signal.shape, signal.strides
    frames = View(
        signal.storage, (batch, out.shape[1], length, parts), (along, mul(step, next_), next_, apart), signal.offset
    )
    _transform(low, frames, out, length, -1, weights)


def _number(size: Known, what: str) -> int:
    if not isinstance(size, int):
        raise Refused(f"{what} is not known before the run")
    return size


def _transform(low: Lowering, x: View, out: View, length: int, sign: int, window: View | None) -> None:
    """Transform rows (.., points, parts) to rows (.., bins, 2)."""
    *rest, points, parts = x.shape
    bins = _number(out.shape[-2], "the number of frequencies")
    work, scale = work_type(out.dtype), 1 / length if sign > 0 else 1.0
    assert isinstance(points, int) and isinstance(parts, int)
    if is_direct(points, parts, bins, 2):
        table = low.constant(matrix(points, parts, bins, 2, length, sign, scale, False, work))
        if window is not None:
            table = _windowed(low, table, window, parts)
        _product(low, low.reshaped(x, (*rest, points * parts)), table, out)
        return
    found = Fourier(low, work, sign).transform(planar(low, x, length, work, window), scale)
    if bins < length:
        whole = Fourier(low, work, sign).dense(found)
        found = views.sliced(whole, 2, 0, bins)
    sizes = found.shape[2:]
    split = views.split(found, 0, tuple(rest)) if rest else views.selected(found, 0)
    target = views.split(out, len(rest), sizes)
    interleaved = views.permuted(split, (*range(len(rest)), *range(len(rest) + 1, len(split.shape)), len(rest)))
    converted(low, interleaved, target)


def _windowed(low: Lowering, table: View, window: View, parts: int) -> View:
    """A DFT matrix whose rows are multiplied with the window; a constant if the window is one."""
    given, tensor = window.storage.tensor, table.storage.tensor
    assert tensor is not None
    if given is not None and views.is_whole(window):
        weights = np.repeat(given.numpy().astype(np.float64), parts)[:, None]
        return low.constant(Tensor.of((tensor.numpy() * weights).astype(table.dtype.numpy)))
    out, body = low.temporary(table.dtype, table.shape), ExpressionBuilder()
    rows = views.inserted(low.reshaped(low.fit(views.inserted(window, 1), (*window.shape, parts)), table.shape[:1]), 1)
    value = apply(body, times, body.operand(table), body.operand(low.fit(rows, table.shape)), dtype=table.dtype)
    low.loop(table.shape, body, [(value, out)])
    return out


def _product(low: Lowering, rows: View, table: View, out: View) -> None:
    """Multiply rows with a matrix, into an output whose last two axes are the matrix' columns."""
    shape = (*out.shape[:-2], table.shape[1])
    flat = views.reshaped(out, shape)
    target = low.temporary(out.dtype, shape) if flat is None else flat
    rows_times(low, rows, table, target)
    if flat is None:
        low.copy(low.reshaped(target, out.shape), out)


def _from_half(low: Lowering, x: View, out: View, length: int) -> None:
    """The inverse transform of a one-sided spectrum, (.., bins, parts) to (.., length, 1)."""
    *rest, bins, parts = x.shape
    work = work_type(out.dtype)
    assert isinstance(bins, int) and isinstance(parts, int)
    if is_direct(bins, parts, length, 1):
        table = low.constant(half_matrix(bins, parts, length, work))
        _product(low, low.reshaped(x, (*rest, bins * parts)), table, out)
        return
    whole = low.temporary(work, (*rest, 2, length))
    at, mirrored = len(rest), min(bins - 1, (length - 1) // 2)
    for part in range(2):
        first, here = views.selected(x, at + 1, min(part, parts - 1)), views.selected(whole, at, part)
        start, end = (0, bins) if part == 0 else (1, 1 + mirrored if parts == 2 else 1)
        back = mirrored if part < parts else 0
        _fill(low, views.sliced(here, at, 0, start), None)
        _fill(low, views.sliced(here, at, start, end - start), views.sliced(first, at, start, end - start))
        _fill(low, views.sliced(here, at, end, length - back - end), None)
        source, target = views.sliced(first, at, 1, back), views.sliced(here, at, length - 1, back, -1)
        _fill(low, target, source, is_negated=part == 1)
    rows = low.reshaped(whole, (product(rest), 2, length))
    found = views.selected(Fourier(low, work, 1).transform(rows, 1 / length), 1)
    split = views.split(found, 0, tuple(rest)) if rest else views.selected(found, 0)
    converted(low, split, views.split(views.selected(out, at + 1), at, found.shape[1:]))


def _fill(low: Lowering, target: View, source: View | None, *, is_negated: bool = False) -> None:
    """Copy, negated if ``is_negated``, or write zeros."""
    if 0 in target.shape:
        return
    if source is None:
        low.copy(low.scalar(0, target.dtype), target)
        return
    body = ExpressionBuilder()
    value = apply(body, _signed, body.operand(source), dtype=target.dtype, is_negated=is_negated, to=target.dtype)
    low.loop(target.shape, body, [(value, target)])


def _signed(e: Emitter, x: Expr, *, is_negated: bool, to: dtypes.DType) -> Expr:
    return e.cast(-x if is_negated else x, to)


@rule("MelWeightMatrix")
def mel_weight_matrix(low: Lowering, node: Node) -> None:
    """A constant; its inputs must be known."""
    given = [low.input(i) for i in range(5)]
    for value in given:
        if not value.is_const:
            raise DataDependent(f"the elements of {value.name!r} are not known before the run")
    low.alias(node.output, low.constant(Tensor.of(signal.mel_weight_matrix(*(v.numpy() for v in given), **node.attrs))))


_COSINES = {"HannWindow": (0.5, -0.5), "HammingWindow": (25 / 46, -21 / 46), "BlackmanWindow": (0.42, -0.5, 0.08)}


def _window_point(e: Emitter, index: Expr, period: Expr, *, terms: tuple[float, ...], to: dtypes.DType) -> Expr:
    angle = e.cast(index, dtypes.f64) * (2 * math.pi) / e.cast(period, dtypes.f64)
    total = angle * 0 + terms[0]
    for k, term in enumerate(terms[1:], 1):
        total = total + e.cos(angle * k) * term
    return e.cast(total, to)


@rule(*_COSINES)
def window(low: Lowering, node: Node) -> None:
    size, out = low.one_size(low.input(0)), low.make(node.output)
    low.require(f"{node.op_type}: the size differs from that of the result", size, out.shape[0])
    period = low.number(size if node.attrs.get("periodic", 1) else sub(size, 1))
    body = ExpressionBuilder()
    args = [body.operand(low.fit(v, out.shape)) for v in (low.indices(size), period)]
    terms = _COSINES[node.op_type]
    low.loop(out.shape, body, [(apply(body, _window_point, *args, dtype=out.dtype, terms=terms, to=out.dtype), out)])

"""Fourier transforms, windows and the mel filter bank."""

from __future__ import annotations

import math

import numpy as np

from sardonyx import dtypes
from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import Array, narrow, require, widen
from sardonyx.ops.registry import op


def _scalar(what: str, v: Array) -> int:
    require(v.size == 1, f"{what} must be one value", got=v.shape)
    return int(v.reshape(()))


def _to_complex(x: Array) -> Array:
    """(..., 1) real, or (..., 2) real and imaginary parts, as numpy's complex numbers (...)."""
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _to_parts(x: Array) -> Array:
    return np.stack([x.real, x.imag], axis=-1)


@op("DFT")
def dft(
    x: Array, dft_length: Array | None = None, axis: Array | None = None, *, inverse: int = 0, onesided: int = 0
) -> Array:
    what = "DFT"
    require(x.ndim >= 2 and x.shape[-1] in (1, 2), f"{what}: the last axis must have 1 or 2 entries", got=x.shape)
    at = -2 if axis is None else _scalar(f"{what}: axis", axis)
    fits = -x.ndim <= at < x.ndim - 1 and at != -1
    require(fits, f"{what}: axis is out of range", expected=f"-{x.ndim} to -2 or 0 to {x.ndim - 2}", got=at)
    at %= x.ndim
    half = bool(inverse and onesided)
    length = 2 * (x.shape[at] - 1) if half else x.shape[at]
    if dft_length is not None:
        length = _scalar(f"{what}: dft_length", dft_length)
    require(length > 0, f"{what}: the length must be positive", got=length)
    check_elements(2 * x.size // max(x.shape[at], 1) * length, np.dtype(np.float64), f"output of {what}")
    values = _to_complex(widen(x))
    if half:
        return narrow(np.fft.irfft(values, n=length, axis=at)[..., None], x.dtype)
    if inverse:
        return narrow(_to_parts(np.fft.ifft(values, n=length, axis=at)), x.dtype)
    if onesided:
        require(x.shape[-1] == 1, f"{what}: a one-sided transform needs real input", got=x.shape)
        return narrow(_to_parts(np.fft.rfft(values, n=length, axis=at)), x.dtype)
    return narrow(_to_parts(np.fft.fft(values, n=length, axis=at)), x.dtype)


@op("STFT")
def stft(
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> Array:
    """Fourier transforms of overlapping frames, each weighted by a window."""
    what = "STFT"
    if signal.ndim == 2:
        signal = signal[..., None]
    require(
        signal.ndim == 3 and signal.shape[2] in (1, 2),
        f"{what}: signal must be (batch, length, 1 or 2)",
        got=signal.shape,
    )
    step, length = _scalar(f"{what}: frame_step", frame_step), signal.shape[1]
    if frame_length is not None:
        length = _scalar(f"{what}: frame_length", frame_length)
        fits = window is None or window.shape == (length,)
        require(
            fits,
            f"{what}: window and frame_length differ",
            expected=length,
            got=None if window is None else window.shape,
        )
    elif window is not None:
        require(window.ndim == 1, f"{what}: the window must have one axis", got=window.shape)
        length = window.shape[0]
    require(step > 0, f"{what}: frame_step must be positive", got=step)
    fits = 0 < length <= signal.shape[1]
    require(fits, f"{what}: frames must fit into the signal", expected=f"1 to {signal.shape[1]}", got=length)
    require(not (onesided and signal.shape[2] == 2), f"{what}: a one-sided transform needs a real signal")
    check_elements(
        signal.shape[0] * (signal.shape[1] // step + 1) * length * 2, np.dtype(np.float64), f"output of {what}"
    )
    values = _to_complex(widen(signal))
    frames = np.lib.stride_tricks.sliding_window_view(values, length, axis=1)[:, ::step]
    if window is not None:
        frames = frames * widen(window)
    transform = np.fft.rfft if onesided else np.fft.fft
    return narrow(_to_parts(transform(frames, axis=-1)), signal.dtype)


@op("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: int = 1,
) -> Array:
    """Triangular filters, equally spaced on the mel scale, from spectrogram bins to mel bins."""
    what = "MelWeightMatrix"
    mels, length, rate = (_scalar(f"{what}: {n}", v) for n, v in (
        ("num_mel_bins", num_mel_bins), ("dft_length", dft_length), ("sample_rate", sample_rate)))  # fmt: skip
    require(min(mels, length, rate) > 0, f"{what}: sizes and rate must be positive", got=(mels, length, rate))
    bins, target = length // 2 + 1, dtypes.of_onnx(output_datatype).numpy
    check_elements(bins * mels, target, f"output of {what}")
    low, high = _mels("lower_edge_hertz", lower_edge_hertz), _mels("upper_edge_hertz", upper_edge_hertz)
    mel = np.arange(mels + 2) * (high - low) / (mels + 2) + low
    hertz = 700 * (10 ** (mel / 2595) - 1)
    floors = (length + 1) * hertz // rate
    ends = float(floors[0]), float(floors[-1])
    fits = ends[0] >= 0 and ends[1] <= bins
    require(fits, f"{what}: the edges leave the spectrum", expected=f"0 to {bins}", got=ends)
    edges = floors.astype(np.int64)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    at = np.arange(bins)[:, None]
    rising = np.where(centre == left, 1.0, (at - left) / np.maximum(centre - left, 1))
    falling = (right - at) / np.maximum(right - centre, 1)
    y = np.where((at >= left) & (at <= centre), rising, 0.0)
    y = np.where((at >= centre) & (at < right), falling, y)
    return y.astype(target)


def _mels(name: str, edge: Array) -> float:
    """A frequency on the mel scale."""
    require(edge.size == 1, f"MelWeightMatrix: {name} must be one value", got=edge.shape)
    hertz = float(edge.reshape(()))
    require(-700 < hertz < math.inf, f"MelWeightMatrix: {name} is not a frequency", expected="above -700", got=hertz)
    return 2595 * math.log10(1 + hertz / 700)


def _cosines(what: str, size: Array, periodic: int, output_datatype: int, *terms: float) -> Array:
    """The sum of terms[k] cos(2 pi k n / N) over a window of ``size`` samples; NaN where N is 0, as ONNX defines it."""
    count = _scalar(f"{what}: size", size)
    target = dtypes.of_onnx(output_datatype).numpy
    require(count >= 0, f"{what}: size must not be negative", got=count)
    check_elements(count, np.dtype(np.float64), f"output of {what}")
    with np.errstate(invalid="ignore"):
        angle = 2 * np.pi * np.arange(count) / np.float64(count if periodic else count - 1)
    y: Array = sum((term * np.cos(k * angle) for k, term in enumerate(terms)), start=np.zeros(count))
    return y.astype(target)


@op("HannWindow")
def hann_window(size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    return _cosines("HannWindow", size, periodic, output_datatype, 0.5, -0.5)


@op("HammingWindow")
def hamming_window(size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    return _cosines("HammingWindow", size, periodic, output_datatype, 25 / 46, -21 / 46)


@op("BlackmanWindow")
def blackman_window(size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    return _cosines("BlackmanWindow", size, periodic, output_datatype, 0.42, -0.5, 0.08)

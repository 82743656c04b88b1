"""Conversions between element types: Cast, CastLike, BitCast.

Floats become integers by truncation towards zero, integers wrap, nonzero values are True. Text is written and read as
onnxruntime does: eight significant digits, ``NaN``, ``INF``, ``-INF``; the longest prefix that is a number counts.
"""

from __future__ import annotations

import re

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument
from sardonyx.ops.axes import Array, strings
from sardonyx.ops.precision import largest_float
from sardonyx.ops.registry import op

_SATURATING = frozenset(("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"))
_REAL = re.compile(r"\s*[+-]?(?:\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|inf(?:inity)?|nan)", re.IGNORECASE)
_WHOLE = re.compile(r"\s*[+-]?\d+")


@op("Cast")
def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    try:
        target = dtypes.of_onnx(to)
    except KeyError:
        raise InvalidArgument("Cast: no such element type", got=to) from None
    return convert(x, target, saturate=bool(saturate), round_mode=round_mode)


@op("CastLike")
def cast_like(x: Array, like: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    return convert(x, dtypes.of_numpy(like.dtype), saturate=bool(saturate), round_mode=round_mode)


@op("BitCast")
def bit_cast(x: Array, *, to: int) -> Array:
    """The same bits under another type of the same width."""
    source, target = dtypes.of_numpy(x.dtype), dtypes.of_onnx(to)
    if dtypes.string in (source, target) or source.bits != target.bits:
        raise InvalidArgument("BitCast: the widths differ", expected=f"{source.bits} bits", got=target)
    return x.view(target.numpy)


def convert(x: Array, target: DType, *, saturate: bool = True, round_mode: str = "up") -> Array:
    """``x`` in another element type, by the rules of Cast."""
    source = dtypes.of_numpy(x.dtype)
    if source is target:
        return x
    if target is dtypes.string:
        return _to_text(x, source)
    if source is dtypes.string:
        x = _from_text(x, target)
        source = dtypes.of_numpy(x.dtype)
    with np.errstate(all="ignore"):
        if target.name == "f8e8m0":
            return _to_e8m0(x.astype(np.float32), saturate, round_mode).view(target.numpy)
        if source.is_float and source.numpy.itemsize < 4:
            x = x.astype(np.float32)
        elif source.is_integer and target.is_float and target.bits < 32:
            x = x.astype(np.float32 if source.bits < 32 else np.float64)
        if target.name in _SATURATING and saturate:
            top = largest_float(target.numpy)
            x = np.clip(x.astype(np.float64 if x.dtype == np.float64 else np.float32), -top, top)
        elif target.is_integer and target.bits < 32 and x.dtype.kind == "f":
            x = x.astype(np.int32)
        if target.is_integer and target.bits < 8:
            return _wrap(x, target)
        return x.astype(target.numpy)


def _wrap(x: Array, target: DType) -> Array:
    """The low bits of integers, as a sub-byte type."""
    low = x.astype(np.int8) & ((1 << target.bits) - 1)
    if target.kind == "int":
        sign = 1 << (target.bits - 1)
        low = (low ^ sign) - sign
    return low.astype(target.numpy)


def _to_e8m0(x: Array, saturate: bool, round_mode: str) -> Array:
    """The biased exponents of float32 values, rounded; 255 is NaN."""
    if round_mode not in ("up", "down", "nearest"):
        raise InvalidArgument("Cast: no such round_mode", expected="up, down or nearest", got=round_mode)
    bits = x.view(np.uint32)
    exponent = ((bits >> 23) & 0xFF).astype(np.int32)
    fraction = bits & 0x7FFFFF
    if round_mode == "up":
        exponent += fraction > 0
    elif round_mode == "nearest":
        # A subnormal is below half of the step from 2**-127 upwards unless it exceeds 1.5 * 2**-127 = 0x600000.
        exponent += fraction >= np.where(exponent > 0, np.uint32(0x400000), np.uint32(0x600000))
    if saturate:
        exponent = np.minimum(exponent, 254)
    exponent[np.isnan(x) | (np.isinf(x) if not saturate else False)] = 255
    return np.minimum(exponent, 255).astype(np.uint8)


def _to_text(x: Array, source: DType) -> Array:
    if source is dtypes.bool_:
        words = ["1" if v else "0" for v in x.reshape(-1).tolist()]
    elif source.is_integer:
        words = [str(int(v)) for v in x.reshape(-1).tolist()]
    else:
        words = [_real_text(v) for v in x.astype(np.float64).reshape(-1).tolist()]
    return strings(words, x.shape)


def _real_text(value: float) -> str:
    if value != value:
        return "NaN"
    text = f"{value:.8g}"
    return text.upper() if text.endswith("inf") else text


def _from_text(x: Array, target: DType) -> Array:
    pattern = _REAL if target.kind == "float" else _WHOLE
    texts = x.reshape(-1).tolist()
    matches = [pattern.match(s) for s in texts]
    if None in matches:
        raise InvalidArgument(f"Cast: a string is not a number of type {target}", got=repr(texts[matches.index(None)]))
    words = [m.group().strip() for m in matches if m is not None]
    if target.kind == "float":
        return np.array([float(w) for w in words], np.float64).reshape(x.shape)
    values = [int(w) for w in words]
    wide = np.dtype(np.uint64 if target.name == "u64" else np.int64)
    limits = np.iinfo(wide)
    for v in values:
        if not limits.min <= v <= limits.max:
            raise InvalidArgument(f"Cast: a string is out of the range of {wide}", got=v)
    return np.array(values, wide).reshape(x.shape)

"""Steps from a decoded image to a network's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import InvalidArgument
from sardonyx.ir.graph import Value
from sardonyx.ir.types import TensorType
from sardonyx.pipeline.writer import Picture, Size, Writer, pair

Array = np.ndarray[Any, Any]

LAYOUTS = {"HWC": (2, 0, 1), "NHWC": (0, 3, 1, 2), "CHW": (0, 1, 2), "NCHW": (0, 1, 2, 3)}
MODES = ("linear", "cubic", "nearest")


@dataclass(frozen=True)
class Image:
    """The input: bytes, by default (height, width, 3) of any size. If given, it must be the first step."""

    name: str = "image"
    layout: str = "HWC"
    height: int | None = None
    width: int | None = None
    channels: int = 3

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise InvalidArgument("Image: unknown layout", expected=", ".join(LAYOUTS), got=repr(self.layout))

    def input(self) -> Value:
        height, width = self.height or "height", self.width or "width"
        sizes: dict[str, int | str] = {"N": "batch", "C": self.channels, "H": height, "W": width}
        return Value(self.name, TensorType(dtypes.u8, tuple(sizes[axis] for axis in self.layout)))

    def read(self, op: Writer, x: Value) -> Picture:
        """The input as (batch, channel, height, width)."""
        order = LAYOUTS[self.layout]
        height, width = (op.size(x, self.layout.index(axis)) for axis in "HW")
        if list(order) != sorted(order):
            x = op.Transpose(x, perm=order)
        if len(order) == 3:
            x = op.Unsqueeze(x, [0])
        return Picture(x, height, width, image=(height, width))


@dataclass(frozen=True)
class Resize:
    """To (height, width) or, for one number, the shorter side to that size with the aspect ratio kept.

    With ``antialias``, a reduced image averages all its pixels, as in Pillow.
    """

    size: int | tuple[int, int]
    mode: str = "linear"
    antialias: bool = True

    def __post_init__(self) -> None:
        pair(self.size, "Resize")
        if self.mode not in MODES:
            raise InvalidArgument("Resize: unknown mode", expected=", ".join(MODES), got=repr(self.mode))

    def write(self, op: Writer, picture: Picture) -> Picture:
        if isinstance(self.size, int):
            shorter = op.minimum(picture.height, picture.width)
            height = op.floordiv(op.mul(picture.height, self.size), shorter)
            width = op.floordiv(op.mul(picture.width, self.size), shorter)
        else:
            height, width = self.size
        return resized(op, picture, height, width, self.mode, self.antialias)


def resized(op: Writer, picture: Picture, height: Size, width: Size, mode: str, antialias: bool) -> Picture:
    smooth = 1 if antialias and mode != "nearest" else None
    sizes = _shape(op, picture.value, height, width)
    value = picture.value
    if mode == "cubic" and value.dtype is dtypes.u8:  # onnxruntime supports no other coefficient
        value = op.cast(value, dtypes.f32)
    made = op.Resize(value, None, None, sizes, mode=mode, antialias=smooth, exclude_outside=smooth)
    if value is not picture.value:
        made = op.cast(op.Round(op.Clip(made, 0.0, 255.0)), dtypes.u8)

    def undo(op: Writer, boxes: Value) -> Value:
        scale = op.Div(op.corners(picture.width, picture.height), op.corners(width, height))
        found: Value = op.Mul(boxes, scale)
        return found

    return replace(picture, value=made, height=height, width=width, undo=(undo, *picture.undo))


def _shape(op: Writer, x: Value, height: Size, width: Size) -> Value:
    """All four sizes: onnxruntime reorders transposes wrongly around a Resize of some axes."""
    return op.vector(op.size(x, 0), op.size(x, 1), height, width)


@dataclass(frozen=True)
class CenterCrop:
    """The centre of the image, padded with black if it is smaller."""

    size: int | tuple[int, int]

    def __post_init__(self) -> None:
        pair(self.size, "CenterCrop")

    def write(self, op: Writer, picture: Picture) -> Picture:
        height, width = pair(self.size, "CenterCrop")
        made = op.CenterCropPad(picture.value, _shape(op, picture.value, height, width))

        def undo(op: Writer, boxes: Value) -> Value:
            more = op.Sub(op.corners(picture.width, picture.height), op.corners(width, height))
            found: Value = op.Add(boxes, op.Floor(op.Mul(more, op.floats(0.5))))
            return found

        return replace(picture, value=made, height=height, width=width, undo=(undo, *picture.undo))


@dataclass(frozen=True)
class Letterbox:
    """The whole image scaled into (height, width) with the aspect ratio kept, and bars of one value; for detectors.

    ``center`` places it in the middle, otherwise at the upper left. ``ToImage`` undoes this for boxes.
    """

    size: int | tuple[int, int]
    fill: int = 114
    center: bool = True
    mode: str = "linear"
    antialias: bool = False

    def __post_init__(self) -> None:
        pair(self.size, "Letterbox")
        if self.mode not in MODES or not 0 <= self.fill <= 255:
            raise InvalidArgument("Letterbox: a mode and a shade of 0 to 255", got=f"{self.mode!r}, {self.fill}")

    def write(self, op: Writer, picture: Picture) -> Picture:
        height, width = pair(self.size, "Letterbox")
        inner = resized(
            op,
            picture,
            _fitted(op, height, picture.height, picture.width, width),
            _fitted(op, width, picture.width, picture.height, height),
            self.mode,
            self.antialias,
        )
        down, right = op.sub(height, inner.height), op.sub(width, inner.width)
        top, left = (op.floordiv(op.maximum(d, 0), 2) if self.center else 0 for d in (down, right))
        pads = op.vector(0, 0, top, left, 0, 0, op.sub(down, top), op.sub(right, left))
        dtype = inner.value.dtype or dtypes.u8
        made = op.Pad(inner.value, pads, op.const(np.array(self.fill, dtype.numpy)))

        def undo(op: Writer, boxes: Value) -> Value:
            found: Value = op.Sub(boxes, op.corners(left, top))
            return found

        return replace(inner, value=made, height=height, width=width, undo=(undo, *inner.undo))


def _fitted(op: Writer, box: int, size: Size, other: Size, other_box: int) -> Size:
    """A side of the scaled image: rounded, at least 1, at most that of the box."""
    doubled = op.add(op.mul(size, 2 * other_box), other)
    return op.maximum(op.minimum(op.floordiv(doubled, op.mul(other, 2)), box), 1)


@dataclass(frozen=True)
class Normalize:
    """(pixel * scale - mean) / std per channel, in f32."""

    mean: Sequence[float] | float = 0.0
    std: Sequence[float] | float = 1.0
    scale: float = 1 / 255

    def __post_init__(self) -> None:
        if not np.all(np.asarray(self.std, np.float64) > 0):
            raise InvalidArgument("Normalize: std is positive", got=self.std)

    def write(self, op: Writer, picture: Picture) -> Picture:
        std = np.asarray(self.std, np.float64)
        factor, offset = np.broadcast_arrays(self.scale / std, -np.asarray(self.mean, np.float64) / std)
        value = op.cast(picture.value, dtypes.f32)
        channels = value.shape[1] if value.shape is not None else None
        if factor.size > 1 and isinstance(channels, int) and factor.size != channels:
            raise InvalidArgument("Normalize: one mean and std for each channel", expected=channels, got=factor.size)
        value = op.Mul(value, op.const(_per_channel(factor)))
        if offset.any():
            value = op.Add(value, op.const(_per_channel(offset)))
        return replace(picture, value=value)


def _per_channel(numbers: Array) -> Array:
    return numbers.astype(np.float32).reshape(-1, 1, 1)


@dataclass(frozen=True)
class SwapChannels:
    """RGB to BGR, or BGR to RGB."""

    def write(self, op: Writer, picture: Picture) -> Picture:
        made = op.Slice(picture.value, [-1], [-(1 << 31)], [1], [-1])
        return replace(picture, value=made)

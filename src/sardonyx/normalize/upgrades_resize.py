"""Upsample and the first Resize, as onnxruntime runs them, rewritten to the newest Resize."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import constant, put_input, required_attribute, required_input
from sardonyx.normalize.registry import Result, upgrade


@upgrade("Upsample", to=7)
def upsample_scales(op: Builder, node: Node) -> Result:
    """Two scales of an image become one per axis."""
    if "scales" not in node.attrs:
        scales = [node.attrs.pop(name, 1.0) for name in ("height_scale", "width_scale")]
        node.attrs["scales"] = [1.0, 1.0, *scales]
    node.attrs["mode"] = _mode(node)
    return None


@upgrade("Upsample", to=9)
def upsample_scales_input(op: Builder, node: Node) -> Result:
    put_input(node, 1, op.const(np.array(required_attribute(node, "scales"), np.float32)))
    del node.attrs["scales"]
    return None


@upgrade("Upsample", to=10)
def upsample_to_resize(op: Builder, node: Node) -> Result:
    return op.Resize(required_input(node, 0), required_input(node, 1), mode=_mode(node))


@upgrade("Resize", to=11)
def resize_asymmetric(op: Builder, node: Node) -> Result:
    """Output i read at i / scale. Nearest rounded down if the axis grows, up if it shrinks."""
    x, scales = required_input(node, 0), required_input(node, 1)
    if _mode(node) != "nearest":
        return _resize(op, x, scales, mode="linear")
    known = constant(scales)
    if known is not None and bool(np.all(known >= 1)):
        return _resize(op, x, scales, mode="nearest", nearest_mode="floor")
    if known is not None and bool(np.all(known <= 1)):
        return _resize(op, x, scales, mode="nearest", nearest_mode="ceil")
    grown = _resize(op, x, op.Max(scales, 1.0), mode="nearest", nearest_mode="floor")
    return _resize(op, grown, op.Min(scales, 1.0), mode="nearest", nearest_mode="ceil")


@upgrade("Resize", to=13)
def resize_tf_nearest(op: Builder, node: Node) -> Result:
    """``tf_half_pixel_for_nn`` read at (i + 1/2) / scale: half a position above half_pixel, which a rounding mode
    expresses.
    """
    rounding = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}
    given = node.attrs.get("nearest_mode", "round_prefer_floor")
    is_tf = node.attrs.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn"
    if is_tf and _mode(node) == "nearest" and given in rounding:
        node.attrs |= {"coordinate_transformation_mode": "half_pixel", "nearest_mode": rounding[given]}
    return None


def _mode(node: Node) -> str:
    mode = node.attrs.get("mode", "nearest")
    return "linear" if mode == "bilinear" else str(mode)


def _resize(op: Builder, x: Value, scales: Value, **attrs: str) -> Any:
    asymmetric = {"coordinate_transformation_mode": "asymmetric"}
    return op.Resize(x, None, scales, **asymmetric, **attrs)

"""Convolutions and poolings with a fused activation, or on channels-last data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_input
from sardonyx.normalize.microsoft.activation import activate
from sardonyx.normalize.microsoft.body import (
    MICROSOFT,
    channels_first,
    channels_last,
    shared_attributes,
    sum_given,
)
from sardonyx.normalize.registry import Rewrite, expand

WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
COUNTS = {"Clip": 2, "HardSigmoid": 2, "LeakyRelu": 1}

NHWC = "com.ms.internal.nhwc"


def parameters(node: Node) -> dict[str, float]:
    """``activation_params`` by name, in the activation's order."""
    params = node.attrs.get("activation_params", [])
    expected = COUNTS.get(node.attrs.get("activation", ""), 0)
    if len(params) < expected:
        raise InvalidGraph("activation_params has too few values", where=node.label, expected=expected, got=len(params))
    return dict(zip(("alpha", "beta"), params, strict=False))


def fused(op: Builder, node: Node, x: Value, residual: Value | None) -> Any:
    y = op.Conv(x, required_input(node, 1), node.input(2), **shared_attributes(node, *WINDOW))
    return activate(op, node, sum_given(op, y, residual), node.attrs.get("activation"), parameters(node))


@expand("FusedConv", domain=MICROSOFT)
def fused_conv(op: Builder, node: Node) -> Any:
    """activation(conv(X, W) + B + Z)."""
    return fused(op, node, required_input(node, 0), node.input(3))


@expand("NhwcFusedConv", domain=MICROSOFT)
def nhwc_fused_conv(op: Builder, node: Node) -> Any:
    rank = required_input(node, 0).rank
    x, z = required_input(node, 0), node.input(3)
    residual = None if z is None else channels_first(op, z, rank)
    return channels_last(op, fused(op, node, channels_first(op, x, rank), residual), rank)


def over_channels_first(op_type: str, *names: str) -> Rewrite:
    """A rewrite to the ai.onnx operator of this name between two transposes; data is its first input."""

    def rewrite(op: Builder, node: Node) -> Any:
        x = required_input(node, 0)
        y = op.call("", op_type, channels_first(op, x, x.rank), *node.inputs[1:], **shared_attributes(node, *names))
        return channels_last(op, y, x.rank)

    return rewrite


POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")

expand("NhwcConv", domain=MICROSOFT)(over_channels_first("Conv", *WINDOW))
expand("NhwcMaxPool", domain=MICROSOFT)(over_channels_first("MaxPool", *POOL))

INTERNAL: dict[str, tuple[str, ...]] = {
    "AveragePool": (*POOL, "count_include_pad"),
    "Conv": WINDOW,
    "ConvTranspose": (*WINDOW, "output_padding", "output_shape"),
    "DepthToSpace": ("blocksize", "mode"),
    "GlobalAveragePool": (),
    "GlobalLpPool": ("p",),
    "GlobalMaxPool": (),
    "InstanceNormalization": ("epsilon",),
    "LRN": ("alpha", "beta", "bias", "size"),
    "LpPool": (*POOL, "p"),
    "MaxPool": POOL,
    "SpaceToDepth": ("blocksize",),
}
"""Operators that onnxruntime's layout pass produces for channels-last data, with the attributes of their ai.onnx
form.
"""

for _op_type, _names in INTERNAL.items():
    expand(_op_type, domain=NHWC)(over_channels_first(_op_type, *_names))


def _qlinear_conv(last: Callable[[Node], bool]) -> Rewrite:
    def rewrite(op: Builder, node: Node) -> Any:
        x, rank = required_input(node, 0), required_input(node, 0).rank
        nhwc = last(node)
        data = channels_first(op, x, rank) if nhwc else x
        y = op.QLinearConv(data, *node.inputs[1:], **shared_attributes(node, *WINDOW))
        return channels_last(op, y, rank) if nhwc else y

    return rewrite


expand("QLinearConv", domain=MICROSOFT)(_qlinear_conv(lambda node: bool(node.attrs.get("channels_last", 0))))
expand("QLinearConv", domain=NHWC)(_qlinear_conv(lambda node: True))

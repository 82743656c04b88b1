"""Convolutions and poolings with an activation fused in, or over channels-last data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.errors import InvalidGraph
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.microsoft.activation import activate
from sardonyx.normalize.microsoft.body import MICROSOFT, channels_first, channels_last, given, kept, total
from sardonyx.normalize.registry import Rewrite, expand

WINDOW = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
COUNTS = {"Clip": 2, "HardSigmoid": 2, "LeakyRelu": 1}

NHWC = "com.ms.internal.nhwc"


def parameters(node: Node) -> dict[str, float]:
    """``activation_params`` by name, in the order in which an activation takes them."""
    params = node.attrs.get("activation_params", [])
    expected = COUNTS.get(node.attrs.get("activation", ""), 0)
    if len(params) < expected:
        raise InvalidGraph("activation_params has too few values", where=node.label, expected=expected, got=len(params))
    return dict(zip(("alpha", "beta"), params, strict=False))


def fused(op: Builder, node: Node, x: Value, residual: Value | None) -> Any:
    y = op.Conv(x, given(node, 1), node.input(2), **kept(node, *WINDOW))
    return activate(op, node, total(op, y, residual), node.attrs.get("activation"), parameters(node))


@expand("FusedConv", domain=MICROSOFT)
def fused_conv(op: Builder, node: Node) -> Any:
    """activation(conv(X, W) + B + Z)."""
    return fused(op, node, given(node, 0), node.input(3))


@expand("NhwcFusedConv", domain=MICROSOFT)
def nhwc_fused_conv(op: Builder, node: Node) -> Any:
    rank = given(node, 0).rank
    x, z = given(node, 0), node.input(3)
    residual = None if z is None else channels_first(op, z, rank)
    return channels_last(op, fused(op, node, channels_first(op, x, rank), residual), rank)


def over_channels_first(op_type: str, *names: str) -> Rewrite:
    """The ai.onnx operator of this name between two transposes; data is its first input."""

    def rewrite(op: Builder, node: Node) -> Any:
        x = given(node, 0)
        y = op.call("", op_type, channels_first(op, x, x.rank), *node.inputs[1:], **kept(node, *names))
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
"""Operators that onnxruntime's layout pass writes over channels-last data, with the attributes of the ai.onnx form."""

for _op_type, _names in INTERNAL.items():
    expand(_op_type, domain=NHWC)(over_channels_first(_op_type, *_names))


def _qlinear_conv(last: Callable[[Node], bool]) -> Rewrite:
    def rewrite(op: Builder, node: Node) -> Any:
        x, rank = given(node, 0), given(node, 0).rank
        nhwc = last(node)
        data = channels_first(op, x, rank) if nhwc else x
        y = op.QLinearConv(data, *node.inputs[1:], **kept(node, *WINDOW))
        return channels_last(op, y, rank) if nhwc else y

    return rewrite


expand("QLinearConv", domain=MICROSOFT)(_qlinear_conv(lambda node: bool(node.attrs.get("channels_last", 0))))
expand("QLinearConv", domain=NHWC)(_qlinear_conv(lambda node: True))

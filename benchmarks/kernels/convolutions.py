"""Convolutions with bias and Relu as networks have them, and quantized ones."""

from __future__ import annotations

import numpy as np

from benchmarks.kernels.case import Case, fixed, integers, normal


def conv(channels: int, size: int, filters: int, kernel: int, stride: int, groups: int = 1) -> Case:
    inner, out, pad = channels // groups, -(-size // stride), (kernel - 1) // 2
    attributes = f"strides = [{stride}, {stride}], pads = [{pad}, {pad}, {pad}, {pad}], group = {groups}"
    weights = normal(filters, inner, kernel, kernel, scale=(inner * kernel * kernel) ** -0.5)
    return Case(
        f"{channels}x{size}-{filters}k{kernel}s{stride}{f'g{groups}' if groups > 1 else ''}",
        f"a = Conv<{attributes}>(x, w, b) y = Relu(a)", {"x": normal(1, channels, size, size)},
        {"w": weights, "b": normal(filters)}, flops=2.0 * inner * kernel**2 * filters * out**2,
    )  # fmt: skip


RESNET50 = tuple(
    conv(*layer)
    for layer in (
        (3, 224, 64, 7, 2), (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1),
        (256, 56, 128, 1, 1), (128, 56, 128, 3, 2), (256, 56, 512, 1, 2), (128, 28, 128, 3, 1), (128, 28, 512, 1, 1),
        (512, 28, 128, 1, 1), (512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (512, 28, 1024, 1, 2), (256, 14, 256, 3, 1),
        (256, 14, 1024, 1, 1), (1024, 14, 256, 1, 1), (1024, 14, 512, 1, 1), (512, 14, 512, 3, 2),
        (1024, 14, 2048, 1, 2), (512, 7, 512, 3, 1), (512, 7, 2048, 1, 1), (2048, 7, 512, 1, 1),
    )
)  # fmt: skip
DEPTHWISE = (conv(32, 112, 32, 3, 1, 32), conv(96, 112, 96, 3, 2, 96), conv(240, 28, 240, 5, 2, 240))


def quantized(channels: int, size: int, filters: int, kernel: int, stride: int, groups: int = 1) -> Case:
    inner, out, pad = channels // groups, -(-size // stride), kernel // 2
    attributes = f"strides = [{stride}, {stride}], pads = [{pad}, {pad}, {pad}, {pad}], group = {groups}"
    constants = {
        "s": fixed(0.01), "p": fixed(3, dtype=np.uint8),
        "w": integers(-127, 128, filters, inner, kernel, kernel, dtype=np.int8), "t": fixed(0.02),
        "q": fixed(0, dtype=np.int8), "u": fixed(5.0), "z": fixed(7, dtype=np.uint8),
    }  # fmt: skip
    return Case(
        f"QLinearConv {channels}x{size}-{filters}k{kernel}s{stride}{f'g{groups}' if groups > 1 else ''}",
        f"y = QLinearConv<{attributes}>(x, s, p, w, t, q, u, z)",
        {"x": integers(0, 256, 1, channels, size, size, dtype=np.uint8)}, constants, {"y": "uint8"},
        flops=2.0 * inner * kernel**2 * filters * out**2, has_limit=False,
    )  # fmt: skip


CONV = (*RESNET50, *DEPTHWISE)
QUANTIZED = tuple(
    quantized(*layer)
    for layer in (
        (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 14, 256, 3, 1), (512, 7, 512, 3, 1), (128, 56, 128, 3, 2),
        (3, 224, 64, 7, 2), (96, 56, 96, 3, 1, 96),
    )
)  # fmt: skip

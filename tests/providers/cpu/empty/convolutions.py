"""Every way to convolve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.providers.cpu.empty.case import TILES, Case

IMAGE = {"n": 2, "h": 9, "w": 10}
NCHW = "float[n,{c},h,w] x"


def image(
    body: str, channels: int, precisions: tuple[str, ...] = TILES, sizes: Mapping[str, int] = IMAGE, **weights: Any
) -> Case:
    return Case(body, NCHW.format(c=channels), "float[a,b,c,d] y", sizes, weights, precisions=precisions)


def conv(x: str, w: str, y: str, attributes: str = "", bias: str = "") -> str:
    return f"{y} = Conv{f'<{attributes}>' if attributes else ''}({x}, {w}{bias}) "


SAME = "pads = [1,1,1,1]"
POOL = "MaxPool<kernel_shape = [2,2], strides = [2,2]>"

CONVOLUTIONS = {
    "stem": image(
        conv("x", "w", "c", "pads = [3,3,3,3], strides = [2,2]", ", b") + "y = Relu(c)", 3, w=(16, 3, 7, 7), b=(16,)
    ),
    "stem of one channel": image(conv("x", "w", "y", SAME), 1, w=(8, 1, 3, 3)),
    "3 x 3": image(conv("x", "w", "y", SAME, ", b"), 64, w=(64, 64, 3, 3), b=(64,)),
    "3 x 3, odd channels": image(conv("x", "w", "y", SAME), 50, w=(37, 50, 3, 3)),
    "3 x 3, strides": image(conv("x", "w", "y", SAME + ", strides = [2,2]"), 32, w=(64, 32, 3, 3)),
    "dilated": image(conv("x", "w", "y", "pads = [2,2,2,2], dilations = [2,2]"), 32, w=(32, 32, 3, 3)),
    "1 x 1": image(conv("x", "w", "y"), 64, w=(128, 64, 1, 1)),
    "1 x 1, strides": image(conv("x", "w", "y", "strides = [2,2]"), 64, w=(64, 64, 1, 1)),
    "1 x 1, padded": image(conv("x", "w", "y", SAME, ", b"), 32, w=(32, 32, 1, 1), b=(32,)),
    "few filters": image(conv("x", "w", "y", SAME), 64, w=(2, 64, 3, 3)),
    "few channels": image(conv("x", "w", "y", SAME), 4, w=(64, 4, 3, 3)),
    "grouped": image(conv("x", "w", "y", SAME + ", group = 4"), 32, w=(32, 8, 3, 3)),
    "depthwise": image(conv("x", "w", "y", SAME + ", group = 32"), 32, w=(32, 1, 3, 3)),
    "depthwise 5 x 5, strides": image(
        conv("x", "w", "y", "pads = [2,2,2,2], strides = [2,2], group = 16"), 16, w=(16, 1, 5, 5)
    ),
    "depthwise 1 x 1": image(conv("x", "w", "y", "group = 32"), 32, w=(32, 1, 1, 1)),
    "depthwise 1 x 1, strides": image(conv("x", "w", "y", "strides = [2,2], group = 32"), 32, w=(32, 1, 1, 1)),
    "inverted residual": image(
        conv("x", "e", "a") + "b = Relu(a) " + conv("b", "d", "c", SAME + ", group = 96") + "f = Relu(c) "
        + conv("f", "p", "g") + "y = Add(x, g)",
        16, e=(96, 16, 1, 1), d=(96, 1, 3, 3), p=(16, 96, 1, 1),
    ),
    "bottleneck": image(
        conv("x", "u", "a") + "b = Relu(a) " + conv("b", "v", "c", SAME) + "d = Relu(c) " + conv("d", "q", "e")
        + "f = Add(e, x) y = Relu(f)",
        64, u=(32, 64, 1, 1), v=(32, 32, 3, 3), q=(64, 32, 1, 1),
    ),
    "projected residual": image(
        conv("x", "u", "a", SAME + ", strides = [2,2]") + "b = Relu(a) " + conv("b", "v", "c", SAME)
        + conv("x", "q", "e", "strides = [2,2]") + "y = Add(c, e)",
        64, u=(64, 64, 3, 3), v=(64, 64, 3, 3), q=(64, 64, 1, 1),
    ),
    "pools around": image(
        f"a = {POOL}(x) " + conv("a", "w", "b", SAME) + f"c = Relu(b) y = {POOL}(c)", 32, w=(64, 32, 3, 3)
    ),
    "excited": image(
        conv("x", "w", "a", SAME) + "g = GlobalAveragePool(a) " + conv("g", "s", "b") + "c = Sigmoid(b) y = Mul(a, c)",
        32, w=(32, 32, 3, 3), s=(32, 32, 1, 1),
    ),
    "weights that are fed": Case(
        conv("x", "w", "y", SAME, ", b"), "float[n,c,h,v] x, float[f,c,3,3] w, float[f] b", "float[a,d,e,g] y",
        {"n": 2, "c": 5, "h": 6, "v": 7, "f": 4}, hangs=("c",),
    ),
    "of a row": Case(
        conv("x", "w", "y", "pads = [1,1]"), "float[n,20,h] x", "float[a,b,c] y", {"n": 2, "h": 11}, {"w": (24, 20, 3)},
        precisions=TILES,
    ),
    "of a volume": Case(
        conv("x", "w", "y", "pads = [1,1,1,1,1,1]"), "float[n,8,d,h,w_] x", "float[a,b,c,e,f] y",
        {"n": 2, "d": 3, "h": 4, "w_": 5}, {"w": (12, 8, 3, 3, 3)}, precisions=TILES,
    ),
    "of f16": Case(
        conv("x", "w", "y", SAME), "float16[n,32,h,v] x", "float16[a,b,c,d] y", {"n": 2, "h": 6, "v": 7},
        {"w": np.random.default_rng(0).standard_normal((32, 32, 3, 3)).astype(np.float16)},
    ),
    "transposed": Case(
        "y = ConvTranspose<strides = [2,2], pads = [1,1,1,1]>(x, w)", "float[n,16,h,v] x", "float[a,b,c,d] y",
        {"n": 2, "h": 5, "v": 6}, {"w": (16, 8, 4, 4)}, precisions=TILES,
    ),
    "transposed by one": Case(
        "y = ConvTranspose<pads = [1,1,1,1]>(x, w, b)", "float[n,16,h,v] x", "float[a,b,c,d] y",
        {"n": 2, "h": 5, "v": 6}, {"w": (16, 8, 3, 3), "b": (8,)},
    ),
    "transposed between bytes": Case(
        "f = DequantizeLinear(x, xs, xz) g = DequantizeLinear(w, ws) c = ConvTranspose<strides = [2,2]>(f, g) "
        "y = QuantizeLinear(c, ys, yz)",
        "uint8[n,16,h,v] x", "uint8[a,b,c,d] y", {"n": 2, "h": 5, "v": 6},
        {"w": np.random.default_rng(0).integers(-9, 9, (16, 8, 3, 3)).astype(np.int8), "xs": np.array(0.0937, "f"),
         "xz": np.array(3, np.uint8), "ws": np.array(0.0713, "f"), "ys": np.array(0.4111, "f"),
         "yz": np.array(7, np.uint8)},
        top=200,
    ),
    "of bytes": Case(
        "y = ConvInteger<pads = [1,1,1,1]>(x, w, z)", "uint8[n,16,h,v] x", "int32[a,b,c,d] y",
        {"n": 2, "h": 5, "v": 6},
        {"w": np.random.default_rng(0).integers(-9, 9, (24, 16, 3, 3)).astype(np.int8), "z": np.array(3, np.uint8)},
        top=200,
    ),
    "quantized": Case(
        "y = QLinearConv<pads = [1,1,1,1]>(x, xs, xz, w, ws, wz, ys, yz)", "uint8[n,16,h,v] x", "uint8[a,b,c,d] y",
        {"n": 2, "h": 5, "v": 6},
        {"w": np.random.default_rng(0).integers(-9, 9, (24, 16, 3, 3)).astype(np.int8), "xs": np.array(0.1, "f"),
         "xz": np.array(3, np.uint8), "ws": np.array(0.1, "f"), "wz": np.array(0, np.int8), "ys": np.array(0.5, "f"),
         "yz": np.array(7, np.uint8)},
        top=200,
    ),
    "with state": Case(
        "y, q = CausalConvWithState(x, w)", "float[n,8,l] x", "float[a,b,c] y, float[d,e,f] q", {"n": 2, "l": 6},
        {"w": (8, 1, 4)}, opsets='"" : 27',
    ),
    "with state, of one tap": Case(
        "y, q = CausalConvWithState(x, w)", "float[n,8,l] x", "float[a,b,c] y, float[d,e,f] q", {"n": 2, "l": 6},
        {"w": (8, 1, 1)}, opsets='"" : 27',
    ),
}  # fmt: skip

"""Two nets whose activations fade layer by layer, from 1 to 1e-36, as untrained and badly scaled ones do.

They have neither biases, normalizations nor residuals, and weights that are too small by the same factor everywhere.
Both are of one seed and take inputs of one size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from benchmarks.zoo.net import Array, Net

STAGES, LAYERS, SIDE = 4, 9, 56
BLOCKS, HEADS, TOKENS = 12, 12, 128


def convnet(small: bool) -> tuple[bytes, dict[str, Array]]:
    """36 convolutions of 3 x 3 or 1 x 1, each of whose results is a tenth of its image."""
    net, width, side = Net(seed=0), 16 if small else 64, SIDE // 4 if small else SIDE
    x, fan_in = "image", width
    for stage in range(STAGES):
        for layer in range(LAYERS):
            kernel = 1 if layer % 3 == 2 else 3
            x = net.op("Relu", _conv(net, x, fan_in, width << stage, kernel, 2 if stage and not layer else 1))
            fan_in = width << stage
    x = net.op("Flatten", net.op("GlobalAveragePool", x))
    shape = (1, width, side, side)
    return net.model([("image", TensorProto.FLOAT, shape)], [x]), {"image": _normal(shape)}


def _conv(net: Net, x: str, fan_in: int, fan_out: int, kernel: int, stride: int) -> str:
    w = net.weight(fan_out, fan_in, kernel, kernel, scale=0.1 * (fan_in * kernel * kernel / 2) ** -0.5)
    return net.op("Conv", x, w, strides=[stride] * 2, pads=[kernel // 2] * 4)


def transformer(small: bool) -> tuple[bytes, dict[str, Array]]:
    """12 blocks of attention and a perceptron, each of whose results is about a thousandth of what it read."""
    net, width = Net(seed=1), 96 if small else 768
    x, size = "x", width // HEADS

    def linear(x: str, fan_in: int, fan_out: int, gain: float) -> str:
        return net.op("MatMul", x, net.weight(fan_in, fan_out, scale=gain * fan_in**-0.5))

    for _ in range(BLOCKS):
        q, k, v = (_heads(net, linear(x, width, width, 1.0), size) for _ in range(3))
        scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
        weights = net.op("Softmax", net.op("Mul", scores, net.constant(np.float32(size**-0.5))), axis=-1)
        seen = net.op("Transpose", net.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        seen = linear(net.op("Reshape", seen, net.numbers(0, 0, width)), width, width, 0.1)
        hidden = net.op("Relu", linear(seen, width, 4 * width, 0.2))
        x = linear(hidden, 4 * width, width, 0.1)
    shape = (1, TOKENS // 4 if small else TOKENS, width)
    return net.model([("x", TensorProto.FLOAT, shape)], [x]), {"x": _normal(shape)}


def _heads(net: Net, x: str, size: int) -> str:
    return net.op("Transpose", net.op("Reshape", x, net.numbers(0, 0, HEADS, size)), perm=[0, 2, 1, 3])


def _normal(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


FADING: dict[str, Callable[[bool], tuple[bytes, dict[str, Array]]]] = {
    "fading-convnet": convnet, "fading-transformer": transformer,
}  # fmt: skip

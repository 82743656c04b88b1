"""Two nets with open shapes, of fixed seeds: a transformer as exporters write MiniLM, and a detector with a pyramid."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from benchmarks.zoo.net import Net


def transformer(*, width: int = 192, heads: int = 6, layers: int = 4, words: int = 2000, most: int = 512) -> bytes:
    """BERT with open batch and length: ids and mask to the last hidden state."""
    net = Net(seed=0)
    length = net.op("Slice", net.op("Shape", "ids"), net.numbers(1), net.numbers(2), net.numbers(0))
    positions = net.op("Slice", net.weight(1, most, width), net.numbers(0), length, net.numbers(1))
    x = net.norm(net.op("Add", net.op("Gather", net.weight(words, width), "ids"), positions), width)
    mask = net.op("Cast", net.op("Unsqueeze", "mask", net.numbers(1, 2)), to=TensorProto.FLOAT)
    mask = net.op("Mul", net.op("Sub", net.constant(np.float32(1)), mask), net.constant(np.float32(-1e4)))
    for _ in range(layers):
        q, k, v = (_heads(net, net.linear(x, width, width), heads, width // heads) for _ in range(3))
        scores = net.op("MatMul", q, net.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = net.op("Div", scores, net.constant(np.float32((width // heads) ** 0.5)))
        weights = net.op("Softmax", net.op("Add", scores, mask), axis=-1)
        seen = net.op("Transpose", net.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        seen = net.linear(net.op("Reshape", seen, net.numbers(0, 0, width)), width, width)
        x = net.norm(net.op("Add", x, seen), width)
        hidden = net.linear(x, width, 4 * width)
        half = net.op("Mul", hidden, net.constant(np.float32(0.5)))
        grown = net.op("Erf", net.op("Div", hidden, net.constant(np.float32(2**0.5))))
        hidden = net.op("Mul", half, net.op("Add", grown, net.constant(np.float32(1))))
        x = net.norm(net.op("Add", x, net.linear(hidden, 4 * width, width)), width)
    shape = ["batch", "length"]
    return net.model([("ids", TensorProto.INT64, shape), ("mask", TensorProto.INT64, shape)], [x])


def _heads(net: Net, x: str, heads: int, size: int) -> str:
    return net.op("Transpose", net.op("Reshape", x, net.numbers(0, 0, heads, size)), perm=[0, 2, 1, 3])


def detector(*, width: int = 16, classes: int = 8) -> bytes:
    """Images of any height and width to boxes and scores of three levels of a pyramid."""
    net = Net(seed=1)
    x = net.op("Relu", net.conv("image", 3, width, stride=2))
    levels = []
    for i in range(4):
        fan_in, fan_out = width << i, width << (i + 1)
        x = net.op("Relu", net.conv(x, fan_in, fan_out, stride=2))
        inner = net.conv(net.op("Relu", net.conv(x, fan_out, fan_out // 2, kernel=1)), fan_out // 2, fan_out)
        x = net.op("Relu", net.op("Add", x, inner))
        levels.append(x)
    outputs, above = [], ""
    for i in (3, 2, 1):
        level = net.conv(levels[i], width << (i + 1), 4 * width, kernel=1)
        if above:
            sizes = net.op("Slice", net.op("Shape", level), net.numbers(2), net.numbers(4), net.numbers(0))
            whole = net.op(
                "Concat", net.op("Slice", net.op("Shape", above), *map(net.numbers, (0, 2, 0))), sizes, axis=0
            )
            level = net.op("Add", level, net.op("Resize", above, "", "", whole, mode="nearest"))
        above = net.op("Relu", net.conv(level, 4 * width, 4 * width))
        found = net.conv(above, 4 * width, 4 + classes, kernel=1)
        outputs.append(net.op("Reshape", net.op("Sigmoid", found), net.numbers(0, 4 + classes, -1)))
    every = net.op("Transpose", net.op("Concat", *outputs, axis=2), perm=[0, 2, 1])
    return net.model([("image", TensorProto.FLOAT, [1, 3, "height", "width"])], [every])

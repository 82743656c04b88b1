"""Graphs of any length: an encoder as torch's exporter writes it, and a recurrent cell written out step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from benchmarks.zoo.net import Net

LAYERS, STEPS = 12, 120
"""Of the smallest encoder and the smallest unrolled network: about 1,000 nodes each."""

WIDTH, HEADS = 16, 2
"""Small: the time asked for is that of the graph, not of folding large weights."""


def weight(net: Net, *shape: int) -> str:
    return net.weight(*shape, scale=1 / WIDTH)


def const(net: Net, value: Any, dtype: Any = np.float32) -> str:
    return net.constant(np.array(value, dtype))


def linear(net: Net, x: str, inner: int = WIDTH, outer: int = WIDTH) -> str:
    return net.op("Add", weight(net, outer), net.op("MatMul", x, weight(net, inner, outer)))


def layer_norm(net: Net, x: str) -> str:
    centred = net.op("Sub", x, net.op("ReduceMean", x, axes=[-1]))
    variance = net.op("ReduceMean", net.op("Pow", centred, const(net, 2.0)), axes=[-1])
    unit = net.op("Div", centred, net.op("Sqrt", net.op("Add", variance, const(net, 1e-12))))
    return net.op("Add", net.op("Mul", unit, weight(net, WIDTH)), weight(net, WIDTH))


def gelu(net: Net, x: str) -> str:
    bent = net.op("Add", net.op("Erf", net.op("Div", x, const(net, 2**0.5))), const(net, 1.0))
    return net.op("Mul", net.op("Mul", x, bent), const(net, 0.5))


def sizes(net: Net, x: str, *last: int) -> str:
    """Batch and sequence of ``x`` as found at run time, and the given dimensions."""
    axis = const(net, [0], np.int64)
    found = [net.op("Unsqueeze", net.op("Gather", net.op("Shape", x), const(net, i, np.int64)), axis) for i in (0, 1)]
    return net.op("Concat", *found, *(const(net, [d], np.int64) for d in last), axis=0)


def heads(net: Net, x: str, perm: list[int]) -> str:
    split = net.op("Reshape", linear(net, x), sizes(net, x, HEADS, WIDTH // HEADS))
    return net.op("Transpose", split, perm=perm)


def attention(net: Net, x: str, mask: str) -> str:
    q, k, v = (heads(net, x, perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
    scores = net.op("Div", net.op("MatMul", q, k), const(net, (WIDTH / HEADS) ** 0.5))
    mixed = net.op("MatMul", net.op("Softmax", net.op("Add", scores, mask), axis=-1), v)
    joined = net.op("Transpose", mixed, perm=[0, 2, 1, 3])
    return linear(net, net.op("Reshape", joined, sizes(net, joined, WIDTH)))


def encoder(times: int) -> bytes:
    net, x = Net(seed=0), "x"
    for _ in range(LAYERS * times):
        x = layer_norm(net, net.op("Add", attention(net, x, "mask"), x))
        wide = gelu(net, linear(net, x, WIDTH, 4 * WIDTH))
        x = layer_norm(net, net.op("Add", linear(net, wide, 4 * WIDTH, WIDTH), x))
    shape = ["batch", "sequence", WIDTH]
    inputs = [("x", TensorProto.FLOAT, shape), ("mask", TensorProto.FLOAT, ["batch", 1, 1, "sequence"])]
    return net.model(inputs, [x], opset=17)


def unrolled(times: int) -> bytes:
    net, state, steps = Net(seed=0), "h", STEPS * times
    inputs, recurrent, axis = (
        weight(net, WIDTH, WIDTH),
        weight(net, WIDTH, WIDTH),
        const(net, [1], np.int64),
    )
    for t in range(steps):
        x = net.op("Squeeze", net.op("Gather", "x", const(net, [t], np.int64), axis=1), axis)
        sums = net.op("Add", net.op("MatMul", x, inputs), net.op("MatMul", state, recurrent))
        gates = net.op("Add", sums, weight(net, WIDTH))
        state = net.op("Add", net.op("Mul", net.op("Sigmoid", gates), net.op("Tanh", gates)), state)
    given = [("x", TensorProto.FLOAT, ["batch", steps, WIDTH]), ("h", TensorProto.FLOAT, ["batch", WIDTH])]
    return net.model(given, [state], opset=17)


GRAPHS: dict[str, Callable[[int], bytes]] = {"encoder": encoder, "unrolled": unrolled}

"""Trains the demo's model: a small CNN on scikit-learn's handwritten digits, with numpy alone, from a fixed seed.

    pip install scikit-learn onnx numpy
    python demo/train.py            writes digits.onnx and heldout.npz, which the package ships, in about a minute

One image in five is held out before training starts and is looked at once, at the end.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
SEED, EPOCHS, BATCH, RATE, DECAY = 7, 80, 64, 3e-3, 2e-3
CHANNELS = (1, 16, 32, 64)

Array = np.ndarray[Any, Any]


def patches(x: Array) -> Array:
    """Every 3x3 neighbourhood of NCHW images, zero-padded, as rows."""
    windows = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, x.shape[1] * 9)


def convolve(x: Array, w: Array) -> Array:
    n, _, height, width = x.shape
    return (patches(x) @ w.reshape(len(w), -1).T).reshape(n, height, width, len(w)).transpose(0, 3, 1, 2)


class Conv:
    """3x3 convolution and Relu."""

    def __init__(self, rng: np.random.Generator, fan_in: int, fan_out: int) -> None:
        scale = np.sqrt(2 / (9 * fan_in))
        self.w: Array = (scale * rng.standard_normal((fan_out, fan_in, 3, 3))).astype(np.float32)
        self.b: Array = np.zeros(fan_out, np.float32)

    def forward(self, x: Array) -> Array:
        self.x = x
        self.y = np.maximum(convolve(x, self.w) + self.b[:, None, None], 0)
        return self.y

    def backward(self, dy: Array) -> Array:
        dy = dy * (self.y > 0)
        rows = dy.transpose(0, 2, 3, 1).reshape(-1, len(self.w))
        self.grads = ((rows.T @ patches(self.x)).reshape(self.w.shape), rows.sum(0))
        return convolve(dy, self.w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))


class MaxPool:
    """2x2; where values tie, they share the gradient."""

    def forward(self, x: Array) -> Array:
        n, c, height, width = x.shape
        tiles = x.reshape(n, c, height // 2, 2, width // 2, 2)
        y = tiles.max((3, 5), keepdims=True)
        self.share = (tiles == y) / (tiles == y).sum((3, 5), keepdims=True, dtype=np.float32)
        return y[:, :, :, 0, :, 0]

    def backward(self, dy: Array) -> Array:
        n, c, height, width = dy.shape
        return (self.share * dy[:, :, :, None, :, None]).reshape(n, c, height * 2, width * 2)


class Linear:
    def __init__(self, rng: np.random.Generator, fan_in: int, fan_out: int) -> None:
        self.w: Array = (np.sqrt(1 / fan_in) * rng.standard_normal((fan_in, fan_out))).astype(np.float32)
        self.b: Array = np.zeros(fan_out, np.float32)

    def forward(self, x: Array) -> Array:
        self.shape, self.x = x.shape, x.reshape(len(x), -1)
        return self.x @ self.w + self.b

    def backward(self, dy: Array) -> Array:
        self.grads = (self.x.T @ dy, dy.sum(0))
        return (dy @ self.w.T).reshape(self.shape)


def jitter(images: Array, rng: np.random.Generator) -> Array:
    """Each image turned by up to 12 degrees and moved by up to one pixel, with bilinear sampling."""
    n, side = len(images), images.shape[-1]
    angle = rng.uniform(-0.21, 0.21, (n, 1, 1))
    shift = rng.uniform(-1, 1, (2, n, 1, 1))
    row, col = np.mgrid[:side, :side] - (side - 1) / 2
    y = row * np.cos(angle) - col * np.sin(angle) + shift[0] + (side - 1) / 2
    x = row * np.sin(angle) + col * np.cos(angle) + shift[1] + (side - 1) / 2
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    padded = np.pad(images, ((0, 0), (2, 3), (2, 3)))
    which = np.arange(n)[:, None, None]
    out = np.zeros(images.shape)
    for dy in (0, 1):
        for dx in (0, 1):
            weight = (1 - np.abs(y - top - dy)) * (1 - np.abs(x - left - dx))
            rows, cols = np.clip(top + dy, -2, side + 2) + 2, np.clip(left + dx, -2, side + 2) + 2
            out += weight * padded[which, rows, cols]
    return out.astype(np.float32)


def train(images: Array, labels: Array, rng: np.random.Generator) -> list[Any]:
    """Adam with decoupled weight decay and a cosine schedule over a fixed number of epochs."""
    convs = [Conv(rng, a, b) for a, b in pairwise(CHANNELS)]
    layers: list[Any] = [convs[0], convs[1], MaxPool(), convs[2], MaxPool(), Linear(rng, CHANNELS[-1] * 4, 10)]
    trained = [layer for layer in layers if hasattr(layer, "w")]
    moments = [(np.zeros_like(p), np.zeros_like(p)) for layer in trained for p in (layer.w, layer.b)]
    steps = EPOCHS * (len(images) // BATCH)
    step = 0
    for epoch in range(EPOCHS):
        order = rng.permutation(len(images))[: len(images) // BATCH * BATCH].reshape(-1, BATCH)
        loss = 0.0
        for batch in order:
            x = jitter(images[batch], rng)[:, None]
            for layer in layers:
                x = layer.forward(x)
            p = np.exp(x - x.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            loss -= float(np.log(p[np.arange(BATCH), labels[batch]] + 1e-9).mean()) / len(order)
            grad = p
            grad[np.arange(BATCH), labels[batch]] -= 1
            grad /= BATCH
            for layer in reversed(layers):
                grad = layer.backward(grad)
            step += 1
            rate = RATE / 2 * (1 + np.cos(np.pi * step / steps))
            pairs = ((p, g) for layer in trained for p, g in zip((layer.w, layer.b), layer.grads, strict=True))
            for (param, gradient), (m, v) in zip(pairs, moments, strict=True):
                m += 0.1 * (gradient - m)
                v += 0.001 * (gradient**2 - v)
                update = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
                param -= (rate * (update + DECAY * param)).astype(np.float32)
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1:3}  loss {loss:.4f}")
    return layers


def export(layers: list[Any]) -> onnx.ModelProto:
    """Raw pixels (0 to 16) in; the label and the probability of each digit out."""
    weights = {"sixteen": np.float32(16), "channel": np.array([1])}
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["pixels", "sixteen"], ["scaled"]),
        helper.make_node("Unsqueeze", ["scaled", "channel"], ["h0"]),
    ]
    for i, layer in enumerate(layers):
        x, y = f"h{i}", f"h{i + 1}"
        if isinstance(layer, MaxPool):
            nodes.append(helper.make_node("MaxPool", [x], [y], f"pool{i}", kernel_shape=[2, 2], strides=[2, 2]))
            continue
        w, b = f"w{i}", f"b{i}"
        weights |= {w: layer.w, b: layer.b}
        if isinstance(layer, Conv):
            nodes.append(helper.make_node("Conv", [x, w, b], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]))
            nodes.append(helper.make_node("Relu", [f"c{i}"], [y], f"relu{i}"))
        else:
            nodes.append(helper.make_node("Flatten", [x], [f"f{i}"], f"flatten{i}"))
            nodes.append(helper.make_node("Gemm", [f"f{i}", w, b], [y], f"gemm{i}"))
    scores = f"h{len(layers)}"
    nodes.append(helper.make_node("Softmax", [scores], ["probability"], axis=-1))
    nodes.append(helper.make_node("ArgMax", [scores], ["label"], axis=-1, keepdims=0))
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 8, 8])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["batch", 10]),
        ],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, producer_name="demo/train.py", opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images, heldout, labels, answers = train_test_split(
        digits.images.astype(np.uint8), digits.target, test_size=0.2, stratify=digits.target, random_state=SEED
    )
    layers = train(images.astype(np.float32) / 16, labels, np.random.default_rng(SEED))
    x = heldout[:, None].astype(np.float32) / 16
    for layer in layers:
        x = layer.forward(x)
    print(f"held out: {(x.argmax(1) == answers).mean():.2%} of {len(answers)} right")
    onnx.save(export(layers), HERE / "digits.onnx")
    np.savez_compressed(HERE / "heldout.npz", images=heldout, labels=answers.astype(np.int64))


if __name__ == "__main__":
    main()

"""Random image nets on several chips, against onnxruntime: layers that meet in ways nobody has thought of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from tests.slices import some

ort = pytest.importorskip("onnxruntime")

NETS = some(range(60), 12)
MOST = 400_000
"""Numbers of an image."""
CHIPS = [(None, "highest"), ("x86-64", "highest"), ("haswell", "highest"), ("sapphirerapids", "highest")]
CHIPS += [("sapphirerapids", "medium")]
TOLERANCES = {"highest": 3e-5, "medium": 8e-2}
"""Of the largest number."""
Image = tuple[str, tuple[int, ...]]


class Net:
    """One in the making: draws choices, writes nodes, remembers the images that can be read."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes, self.weights = list[Any](), list[Any]()
        size = (self.one_of(7, 14, 28),) * 2 if self.maybe(0.3) else tuple(self.rng.integers(3, 45, 2).tolist())
        self.images: list[Image] = [("x", (self.one_of(1, 1, 2, 3), self.one_of(1, 3, 4, 8, 16, 20, 32, 64), *size))]

    def one_of(self, *choices: Any) -> Any:
        return choices[self.rng.integers(len(choices))]

    def maybe(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def image(self) -> tuple[str, int, int, int, int]:
        """One, mostly of the latest, and its sizes."""
        name, shape = self.images[-1 - min(int(self.rng.geometric(0.55)) - 1, len(self.images) - 1)]
        n, c, h, w = shape
        return name, n, c, h, w

    def like(self, shape: tuple[int, ...], axes: tuple[int, ...] = (0, 1, 2, 3)) -> list[Image]:
        """Those of these sizes."""
        return [image for image in self.images if all(image[1][a] == shape[a] for a in axes)]

    def const(self, content: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(content, dtype), name))
        return name

    def ints(self, *content: int) -> str:
        return self.const(content, np.int64)

    def random(self, *shape: int, spread: float = 1.0) -> str:
        return self.const(self.rng.standard_normal(shape) * spread)

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def keep(self, name: str, *shape: int) -> None:
        if min(shape) > 0 and np.prod(shape) < MOST:
            self.images.append((name, shape))

    def filters(self, x: str, f: int, c: int, *taps: int, **attributes: Any) -> str:
        """A convolution whose sums stay near 1."""
        bias = [self.random(f, spread=0.2)] if self.maybe(0.6) else []
        weights = self.random(f, c, *taps, spread=float(c * np.prod(taps)) ** -0.5)
        return str(self.node("Conv", x, weights, *bias, **attributes))

    def bent(self, x: str, c: int) -> str:
        """Behind an activation."""
        match self.one_of("", "", "Relu", "Relu", "Relu", "Sigmoid", "HardSwish", "LeakyRelu", "Clip", "Silu", "PRelu"):
            case "":
                return x
            case "Clip":
                return str(self.node("Clip", x, self.const(0), self.const(6)))
            case "Silu":
                return str(self.node("Mul", x, self.node("Sigmoid", x)))
            case "PRelu":
                return str(self.node("PRelu", x, self.random(c, 1, 1)))
            case op:
                return str(self.node(op, x))


def convolution(net: Net) -> None:
    x, n, c, h, w = net.image()
    taps = net.one_of((1, 1), (1, 1), (3, 3), (3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (4, 2))
    strides, dilations = net.one_of((1, 1), (1, 1), (1, 1), (2, 2), (2, 1), (3, 3)), net.one_of((1, 1), (1, 1), (2, 1))
    reach = [(t - 1) * d for t, d in zip(taps, dilations, strict=True)]
    same = [r // 2 for r in reach] + [r - r // 2 for r in reach]
    pads = same if net.maybe(0.6) else net.rng.integers(0, 3, 4).tolist()
    size = [(s + pads[i] + pads[i + 2] - reach[i] - 1) // strides[i] + 1 for i, s in enumerate((h, w))]
    if min(size) < 1:
        return
    groups = net.one_of(1, 1, 1, 1, c, *(g for g in (2, 4) if c % g == 0))
    f = c if groups == c else groups * net.one_of(1, 3, 8, 16, 24, 32, 64, 17)
    y = net.filters(x, f, c // groups, *taps, strides=strides, dilations=dilations, pads=pads, group=groups)
    if net.maybe(0.3):
        y = net.node("BatchNormalization", y, *(net.const(net.rng.random(f) + a) for a in (0.5, -0.5, -0.5, 0.5)))
    others = net.like((n, f, *size))
    if others and net.maybe(0.3):
        y = net.node("Add", *net.rng.permutation([y, net.one_of(*others)[0]]).tolist())
    net.keep(net.bent(y, f), n, f, *size)


def bottleneck(net: Net) -> None:
    x, n, c, h, w = net.image()
    m = net.one_of(8, 16, 32, 64)
    y = net.node("Relu", net.filters(x, m, c, 1, 1))
    y = net.node("Relu", net.filters(y, m, m, 3, 3, pads=[1] * 4))
    net.keep(net.node("Relu", net.node("Add", net.filters(y, c, m, 1, 1), x)), n, c, h, w)


def inverted(net: Net) -> None:
    """Depthwise, between two of single pixels, and perhaps scaled by what its means say."""
    x, n, c, h, w = net.image()
    m, k, s = c * net.one_of(1, 2, 4), net.one_of(3, 5), net.one_of(1, 1, 2)
    y = net.bent(net.filters(x, m, c, 1, 1), m)
    y = net.bent(net.filters(y, m, 1, k, k, group=m, pads=[k // 2] * 4, strides=[s, s]), m)
    if net.maybe(0.5):
        mean = net.node("Relu", net.filters(net.node("GlobalAveragePool", y), max(m // 4, 1), m, 1, 1))
        y = net.node("Mul", y, net.node("Sigmoid", net.filters(mean, m, max(m // 4, 1), 1, 1)))
    y = net.filters(y, c, m, 1, 1)
    net.keep(net.node("Add", x, y) if s == 1 else y, n, c, -(-h // s), -(-w // s))


def pool(net: Net) -> None:
    x, n, c, h, w = net.image()
    k, s, op = net.one_of(2, 3, 5), net.one_of(1, 2, 3), net.one_of("MaxPool", "AveragePool")
    pads = net.rng.integers(0, (k + 1) // 2, 4).tolist()
    size = [(d + pads[i] + pads[i + 2] - k) // s + 1 for i, d in enumerate((h, w))]
    if min(h + pads[0] + pads[2], w + pads[1] + pads[3]) >= k:
        net.keep(net.node(op, x, kernel_shape=[k, k], strides=[s, s], pads=pads), n, c, *size)


def resized(net: Net) -> None:
    x, n, c, h, w = net.image()
    mode, how = net.one_of("nearest", "linear", "cubic"), net.one_of("half_pixel", "asymmetric")
    more = {"nearest_mode": "floor"} if mode == "nearest" else {}
    scales = net.const([1, 1, 2, 2])
    net.keep(
        net.node("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=how, **more), n, c, 2 * h, 2 * w
    )


def combined(net: Net) -> None:
    x, *shape = net.image()
    other = net.one_of(*net.like(tuple(shape)))[0]
    net.keep(net.node(net.one_of("Add", "Mul", "Sub", "Max"), x, other), *shape)


def joined(net: Net) -> None:
    x, n, c, h, w = net.image()
    other, shape = net.one_of(*net.like((n, c, h, w), (0, 2, 3)))
    net.keep(net.node("Concat", x, other, axis=1), n, c + shape[1], h, w)


def halves(net: Net) -> None:
    x, n, c, h, w = net.image()
    if c % 2 == 0:
        for y in net.node("Split", x, outputs=2, axis=1, num_outputs=2):
            net.keep(y, n, c // 2, h, w)


def shuffled(net: Net) -> None:
    x, n, c, h, w = net.image()
    if c % 2 == 0:
        y = net.node("Transpose", net.node("Reshape", x, net.ints(n, 2, c // 2, h, w)), perm=[0, 2, 1, 3, 4])
        net.keep(net.node("Reshape", y, net.ints(n, c, h, w)), n, c, h, w)


def transposed(net: Net) -> None:
    x, n, c, h, w = net.image()
    k, s, f = net.one_of(2, 3), net.one_of(1, 2), net.one_of(4, 16, 20)
    y = net.node("ConvTranspose", x, net.random(c, f, k, k, spread=(c * k * k) ** -0.5 * s), strides=[s, s])
    net.keep(net.bent(y, f), n, f, (h - 1) * s + k, (w - 1) * s + k)


def padded(net: Net) -> None:
    x, n, c, h, w = net.image()
    a, b, d, e = net.rng.integers(0, 3, 4).tolist()
    y = net.node("Pad", x, net.ints(0, 0, a, b, 0, 0, d, e), mode=net.one_of("constant", "edge"))
    net.keep(y, n, c, h + a + d, w + b + e)


def cropped(net: Net) -> None:
    x, n, c, h, w = net.image()
    if h > 2 and c > 1:
        y = net.node("Slice", x, net.ints(1, 1), net.ints(c, h - 1), net.ints(1, 2))
        net.keep(y, n, c - 1, h - 2, w)


def normalized(net: Net) -> None:
    """Each image, or each pixel as transformers do it."""
    x, n, c, h, w = net.image()
    more = net.const(np.ones(c)), net.const(np.zeros(c))
    if net.maybe(0.5):
        y = net.node("InstanceNormalization", x, *more, epsilon=1e-2)
    else:
        y = net.node("LayerNormalization", net.node("Transpose", x, perm=[0, 2, 3, 1]), *more, epsilon=1e-2)
        y = net.node("Transpose", y, perm=[0, 3, 1, 2])
    net.keep(y, n, c, h, w)


def spread(net: Net) -> None:
    x, n, c, h, w = net.image()
    if c % 4 == 0:
        net.keep(net.node("DepthToSpace", x, blocksize=2, mode=net.one_of("DCR", "CRD")), n, c // 4, 2 * h, 2 * w)


OFTEN: list[Callable[[Net], None]] = [convolution] * 9 + [bottleneck] * 3 + [inverted] * 2
LAYERS = [*OFTEN, pool, pool, resized, combined, joined, joined, halves, shuffled, transposed, padded, cropped]
LAYERS += [normalized, spread]


def random_net(seed: int) -> tuple[bytes, dict[str, Any]]:
    net = Net(seed)
    for _ in range(int(net.rng.integers(3, 12))):
        net.one_of(*LAYERS)(net)
    convolution(net)
    (x, fed), *made = net.images
    results = {made[-1][0]} | {name for name, _ in made if net.maybe(0.1)} if made else {net.node("Relu", x)}
    given = helper.make_tensor_value_info(x, TensorProto.FLOAT, fed)
    wanted = [
        helper.make_tensor_value_info(y, TensorProto.FLOAT, [f"{y}_{a}" for a in "nchw"]) for y in sorted(results)
    ]
    graph = helper.make_graph(net.nodes, "net", [given], wanted, net.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString(), {x: net.rng.standard_normal(fed).astype(np.float32)}


@pytest.mark.parametrize("seed", NETS)
@pytest.mark.parametrize(("chip", "precision"), CHIPS)
def test_answers(chip: str | None, precision: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = random_net(1000 * CHIPS.index((chip, precision)) + seed)
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = ort.InferenceSession(model, plain, providers=["CPUExecutionProvider"]).run(None, feeds)
    if chip is not None:
        monkeypatch.setenv("SARDONYX_CPU", chip)
    options = sardonyx.SessionOptions()
    options.intra_op_num_threads = 1 + seed % 3
    session = sardonyx.InferenceSession(model, options, providers=["CPUExecutionProvider"], precision=precision)
    for got, want in zip(session.run(None, feeds), expected, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCES[precision] * max(np.abs(want).max(), 1e-2))

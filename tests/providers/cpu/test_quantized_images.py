"""Quantized image networks, bit for bit beside numpy: convolutions of any geometry, and chains that hand on bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx.model.load import load
from sardonyx.optimize.check import answers
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from tests.slices import some

Array = np.ndarray[Any, Any]
CHIPS = ("sapphirerapids", "cascadelake", "haswell", "neoverse-n1")
STEP, GATE = 2.0**-6, 2.0**-7
"""Scales are powers of two, so that reals in between are exact, whatever the order in which they are added."""
CHANNELS = (1, 2, 3, 5, 8, 17, 32, 40, 64, 70, 130)


@dataclass(frozen=True)
class Geometry:
    """A convolution of bytes, drawn at random."""

    seed: int

    def drawn(self) -> tuple[dict[str, Any], Array, Array]:
        """Attributes, image and weights."""
        rng = np.random.default_rng(self.seed)
        rank = int(rng.integers(1, 4))
        groups = int(rng.choice([1, 1, 1, 2, 3]))
        channels, filters = int(rng.choice(CHANNELS)), int(rng.choice(CHANNELS))
        is_depthwise = groups == 3
        if is_depthwise:
            groups, filters, each = channels, channels, 1
        else:
            each, filters = channels, filters * groups
        kernel, strides, dilations = ([int(n) for n in rng.integers(1, top, rank)] for top in (5, 4, 3))
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        pads = [int(rng.integers(0, r + 1)) for r in reach * 2]
        size = [int(rng.integers(r, r + (40 if rank == 1 else 14))) for r in reach]
        signed = bool(rng.integers(2))
        dtype = np.int8 if signed else np.uint8
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, (int(rng.integers(1, 3)), each * groups, *size), endpoint=True)
        w = rng.integers(-128, 127, (filters, each, *kernel), endpoint=True)
        attributes = dict(strides=strides, dilations=dilations, pads=pads, group=groups)
        return attributes, x.astype(dtype), w.astype(np.int8)


def model_of(nodes: list[Any], x: Array, outputs: dict[str, int], constants: dict[str, Array], free: bool) -> Any:
    """A model of image ``x``; with ``free``, its batch and sizes have names."""
    shape = [f"d{i}" if free and i != 1 else n for i, n in enumerate(x.shape)]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), shape)],
        [helper.make_tensor_value_info(name, dtype, [None] * x.ndim) for name, dtype in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def summed(attributes: dict[str, Any], x: Array, w: Array, zero: int) -> Array:
    """The convolution of x - zero, in 64-bit integers."""
    rank, groups = w.ndim - 2, attributes["group"]
    pads, steps, holes = (attributes[name] for name in ("pads", "strides", "dilations"))
    wide = np.pad(x.astype(np.int64) - zero, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], holes, strict=True)]
    size = [(n - r) // s + 1 for n, r, s in zip(wide.shape[2:], reach, steps, strict=True)]
    total = np.zeros((len(x), len(w), *size), np.int64)
    filters, each = len(w) // groups, w.shape[1]
    for tap in np.ndindex(w.shape[2:]):
        start = [t * d for t, d in zip(tap, holes, strict=True)]
        seen = wide[(..., *(slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(start, size, steps, strict=True)))]
        for g in range(groups):
            own = w[(slice(g * filters, (g + 1) * filters), slice(None), *tap)].astype(np.int64)
            part = np.tensordot(own, seen[:, g * each : (g + 1) * each], (1, 1)).swapaxes(0, 1)
            total[:, g * filters : (g + 1) * filters] += part
    return total


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("geometry", some([Geometry(seed) for seed in range(240)], 12), ids=lambda g: str(g.seed))
def test_any_geometry(geometry: Geometry, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "current", lambda: isa.named(cpu))
    attributes, x, w = geometry.drawn()
    zero = 7 if x.dtype == np.uint8 else -3
    node = helper.make_node("ConvInteger", ["x", "w", "zero"], ["y"], **attributes)
    constants = {"w": w, "zero": np.asarray(zero, x.dtype)}
    made = ort.InferenceSession(model_of([node], x, {"y": TensorProto.INT32}, constants, geometry.seed % 2 == 0))
    assert set(made.explain().counts()) == {"cpu"}
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], summed(attributes, x, w, zero))


class Net:
    """A quantized network under construction; every value is bytes with a scale and a zero point."""

    def __init__(self, seed: int, dtype: Any) -> None:
        self.rng, self.dtype = np.random.default_rng(seed), dtype
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def quantized(self, real: str, scale: float, zero: int) -> str:
        """A QuantizeLinear and a DequantizeLinear."""
        pair = self.constant(np.float32(scale)), self.constant(np.asarray(zero, self.dtype))
        return self.add("DequantizeLinear", self.add("QuantizeLinear", real, *pair), *pair)

    def convolved(self, real: str, channels: int, filters: int, kernel: int, stride: int = 1, group: int = 1) -> str:
        w = self.rng.integers(-127, 127, (filters, channels // group, kernel, kernel), endpoint=True).astype(np.int8)
        depth = round(np.log2(80 * w[0].size ** 0.5))
        scales = self.constant(np.float32(2.0) ** -(depth + self.rng.integers(0, 2, filters)).astype("f"))
        real_w = self.add("DequantizeLinear", self.constant(w), scales, axis=0)
        bias = self.constant(self.rng.integers(-32, 33, filters).astype("f") / np.float32(128))
        pads, strides = [kernel // 2] * 4, [stride] * 2
        return self.add("Conv", real, real_w, bias, pads=pads, strides=strides, group=group)


def network(seed: int, dtype: Any) -> tuple[Net, list[str]]:
    """A stem, a pooling, a residual block and an inverted one, of random widths; and the names of its outputs."""
    net = Net(seed, dtype)
    zero = 0 if dtype == np.int8 else 121
    a, b, c = (int(n) for n in net.rng.choice([8, 17, 32, 48, 64, 96], 3))
    at = net.quantized("x", STEP, zero)
    at = net.quantized(net.add("Relu", net.convolved(at, 3, a, 3, 2)), STEP, zero)
    at = net.quantized(net.add("MaxPool", at, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), STEP, zero)
    inner = net.quantized(net.add("Relu", net.convolved(at, a, b, 1)), STEP, zero)
    inner = net.quantized(net.convolved(inner, b, a, 3), STEP, zero)
    at = net.quantized(net.add("Relu", net.add("Add", inner, at)), 2 * STEP, zero)
    limits = net.constant(np.float32(0)), net.constant(np.float32(6))
    wide = net.quantized(net.add("Clip", net.convolved(at, a, c, 1), *limits), STEP, zero)
    wide = net.quantized(net.convolved(wide, c, c, 3, 2, c), STEP, zero)
    narrow = net.quantized(net.convolved(wide, c, b, 1), STEP, zero)
    pooled = net.quantized(net.add("GlobalAveragePool", wide), STEP, zero)
    gate = net.quantized(net.add("Sigmoid", net.convolved(pooled, c, b, 1)), GATE, zero)
    return net, [narrow, gate]


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8], ids=["int8", "uint8"])
@pytest.mark.parametrize("seed", some(range(24), 8))
def test_chains(seed: int, dtype: Any, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "current", lambda: isa.named(cpu))
    net, results = network(seed, dtype)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((int(rng.integers(1, 3)), 3, *(int(n) for n in rng.integers(20, 60, 2)))).astype("f")
    model = model_of(net.nodes, x, dict.fromkeys(results, TensorProto.FLOAT), net.constants, seed % 2 == 1)
    made = ort.InferenceSession(model)
    found, wanted = made.run(None, {"x": x}), answers(load(model.SerializeToString()), {"x": x})
    narrow, gate = (np.abs(got - want) for got, want in zip(found, wanted, strict=True))
    assert not narrow.any(), f"{np.count_nonzero(narrow)} of {narrow.size} elements differ"
    assert gate.max() <= GATE
    for again, before in zip(made.run(None, {"x": x}), found, strict=True):
        np.testing.assert_array_equal(again, before)


def test_chains_hand_on_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tiles, nothing but the first image is packed by a step of its own."""
    monkeypatch.setattr(isa, "current", lambda: isa.named("sapphirerapids"))
    net, results = network(0, np.int8)
    x = np.random.default_rng(0).standard_normal((1, 3, 48, 40)).astype("f")
    made = ort.InferenceSession(model_of(net.nodes, x, dict.fromkeys(results, TensorProto.FLOAT), net.constants, False))
    ((_, executable),) = made._sess.engine.parts.compiled
    assert isinstance(executable, CpuExecutable)
    names = [step.spec.name for step in executable.table.steps]
    assert names.count("conv_amx") >= 5 and "conv_depthwise_dot" in names
    assert names.count("pack_image_bytes") <= 2


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("size", [(1, 1), (4, 7)], ids=str)
@pytest.mark.parametrize("filters", [1, 2])
def test_an_image_of_one_channel_takes_a_byte_table(
    filters: int, size: tuple[int, int], cpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One scalar for a matrix of one column is still a scalar: the table of a quantized Sigmoid begins there."""
    monkeypatch.setattr(isa, "current", lambda: isa.named(cpu))
    attributes = dict(strides=[1, 1], dilations=[1, 1], pads=[1, 1, 1, 1], group=1)
    rng = np.random.default_rng(5)
    x = rng.integers(-128, 127, (1, 32, *size), endpoint=True).astype(np.int8)
    w = rng.integers(-128, 127, (filters, 32, 3, 3), endpoint=True).astype(np.int8)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "step", "zero"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "step", "zero"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd"], ["c"], **attributes),
        helper.make_node("QuantizeLinear", ["c", "wide", "zero"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "wide", "zero"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["s"]),
        helper.make_node("QuantizeLinear", ["s", "gate", "zero"], ["y"]),
    ]
    scales = {"step": np.float32(STEP), "wide": np.float32(1), "gate": np.float32(GATE)}
    constants = {"w": w, "zero": np.asarray(0, np.int8), **scales}
    proto = model_of(nodes, x, {"y": TensorProto.INT8}, constants, False)
    sums = np.clip(np.rint(summed(attributes, x, w, 0) * STEP**2), -128, 127)
    expected = np.clip(np.rint(1 / (1 + np.exp(-sums)) / GATE), -128, 127)
    session = ort.InferenceSession(proto)
    assert np.abs(session.run(None, {"x": x})[0] - expected).max() <= 1

"""Transposed convolutions of bytes with exact sums, bit for bit beside onnxruntime's of the dequantized numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from tests.slices import some

Array = np.ndarray[Any, Any]
CHIPS = ("sapphirerapids", "cascadelake", "haswell", "neoverse-n1")
WITHOUT_BYTE_DOT = "haswell"
X_SCALE, Y_SCALE = 2.0**-6, 2.0**-1
"""Scales are powers of two, so that all sums of reals are exact, whatever their order."""
NP = {"uint8": np.uint8, "int8": np.int8}


@dataclass(frozen=True)
class Case:
    """A quantized transposed convolution between quantized values, drawn at random."""

    seed: int

    def drawn(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """The model and its feeds: the image, and the weights too where the run brings them."""
        rng = np.random.default_rng(self.seed)
        rank, groups = int(rng.integers(1, 4)), int(rng.choice([1, 1, 1, 2, 5]))
        channels, filters = int(rng.choice([1, 3, 4, 8, 17, 32])), int(rng.choice([1, 2, 5, 8, 16, 33]))
        if groups == 5:
            groups, channels, filters = channels, 1, int(rng.choice([1, 1, 2]))
        kernel, strides, dilations = ([int(n) for n in rng.integers(1, top, rank)] for top in (5, 4, 3))
        size = [int(rng.integers(2, 40 if rank == 1 else 9)) for _ in range(rank)]
        attributes: dict[str, Any] = dict(strides=strides, dilations=dilations, group=groups)
        overlaps = all((k - 1) * d + 1 >= s for k, d, s in zip(kernel, dilations, strides, strict=True))
        if rng.random() < 0.2 and overlaps:  # onnxruntime's SAME makes smaller images where windows leave gaps
            attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        else:
            reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
            attributes["pads"] = [int(rng.integers(0, min(r, 3) + 1)) for r in reach * 2]
            attributes["output_padding"] = [int(rng.integers(0, s)) for s in strides]
            whole = [
                (n - 1) * s + e + r + 1 - attributes["pads"][i] - attributes["pads"][i + rank]
                for i, (n, s, e, r) in enumerate(zip(size, strides, attributes["output_padding"], reach, strict=True))
            ]
            if min(whole) < 1:
                attributes["pads"] = [0] * (2 * rank)
        x_type, w_type, y_type = (str(t) for t in rng.choice(["uint8", "int8"], 3))
        per_channel, is_constant = rng.random() < 0.6, rng.random() < 0.8
        has_points = rng.random() < 0.3
        info = np.iinfo(NP[w_type])
        w = rng.integers(info.min, info.max, (groups * channels, filters, *kernel), endpoint=True).astype(NP[w_type])
        count = (filters,) if per_channel else ()
        w_scale = (2.0 ** rng.integers(-8, -5, count)).astype(np.float32)
        w_zero = (rng.integers(-9, 9, count) + (128 if w_type == "uint8" else 0)) if has_points else np.zeros(count)
        info = np.iinfo(NP[x_type])
        batch = int(rng.integers(1, 3))
        x = rng.integers(info.min, info.max, (batch, groups * channels, *size), endpoint=True).astype(NP[x_type])
        terms = channels * np.prod(kernel) / np.prod(strides)
        constants: dict[str, Array] = {
            "xs": np.float32(X_SCALE), "xz": NP[x_type](int(rng.integers(0, 100))),
            "ws": w_scale, "wz": w_zero.astype(NP[w_type]),
            "ys": np.float32(2.0 ** round(np.log2(terms) / 2 - 6)), "yz": NP[y_type](int(rng.integers(0, 100))),
        }  # fmt: skip
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["a"]),
            helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["b"], axis=1),
        ]
        given, kind = ["a", "b"], int(rng.integers(0, 3))
        if kind == 1:
            constants["c"] = (rng.integers(-999, 999, groups * filters) * 2.0**-10).astype(np.float32)
        elif kind == 2:
            each = np.float32(X_SCALE) * (np.tile(w_scale, groups) if per_channel else w_scale)
            constants |= {"q": rng.integers(-2000, 2000, groups * filters).astype(np.int32), "t": each}
            nodes.append(helper.make_node("DequantizeLinear", ["q", "t"], ["c"], axis=0))
        nodes.append(helper.make_node("ConvTranspose", [*given, "c"] if kind else given, ["d"], **attributes))
        if rng.random() < 0.5:
            nodes.append(helper.make_node("Relu", ["d"], ["e"]))
        nodes.append(helper.make_node("QuantizeLinear", [nodes[-1].output[0], "ys", "yz"], ["y"]))
        feeds = {"x": x}
        if is_constant:
            constants["w"] = w
        else:
            feeds["w"] = w
        is_dynamic = "auto_pad" not in attributes and rng.random() < 0.4
        graph = helper.make_graph(
            nodes, "g", [_input(name, array, is_dynamic and name == "x") for name, array in feeds.items()],
            [helper.make_tensor_value_info("y", TensorProto.UINT8 if y_type == "uint8" else TensorProto.INT8, None)],
            [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
        )  # fmt: skip
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)]), feeds


def _input(name: str, array: Array, is_free: bool) -> onnx.ValueInfoProto:
    """An input; with ``is_free``, its batch and its sizes have names."""
    shape = [f"d{i}" if is_free and i != 1 else n for i, n in enumerate(array.shape)]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)


def answer(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("seed", some(range(120), 12))
def test_any_geometry(seed: int, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", cpu)
    model, feeds = Case(seed).drawn()
    session = sardonyx.InferenceSession(model.SerializeToString())
    counts = session.explain().counts()
    assert list(counts) == ["cpu"] and ("ConvTransposeInteger" in counts["cpu"]) == (cpu != WITHOUT_BYTE_DOT)
    want = answer(model, feeds)
    is_rectified = any(node.op_type == "Relu" for node in model.graph.node)
    assert len(np.unique(want)) > 1 or want.size < 40 or is_rectified
    np.testing.assert_array_equal(session.run(None, feeds)[0], want)


CHAIN = dict(strides=[2, 2], pads=[1, 1, 1, 1])


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("kernel", [2, 4])
def test_images_stay_bytes_between_layers(kernel: int, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales, bias, activation and quantization follow the sums in one step, whose results the next layer reads."""
    monkeypatch.setenv("SARDONYX_CPU", cpu)
    rng = np.random.default_rng(kernel)
    constants: dict[str, Array] = {"s": np.float32(X_SCALE), "z": np.uint8(9), "u": np.float32(Y_SCALE)}
    nodes, last = [], "x"
    attributes = CHAIN if kernel == 4 else {"strides": [2, 2]}
    layers = (("ConvTranspose", (16, 24, kernel, kernel), attributes), ("Conv", (8, 24, 3, 3), {"pads": [1] * 4}))
    for i, (operator, shape, given) in enumerate(layers):
        axis = int(operator == "ConvTranspose")
        constants |= {
            f"w{i}": rng.integers(-127, 127, shape).astype(np.int8),
            f"t{i}": (2.0 ** rng.integers(-9, -7, shape[axis])).astype(np.float32),
            f"b{i}": (rng.integers(-99, 99, shape[axis]) * 2.0**-8).astype(np.float32),
        }
        nodes += [
            helper.make_node("DequantizeLinear", [last, "u" if i else "s", "z"], [f"i{i}"]),
            helper.make_node("DequantizeLinear", [f"w{i}", f"t{i}"], [f"k{i}"], axis=axis),
            helper.make_node(operator, [f"i{i}", f"k{i}", f"b{i}"], [f"c{i}"], **given),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"]),
            helper.make_node("QuantizeLinear", [f"r{i}", "u", "z"], [f"y{i}"]),
        ]
        last = f"y{i}"
    x = rng.integers(0, 255, (1, 16, 7, 9), endpoint=True).astype(np.uint8)
    graph = helper.make_graph(
        nodes, "g", [_input("x", x, False)], [helper.make_tensor_value_info(last, TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    session = sardonyx.InferenceSession(model.SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], answer(model, {"x": x}))
    if cpu != WITHOUT_BYTE_DOT:
        loops = [line for line in str(session.explain(stage="cpu")).splitlines() if " fused_loop " in line]
        assert not loops, session.explain(stage="cpu")


@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("pads", [(0, 1, 1, 1, 1, 1), (0, 1, 1, 2, 1, 1), (1, 1, 1, 0, 1, 1)])
def test_planes_of_padding_behind_volumes(pads: tuple[int, ...], cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of depthwise convolutions, as the last stride phases of depthwise transposed ones have them."""
    monkeypatch.setenv("SARDONYX_CPU", cpu)
    rng = np.random.default_rng(1)
    constants: dict[str, Array] = {
        "s": np.float32(X_SCALE), "z": np.uint8(87), "t": np.float32(2.0**-7), "u": np.float32(2.0**-4),
        "w": rng.integers(-100, 100, (16, 1, 1, 3, 3)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "t"], ["b"]),
        helper.make_node("Conv", ["a", "b"], ["c"], group=16, pads=list(pads)),
        helper.make_node("QuantizeLinear", ["c", "u", "z"], ["y"]),
    ]
    x = rng.integers(0, 255, (1, 16, 4, 8, 9), endpoint=True).astype(np.uint8)
    graph = helper.make_graph(
        nodes, "g", [_input("x", x, False)], [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    session = sardonyx.InferenceSession(model.SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], answer(model, {"x": x}))

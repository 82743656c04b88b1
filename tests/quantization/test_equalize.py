"""Cross-layer equalization: the float model computes what it did, and loses less when it is quantized per tensor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sardonyx.errors import InvalidArgument, InvalidProtobuf, NoSuchFile
from sardonyx.quantization.equalize import equalize_layers
from tests.quantization.budget_nets import Net, Readings, copied, mobilenet_like, sqnr_db, unbalance

ort = pytest.importorskip("onnxruntime", reason="onnxruntime comes with the test extra")


def outputs(model: Any, feeds: list[dict[str, np.ndarray]]) -> np.ndarray:
    source = model if isinstance(model, str) else model.SerializeToString()
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, each)[0] for each in feeds])


def assert_unchanged(before: onnx.ModelProto, after: onnx.ModelProto, feeds: list[dict[str, np.ndarray]]) -> None:
    expected = outputs(before, feeds)
    np.testing.assert_allclose(outputs(after, feeds), expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def weight_ranges(model: onnx.ModelProto, name: str, axis: int) -> np.ndarray:
    weight = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == f"{name}.w")
    return np.abs(weight).max(axis=tuple(a for a in range(weight.ndim) if a != axis))


def test_a_badly_scaled_net_computes_the_same_with_ranges_alike() -> None:
    net = mobilenet_like()
    model = net.model()
    result = equalize_layers(model)
    assert [(p.first, p.second) for p in result.pairs] == [
        ("stem", "depthwise"), ("depthwise", "pointwise"), ("pointwise", "last"), ("last", "head"),
    ]  # fmt: skip
    assert all(p.largest_factor > 2 for p in result.pairs[:3])
    assert_unchanged(model, result.model, net.feeds(3))
    for first, second, axis in (("stem", "depthwise", 0), ("depthwise", "pointwise", 1), ("last", "head", 0)):
        np.testing.assert_allclose(
            weight_ranges(result.model, first, 0), weight_ranges(result.model, second, axis), rtol=5e-3
        )
    assert list(result.skipped) == ["head"] and "head: not equalized" in str(result)


def test_the_quantized_error_falls(tmp_path: Path) -> None:
    from onnxruntime import quantization

    net = mobilenet_like()
    model, feeds = net.model(), net.feeds(8)
    expected = outputs(model, feeds)
    lost = {}
    for name, each in (("plain", model), ("equalized", equalize_layers(model).model)):
        path = tmp_path / f"{name}.onnx"
        quantization.quantize_static(copied(each), path, Readings(feeds), per_channel=False)
        lost[name] = sqnr_db(expected, outputs(str(path), feeds))
    assert lost["equalized"] > lost["plain"] + 6, lost


def test_matmul_with_added_biases_and_both_layouts_of_gemm() -> None:
    net = Net(["n", 6, 16])
    net.matmul("up", 16, 32).add("Add", net.constant("up.b", net.rng.standard_normal(32))).add("Relu")
    net.matmul("down", 32, 16)
    result = equalize_layers(net.model())
    assert [(p.first, p.second) for p in result.pairs] == [("up", "down")]
    assert_unchanged(net.model(), result.model, net.feeds(3))

    net = Net(["n", 16])
    net.gemm("a", 16, 24, transB=1).add("PRelu", net.constant("slope", net.rng.uniform(0, 1, 24)))
    net.gemm("b", 24, 24, alpha=0.5, beta=2.0).gemm("c", 24, 3, transB=1)
    result = equalize_layers(net.model())
    assert [(p.first, p.second) for p in result.pairs] == [("a", "b"), ("b", "c")]
    assert_unchanged(net.model(), result.model, net.feeds(3))


def test_flatten_makes_a_channel_several_inputs_and_groups_stay_apart() -> None:
    net = Net(["n", 4, 6, 6])
    net.conv("a", 4, 8).add("Relu").conv("b", 8, 12, group=4).add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    net.add("Flatten").gemm("c", 12 * 9, 7)
    unbalance_last = net.model()
    result = equalize_layers(unbalance_last)
    assert [(p.first, p.second) for p in result.pairs] == [("a", "b"), ("b", "c")]
    assert_unchanged(unbalance_last, result.model, net.feeds(3))


def test_channels_of_zeros_keep_their_factor() -> None:
    net = mobilenet_like()
    model = net.model()
    stem = next(t for t in model.graph.initializer if t.name == "stem.w")
    weight = numpy_helper.to_array(stem).copy()
    weight[3] = 0
    stem.CopyFrom(numpy_helper.from_array(weight, "stem.w"))
    result = equalize_layers(model)
    assert_unchanged(model, result.model, net.feeds(2))


@pytest.mark.parametrize(
    ("operator", "why"),
    [("Sigmoid", "Sigmoid follows"), ("Clip", "bounds do not scale"), ("BatchNormalization", "quant_pre_process")],
)
def test_what_a_factor_does_not_pass_is_skipped_with_the_reason(operator: str, why: str) -> None:
    net = Net(["n", 4, 6, 6])
    net.conv("a", 4, 8)
    operands = {
        "Clip": [net.constant("low", 0.0), net.constant("high", 6.0)],
        "BatchNormalization": [net.constant(n, net.rng.uniform(0.5, 1, 8)) for n in ("s", "o", "m", "v")],
    }
    net.add(operator, *operands.get(operator, ())).conv("b", 8, 4)
    result = equalize_layers(net.model())
    assert not result.pairs and why in result.skipped["a"]


@pytest.mark.parametrize("operator", ["Relu", "Add"])
def test_an_operator_of_another_domain_does_not_pass_factors(operator: str) -> None:
    net = Net(["n", 4, 6, 6])
    net.conv("a", 4, 8)
    operands = [net.constant("bias", net.rng.standard_normal((8, 1, 1)))] if operator == "Add" else []
    net.add(operator, *operands).conv("b", 8, 4)
    model = net.model()
    next(node for node in model.graph.node if node.op_type == operator).domain = "example"
    model.opset_import.append(helper.make_opsetid("example", 1))
    result = equalize_layers(model)
    assert not result.pairs
    assert f"{operator} follows" in result.skipped["a"]


def test_shared_results_and_shared_weights_are_skipped() -> None:
    net = Net(["n", 4, 6, 6])
    net.conv("a", 4, 4).add("Relu").conv("b", 4, 4)
    net.nodes.append(helper.make_node("Add", ["b:0", "relu1:0"], ["sum"], name="sum"))
    net.last = "sum"
    net.add("Relu").add("Conv", "a.w", name="again", pads=[1] * 4)
    result = equalize_layers(net.model())
    assert not result.pairs
    assert "more than one node" in result.skipped["a"] or "weights too" in result.skipped["a"]
    assert "weights too" in result.skipped["again"]


def test_files_are_written_whole_and_bad_input_is_named(tmp_path: Path) -> None:
    model = mobilenet_like().model()
    source, written = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(model, source)
    before = source.read_bytes()
    result = equalize_layers(source, written)
    assert onnx.load(written) == result.model and source.read_bytes() == before
    with pytest.raises(NoSuchFile):
        equalize_layers(tmp_path / "absent.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(InvalidProtobuf):
        equalize_layers(tmp_path / "text.onnx")
    with pytest.raises(InvalidArgument):
        equalize_layers(3)


def test_unbalancing_changes_no_answer() -> None:
    """The net of these tests: what makes it hard to quantize is not in what it computes."""
    plain = Net(["n", 8, 12, 12])
    plain.conv("stem", 8, 16).add("Relu").conv("depthwise", 16, 16, group=16)
    before = plain.model()
    unbalance(plain, [("stem", "depthwise")])
    assert_unchanged(before, plain.model(), plain.feeds(2))

"""Helper functions and model classes, beside onnxruntime's of the same names."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from sardonyx.quantization import quant_utils as ours
from sardonyx.quantization.base_quantizer import QuantizationParams
from sardonyx.quantization.calibrate import HistogramCollector, entropy, rel_entr
from sardonyx.quantization.onnx_model import ONNXModel
from sardonyx.quantization.tensor_quant_overrides import QuantTypeInfo, TensorQuantOverridesHelper

theirs = pytest.importorskip("onnxruntime.quantization.quant_utils", reason="onnxruntime comes with the test extra")
their_calibrate = pytest.importorskip("onnxruntime.quantization.calibrate")
their_models = pytest.importorskip("onnxruntime.quantization.onnx_model")
their_overrides = pytest.importorskip("onnxruntime.quantization.tensor_quant_overrides")

INTEGERS = ("INT8", "UINT8", "INT16", "UINT16", "INT4", "UINT4")
MODEL = """
<ir_version: 8, opset_import: ["" : 13]>
net (float[N, 4] x) => (float[N, 3] y)
<float[3, 4] w, float[3] b, float[4, 5] u, float[2] unused>
{
    wasted = Constant <value = float[1] {1.0}> ()
    [first] h = Gemm <transB = 1> (x, w, b)
    [second] r = Relu (h)
    [third] g = MatMul (x, u)
    [fourth] y = Add (r, h)
}
"""


def model() -> onnx.ModelProto:
    proto = parser.parse_model(MODEL)
    shapes = {"w": (3, 4), "b": (3,), "u": (4, 5), "unused": (2,)}
    del proto.graph.initializer[:]
    for i, (name, shape) in enumerate(shapes.items()):
        numbers = np.random.default_rng(i).standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(numbers, name))
    onnx.checker.check_model(proto)
    return proto


def code(name: str) -> int:
    return int(getattr(TensorProto, name))


def same(mine: Any, other: Any) -> None:
    for a, b in zip(mine, other, strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(np.asarray(a, np.float64), np.asarray(b, np.float64))


@pytest.mark.parametrize(
    "name",
    [
        *("DEQUANT_OP_NAME", "DEQUANT_OUTPUT_SUFFIX", "FLOAT8_TYPES", "MODEL_SIZE_THRESHOLD", "ONNX_TYPE_TO_NP_TYPE"),
        *("QUANT_INPUT_SUFFIX", "QUANT_OP_NAME", "TENSOR_NAME_QUANT_SUFFIX", "ms_domain", "onnx_domain"),
        *("ONNX_INT_TYPE_RANGE", "ONNX_INT_TYPE_REDUCED_RANGE", "ONNX_INT_TYPE_SYMMETRIC_RANGE"),
    ],
)
def test_constants(name: str) -> None:
    mine, other = getattr(ours, name), getattr(theirs, name)
    if name.startswith("ONNX_INT"):
        assert mine.keys() == other.keys()
        for key in mine:
            same(mine[key], other[key])
    else:
        assert mine == other


def test_names_of_element_types() -> None:
    assert all(ours.type_to_name[code(name)] == name for name in (*INTEGERS, "FLOAT", "FLOAT8E5M2"))


@pytest.mark.parametrize(
    "suffix", ["quant", "quant_input", "quant_output", "dequant", "dequant_input", "dequant_output"]
)
def test_suffixes(suffix: str) -> None:
    assert getattr(ours, f"add_{suffix}_suffix")("t") == getattr(theirs, f"add_{suffix}_suffix")("t")


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("kind", INTEGERS)
def test_parameters(kind: str, symmetric: bool) -> None:
    weight = np.random.default_rng(3).standard_normal((7, 10)).astype(np.float32)
    weight[:3, 4] = 0
    for axis in (0, 1):
        same(
            ours.compute_scale_zp_blocked(weight, code(kind), axis, 3, symmetric),
            theirs.compute_scale_zp_blocked(weight, code(kind), axis, 3, symmetric),
        )
    parameters = [module.compute_data_quant_params(weight, code(kind), symmetric) for module in (ours, theirs)]
    same(*parameters)
    for reduced in (False, True):
        mine, other = (m.get_qmin_qmax_for_qType(code(kind), reduced, symmetric) for m in (ours, theirs))
        same(mine, other)
        assert ours.get_qrange_for_qType(code(kind), reduced, symmetric) == int(other[1]) - int(other[0])


@pytest.mark.parametrize("kind", [*INTEGERS, "FLOAT8E4M3FN"])
def test_initializers(kind: str) -> None:
    weight = numpy_helper.from_array(np.random.default_rng(3).standard_normal((5, 6)).astype(np.float32), "w")
    array = numpy_helper.to_array(weight)
    choices: list[tuple[int | None, int]] = (
        [(None, 0)] if kind == "FLOAT8E4M3FN" else [(None, 0), (0, 0), (1, 0), (0, 2)]
    )
    for axis, block in choices:
        if block:
            zero, scale = theirs.compute_scale_zp_blocked(array, code(kind), axis, block, False)
        elif axis is None:
            zero, scale = theirs.compute_data_quant_params(array, code(kind), False)
        else:
            found = [theirs.compute_data_quant_params(each, code(kind), False) for each in np.moveaxis(array, axis, 0)]
            zero, scale = (np.array([pair[i] for pair in found], found[0][i].dtype) for i in (0, 1))
        mine, other = (
            m.quantize_onnx_initializer(weight, code(kind), zero, scale, axis, None, block) for m in (ours, theirs)
        )
        assert mine == other
    assert ours.quantize_onnx_initializer(weight, code(kind), zero, scale, axis, "q", block).name == "q"


def test_float8() -> None:
    deviation = np.std(np.arange(9, dtype=np.float32))
    same(ours.compute_scale_zp_float8(17, deviation), theirs.compute_scale_zp_float8(17, deviation))
    same([ours.FLOAT8_DISTRIBUTIONS[17]], [theirs.FLOAT8_DISTRIBUTIONS[17]])
    with pytest.raises(ValueError, match="float8e4m3fn"):
        ours.compute_scale_zp_float8(code("INT8"), deviation)


@pytest.mark.parametrize(("low", "high"), [(0.0, 4.0), (-1.0, 3.0), (-5.0, 1.0), (0.0, 0.0), (1.0, 2.0), (-2.0, -1.0)])
@pytest.mark.parametrize("least", [None, 0.5, 9.0])
def test_snapped_zero_points(low: float, high: float, least: float | None) -> None:
    ends = np.float32(low), np.float32(high)
    for last in (255, 127):
        same(*(m.snap_zero_point_to_uint8(*ends, qmax=last, min_real_range=least) for m in (ours, theirs)))


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8])
def test_packing(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    assert ours.pack_bytes_to_4bit(data) == theirs.pack_bytes_to_4bit(data)


def test_small_helpers(tmp_path: Path) -> None:
    assert (
        ours.normalize_axis(-1, 3) == (True, 2)
        and ours.normalize_axis(-4, 3)[0] is ours.normalize_axis(3, 3)[0] is False
    )
    assert ours.find_by_name("b", model().graph.initializer).name == "b" and ours.find_by_name("?", ()) is None
    assert ours.get_elem_index("a", ["a", "b", "a"]) == 2 and ours.get_elem_index("c", ["a"]) == -1
    assert ours.get_mul_node(["a", "b"], "c", "n") == theirs.get_mul_node(["a", "b"], "c", "n")
    path = tmp_path / "a.onnx"
    assert ours.generate_identified_filename(path, "-x") == theirs.generate_identified_filename(path, "-x")
    for node in (helper.make_node("A", [], [], i=1, f=2.0, s="t", ints=[1], floats=[1.0], strings=["s"]),):
        for attribute in node.attribute:
            assert ours.attribute_to_kwarg(attribute) == theirs.attribute_to_kwarg(attribute)
    with pytest.raises(ValueError, match="type"):
        ours.attribute_to_kwarg(onnx.AttributeProto(name="empty"))
    with pytest.raises(ValueError, match="INT64"):
        ours.tensor_proto_to_array(numpy_helper.from_array(np.arange(3), "i"))
    assert ours.QuantizedValueType.from_string("Input") is ours.QuantizedValueType.Input


def test_distributions() -> None:
    numbers = np.random.default_rng(0)
    counts, others = numbers.integers(0, 3, 40), numbers.integers(1, 9, 40)
    np.testing.assert_allclose(ours.smooth_distribution(counts), theirs.smooth_distribution(counts), rtol=1e-6)
    assert ours.smooth_distribution(np.zeros(3)) is None
    p, q = ours.smooth_distribution(counts), ours.smooth_distribution(others)
    for base in (None, 2.0):
        np.testing.assert_allclose(entropy(p, q, base), their_calibrate.entropy(p, q, base), rtol=1e-5)
    found = rel_entr(np.array([0.0, 0.5, 0.5]), np.array([0.25, 0.0, 0.75]))
    np.testing.assert_allclose(found, [0.0, np.inf, 0.5 * np.log(0.5 / 0.75)])


@pytest.mark.parametrize("method", ["entropy", "percentile", "distribution"])
def test_collected_histograms(method: str) -> None:
    arrays = [np.random.default_rng(i).standard_normal(4000).astype(np.float32) for i in range(3)]
    collector = HistogramCollector(method, False, 2048, 128, 99.9, "same")
    with pytest.raises(ValueError, match="collect"):
        collector.compute_collection_result()
    collector.collect({"t": arrays[:2]})
    collector.collect({"t": arrays[2]})
    counts, edges, low, high = collector.get_histogram_dict()["t"]
    assert counts.sum() == 12000 and len(edges) == 2049 and (low, high) == (np.min(arrays), np.max(arrays))
    found = collector.compute_collection_result()["t"]
    if method == "distribution":
        np.testing.assert_allclose(found.avg_std, [np.mean(arrays), np.std(arrays)], atol=2e-3)
    else:
        assert low <= found[0] < -2 and 2 < found[1] <= high
    with pytest.raises(ValueError, match="NaN"):
        collector.collect({"t": np.array([np.nan], np.float32)})
    with pytest.raises(ValueError, match="entropy, percentile, distribution"):
        HistogramCollector("minmax", False, 128, 128, 99.9, "same")


def test_models_with_inferred_types(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(model(), path)
    for found in (ours.load_model_with_shape_infer(path), ours.save_and_reload_model_with_shape_infer(model())):
        assert ours.model_has_infer_metadata(found) and theirs.model_has_infer_metadata(found)
        assert {node.op_type for node in found.graph.node} >= {"Gemm", "Relu", "MatMul", "Add"}
        assert {"h", "r"} <= {value.name for value in found.graph.value_info}
    assert not ours.model_has_external_data(path)
    onnx.save_model(model(), path, save_as_external_data=True, size_threshold=0, location="weights")
    assert ours.model_has_external_data(path)
    ours.optimize_model(path, tmp_path / "optimized.onnx")
    assert "wasted" not in {name for node in onnx.load(tmp_path / "optimized.onnx").graph.node for name in node.output}


@pytest.mark.parametrize(("weight", "activation", "block", "opset"), [
    ("QInt8", "QUInt8", 0, 13), ("QInt16", None, 0, 21), ("QInt8", "QUInt16", 0, 21), ("QFLOAT8E4M3FN", None, 0, 19),
    ("QInt4", None, 0, 13), ("QInt8", None, 16, 21),
])  # fmt: skip
def test_opsets(weight: str, activation: str | None, block: int, opset: int) -> None:
    for module in (ours, theirs):
        kinds = [module.QuantType[each] if each else None for each in (weight, activation)]
        assert module.get_opset_version(module.update_opset_version(model(), *kinds, None, block)) == opset
    overrides = {"x": [{"quant_type": ours.QuantType.QInt16}]}
    raised = ours.update_opset_version(model(), ours.QuantType.QInt8, None, overrides)
    assert ours.get_opset_version(raised) == 21


# -- models


def test_what_a_model_tells() -> None:
    mine, other = ONNXModel(model()), their_models.ONNXModel(model())
    for name in ("ir_version", "opset_import", "initializer", "nodes", "get_initializer_name_set"):
        assert getattr(mine, name)() == getattr(other, name)(), name
    assert mine.get_non_initializer_inputs() == other.get_non_initializer_inputs() == {"x"}
    for ask in ("is_graph_input", "is_graph_output", "get_initializer", "find_graph_input", "find_graph_output"):
        for name in ("x", "y", "w", "h"):
            assert getattr(mine, ask)(name) == getattr(other, ask)(name), (ask, name)
    assert [mine.get_tensor_type(name) for name in "xyh"] == [other.get_tensor_type(name) for name in "xyh"]
    for name in ("w", "wasted"):
        np.testing.assert_array_equal(mine.get_constant_value(name), other.get_constant_value(name))
    assert mine.get_constant_value("h") is None
    assert mine.input_name_to_nodes() == other.input_name_to_nodes()
    assert mine.output_name_to_node() == other.output_name_to_node()
    first, last = mine.nodes()[1], mine.nodes()[-1]
    assert mine.get_children(first) == other.get_children(first) and len(mine.get_children(first)) == 2
    assert mine.get_parents(last) == other.get_parents(last) and mine.get_parent(last, 0).op_type == "Relu"
    assert mine.get_parent(last, 2) is mine.get_parent(first, 0) is None
    found = mine.match_parent_path(last, ["Relu", "Gemm"], [0, 0])
    assert [node.name for node in found or ()] == ["second", "first"]
    indices: list[int | None] = []
    assert mine.match_parent_path(last, ["Gemm"], None, None, indices) == [first] and indices == [1]
    assert mine.match_parent_path(last, ["Gemm"], [0]) is None
    with pytest.raises(ValueError, match="as many"):
        mine.match_parent_path(last, ["Gemm"], [0, 1])
    assert mine.find_node_by_name("third", [], mine.graph()).op_type == "MatMul"
    assert [n.name for n in mine.find_nodes_by_initializer(mine.graph(), mine.get_initializer("u"))] == ["third"]
    for at in range(2):
        mine.add_initializer(numpy_helper.from_array(np.zeros(1), f"i_{at}"))
    assert mine.get_largest_initializer_name_suffix("i_") == 1 and mine.get_largest_node_name_suffix("i_") == -1


def test_changes_of_a_model(tmp_path: Path) -> None:
    both = [ONNXModel(model()), their_models.ONNXModel(model())]
    for each in both:
        each.set_opset_import("", 14)
        each.set_opset_import("com.microsoft", 1)
        each.add_node(helper.make_node("Neg", ["h"], ["n"], "last"))
        each.replace_input_of_all_nodes("r", "h")
        each.replace_input_of_nodes("h", "r", {"last"})
        each.replace_output_of_nodes("n", "m", {"last"})
        each.remove_node(each.find_node_by_name("third", [], each.graph()))
        each.remove_unused_constant()
        each.replace_gemm_with_matmul()
        each.topological_sort()
    nodes = [{node.name: node for node in each.nodes()} for each in both]
    constants = [
        {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in each.initializer()} for each in both
    ]
    assert nodes[0] == nodes[1] and constants[0] == constants[1]
    assert both[0].opset_import() == both[1].opset_import()
    onnx.checker.check_model(both[0].model)
    assert both[0].get_initializer_name_set() == {"w", "b"}
    with pytest.raises(ValueError, match="no initializer"):
        both[0].initializer_extend([])


def test_unused_initializers() -> None:
    mine, other = ONNXModel(model()), their_models.ONNXModel(model())
    for each in (mine, other):
        each.graph().input.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, [2]))
        graph, outside = each.clean_initializers()
        assert graph is each.graph() and outside == set()
    assert mine.model == other.model and "unused" not in mine.get_initializer_name_set()


def test_gemms_whose_weight_has_other_readers() -> None:
    proto = model()
    proto.graph.node.append(helper.make_node("Identity", ["w"], ["copy"]))
    mine = ONNXModel(proto)
    mine.replace_gemm_with_matmul()
    onnx.checker.check_model(mine.model)
    assert [node.op_type for node in mine.nodes()][1:4] == ["Transpose", "MatMul", "Add"]
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
    found, expected = (run(each, inputs) for each in (mine.model, model()))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def run(proto: onnx.ModelProto, inputs: dict[str, Any]) -> Any:
    return onnx.reference.ReferenceEvaluator(proto).run(None, inputs)[0]


def test_sorting() -> None:
    proto = model()
    nodes = [copy.deepcopy(node) for node in reversed(proto.graph.node)]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    mine = ONNXModel(proto)
    mine.topological_sort()
    onnx.checker.check_model(mine.model)
    assert len(mine.nodes()) == 5
    mine.nodes()[0].input[0] = "y"
    mine.replace_input_of_all_nodes("x", "y")
    with pytest.raises(ValueError, match="cycle"):
        mine.topological_sort()


@pytest.mark.parametrize("external", [False, True])
def test_saving(tmp_path: Path, external: bool) -> None:
    proto = model()
    proto.graph.initializer.append(numpy_helper.from_array(np.arange(4096, dtype=np.float32), "large"))
    for _ in range(2):
        ONNXModel(proto).save_model_to_file(tmp_path / "model.onnx", external)
    assert (tmp_path / "model.onnx.data").exists() is external
    np.testing.assert_array_equal(
        numpy_helper.to_array(onnx.load(tmp_path / "model.onnx").graph.initializer[-1]), np.arange(4096)
    )


# -- parameters and overrides


def test_quantization_params() -> None:
    found = QuantizationParams(scale=np.float32(2) * np.ones(1, np.float32), zero_point=3, axis=None)
    found["quant_type"] = 2
    assert list(found) == ["scale", "zero_point", "axis", "quant_type"] and len(found) == 4
    assert found["zero_point"] == 3 and found.get("none", 5) == 5
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"axis": 1.5}, TypeError),
        ({"scale": np.ones(1)}, ValueError),
        ({"zero_point": []}, TypeError),
    ]
    for given, error in wrong:
        with pytest.raises(error):
            QuantizationParams(**given)


OVERRIDES = {
    "x": [{"quant_type": "QUInt16", "convert": {"quant_type": "QUInt8", "recv_nodes": {"first"}}}],
    "w": [{"axis": 0, "symmetric": True, "quant_type": "QInt8"}],
    "h": [{"scale": np.float32(1), "zero_point": np.uint8(0)}],
}


def helpers() -> list[Any]:
    found = []
    for module, make in ((ours, TensorQuantOverridesHelper), (theirs, their_overrides.TensorQuantOverridesHelper)):
        raw = copy.deepcopy(OVERRIDES)
        for entries in raw.values():
            for each in (entries[0], entries[0].get("convert", {})):
                if "quant_type" in each:
                    each["quant_type"] = module.QuantType[each["quant_type"]]
        found.append(make(raw))
    return found


def test_what_overrides_tell() -> None:
    mine, other = helpers()
    for ask in ("has_per_tensor_overrides", "has_per_channel_overrides", "overrides_scale_zp"):
        assert [bool(getattr(mine, ask)(n)) for n in "xwhz"] == [bool(getattr(other, ask)(n)) for n in "xwhz"], ask
    assert {each.name for each in mine.get_quant_types()} == {each.name for each in other.get_quant_types()}
    for name, node in (("x", "first"), ("x", "other"), ("w", "first"), ("z", "first")):
        a, b = (h.get_node_input_qtype_info(name, node, None, False, True) for h in (mine, other))
        assert [str(a.quant_type), a.symmetric, a.axis] == [str(b.quant_type), b.symmetric, b.axis]
        a, b = (h.get_node_output_qtype_info(name, None) for h in (mine, other))
        assert [str(a.quant_type), a.symmetric] == [str(b.quant_type), b.symmetric]
    assert mine.get_per_tensor_overrides("x") is mine["x"][0] and mine.get_per_channel_overrides("w") is mine["w"]
    assert mine.get_per_tensor_overrides("z", {}) == {} and mine.get_per_channel_overrides("z") is None
    with pytest.raises(ValueError, match="by channel"):
        mine.get_per_tensor_overrides("w")
    with pytest.raises(ValueError, match="as a whole"):
        mine.get_per_channel_overrides("x")
    assert len(mine) == 3 and list(mine) == list(other) and not mine.empty() and mine.get_dict() is mine.overrides
    assert mine.pprint_str().startswith('{"x":') and "w" in repr(mine)


def test_overrides_are_checked_and_updated() -> None:
    mine, _ = helpers()
    weights = {each.name: each for each in model().graph.initializer}
    kind = ours.QuantType.QInt8
    assert mine.is_valid(weights, {"x", "h"}, kind) == (True, None)
    valid, why = mine.is_valid(weights, {"x"}, kind)
    assert not valid and "'h'" in str(why)
    assert mine.update_tensor_overrides("x", {"symmetric": True}) and mine["x"][0]["symmetric"]
    assert not mine.update_tensor_overrides("x", {"symmetric": False}, overwrite=False) and mine["x"][0]["symmetric"]
    assert mine.update_tensor_overrides("new", {"rmin": 0.0}, overwrite=False) and mine["new"] == [{"rmin": 0.0}]
    assert not mine.update_tensor_overrides("x", {})
    mine["w"][0]["axis"] = 5
    assert "axis" in str(mine.is_valid(weights, {"x", "h", "new"}, kind)[1])
    del mine["w"]
    assert "w" not in mine


def test_types_of_tensors() -> None:
    kind = ours.QuantType.QInt8
    assert QuantTypeInfo(kind) == QuantTypeInfo(kind, symmetric=True) != QuantTypeInfo(kind, axis=1)
    assert QuantTypeInfo(kind, symmetric=False) != QuantTypeInfo(kind, symmetric=True)
    raw: dict[str, Any] = {}
    QuantTypeInfo.load_from_dict({"axis": 1}, kind, True).save_to_dict(raw)
    assert raw == {"quant_type": kind, "symmetric": True, "axis": 1}

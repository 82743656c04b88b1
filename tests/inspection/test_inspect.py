"""Inspection: facts of a model's file against onnx's own view of it, operations against counts by hand, risks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidArgument, NoSuchFile, SardonyxError
from sardonyx.inspection.inspect import inspect_model
from sardonyx.inspection.text import graph_text
from sardonyx.model.load import load

F32 = TensorProto.FLOAT


def model_of(text: str, **weights: np.ndarray) -> bytes:
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return bytes(proto.SerializeToString())


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def kinds(found: sardonyx.inspection.records.Inspection) -> set[str]:
    return {risk.kind for risk in found.risks}


def test_facts_are_those_of_the_file(root: Path) -> None:
    path = root / "demo" / "digits.onnx"
    proto = onnx.load(path)
    found = inspect_model(path)
    assert found.nbytes == path.stat().st_size and found.ir_version == proto.ir_version
    assert found.opsets == {o.domain: o.version for o in proto.opset_import}
    assert found.parameters == sum(int(np.prod(t.dims)) for t in proto.graph.initializer)
    assert found.nodes == len(proto.graph.node) and sum(found.operators.values()) == found.nodes
    assert [(p.name, p.type, p.shape) for p in found.inputs] == [("image", "tensor(uint8)", ("batch", 8, 8))]
    assert [p.shape for p in found.outputs] == [("batch",), ("batch", 10)]
    assert found.dimensions == ("batch",) and not found.risks and not found.uncounted


def test_operations_of_a_convolution_and_a_product() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[n, 3, 8, 8] x) => (float[n, 5] y) {
      c = Conv<pads = [1, 1, 1, 1]>(x, w)
      r = Relu(c)
      f = Flatten(r)
      y = MatMul(f, m)
    }"""
    found = inspect_model(model_of(text, w=ones(4, 3, 3, 3), m=ones(256, 5)), dimensions={"n": 2})
    assert found.flops_by_operator == {
        "Conv": 2 * 2 * 4 * 8 * 8 * 27, "MatMul": 2 * 2 * 5 * 256, "Relu": 2 * 4 * 8 * 8
    }  # fmt: skip
    assert found.flops == sum(found.flops_by_operator.values()) and found.sizes == ()


@pytest.mark.parametrize(
    ("text", "weights", "expected"),
    [
        ("y = Gemm(x, w, b)", {"w": ones(6, 5), "b": ones(5)}, 2 * 4 * 6 * 5 + 4 * 5),
        ("y = Gemm<transA = 1>(x, w)", {"w": ones(4, 5)}, 2 * 6 * 4 * 5),
        ("y = ReduceSum(x)", {}, 24),
        ("t = Transpose(x) y = Reshape(t, s)", {"s": np.array([24])}, 0),
        ('y = Einsum<equation = "ab,bc->ac">(x, w)', {"w": ones(6, 5)}, 2 * 4 * 6 * 5),
    ],
)
def test_operations_of_single_operators(text: str, weights: dict[str, np.ndarray], expected: int) -> None:
    whole = f'<ir_version: 9, opset_import: ["": 18]> g (float[4, 6] x) => (float[] y) {{ {text} }}'
    proto = onnx.parser.parse_model(whole)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    assert inspect_model(proto.SerializeToString()).flops == expected


def test_shape_arithmetic_does_not_hide_sizes() -> None:
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[n, 6] x) => (float[n, 2, 3] y) {
      s = Shape<start = 0, end = 1>(x)
      t = Concat<axis = 0>(s, rest)
      r = Reshape(x, t)
      y = MatMul(r, w)
    }"""
    found = inspect_model(model_of(text, rest=np.array([2, 3]), w=ones(3, 3)), dimensions={"n": 7})
    assert found.flops == 2 * 7 * 2 * 3 * 3 and not found.uncounted


def test_assumed_sizes_are_told() -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[rows, 4] x) => (float[rows, 4] y) { y = Exp(x) }'
    assert any("rows" in statement for statement in inspect_model(model_of(text)).sizes)
    assert inspect_model(model_of(text), shapes={"x": (9, 4)}).flops == 36


def test_external_data_is_a_risk_and_missing_data_another(tmp_path: Path) -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[4, 300] x) => (float[4, 300] y) { y = MatMul(x, w) }'
    proto = onnx.load_model_from_string(model_of(text, w=ones(300, 300)))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin")
    found = inspect_model(path)
    assert kinds(found) == {"external-data"} and found.nbytes > 300 * 300 * 4
    assert found.risks[0].nodes == ("weights.bin",)


def test_unknown_operators_and_contrib_operators_are_risks() -> None:
    x, y = (helper.make_tensor_value_info(n, F32, [2]) for n in "xy")
    nodes = [
        helper.make_node("Mystery", ["x"], ["t"], domain="my.own"),
        helper.make_node("Gelu", ["t"], ["y"], domain="com.microsoft"),
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my.own", 1), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=9)
    found = inspect_model(model.SerializeToString())
    assert {"unknown-operator", "contrib-operator"} <= kinds(found)


def test_float64_and_the_reference_provider_are_risks() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (double[4] x, string[4] s) => (double[4] y, string[4] t) { y = Exp(x) t = StringConcat(s, s) }"""
    found = inspect_model(model_of(text))
    assert kinds(found) == {"float64", "reference-provider"}


def test_nodes_that_only_runs_can_compile_are_a_risk() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]>
    g (float[n] x, int64[1] s, int64[1] e) => (float[m] y) { t = Exp(x) y = Slice(t, s, e) }"""
    found = inspect_model(model_of(text))
    assert kinds(found) == {"compiled-in-runs"} and "Slice" in found.risks[0].what and "y" in found.risks[0].nodes[0]


def test_the_report_for_people(root: Path) -> None:
    told = str(inspect_model(root / "demo" / "digits.onnx"))
    assert "image: tensor(uint8) [batch, 8, 8]" in told and "Conv 3" in told and "none found" in told


def test_the_graph_as_text() -> None:
    text = '<ir_version: 9, opset_import: ["": 18]> g (float[2, 3] x) => (float[2, 3] y) { t = Exp(x) y = Mul(t, w) }'
    lines = graph_text(load(model_of(text, w=ones(3))).graph).splitlines()
    assert lines[0].split("  ")[-1].startswith("t: f32") and "Mul(t, w: f32[3] constant)" in lines[1]


def test_bad_input(tmp_path: Path, root: Path) -> None:
    with pytest.raises(NoSuchFile):
        inspect_model(tmp_path / "none.onnx")
    with pytest.raises(SardonyxError):
        inspect_model(b"\xff\xd8\xff\xe0 JPEG")
    with pytest.raises(InvalidArgument, match="no such symbolic dimension"):
        inspect_model(root / "demo" / "digits.onnx", dimensions={"width": 3})


def test_numbers_of_trained_operators_are_parameters() -> None:
    from tests.profile import planted

    found = inspect_model(planted.classifier()[0])
    assert found.parameters == 3 * 16 + 3 and found.weight_nbytes == 4 * found.parameters

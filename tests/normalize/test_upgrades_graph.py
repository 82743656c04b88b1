"""What normalization does to the graph around a node: names, types, versions, what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from sardonyx.errors import InvalidGraph, NotImplemented
from sardonyx.ir.graph import Model
from sardonyx.model.load import load
from sardonyx.model.save import model_to_proto
from sardonyx.normalize import lowest_opset, normalize, raise_opset
from sardonyx.normalize.registry import steps_of
from sardonyx.optimize.symbolic import Facts


def normalized(text: str, *, check: bool = True) -> Model:
    model = load(parser.parse_model(text).SerializeToString())
    normalize(model)
    if check:
        onnx.checker.check_model(model_to_proto(model))
    return model


def ops(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


SOFTMAX = """<ir_version: 7, opset_import: ["" : 9]>
    g (float[2,3,4] x) => (float[2,3,4] y) { y = Softmax <axis = 1> (x) }"""


def test_outputs_keep_their_names_and_types() -> None:
    model = normalized(SOFTMAX)
    Facts().walk(model.graph)
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert str(model.graph.outputs[0].type) == "f32[2, 3, 4]"
    assert ops(model)[-1] == "Reshape" and "Softmax" in ops(model)


def test_new_nodes_know_where_they_come_from() -> None:
    proto = parser.parse_model(SOFTMAX)
    proto.graph.node[0].name = "soft"
    model = load(proto.SerializeToString())
    normalize(model)
    assert {node.origin for node in model.graph.nodes} == {("soft",)}


def test_versions_afterwards() -> None:
    model = normalized(SOFTMAX)
    assert model.opsets == {"": onnx.defs.onnx_opset_version()}
    assert lowest_opset(model) == 14
    assert lowest_opset(model, at_least=17) == 17


def test_raising_an_opset_keeps_other_domains() -> None:
    text = """<ir_version: 8, opset_import: ["" : 11, "com.microsoft" : 1]> g (float[2,6] x) => (float[1,4] y) {
        a = Unsqueeze <axes = [0]> (x) b = com.microsoft.Gelu (a) c = Squeeze <axes = [0]> (b)
        d = ReduceMean <axes = [0]> (c) e, f = Split <axis = 1, split = [4, 2]> (d) y = Softmax (e) }"""
    model = load(parser.parse_model(text).SerializeToString())
    raise_opset(model, 21)
    made = model_to_proto(model)
    assert {o.domain: o.version for o in made.opset_import} == {"": 21, "com.microsoft": 1}
    assert "Gelu" in ops(model)
    onnx.checker.check_model(made, full_check=True)
    ort = pytest.importorskip("onnxruntime")
    x = np.random.default_rng(0).standard_normal((2, 6)).astype(np.float32)
    sources = [parser.parse_model(text).SerializeToString(), made.SerializeToString()]
    a, b = (ort.InferenceSession(s, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0] for s in sources)
    np.testing.assert_allclose(a, b, rtol=1e-6)
    raise_opset(model, 13)
    assert model.opsets[""] == 21


def test_lowest_opset_still_means_the_same() -> None:
    model = normalized(
        """<ir_version: 7, opset_import: ["" : 11]>
        g (float[2,3] x) => (float[N] y) { a = Relu(x)  b = ReduceSum <axes = [1], keepdims = 0> (a)  y = Abs(b) }"""
    )
    version = lowest_opset(model)
    assert version == 13
    proto = model_to_proto(model)
    proto.opset_import[0].version = version
    onnx.checker.check_model(proto, full_check=True)


def test_an_output_that_is_an_input_gets_an_identity() -> None:
    model = normalized(
        """<ir_version: 7, opset_import: ["" : 10]>
        g (float[2] x) => (float[2] y, bool[2] m, float[2] z) { y, m = Dropout(x)  z = Neg(y) }"""
    )
    assert [v.name for v in model.graph.outputs] == ["y", "m", "z"]
    assert len({*model.graph.inputs, *model.graph.outputs}) == 4


def test_subgraphs_climb_too() -> None:
    model = normalized(
        """<ir_version: 7, opset_import: ["" : 11]>
        g (bool c, float[2,3] x) => (float[2,3] y) {
            y = If (c) <
                then_branch = t () => (float[2,3] u) { s = Unsqueeze <axes = [0]> (x)  u = Squeeze <axes = [0]> (s) },
                else_branch = e () => (float[2,3] v) { v = Clip (x) }
            >
        }"""
    )
    (branch,) = [g for key, g in next(model.graph.nodes).subgraphs() if key == "then_branch"]
    assert all(len(node.inputs) == 2 and not node.attrs for node in branch.nodes)
    assert [v.name for v in branch.outputs] == ["u"]


def test_unknown_operators_stay() -> None:
    model = normalized(
        """<ir_version: 7, opset_import: ["" : 11, "my.own" : 3]>
        g (float[2] x) => (float[2] z) { y = my.own.Frobnicate <axis = 1> (x)  z = Sprocket(y) }""",
        check=False,
    )
    assert ops(model) == ["Frobnicate", "Sprocket"]
    assert model.opsets["my.own"] == 3


def one_node(op: str, opset: int, inputs: int, **attrs: Any) -> bytes:
    infos = [helper.make_tensor_value_info(f"x{i}", 1, [2, 3]) for i in range(inputs)]
    node = helper.make_node(op, [i.name for i in infos], ["y"], **attrs)
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]).SerializeToString()


@pytest.mark.parametrize(("op", "opset", "inputs"), [("Upsample", 10, 2), ("Scatter", 11, 3)])
def test_operators_their_opset_has_removed(op: str, opset: int, inputs: int) -> None:
    with pytest.raises(InvalidGraph, match=r"removed|deprecated"):
        normalize(load(one_node(op, opset, inputs), infer=False))


BROKEN: list[tuple[str, int, int, dict[str, Any]]] = [
    ("Slice", 9, 1, {"starts": [0]}),
    ("Unsqueeze", 11, 1, {}),
    ("TopK", 9, 1, {}),
    ("Pad", 10, 1, {}),
    ("Reshape", 4, 1, {}),
    ("Cast", 5, 1, {"to": "QUATERNION"}),
    ("Add", 6, 2, {"broadcast": 1, "axis": 7}),
    ("Crop", 1, 1, {"border": [1, 2]}),
    ("BatchNormalization", 8, 2, {"spatial": 0}),
    ("Scan", 8, 1, {"num_scan_inputs": 3}),
]


@pytest.mark.parametrize(("op", "opset", "inputs", "attrs"), BROKEN, ids=lambda v: str(v))
def test_invalid_nodes_are_refused(op: str, opset: int, inputs: int, attrs: dict[str, Any]) -> None:
    with pytest.raises(InvalidGraph):
        normalize(load(one_node(op, opset, inputs, **attrs), infer=False))


def test_aten_has_no_meaning_here() -> None:
    with pytest.raises(NotImplemented, match="embedding_bag"):
        normalized(
            """<ir_version: 7, opset_import: ["" : 9]>
            g (float[2] x) => (float[2] y) { y = ATen <operator = "embedding_bag"> (x) }"""
        )


def test_every_changed_form_has_a_step() -> None:
    """An attribute or input that today's schema does not know must be taken away by some step."""
    today = {s.name: s for s in onnx.defs.get_all_schemas() if s.domain == ""}
    missing = []
    for old in onnx.defs.get_all_schemas_with_history():
        new = today.get(old.name)
        if old.domain or new is None or old.deprecated:
            continue
        gone = set() if new.deprecated else set(old.attributes) - set(new.attributes)
        shrunk = len(old.inputs) > len(new.inputs) and not new.deprecated
        steps = [to for to, _ in steps_of("", old.name) if to > old.since_version]
        if (gone or shrunk or new.deprecated) and not steps:
            missing.append((old.name, old.since_version, gone))
    assert not missing


def test_constants_of_the_input_type() -> None:
    model = normalized(
        """<ir_version: 7, opset_import: ["" : 10]>
        g (double[2] x) => (double[4] y) { y = Pad <pads = [1, 1], value = 0.5> (x) }"""
    )
    (pad,) = model.graph.nodes
    value = pad.input(2)
    assert value is not None and value.numpy().dtype == np.float64

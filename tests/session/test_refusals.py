"""Models and feeds that cannot be run are refused by errors of ours, whatever is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import EngineError, Fail, InvalidArgument, InvalidGraph, SardonyxError

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Info = tuple[str, int, Any]


def graph(
    nodes: list[onnx.NodeProto], inputs: list[Info], outputs: list[Info], constants: dict[str, Any] | None = None
) -> bytes:
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*info) for info in inputs],
        [helper.make_tensor_value_info(*info) for info in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())


def one(op_type: str, inputs: list[Info], constants: dict[str, Any], names: list[str], **attrs: Any) -> bytes:
    outputs = [onnx.ValueInfoProto(name="y")]
    made = graph([helper.make_node(op_type, names, ["y"], **attrs)], inputs, [], constants)
    model = onnx.ModelProto.FromString(made)
    model.graph.output.extend(outputs)
    return bytes(model.SerializeToString())


def refused(model: bytes, feeds: dict[str, Any]) -> SardonyxError:
    with pytest.raises(SardonyxError) as caught:
        sardonyx.InferenceSession(model).run(None, feeds)
    assert not isinstance(caught.value, EngineError), caught.value
    return caught.value


IMAGE = np.ones((1, 1, 3, 4), np.float32)


def test_a_vector_of_axes_of_cumsum() -> None:
    model = one("CumSum", [("x", F, [3, 4])], {"axis": [0, 1]}, ["x", "axis"])
    assert "axis must be a scalar" in str(refused(model, {"x": np.ones((3, 4), np.float32)}))


@pytest.mark.parametrize("is_constant", [True, False])
def test_a_resize_beyond_all_memory(is_constant: bool) -> None:
    scales = np.array([1, 1, 1e30, 1], np.float32)
    inputs: list[Info] = [("x", F, [1, 1, 3, 4])]
    if is_constant:
        model, feeds = one("Resize", inputs, {"s": scales}, ["x", "", "s"]), {}
    else:
        model, feeds = one("Resize", [*inputs, ("s", F, [4])], {}, ["x", "", "s"]), {"s": scales}
    assert "elements" in str(refused(model, {"x": IMAGE, **feeds}))


@pytest.mark.parametrize("text", ["a", "not ", "lambda:", "(", "-", "1+", "min(a,", "a.", "~", "é"])
@pytest.mark.parametrize("length", [900, 100_000])
def test_names_of_dimensions_as_long_as_books(text: str, length: int) -> None:
    name = text * (length // len(text))
    model = graph([helper.make_node("Relu", ["x"], ["y"])], [("x", F, [name])], [("y", F, [name])])
    session = sardonyx.InferenceSession(model)
    assert session.run(None, {"x": np.ones(3, np.float32)})[0].shape == (3,)
    assert session.get_inputs()[0].shape == [name]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["1or 2", "0xfor x", "1if a else 2", "a is 1", "5j", "'\\d'"])
def test_names_of_dimensions_that_python_would_warn_about(name: str) -> None:
    model = graph([helper.make_node("Relu", ["x"], ["y"])], [("x", F, [name])], [("y", F, [name])])
    assert sardonyx.InferenceSession(model).run(None, {"x": np.ones(3, np.float32)})[0].shape == (3,)


def test_a_split_into_fewer_slices_than_outputs() -> None:
    """onnx's inference writes past a vector for such a node; it must not see it."""
    nodes = [helper.make_node("Split", ["x"], ["y", "z"], num_outputs=1, axis=0)]
    model = graph(nodes, [("x", F, [4])], [("y", F, None), ("z", F, None)])
    assert "num_outputs" in str(refused(model, {"x": np.ones(4, np.float32)}))


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("op_type", "domain", "said"),
    [
        ("Reluu", "", ["ai.onnx.Reluu is not a registered", "imports opset 13 of ai.onnx", "did you mean 'Relu'?"]),
        ("Frobnicate", "", ["imports opset 13 of ai.onnx", "check the operator's name"]),
        ("Frobnicate", "com.acme", ["imports opset 3 of com.acme", "sardonyx.custom_op"]),
        ("Frobnicate", "com.other", ["No opset import for domain com.other"]),
    ],
)
def test_an_unknown_operator_cites_the_model_s_opset(
    op_type: str, domain: str, said: list[str], kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"]), helper.make_node(op_type, ["z"], ["y"], "culprit", domain=domain)],
        "g",
        [helper.make_tensor_value_info("x", F, [3])],
        [helper.make_tensor_value_info("y", F, [3])],
    )
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("com.acme", 3)]
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(made, opset_imports=imports, ir_version=8).SerializeToString())
    if kept:
        (tmp_path / "cache").mkdir(mode=0o700)
        monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    for _ in range(1 + kept):
        with pytest.raises(SardonyxError) as caught:
            sardonyx.InferenceSession(path)
        assert all(part in str(caught.value) for part in ["culprit", *said]), caught.value


ONNX_CRASHES: dict[str, tuple[list[onnx.NodeProto], list[Info], dict[str, Any]]] = {
    "LayerNormalization far behind the last axis": (
        [helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean"], axis=(1 << 63) - 1)],
        [("x", F, [0, 0, 2]), ("s", F, [2])],
        {},
    ),
    "LayerNormalization far before the first axis": (
        [helper.make_node("LayerNormalization", ["x", "s"], ["y", "mean"], axis=-1_000_000)],
        [("x", F, [2, 3, 2]), ("s", F, [2])],
        {},
    ),
    "GatherND with negative batch_dims": (
        [helper.make_node("GatherND", ["x", "i"], ["y"], batch_dims=-1_000_000)],
        [("x", F, [1, 5, 3])],
        {"i": np.array([[0]])},
    ),
    "GatherND of indices of negative length": (
        [helper.make_node("GatherND", ["x", "i"], ["y"])], [("x", F, [4, 2]), ("i", I64, [3, -1_000_000])], {}
    ),
    "GatherND of indices whose length inference makes negative": (
        [helper.make_node("Pad", ["i", "p"], ["j"]), helper.make_node("GatherND", ["x", "j"], ["y"])],
        [("x", F, [4, 2]), ("i", I64, [3, 1])],
        {"p": np.array([0, -1_000_000, 0, 0])},
    ),
    "Einsum with two ellipses": (
        [helper.make_node("Einsum", ["x", "x"], ["y"], equation="i...j...,i->")], [("x", F, [4, 2])], {}
    ),
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", ONNX_CRASHES)
def test_models_unsafe_for_onnxs_inference(case: str) -> None:
    nodes, inputs, constants = ONNX_CRASHES[case]
    made = onnx.ModelProto.FromString(graph(nodes, inputs, [], constants))
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in nodes[-1].output)
    feeds = {
        name: np.zeros([d if d >= 0 else 3 for d in shape], np.float32 if kind == F else np.int64)
        for name, kind, shape in inputs
    }
    refused(made.SerializeToString(), feeds)


def test_nodes_that_onnx_does_not_see_have_their_types_and_shapes() -> None:
    peer = pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node("LayerNormalization", ["x", "s"], ["n", "mean", "scale"], axis=-1),
        helper.make_node("GatherND", ["n", "i"], ["y"], batch_dims=1),
    ]
    constants = {"s": np.ones(4, np.float32), "i": np.array([[[1], [0]], [[2], [2]]])}
    model = graph(nodes, [("x", F, [2, 3, 4])], [("y", F, None), ("mean", F, None)], constants)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    ours, theirs = (library.InferenceSession(model, providers=["CPUExecutionProvider"]) for library in (sardonyx, peer))
    assert [v.shape for v in ours.get_outputs()] == [v.shape for v in theirs.get_outputs()]
    for a, b in zip(ours.run(None, {"x": x}), theirs.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def body(nodes: list[onnx.NodeProto], inputs: list[str], outputs: list[str]) -> onnx.GraphProto:
    """A body that states no types."""
    return helper.make_graph(
        nodes, "b", [onnx.ValueInfoProto(name=n) for n in inputs], [onnx.ValueInfoProto(name=n) for n in outputs]
    )


def squash(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("Sigmoid", [x], [y], "squash")


OF_INTEGERS: dict[str, list[onnx.NodeProto]] = {
    "main graph": [squash("x", "y")],
    "If": [
        helper.make_node(
            "If",
            ["c"],
            ["y"],
            then_branch=body([squash("x", "a")], [], ["a"]),
            else_branch=body([squash("x", "b")], [], ["b"]),
        )
    ],
    "Loop": [
        helper.make_node(
            "Loop",
            ["", "c", "x"],
            ["y"],
            body=body(
                [squash("v", "w"), helper.make_node("Not", ["go"], ["on"])], ["i", "go", "v"], ["on", "w"]
            ),
        )
    ],
    "Scan": [helper.make_node("Scan", ["x"], ["y"], num_scan_inputs=1, body=body([squash("v", "w")], ["v"], ["w"]))],
    "behind com.microsoft": [
        helper.make_node("FusedMatMul", ["x", "x"], ["z"], domain="com.microsoft"), squash("z", "y")
    ],
}  # fmt: skip


@pytest.mark.parametrize("where", OF_INTEGERS)
def test_sigmoid_of_integers(where: str) -> None:
    made = helper.make_graph(
        OF_INTEGERS[where],
        "g",
        [helper.make_tensor_value_info("x", I64, [3, 3]), helper.make_tensor_value_info("c", BOOL, [])],
        [onnx.ValueInfoProto(name="y")],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(made, opset_imports=imports, ir_version=10).SerializeToString()
    with pytest.raises(InvalidGraph) as caught:
        sardonyx.InferenceSession(model)
    said = str(caught.value)
    assert "Type 'tensor(int64)' of input parameter (" in said
    assert "of operator (Sigmoid) in node (squash) is invalid" in said
    assert "tensor(float)" in said


def test_operands_of_two_types() -> None:
    model = graph(
        [helper.make_node("Add", ["x", "z"], ["y"], "sum")], [("x", I64, [3]), ("z", F, [3])], [("y", F, [3])]
    )
    with pytest.raises(Fail, match=r"bound to different types \(tensor\(int64\) and tensor\(float\)\) in node \(sum\)"):
        sardonyx.InferenceSession(model)


@pytest.mark.parametrize("dims", [[2, 3], ["a", "b"]])
@pytest.mark.parametrize("axis", [-3, 3, 7])
def test_flatten_from_an_axis_that_is_not_there(dims: Any, axis: int) -> None:
    flatten = helper.make_node("Flatten", ["x"], ["y"], axis=axis)
    content = graph([flatten], [("x", F, dims)], [("y", F, ["m", "n"])])
    with pytest.raises(InvalidArgument, match="Flatten: axis out of range"):
        sardonyx.InferenceSession(content).run(None, {"x": np.ones((2, 3), np.float32)})

"""Loading: every kind of source, and the shapes that real models take."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from sardonyx import errors
from sardonyx.interpret.context import RunContext
from sardonyx.ir.types import TensorType
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from sardonyx.session.build import BuildOptions, build
from tests.model.hostile.cases import body, const, model, node, untyped, value

F, I64 = TensorProto.FLOAT, TensorProto.INT64
X = np.array([-1, 2], np.float32)


def run(source: Any, feeds: dict[str, Any] | None = None, level: str = "all") -> list[Any]:
    engine = build(
        source.SerializeToString() if isinstance(source, onnx.ModelProto) else source, BuildOptions(level=level)
    )
    return engine.run({"x": X} if feeds is None else feeds, [v.name for v in engine.outputs], RunContext())


@pytest.fixture
def plain() -> onnx.ModelProto:
    return model([node("Relu", "x", "a"), node("Add", "a c")], const("c", [10.0, 20.0]))


@pytest.mark.parametrize(
    "kind", ["path", "Path", "bytes", "bytearray", "memoryview", "strided", "file", "BytesIO", "proto"]
)
def test_sources(kind: str, plain: onnx.ModelProto, tmp_path: Path) -> None:
    data = plain.SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    source: Any = {
        "path": str(path), "Path": path, "bytes": data, "bytearray": bytearray(data), "memoryview": memoryview(data),
        "strided": memoryview(bytes(b for byte in data for b in (byte, 0)))[::2],
        "BytesIO": io.BytesIO(data), "proto": plain,
    }.get(kind)  # fmt: skip
    if kind == "file":
        with path.open("rb") as file:
            loaded = load(file)
    else:
        loaded = load(source)
    assert [n.op_type for n in loaded.graph.nodes] == ["Relu", "Add"]
    assert loaded.path == (str(path) if kind in ("path", "Path", "file") else None)


def test_text_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="binary"):
        load(io.StringIO("text"))


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (b"", errors.InvalidArgument),
        (b"garbage!" * 20, errors.InvalidProtobuf),
        (model(node("Bogus", "x")), errors.InvalidGraph),
        (model(node("Relu", "nobody")), errors.InvalidArgument),
        (model([node("Relu", "x"), node("Relu", "x")]), errors.Fail),
        (model([node("Add", "x y")]), errors.Fail),
        (model(node("Relu", "x", bogus=1)), errors.InvalidGraph),
        (model(node("Cast", "x")), errors.InvalidGraph),
        (model(node("Not", "x")), errors.InvalidGraph),
        (model(node("Bogus", "x", domain="who.knows"), imports={"who.knows": 1}), errors.Fail),
        (model(node("Relu", "x"), opset=99), errors.Fail),
        (model(node("Relu", "x"), ir=99), errors.Fail),
    ],
)
def test_onnxruntime_raises_the_same_class(made: Any, error: type[Exception]) -> None:
    data = made if isinstance(made, bytes) else made.SerializeToString()
    with pytest.raises(error):
        build(data, BuildOptions())
    ort = pytest.importorskip("onnxruntime")
    with pytest.raises(getattr(ort.capi.onnxruntime_pybind11_state, error.__name__)):
        ort.InferenceSession(data, providers=["CPUExecutionProvider"])


def test_errors_name_node_and_operator() -> None:
    bad = node("Relu", "x", bogus=1)
    bad.name = "culprit"
    with pytest.raises(errors.InvalidGraph, match=r"bogus.*Relu node 'culprit'"):
        load(model(bad))


@pytest.mark.parametrize("level", ["disabled", "all"])
def test_initializers_that_are_inputs(level: str) -> None:
    made = model(node("Add", "x c"), const("c", [10.0, 20.0]), inputs=[value("x", F, [2]), value("c", F, [2])])
    old = onnx.ModelProto()
    old.CopyFrom(made)
    old.ir_version = 3
    new, aged = load(made).graph, load(old).graph
    assert [v.name for v in new.inputs] == ["x", "c"] and new.inputs[1].overridable
    assert [v.name for v in aged.inputs] == ["x"] and not aged.initializers["c"].overridable
    np.testing.assert_array_equal(run(made, level=level)[0], [9, 22])
    np.testing.assert_array_equal(run(old, level=level)[0], [9, 22])
    np.testing.assert_array_equal(run(made, {"x": X, "c": X}, level=level)[0], [-2, 4])


def test_later_of_two_initializers_counts() -> None:
    made = model(node("Add", "x c"), const("c", [10.0, 20.0]), const("c", [1.0, 1.0]))
    np.testing.assert_array_equal(run(made)[0], [0, 3])


def test_unused_inputs_and_empty_optional_inputs() -> None:
    made = model(
        [node("Clip", "x _ top", "y")], const("top", 1.5), inputs=[value("x", F, [2]), value("unused", I64, ["n"])]
    )
    np.testing.assert_array_equal(run(made, {"x": X, "unused": np.zeros(3, np.int64)})[0], [-1, 1.5])


def test_without_shapes() -> None:
    made = model(
        [node("Relu", "x", "a"), node("Concat", "a x", axis=0)], inputs=[value("x", F, None)], outputs=[untyped()]
    )
    graph = load(made).graph
    assert graph.inputs[0].shape is None and graph.outputs[0].dtype is graph.inputs[0].dtype
    np.testing.assert_array_equal(run(made)[0], [0, 2, -1, 2])


def test_unsorted_nodes_with_a_branch() -> None:
    late = node(
        "If",
        "c",
        "b",
        then_branch=body([node("Neg", "a", "t")], [], "t"),
        else_branch=body([node("Abs", "x", "e")], [], "e"),
    )
    made = model([node("Add", "b a"), late, node("Relu", "x", "a")], const("c", True, bool))
    assert [n.op_type for n in load(made).graph.nodes] == ["Relu", "If", "Add"]
    np.testing.assert_array_equal(run(made)[0], [0, 0])


def test_stated_shapes_are_ignored() -> None:
    """A stale value_info must not let an optimization take the Reshape for nothing."""
    made = model([node("Reshape", "x s", "a"), node("Relu", "a")], const("s", [2, 1]), outputs=[value("y", F, [2])])
    made.graph.value_info.append(value("a", F, [2]))
    for level in ("disabled", "all"):
        assert run(made, level=level)[0].shape == (2, 1)


def test_stated_shapes_are_kept_apart() -> None:
    loaded = load(model(node("NonZero", "x"), outputs=[value("y", I64, [1, "found"])]))
    (made,) = loaded.graph.outputs
    assert made.type == TensorType(made.dtype)
    normalize(loaded)
    assert loaded.graph.outputs[0].type == TensorType(made.dtype, (1, None))
    assert loaded.declared_outputs["y"] == TensorType(made.dtype, (1, "found"))


def test_a_long_vector_is_not_computed_with() -> None:
    made = load(model([node("Shape", "x", "s"), node("Add", "x x")], inputs=[value("x", F, [50_000_000])]))
    normalize(made)
    assert made.graph.outputs[0].shape == (50_000_000,)


def test_old_imports() -> None:
    made = model(node("Relu", "x"), ir=2)
    del made.opset_import[:]
    assert load(made).opsets == {"": 1}


@pytest.mark.parametrize("domain", ["ai.onnx", ""])
def test_both_names_of_the_default_domain(domain: str) -> None:
    made = model(node("Relu", "x", domain="ai.onnx"))
    made.opset_import[0].domain = domain
    np.testing.assert_array_equal(run(made)[0], [0, 2])


def test_metadata() -> None:
    made = model(node("Relu", "x"))
    made.producer_name, made.producer_version, made.domain, made.model_version = "p", "1", "d", 7
    made.doc_string = "about"
    helper.set_model_props(made, {"key": "text"})
    loaded = load(made)
    assert (loaded.producer_name, loaded.producer_version, loaded.domain, loaded.model_version) == ("p", "1", "d", 7)
    assert (loaded.doc, loaded.metadata) == ("about", {"key": "text"})


def test_attributes_without_a_kind() -> None:
    """The oldest exporters left it out."""
    leaky = node("LeakyRelu", "x")
    leaky.attribute.add(name="alpha", f=0.5)
    np.testing.assert_array_equal(run(model(leaky))[0], [-0.5, 2])


@pytest.mark.parametrize("stated", [F, I64])
@pytest.mark.parametrize(
    "content", [np.array(["a", "b"], object), np.array([1.5, 2.5], np.float32)], ids=["str", "f32"]
)
def test_a_constants_type_comes_from_its_contents(content: Any, stated: int) -> None:
    """onnxruntime makes initializers of Constants, and does not look at what the file says of them."""
    kind = TensorProto.STRING if content.dtype == object else F
    nodes = [node("Constant", "", "c", value=const("", content)), node("Equal", "x c")]
    made = model(nodes, inputs=[value("x", kind, [2])], outputs=[value("y", TensorProto.BOOL, [2]), value("c", stated)])
    made.graph.value_info.append(value("c", stated, [2]))
    equal, constant = run(made, {"x": content[[0, 0]]})
    assert equal.tolist() == [True, False] and constant.tolist() == content.tolist()

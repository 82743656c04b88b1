"""The wire scan: what is split off comes back the same, and damage is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from sardonyx.errors import InvalidProtobuf, SardonyxError
from sardonyx.model import wire
from sardonyx.model.load import load

DTYPES = ("float32", "float64", "int64", "int32", "uint8", "float16", "uint64")


def tensor(name: str, elements: int, dtype: str, raw: bool) -> onnx.TensorProto:
    array = (np.arange(elements) % 200 + 1).astype(dtype)
    if raw:
        return numpy_helper.from_array(array, name)
    return helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(array.dtype), [elements], array)


tensors = st.builds(
    tensor,
    st.sampled_from(["a", "b", "some longer name"]),
    st.sampled_from([0, 1, 10, 200, 1000, 5000]),
    st.sampled_from(DTYPES),
    st.booleans(),
)


@st.composite
def models(draw: Any) -> onnx.ModelProto:
    """Tensors wherever the format has room for them: initializers, Constant nodes, subgraphs, functions."""
    initializers = draw(st.lists(tensors, max_size=3))
    nodes = [
        helper.make_node("Constant", [], [f"k{i}"], value=t) for i, t in enumerate(draw(st.lists(tensors, max_size=2)))
    ]
    inner = draw(st.lists(tensors, max_size=2))
    if inner:
        branch = helper.make_graph(
            [helper.make_node("Constant", [], ["u"], value=t) for t in inner], "b", [], [], inner
        )
        nodes.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    graph = helper.make_graph(nodes, "g", [], [], initializers)
    held = [helper.make_node("Constant", [], ["r"], value=t) for t in draw(st.lists(tensors, max_size=1))]
    functions = [helper.make_function("f", "F", [], ["r"], held, [helper.make_opsetid("", 20)])] if held else []
    made = helper.make_model(graph, functions=functions)
    made.doc_string = "d" * draw(st.sampled_from([0, 3000]))
    return made


def attach(message: Any, skeleton: wire.Skeleton, source: bytes) -> None:
    """Put every payload back to where it was cut out."""
    if isinstance(message, TensorProto):
        marks = [e for e in message.external_data if e.key == skeleton.key]
        if marks:
            span = skeleton.spans[int(marks[0].value)]
            payload = source[span.offset : span.offset + span.nbytes]
            message.ClearField("external_data")
            message.ClearField("data_location")
            message.MergeFromString(wire.varint(span.field << 3 | 2) + wire.varint(span.nbytes) + payload)
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in value if isinstance(value, (list,)) or hasattr(value, "__len__") else [value]:
                attach(item, skeleton, source)


@settings(max_examples=60)
@given(models())
def test_split_and_attach_is_the_identity(model: onnx.ModelProto) -> None:
    source = model.SerializeToString()
    skeleton = wire.split(memoryview(source))
    back = onnx.ModelProto.FromString(skeleton.data)
    attach(back, skeleton, source)
    assert back == model


@settings(max_examples=30)
@given(models())
def test_nothing_large_stays_in_the_skeleton(model: onnx.ModelProto) -> None:
    skeleton = wire.split(memoryview(model.SerializeToString()))
    text = len(model.doc_string)
    tensors_and_names = 200 * 20 + wire.LIMIT * 12
    assert len(skeleton.data) < text + tensors_and_names
    assert all(span.nbytes > wire.LIMIT for span in skeleton.spans)


def small_model() -> bytes:
    add = helper.make_node("Add", ["x", "w"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [400])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [400])
    graph = helper.make_graph([add], "g", [x], [y], [tensor("w", 400, "float32", True)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10).SerializeToString()


def test_every_truncation_is_found_or_loads() -> None:
    whole = small_model()
    for length in range(len(whole)):
        try:
            load(whole[:length])
        except SardonyxError:
            continue


def test_truncation_inside_a_weight_is_invalid_protobuf() -> None:
    whole = small_model()
    middle = whole.index(numpy_helper.to_array(tensor("w", 400, "float32", True)).tobytes()) + 800
    with pytest.raises(InvalidProtobuf, match="truncated"):
        load(whole[:middle])


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_any_bytes_end_in_our_errors(data: bytes) -> None:
    with pytest.raises(SardonyxError):
        load(data)


def test_payloads_are_views_of_the_source() -> None:
    source = small_model()
    weight = load(source).graph.initializers["w"]
    assert weight.const is not None and not weight.const.is_loaded
    view = weight.numpy()
    assert np.shares_memory(view, np.frombuffer(source, np.uint8)) or not view.flags.owndata
    assert not view.flags.writeable

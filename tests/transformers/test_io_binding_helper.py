"""onnxruntime.transformers.io_binding_helper's names for types, with and without torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.transformers.io_binding_helper import IOBindingHelper, TypeHelper


@pytest.fixture
def session() -> sardonyx.InferenceSession:
    node = helper.make_node("Cast", ["input_ids"], ["logits"], to=TensorProto.FLOAT)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n"])],
    )
    return sardonyx.InferenceSession(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    )


def test_types(session: sardonyx.InferenceSession) -> None:
    assert TypeHelper.get_input_type(session, "input_ids") == "tensor(int64)"
    assert TypeHelper.get_output_type(session, "logits") == "tensor(float)"
    assert TypeHelper.get_io_numpy_type_map(session) == {"input_ids": np.int64, "logits": np.float32}
    assert TypeHelper.get_io_onnx_type_map(session) == {"input_ids": TensorProto.INT64, "logits": TensorProto.FLOAT}
    assert TypeHelper.ort_type_to_numpy_type("tensor(bool)") is bool
    assert TypeHelper.ort_type_to_onnx_type("tensor(bfloat16)") == TensorProto.BFLOAT16
    for call in (
        lambda: TypeHelper.get_input_type(session, "logits"),
        lambda: TypeHelper.get_output_type(session, "input_ids"),
        lambda: TypeHelper.ort_type_to_numpy_type("tensor(bfloat16)"),
        lambda: TypeHelper.ort_type_to_torch_type("tensor(string)"),
        lambda: TypeHelper.ort_type_to_onnx_type("seq(tensor(float))"),
        lambda: TypeHelper.numpy_type_to_torch_type(np.datetime64),
        lambda: TypeHelper.torch_type_to_numpy_type("torch.bfloat16"),
    ):
        with pytest.raises(ValueError):
            call()


def test_every_type_is_onnxruntimes() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    from onnxruntime.transformers.io_binding_helper import TypeHelper as Theirs

    kinds = ("float", "double", "float16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "complex64")
    for kind in kinds:
        name = f"tensor({kind})"
        numpy_type, torch_type = Theirs.ort_type_to_numpy_type(name), Theirs.ort_type_to_torch_type(name)
        assert TypeHelper.ort_type_to_numpy_type(name) is numpy_type
        assert TypeHelper.ort_type_to_torch_type(name) is torch_type
        assert TypeHelper.ort_type_to_onnx_type(name) == Theirs.ort_type_to_onnx_type(name)
        assert TypeHelper.numpy_type_to_torch_type(numpy_type) is torch_type
        assert TypeHelper.torch_type_to_numpy_type(torch_type) is numpy_type


def test_bound_tensors(session: sardonyx.InferenceSession) -> None:
    torch: Any = pytest.importorskip("torch")
    shapes = {"logits": [3]}
    buffers = IOBindingHelper.get_output_buffers(session, shapes, "cpu")
    binding = IOBindingHelper.prepare_io_binding(session, torch.tensor([3, 1, 2]), None, None, None, buffers, shapes)
    session.run_with_iobinding(binding)
    (got,) = IOBindingHelper.get_outputs_from_io_binding_buffer(session, buffers, shapes)
    assert got.tolist() == [3, 1, 2] and got.dtype == np.float32


def test_importing_it_does_not_load_torch() -> None:
    program = (
        "import sardonyx, sys; sardonyx.as_onnxruntime()\n"
        "from onnxruntime.transformers.io_binding_helper import TypeHelper, IOBindingHelper\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

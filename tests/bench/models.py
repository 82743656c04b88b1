"""Models of these tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save


def product(path: Path, batch: str | int = "batch", inner: int = 8) -> Path:
    """y = relu(x @ w), with x of [batch, inner]."""
    w = np.random.default_rng(7).standard_normal((inner, 16)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, inner])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 16])
    graph = helper.make_graph(nodes, "product", [x], [y], [numpy_helper.from_array(w, "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path

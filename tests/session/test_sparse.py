"""Sparse tensors through a session: fed to SparseToDenseMatMul, and given back where an output is declared sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx as ort
from sardonyx.errors import InvalidArgument

A_SHAPE = (5, 4)


def value_info(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name=name)
    info.type.sparse_tensor_type.elem_type = TensorProto.FLOAT
    for d in shape:
        info.type.sparse_tensor_type.shape.dim.add(dim_value=d)
    return info


def product(a_shape: tuple[int, ...], **attrs: Any) -> bytes:
    node = helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], domain="com.microsoft", **attrs)
    dense = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in ("b", "y")]
    graph = helper.make_graph([node], "g", [value_info("a", a_shape), dense[0]], dense[1:])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def sparse_value(module: Any, dense: Any, form: str) -> Any:
    device = module.OrtDevice.make("cpu", 0)
    rows, columns = np.nonzero(dense)
    if form == "coo":
        at = np.stack([rows, columns], 1).astype(np.int64)
        tensor = module.SparseTensor.sparse_coo_from_numpy(
            list(dense.shape), dense[rows, columns], at.reshape(-1), device
        )
    else:
        outer = np.concatenate([[0], np.cumsum((dense != 0).sum(1))])
        tensor = module.SparseTensor.sparse_csr_from_numpy(
            list(dense.shape), dense[rows, columns], columns.astype(np.int64), outer.astype(np.int64), device
        )
    return module.OrtValue.ort_value_from_sparse_tensor(tensor)


@pytest.mark.parametrize("form", ["coo", "csr"])
@pytest.mark.parametrize(
    "attrs", [{}, {"alpha": 0.5}, {"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1}], ids=str
)
def test_sparse_times_dense(form: str, attrs: dict[str, Any]) -> None:
    theirs = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(5)
    a = rng.standard_normal(A_SHAPE).astype(np.float32)
    a[rng.random(A_SHAPE) < 0.6] = 0
    a[2] = 0
    b = rng.standard_normal((A_SHAPE[0 if attrs.get("transA") else 1], 3)).astype(np.float32)
    if attrs.get("transB"):
        b = np.ascontiguousarray(b.T)
    model, results = product(A_SHAPE, **attrs), []
    for module in (ort, theirs):
        session = module.InferenceSession(model, providers=["CPUExecutionProvider"])
        feed = {"a": sparse_value(module, a, form), "b": module.OrtValue.ortvalue_from_numpy(b)}
        results.append(session.run_with_ort_values(["y"], feed)[0].numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6, atol=1e-6)


def test_matrices_of_incompatible_shapes_are_refused() -> None:
    session = ort.InferenceSession(product(A_SHAPE))
    feed = {"a": sparse_value(ort, np.eye(5, 4, dtype=np.float32), "coo"), "b": np.ones((5, 2), np.float32)}
    with pytest.raises(InvalidArgument, match="do not fit"):
        session.run(None, feed)


@pytest.mark.parametrize("as_initializer", [False, True])
@pytest.mark.parametrize("declared_sparse", [False, True])
def test_a_sparse_constant_as_output(as_initializer: bool, declared_sparse: bool) -> None:
    values, at = np.array([1.5, -2.0, 3.0], np.float32), np.array([2, 3, 5])
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(values, "y"), numpy_helper.from_array(at.astype(np.int64), "at"), [3, 3]
    )
    nodes = [] if as_initializer else [helper.make_node("Constant", [], ["y"], sparse_value=sparse)]
    out = value_info("y", (3, 3)) if declared_sparse else helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 3])
    graph = helper.make_graph(nodes, "g", [], [out], sparse_initializer=[sparse] if as_initializer else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString())
    (meta,) = session.get_outputs()
    (y,) = session.run(None, {})
    if declared_sparse:
        assert meta.type == "sparse_tensor(float)" and y.dense_shape() == [3, 3]
        assert y.values().tolist() == values.tolist() and y.as_coo_view().indices().tolist() == at.tolist()
    else:
        assert meta.type == "tensor(float)"
        assert y.reshape(-1)[at].tolist() == values.tolist() and np.count_nonzero(y) == 3

"""Constants of every type, in every field that may hold them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sardonyx import dtypes
from sardonyx.interpret.context import RunContext
from sardonyx.model.load import load
from sardonyx.session.build import BuildOptions, build
from tests.model.hostile.cases import const, model, node, untyped, value

KNOWN = [t for t in dtypes.every() if t is not dtypes.string and t.onnx in TensorProto.DataType.values()]


def sample(dtype: dtypes.DType, n: int) -> np.ndarray[Any, Any]:
    if dtype.kind == "bool":
        return np.arange(n) % 3 == 0
    if dtype.kind == "complex":
        return (np.arange(n) + 1j * np.arange(n)[::-1]).astype(dtype.numpy)
    limit = 2 ** (dtype.bits - 1) if dtype.kind == "int" else 2**dtype.bits
    codes = np.arange(n) % min(limit, 100)
    if dtype.kind == "int":
        codes -= min(limit, 100) // 2
    return (
        codes.astype(dtype.numpy)
        if dtype.bits > 8 or dtype.is_integer
        else (codes % 3).astype(np.float32).astype(dtype.numpy)
    )


def loaded(tensor: onnx.TensorProto) -> np.ndarray[Any, Any]:
    newest = onnx.defs.onnx_opset_version()
    made = model(node("Identity", "c"), tensor, outputs=[untyped()], opset=newest, ir=onnx.IR_VERSION)
    return load(made, infer=False).graph.initializers["c"].numpy()


@pytest.mark.parametrize("n", [7, 3001])
@pytest.mark.parametrize("dtype", KNOWN, ids=str)
def test_raw(dtype: dtypes.DType, n: int) -> None:
    expected = sample(dtype, n)
    got = loaded(numpy_helper.from_array(expected, "c"))
    assert got.dtype == expected.dtype and got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("n", [7, 3001])
@pytest.mark.parametrize("dtype", [t for t in KNOWN if t.bits != 6], ids=str)
def test_typed_fields(dtype: dtypes.DType, n: int) -> None:
    expected = sample(dtype, n)
    tensor = helper.make_tensor("c", dtype.onnx, [n], expected)
    assert not tensor.raw_data
    got = loaded(tensor)
    assert got.dtype == expected.dtype and got.tobytes() == expected.tobytes()


def test_strings() -> None:
    words = np.array(["", "plain", "äöü", "雪"], object)
    assert loaded(numpy_helper.from_array(words, "c")).tolist() == words.tolist()
    odd = TensorProto(name="c", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff"])
    assert loaded(odd).item().encode("utf-8", "surrogateescape") == b"\xff"


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (1, 1, 1), (2, 3, 4)])
def test_shapes(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    got = loaded(numpy_helper.from_array(array, "c"))
    assert got.shape == shape and (got == array).all()


def test_unaligned_weights_are_right() -> None:
    made = model(node("Identity", "c"), const("c", np.arange(999.0)), outputs=[untyped()])
    for shift in range(9):
        made.graph.name = "g" * (shift + 1)
        array = load(made).graph.initializers["c"].numpy()
        assert array.flags.aligned and (array == np.arange(999)).all()


def sparse(name: str, indices: Any) -> onnx.SparseTensorProto:
    return onnx.SparseTensorProto(values=const(name, [5.0, 7.0]), indices=const("", indices, np.int64), dims=[2, 3])


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "coordinates"])
@pytest.mark.parametrize("level", ["disabled", "all"])
def test_sparse_constants(indices: Any, level: str) -> None:
    """As initializer, as Constant node, and in a subgraph: readers get dense tensors."""
    branch = helper.make_graph(
        [node("Mul", "t x", "u")], "b", [], [untyped("u")], sparse_initializer=[sparse("t", indices)]
    )
    made = model(
        [
            node("Add", "x s", "a"),
            node("Constant", "", "k", sparse_value=sparse("", indices)),
            node("Add", "a k", "b"),
            node("If", "c", "d", then_branch=branch, else_branch=branch),
            node("Add", "b d"),
        ],
        sparse("s", indices),
        const("c", True, bool),
        inputs=[value("x", TensorProto.FLOAT, [2, 3])],
    )
    dense = np.array([[0, 5, 0], [0, 0, 7]], np.float32)
    x = np.full((2, 3), 3, np.float32)
    engine = build(made.SerializeToString(), BuildOptions(level=level))
    np.testing.assert_array_equal(engine.run({"x": x}, ["y"], RunContext())[0], x + dense + dense + dense * x)


def test_bfloat16_agrees_with_ml_dtypes() -> None:
    array = np.array([1.5, -2.25, 3e38], ml_dtypes.bfloat16)
    assert loaded(numpy_helper.from_array(array, "c")).dtype == ml_dtypes.bfloat16

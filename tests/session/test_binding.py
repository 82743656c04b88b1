"""Runs from and into bound memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from onnx import TensorProto

import sardonyx as ort
from sardonyx.capi import onnxruntime_pybind11_state as native
from tests.session.models import MATMUL, MUL, SEQUENCE, X, identity, serialized


@pytest.fixture
def session() -> ort.InferenceSession:
    return ort.InferenceSession(serialized(MUL))


def test_bound_arrays_are_read_at_every_run(session: ort.InferenceSession) -> None:
    binding = session.io_binding()
    x = X.copy()
    binding.bind_cpu_input("X", x)
    binding.bind_output("Y")
    assert [v.has_value() for v in binding.get_outputs()] == [False]
    with pytest.raises(RuntimeError, match="no values yet"):
        binding.copy_outputs_to_cpu()
    for factor in (1, 3):
        x[:] = X * factor
        binding.synchronize_inputs()
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], X * X * factor)
    (value,) = binding.get_outputs()
    assert value.shape() == [3, 2]
    assert isinstance(binding.get_outputs_as_ortvaluevector(), native.OrtValueVector)
    first = binding.copy_outputs_to_cpu()[0]
    first[:] = 0
    assert value.numpy().any()


def test_runs_of_shapes_that_ran_before() -> None:
    text = """
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n, 3] x, float[n, 3] w) => (float[n, 3] y, float[n, 3] z) { y = Mul(x, w) z = Sub(y, x) }"""
    session = ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    rng = np.random.default_rng(0)

    def random(n: int) -> Any:
        return rng.standard_normal((n, 3)).astype("f")

    binding, x, w = session.io_binding(), random(4), random(4)
    y, z = np.zeros_like(x), np.zeros_like(x)
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("w", w)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(y))

    def run() -> None:
        for _ in range(3):
            x[:], y[:] = random(len(x)), 0
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(y, x * w)

    run()
    binding.bind_output("z")
    run()
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], x * w - x)
    binding.bind_ortvalue_output("z", ort.OrtValue.ortvalue_from_numpy(z))
    run()
    np.testing.assert_array_equal(z, x * w - x)
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(w))  # is read, too
    was = w.copy()
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(w, x * was)
    x, w = random(5), random(5)
    binding.bind_cpu_input("x", x)
    binding.bind_cpu_input("w", w)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="invalid dimensions for output"):
            session.run_with_iobinding(binding)
    y, z = np.zeros_like(x), np.zeros_like(x)
    for name, value in (("y", y), ("z", z)):
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(value))
    run()
    np.testing.assert_array_equal(z, x * w - x)
    binding.clear_binding_inputs()
    with pytest.raises(RuntimeError, match="missing from input feed"):
        session.run_with_iobinding(binding)


@pytest.mark.parametrize("spec", [np.float32, TensorProto.FLOAT])
def test_memory_by_address(session: ort.InferenceSession, spec: Any) -> None:
    x, y = X.copy(), np.zeros_like(X)
    binding = session.io_binding()
    binding.bind_input("X", "cpu", 0, spec, [3, 2], x.ctypes.data)
    binding.bind_output("Y", "cpu", 0, spec, [3, 2], y.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y, X * X)
    assert binding.get_outputs()[0].data_ptr() == y.ctypes.data


def test_values_are_bound(session: ort.InferenceSession) -> None:
    target = ort.OrtValue.ortvalue_from_shape_and_type([3, 2], np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_output("Y", target)
    for factor in (1, 2):
        binding.bind_ortvalue_input("X", ort.OrtValue.ortvalue_from_numpy(X * factor))
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(target.numpy(), X * X * factor)


@pytest.mark.parametrize(
    "dtype", [np.float64, np.int8, np.uint16, np.bool_, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
)
def test_types_by_address(dtype: Any) -> None:
    x = np.array([0, 1, 1, 0]).astype(dtype)
    value = native.OrtValue.ortvalue_from_numpy(x, native.OrtDevice(0, 0, 0))
    session = ort.InferenceSession(identity(value.element_type(), ["n"]))
    y = ort.OrtValue.ortvalue_from_shape_and_type([4], value.element_type())
    binding = native.SessionIOBinding(session._sess)
    binding.bind_input("x", native.OrtDevice(0, 0, 0), value.element_type(), [4], value.data_ptr())
    binding.bind_output("y", native.OrtDevice(0, 0, 0), value.element_type(), [4], y.data_ptr())
    session._sess.run_with_iobinding(binding, None)
    assert y.numpy().dtype == x.dtype and y.numpy().tobytes() == x.tobytes()


def test_mistakes(session: ort.InferenceSession) -> None:
    binding = session.io_binding()
    with pytest.raises(RuntimeError, match="Failed to find NodeArg with name: Z"):
        binding.bind_cpu_input("Z", X)
    with pytest.raises(RuntimeError, match="Unable to create OrtValue"):
        binding.bind_cpu_input("X", [1])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="At least one output should be requested"):
        session.run_with_iobinding(binding)
    with pytest.raises(ValueError, match="are to be provided"):
        binding.bind_output("Y", buffer_ptr=X.ctypes.data)
    with pytest.raises(RuntimeError, match="not present"):
        binding.bind_input("X", "cuda", 0, np.float32, [3, 2], X.ctypes.data)
    with pytest.raises(RuntimeError, match="the address of the memory is 0"):
        binding.bind_input("X", "cpu", 0, np.float32, [3, 2], 0)
    binding.bind_output("Y")
    with pytest.raises(RuntimeError, match=r"Error in execution: .*missing"):
        session.run_with_iobinding(binding)
    binding.bind_cpu_input("X", X[0])
    with pytest.raises(RuntimeError, match="Error in execution: Invalid rank for input: X"):
        session.run_with_iobinding(binding)
    binding.bind_cpu_input("X", X)
    y = np.zeros((3, 2), np.float32)
    binding.bind_output("Y", "cpu", 0, np.float32, [2, 3], y.ctypes.data)
    with pytest.raises(RuntimeError, match="Got invalid dimensions for output: Y"):
        session.run_with_iobinding(binding)
    binding.bind_output("Y", "cpu", 0, np.int32, [3, 2], y.ctypes.data)
    with pytest.raises(RuntimeError, match="Unexpected output data type"):
        session.run_with_iobinding(binding)
    with pytest.raises(ValueError, match="the session that created it"):
        ort.InferenceSession(serialized(MUL)).run_with_iobinding(binding)
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    assert binding.get_outputs() == []
    sequences = ort.InferenceSession(serialized(SEQUENCE)).io_binding()
    with pytest.raises(RuntimeError, match="Only binding Tensors"):
        sequences.bind_cpu_input("s", [np.ones((1, 1), np.int64)])  # type: ignore[arg-type]


def test_a_growing_output_is_given_anew() -> None:
    session = ort.InferenceSession(serialized(MATMUL))
    binding = session.io_binding()
    binding.bind_output("Y")
    for n in (1, 3):
        binding.bind_cpu_input("X", X[:n])
        session.run_with_iobinding(binding)
        assert binding.get_outputs()[0].shape() == [n, 1]


def test_an_output_that_is_none() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> g () => (y) {
        y = Optional <type: type_proto = float[2]> ()
    }"""
    session = ort.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    binding = session.io_binding()
    binding.bind_output("y")
    for _ in range(2):
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu() == [None]
        assert [v.has_value() for v in binding.get_outputs()] == [False]


def test_session_values(session: ort.InferenceSession) -> None:
    value = session.create_ortvalue_from_shape_and_type([3, 2], np.float32, "cpu")
    value.update_inplace(X)
    np.testing.assert_array_equal(session.run(None, {"X": value})[0], X * X)

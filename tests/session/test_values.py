"""OrtValues, their memory, DLPack, sparse tensors, devices."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

import sardonyx as ort
from sardonyx.capi import onnxruntime_pybind11_state as native
from sardonyx.errors import InvalidArgument
from sardonyx.ir.sparse import SparseTensor as Coordinates
from sardonyx.session import dlpack
from tests.session.models import MUL, X, serialized

CPU = ort.OrtDevice.make("cpu", 0)
of = ort.OrtValue.ortvalue_from_numpy


def test_a_tensor_shares_its_arrays_memory() -> None:
    x = X.copy()
    value = of(x)
    assert (value.shape(), value.data_type(), value.element_type()) == ([3, 2], "tensor(float)", TensorProto.FLOAT)
    assert value.tensor_size_in_bytes() == 24 and value.device_name() == "cpu"
    assert value.is_tensor() and value.has_value() and not value.is_sparse_tensor() and not value.is_tensor_sequence()
    assert value.data_ptr() == x.ctypes.data == value.numpy().ctypes.data == np.asarray(value).ctypes.data
    assert np.asarray(value, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(value, copy=True), x)
    with pytest.raises(ValueError):
        np.array(value, dtype=np.float64, copy=False)
    value.update_inplace(X * 2)
    assert x.tolist() == (X * 2).tolist()
    value.update_inplace(of(X))
    assert x.tolist() == X.tolist()
    value.update_inplace(np.arange(6).reshape(2, 3))
    assert x.reshape(-1).tolist() == list(range(6))


def test_tensors_that_are_refused() -> None:
    for wrong in ([1, 2], np.array(["a"])):
        with pytest.raises(RuntimeError, match="only supported from non-string numpy arrays"):
            of(wrong)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not present"):
        of(X, "cuda")
    with pytest.raises(Exception, match="Unsupported device type: foo"):
        of(X, "foo")
    with pytest.raises(RuntimeError, match="does not match the size"):
        of(X.copy()).update_inplace(X[:2])
    with pytest.raises(TypeError):
        of(X.copy()).update_inplace([1])
    with pytest.raises(RuntimeError, match="does not contain SparseTensor"):
        of(X).as_sparse_tensor()
    with pytest.raises(ValueError):
        ort.OrtValue(X)  # type: ignore[arg-type]


def test_tensors_by_shape_and_type() -> None:
    make = ort.OrtValue.ortvalue_from_shape_and_type
    assert make([2, 3], np.float16).data_type() == "tensor(float16)"
    assert make([2, 3], ml_dtypes.bfloat16).element_type() == TensorProto.BFLOAT16
    assert make([2, 3], TensorProto.FLOAT8E4M3FN).numpy().dtype == ml_dtypes.float8_e4m3fn
    assert make([2, 3], TensorProto.INT4).tensor_size_in_bytes() == 3
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    assert make([2], np.int64, memory_info=info).shape() == [2]
    for spec in (99, np.str_, TensorProto.STRING):
        with pytest.raises(RuntimeError):
            make([2], spec)
    with pytest.raises(RuntimeError):
        make([-2], np.float32)


def test_arrays_read_as_another_type() -> None:
    read = ort.OrtValue.ortvalue_from_numpy_with_onnx_type
    bits = np.array([0x3F80, 0xC000], np.uint16)
    value = read(bits, TensorProto.BFLOAT16)
    assert value.numpy().tolist() == [1.0, -2.0] and value.data_ptr() == bits.ctypes.data
    assert read(np.array([0x21, 0xF3], np.uint8), TensorProto.INT4).numpy().tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="Items size"):
        read(X, TensorProto.DOUBLE)


@pytest.mark.parametrize(
    "dtype",
    [np.float32, np.int8, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2],
)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (1, 8, 0)])
def test_dlpack_goes_both_ways(dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.ones(shape).astype(dtype)
    value = of(array)
    capsule = value.__dlpack__()
    assert native.is_dlpack_uint8_tensor(capsule) is False
    again = native.OrtValue.from_dlpack(capsule, False)
    assert again.numpy().dtype == array.dtype and again.shape() == list(shape)
    if array.size:
        assert again.data_ptr() == value.data_ptr()
    assert again.numpy().tobytes() == array.tobytes()
    with pytest.raises(TypeError, match="valid DLPack capsule"):
        native.OrtValue.from_dlpack(value.__dlpack__, False)
    assert value.__dlpack_device__() == (1, 0)


def test_dlpack_memory_lives_as_long_as_its_views() -> None:
    value = ort.OrtValue.from_dlpack(np.arange(1000, dtype=np.float32))
    gc.collect()
    np.testing.assert_array_equal(np.from_dlpack(value), np.arange(1000))  # type: ignore[arg-type]
    capsule = value.__dlpack__()
    ort.OrtValue.from_dlpack(capsule)
    with pytest.raises(TypeError):
        ort.OrtValue.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="contiguous"):
        ort.OrtValue.from_dlpack(X.T)
    flags = np.array([True, False])
    assert ort.OrtValue.from_dlpack(flags).data_type() == "tensor(bool)"
    assert dlpack.array_of(of(flags)).dtype == np.bool_


def test_vectors() -> None:
    vector = native.OrtValueVector()
    vector.push_back(of(X)._ortvalue)
    vector.push_back(np.array([True]).__dlpack__(), True)
    vector.push_back_batch([X], [X.ctypes.data], [np.float32], [[3, 2]], [CPU._get_c_device()])
    assert len(vector) == 3 and vector.bool_tensor_indices() == [1] and vector.element_type_at(0) == 1
    assert [v.shape() for v in vector] == [[3, 2], [1], [3, 2]] and vector[2].data_ptr() == X.ctypes.data
    with pytest.raises(IndexError):
        vector[3]
    session = ort.InferenceSession(serialized(MUL))
    feeds, fetches = native.OrtValueVector(), native.OrtValueVector()
    feeds.push_back(of(X)._ortvalue)
    for _ in range(2):
        session.run_with_ortvaluevector(ort.RunOptions(), ["X"], feeds, ["Y"], fetches, [CPU._get_c_device()])
        np.testing.assert_array_equal(fetches[0].numpy(), X * X)


def test_running_with_values() -> None:
    session = ort.InferenceSession(serialized(MUL))
    (value,) = session.run_with_ort_values(["Y"], {"X": of(X)})
    np.testing.assert_array_equal(value.numpy(), X * X)
    assert isinstance(
        session._sess.run_with_ort_values({"X": of(X)._get_c_value()}, ["Y"], None), native.OrtValueVector
    )
    with pytest.raises(AttributeError):
        session.run_with_ort_values(["Y"], {"X": X})  # type: ignore[dict-item]


def test_copying() -> None:
    target = X.copy() * 0
    ort.copy_tensors([of(X)], [of(target)])
    np.testing.assert_array_equal(target, X)
    for sources, targets in (([of(X)], []), ([of(X)], [of(X[:1].copy())])):
        with pytest.raises(RuntimeError):
            ort.copy_tensors(sources, targets)


def test_values_are_pickled() -> None:
    twin = pickle.loads(pickle.dumps(of(X)))
    np.testing.assert_array_equal(twin.numpy(), X)


# -- sparse


@pytest.mark.parametrize("values", [np.array([1, 2, 3], np.float32), np.array(["xyz", "yxz", "zyx"])])
def test_coordinates(values: Any) -> None:
    at = np.array([3, 5, 15], np.int64)
    tensor = ort.SparseTensor.sparse_coo_from_numpy([9, 9], values, at, CPU)
    value = ort.OrtValue.ort_value_from_sparse_tensor(tensor)
    assert value.is_sparse_tensor() and not value.is_tensor() and value.shape() == [9, 9]
    again = value.as_sparse_tensor()
    assert again.format() == ort.OrtSparseFormat.ORT_SPARSE_COO and again.dense_shape() == [9, 9]
    assert again.data_type() == value.data_type() and again.device_name() == "cpu"
    assert np.array_equal(again.values(), values) and np.array_equal(again.as_coo_view().indices(), at)
    assert not again.values().flags.writeable and not again.as_coo_view().indices().flags.writeable
    with pytest.raises(RuntimeError, match="does not contain CSR"):
        again.as_csrc_view()
    with pytest.raises(RuntimeError, match="BlockSparse"):
        again.as_blocksparse_view()
    with pytest.raises(RuntimeError, match="Cuda is not available"):
        again.to_cuda(ort.OrtDevice.make("cuda", 0))
    with pytest.raises(RuntimeError, match="convertible to Numpy"):
        value.numpy()


def test_the_three_formats_mean_the_same() -> None:
    dense = np.zeros((4, 6), np.float32)
    dense[2:4, 2:4] = [[1, 2], [3, 4]]
    rows, columns = np.nonzero(dense)
    values = dense[rows, columns]
    device = CPU._get_c_device()
    outer = np.searchsorted(rows, np.arange(5))
    formats = [
        native.SparseTensor.sparse_coo_from_numpy([4, 6], values, np.stack([rows, columns], 1), device),
        native.SparseTensor.sparse_csr_from_numpy([4, 6], values, columns, outer, device),
        native.SparseTensor.blocksparse_from_numpy(
            [4, 6], values.reshape(1, 2, 2), np.array([[1], [1]], np.int32), device
        ),
    ]
    for tensor in formats:
        np.testing.assert_array_equal(tensor.coordinates().to_dense(), dense)
    assert formats[1].get_csrc_data().outer().tolist() == outer.tolist()
    assert formats[2].get_blocksparse_data().indices().tolist() == [[1], [1]]


def test_sparse_tensors_that_are_refused() -> None:
    values = np.array([1, 2, 3], np.float32)
    with pytest.raises(RuntimeError, match="twice the values size"):
        ort.SparseTensor.sparse_coo_from_numpy([9, 9], values, np.array([1, 2]), CPU)
    with pytest.raises(RuntimeError, match=r"rows \+ 1"):
        ort.SparseTensor.sparse_csr_from_numpy([9, 9], values, np.array([1, 1, 1]), np.array([0, 1]), CPU)
    for at in ([0, 1, 81], [0, -1, 2], [[0, 0], [1, 9], [0, 1]]):
        with pytest.raises(InvalidArgument, match="outside the tensor"):
            Coordinates(values, at, (9, 9)).to_dense()


def test_coordinates_round_trip() -> None:
    dense = np.array([[0, 1.5], [0, -2]])
    sparse = Coordinates.from_dense(dense)
    np.testing.assert_array_equal(sparse.to_dense(), dense)
    assert sparse.linear().tolist() == [1, 3] and "2 values" in repr(sparse)
    with pytest.raises(ValueError):
        sparse.values[0] = 3


# -- devices and memory


def test_devices() -> None:
    assert (CPU.device_id(), CPU.device_type(), CPU.device_vendor_id(), CPU.device_mem_type()) == (0, 0, 0, 0)
    cuda = ort.OrtDevice.make("cuda", 1)
    assert cuda.device_vendor_id() == ort.OrtDeviceVendorId.NVIDIA and cuda.device_id() == 1
    assert ort.OrtDevice.make("gpu", 0, ort.OrtDeviceVendorId.AMD).device_vendor_id() == 0x1002
    assert native.OrtDevice(native.OrtDevice.cpu(), native.OrtDevice.default_memory(), 2).device_id() == 2


def test_memory_infos_and_arenas() -> None:
    arena = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    info = ort.OrtMemoryInfo("Cpu", arena, 0, ort.OrtMemType.DEFAULT)
    assert (info.name, info.allocator_type, info.device_id, info.mem_type) == ("Cpu", arena, 0, ort.OrtMemType.DEFAULT)
    kind, memory = ort.OrtMemoryInfoDeviceType.CPU, ort.OrtDeviceMemoryType.DEFAULT
    assert ort.OrtMemoryInfo.create_v2("Test", kind, 0, 3, memory, 128, arena).device_id == 3
    with pytest.raises(RuntimeError, match="not supported"):
        ort.OrtMemoryInfo("Foo", arena, 0, ort.OrtMemType.DEFAULT)
    config = ort.OrtArenaCfg(8, 0, 4, 2)
    assert (config.max_mem, config.arena_extend_strategy, config.max_dead_bytes_per_chunk) == (8, 0, 2)
    assert ort.OrtArenaCfg({"max_power_of_two_extend_bytes": 17}).max_power_of_two_extend_bytes == 17
    with pytest.raises(RuntimeError, match="Invalid OrtArenaCfg option: foo"):
        ort.OrtArenaCfg({"foo": 1})
    ort.create_and_register_allocator(info, None)
    ort.create_and_register_allocator_v2("CPUExecutionProvider", info, {}, config)
    with pytest.raises(RuntimeError):
        ort.create_and_register_allocator_v2("CUDAExecutionProvider", info, {}, config)

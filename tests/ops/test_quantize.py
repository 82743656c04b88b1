import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from sardonyx import dtypes, errors
from tests.ops.peers import agree, integers, meaning, normal, onnxruntime, reference, same

INTEGERS = ["i8", "u8", "i16", "u16", "i4", "u4", "i2", "u2"]
FLOATS = ["f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz", "f4e2m1", "f6e2m3", "f6e3m2"]
f32 = np.float32


def dtype_of(name):
    return dtypes.of_name(name).numpy


@pytest.mark.parametrize("name", INTEGERS)
def test_quantize_rounds_half_to_even_and_saturates(name):
    t = dtypes.of_name(name)
    low, high = (-(1 << t.bits - 1), (1 << t.bits - 1) - 1) if t.kind == "int" else (0, (1 << t.bits) - 1)
    x = np.array([-1e9, -2.5, -1.5, -0.5, 0, 0.5, 1.5, 2.5, 3.5, 1e9, np.inf, -np.inf], f32)
    zero = np.array(1, t.numpy)
    expected = np.clip(np.rint(x.astype(np.float64) / 0.5) + 1, low, high)
    (got,) = meaning("QuantizeLinear", x, np.array(0.5, f32), zero)
    assert got.dtype == t.numpy
    np.testing.assert_array_equal(got.astype(np.float64), expected)


@pytest.mark.parametrize("name", ["i8", "u8", "i16", "u16"])
@pytest.mark.parametrize("scale", [(), (3,), (2, 3, 2)])
def test_granularities(name, scale):
    x = normal(2, 3, 5) * 20
    block = 3 if len(scale) == 3 else 0
    axis = 2 if block else 1
    s = np.abs(normal(*scale)).astype(f32) + f32(0.1)
    z = np.asarray(np.abs(normal(*scale, seed=1)) * 3).astype(dtype_of(name))
    attributes = {"axis": axis, "block_size": block}
    agree("QuantizeLinear", x, np.asarray(s), z, **attributes)
    (q,) = meaning("QuantizeLinear", x, np.asarray(s), z, **attributes)
    agree("DequantizeLinear", q, np.asarray(s), z, **attributes)


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
@pytest.mark.parametrize("scale_type", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_value_survives_a_round_trip(name, scale_type):
    t = dtypes.of_name(name)
    # Six- and four-bit floats are all among the eighths up to 30; wider integers need only be sampled.
    eighths = np.arange(0 if t.kind == "uint" else -240, 241) / 8
    every = np.arange(256, dtype=np.uint8).view(t.numpy) if t.bits == 8 else eighths.astype(t.numpy)
    every = every[np.isfinite(every.astype(f32))]
    scale = np.array(0.5, scale_type)
    (wide,) = meaning("DequantizeLinear", every, scale)
    assert wide.dtype == scale_type
    np.testing.assert_array_equal(wide.astype(f32), every.astype(f32) * 0.5)
    (back,) = meaning("QuantizeLinear", wide, scale, output_dtype=t.onnx)
    assert back.dtype == t.numpy
    np.testing.assert_array_equal(back.astype(f32), every.astype(f32))


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("saturate", [0, 1])
def test_small_floats(name, saturate):
    t = dtypes.of_name(name)
    x = np.concatenate([normal(50) * 4, [0.0, 1e9, -1e9, np.inf, -np.inf, np.nan]]).astype(f32)
    if t.bits < 8:
        x = x[np.isfinite(x)]
    (got,) = meaning("QuantizeLinear", x, np.array(0.3, f32), output_dtype=t.onnx, saturate=saturate)
    top = float(ml_dtypes.finfo(t.numpy).max)
    ratio = x / f32(0.3)
    expected = (np.clip(ratio, -top, top) if saturate or t.bits < 8 else ratio).astype(t.numpy)
    np.testing.assert_array_equal(got.astype(f32), expected.astype(f32))


def test_precision_and_output_type():
    x, scale = normal(4, 6, dtype=np.float16) * np.float16(50), np.array(0.37, np.float16)
    narrow = meaning("QuantizeLinear", x, scale)[0]
    wide = meaning("QuantizeLinear", x, scale, precision=TensorProto.FLOAT)[0]
    expected = np.clip(np.rint(x.astype(f32) / scale.astype(f32)), 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(wide, expected)
    np.testing.assert_array_equal(narrow, np.clip(np.rint(x / scale), 0, 255).astype(np.uint8))
    powers = np.array(2.0, dtype_of("f8e8m0"))
    (y,) = meaning("DequantizeLinear", np.array([1, 2], np.int8), powers, output_dtype=TensorProto.BFLOAT16)
    assert y.dtype == ml_dtypes.bfloat16 and y.astype(f32).tolist() == [2, 4]


def test_dequantize_int32():
    x = integers(-(2**31), 2**31, 2, 8, dtype=np.int32)
    agree("DequantizeLinear", x, np.array(0.01, f32))


@pytest.mark.parametrize("shape", [(30,), (3, 4, 5), (1,)])
@pytest.mark.parametrize("shift", [-5.0, 0.0, 5.0])
def test_dynamic(shape, shift):
    agree("DynamicQuantizeLinear", normal(*shape) + f32(shift), outputs=3)
    agree("DynamicQuantizeLinear", np.zeros(shape, f32), outputs=3)


@pytest.mark.parametrize(
    ("scale", "zero", "attributes"),
    [
        (np.ones(4, f32), None, {}),
        (np.ones(3, f32), np.zeros(2, np.uint8), {}),
        (np.ones(3, f32), None, {"axis": 3}),
        (np.ones((2, 3, 3), f32), None, {"axis": 2, "block_size": 3}),
        (np.ones((2, 3, 2), f32), None, {"axis": 2, "block_size": -3}),
        (np.array(1, f32), np.array(0, np.uint8), {"output_dtype": onnx.TensorProto.INT8}),
    ],
)
def test_scales_that_do_not_fit(scale, zero, attributes):
    with pytest.raises(errors.InvalidArgument):
        meaning("QuantizeLinear", normal(2, 3, 5), scale, zero, **attributes)


def test_peers_agree_on_per_tensor_uint8():
    args = normal(3, 4) * 9, np.array(0.1, f32), np.array(9, np.uint8)
    same(reference("QuantizeLinear", *args), onnxruntime("QuantizeLinear", *args))

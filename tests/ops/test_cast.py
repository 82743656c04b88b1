import ml_dtypes
import numpy as np
import pytest

from sardonyx import dtypes, errors
from tests.ops.peers import agree, meaning, reference, same

PLAIN = [t for t in dtypes.every() if t.kind not in ("complex", "string") and t.bits >= 8 and t.name != "f8e8m0"]
SUBBYTE = [t for t in dtypes.every() if 0 < t.bits < 8]


@pytest.mark.parametrize("target", [*PLAIN, *SUBBYTE], ids=lambda t: t.name)
@pytest.mark.parametrize("source", [*PLAIN, *SUBBYTE], ids=lambda t: t.name)
def test_every_pair_of_types(source, target):
    values = np.array([0, 1, 1, 0, 1, 1] if source.bits < 8 or source is dtypes.bool_ else [0, 1, 2, 3, 5.5, 7])
    x = values.astype(source.numpy)
    got = meaning("Cast", x, to=target.onnx)[0]
    assert got.dtype == target.numpy and got.shape == x.shape
    plain = x.astype(np.float64)
    if target is dtypes.bool_:
        expected = plain != 0
    elif target.is_integer:
        wrap = 1 << target.bits
        expected = np.trunc(plain) % wrap
        expected = np.where((target.kind == "int") & (expected >= wrap // 2), expected - wrap, expected)
    else:
        expected = plain.astype(target.numpy)
    np.testing.assert_array_equal(got.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz"])
@pytest.mark.parametrize("source", [np.float32, np.float16])
def test_float8(name, saturate, source):
    x = np.array([0, -0.0, 1.1, -3.3, 447, 449, 465, 500, -6e4, 6e4, np.inf, -np.inf, np.nan, 1e-3, 1e-6], source)
    target = dtypes.of_name(name)
    got = meaning("Cast", x, to=target.onnx, saturate=saturate)[0].view(np.uint8)
    np.testing.assert_array_equal(got, reference("Cast", x, to=target.onnx, saturate=saturate)[0].view(np.uint8))


E8M0 = [
    ("up", 1, [1.0, 1.1, 1.5, 3.0, 0.0, np.inf, 3e38, 1e-45], [127, 128, 128, 129, 0, 254, 254, 1]),
    ("down", 1, [1.0, 1.1, 1.5, 3.0, 0.0, np.inf, 3e38, 1e-45], [127, 127, 127, 128, 0, 254, 254, 0]),
    ("nearest", 1, [1.0, 1.1, 1.5, 3.0, 0.0, np.inf, 3e38, 1.9], [127, 127, 128, 129, 0, 254, 254, 128]),
    ("nearest", 0, [1.0, 1.4, np.nan, np.inf, 3e38], [127, 127, 255, 255, 255]),
]


@pytest.mark.parametrize(("mode", "saturate", "values", "expected"), E8M0)
def test_float8e8m0(mode, saturate, values, expected):
    got = meaning("Cast", np.array(values, np.float32), to=24, saturate=saturate, round_mode=mode)[0]
    assert got.dtype == ml_dtypes.float8_e8m0fnu
    assert got.view(np.uint8).tolist() == expected


@pytest.mark.parametrize("target", [t for t in PLAIN if t.is_integer], ids=lambda t: t.name)
def test_reals_out_of_range(target):
    """Undefined by ONNX; the bits that onnxruntime gives on this machine, for what fits 32 bits."""
    x = np.array([-1.5, 300.7, 40000.7, -40000.2, 70000.9], np.float32)
    x = np.abs(x) if target.kind == "uint" else x
    agree("Cast", x, to=target.onnx)


def test_numbers_to_text():
    x = np.array([1 / 3, 1e-7, 1e10, 123456.789, 100, np.nan, np.inf, -np.inf, 0.1, -0.0, 1e20], np.float32)
    for dtype in (np.float32, np.float64):
        agree("Cast", x.astype(dtype), to=8)
    agree("Cast", np.array([1 / 3, 0.1], np.float16), to=8)
    agree("Cast", np.array([-5, 100], np.int8), to=8)
    agree("Cast", np.array([True, False]), to=8)


TEXTS = [
    ("f32", ["3.7", " 42 ", "1.5abc", "inf", "-INF", "nan", "1e3", "+.5", "7.", "-1E-2"]),
    ("f64", ["0.1", "1e300", "-Infinity"]),
    ("f16", ["1.5", "65504"]),
    ("i32", ["3.7", " 42", "1e3", "-5x"]),
    ("i64", ["-9223372036854775808", "12"]),
    ("u64", ["18446744073709551615"]),
    ("u8", ["300", "-1"]),
    ("bool", ["1", "0", "2", "0.5"]),
]


@pytest.mark.parametrize(("name", "words"), TEXTS)
def test_text_to_numbers(name, words):
    agree("Cast", np.array(words, object), to=dtypes.of_name(name).onnx, tolerance=0)


@pytest.mark.parametrize(("word", "name"), [("abc", "f32"), ("", "f64"), ("x1", "i32"), ("9" * 30, "i64")])
def test_text_that_is_no_number_is_refused(word, name):
    with pytest.raises(errors.InvalidArgument, match="string"):
        meaning("Cast", np.array([word], object), to=dtypes.of_name(name).onnx)


def test_cast_like():
    x = np.array([1.7, -2.2, 300], np.float32)
    agree("CastLike", x, np.zeros(1, np.int32), peer=reference)
    same(meaning("CastLike", x, np.array(["a"], object)), [np.array(["1.7", "-2.2", "300"], object)])


def test_bit_cast():
    x = np.array([1.0, -0.0, np.inf], np.float32)
    same(meaning("BitCast", x, to=12), [x.view(np.uint32)])
    same(meaning("BitCast", np.array([-1, 3], ml_dtypes.int4), to=21), [np.array([15, 3], ml_dtypes.uint4)])
    with pytest.raises(errors.InvalidArgument, match="32 bits"):
        meaning("BitCast", x, to=11)

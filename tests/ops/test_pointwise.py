import inspect

import ml_dtypes
import numpy as np
import onnx
import pytest

from sardonyx import dtypes, errors
from sardonyx.ops import pointwise, registry
from tests.ops.peers import agree, integers, meaning, normal, onnxruntime, reference, rounds_once, same

UNARY = [
    "Abs", "Acosh", "Asinh", "Atan", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu",
    "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Tan", "Tanh", "ThresholdedRelu",
]  # fmt: skip
ATTRIBUTES = [
    ("Celu", {"alpha": 0.3}), ("Elu", {"alpha": 2.5}), ("Selu", {"alpha": 1.5, "gamma": 0.7}),
    ("HardSigmoid", {"alpha": 0.4, "beta": 0.1}), ("LeakyRelu", {"alpha": 0.3}), ("Gelu", {"approximate": "tanh"}),
    ("Shrink", {"lambd": 0.9, "bias": 0.25}), ("ThresholdedRelu", {"alpha": 0.2}),
]  # fmt: skip
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e30, 88.8, -88.8, 0.5, 1.5, -2.5], np.float32)


@pytest.mark.parametrize("name", UNARY)
def test_unary(name):
    agree(name, normal(3, 50) * 3)
    rounds_once(name, np.float16, normal(40))
    rounds_once(name, ml_dtypes.bfloat16, normal(40))


@pytest.mark.parametrize("name", ["Asin", "Acos", "Atanh"])
def test_inverse_functions(name):
    agree(name, np.random.default_rng(0).uniform(-1, 1, 60).astype(np.float32))


@pytest.mark.parametrize(("name", "attributes"), ATTRIBUTES)
def test_attributes(name, attributes):
    agree(name, normal(3, 50) * 2, **attributes)


@pytest.mark.parametrize("name", [n for n in UNARY if n not in ("Cos", "Sin", "Tan")])
def test_special_values_without_warnings(name):
    """Infinities and NaN; the meaning must keep numpy's warnings, which are errors here, to itself."""
    found = registry.find("", name)
    got = found.numpy(SPECIAL)
    np.testing.assert_allclose(got, onnxruntime(name, SPECIAL)[0], rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_swish_and_swiglu(alpha):
    x, y = normal(4, 5), normal(4, 5, seed=1)
    agree("Swish", x, peer=reference, alpha=alpha)
    expected = x / (1 + np.exp(-alpha * x)) * y
    same(meaning("SwiGLU", x, y, alpha=alpha), [expected.astype(np.float32)])


NUMBERS = [np.float32, np.float64, np.float16, np.int32, np.int64]
SMALL = [np.int8, np.int16, np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div"])
def test_arithmetic(name, dtype):
    a = integers(-50, 50, 4, 1, 30, dtype=dtype)
    b = integers(1, 20, 7, 30, dtype=dtype, seed=1) * np.where(integers(0, 2, 7, 30) > 0, 1, -1).astype(dtype)
    agree(name, a, b, tolerance=1e-6 if dtype != np.float16 else 1e-3)


@pytest.mark.parametrize("dtype", SMALL, ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Min", "Max", "Greater", "Equal", "BitwiseXor"])
def test_integers_wrap(name, dtype):
    info = np.iinfo(dtype)
    a = np.random.default_rng(0).integers(info.min, info.max, 60, dtype, endpoint=True)
    b = np.random.default_rng(1).integers(1, info.max, 60, dtype)
    agree(name, a, b, peer=reference if name != "Div" else _c_division)


def _c_division(name, a, b):
    return [np.array([int(abs(int(x)) // int(y)) * (-1 if x < 0 else 1) for x, y in zip(a, b, strict=True)], a.dtype)]


@pytest.mark.parametrize("fmod", [0, 1])
@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.float32])
def test_mod(dtype, fmod):
    if np.dtype(dtype).kind == "f" and not fmod:
        a, b = normal(50) * 9, normal(50, seed=1)
        return same(meaning("Mod", a, b), [np.mod(a, b)])
    a, b = integers(-60, 60, 50, dtype=dtype), integers(1, 9, 50, dtype=dtype)
    return agree("Mod", a, b if np.dtype(dtype).kind == "u" else b * np.resize([1, -1], 50).astype(dtype), fmod=fmod)


@pytest.mark.parametrize("base", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("exponent", [np.float32, np.float64, np.int32, np.int64])
def test_pow_of_mixed_types(base, exponent):
    agree("Pow", integers(1, 6, 30).astype(base), integers(-2, 5, 30, seed=1).astype(exponent))


def test_pow_of_narrow_floats():
    rounds_once("Pow", np.float16, np.abs(normal(30)), normal(30, seed=1))


@pytest.mark.parametrize("name", ["Min", "Max", "Sum", "Mean"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_variadic(name, count):
    agree(name, *(normal(*([1] * (i % 2)), 3, 4, seed=i) for i in range(count)))


def test_nan_wins_min_and_max():
    x, y = SPECIAL, SPECIAL[::-1].copy()
    agree("Max", x, y)
    agree("Min", x, y)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint64, np.float64])
@pytest.mark.parametrize("bounds", [(None, None), (2, None), (None, 5), (2, 5), (5, 2)])
def test_clip(dtype, bounds):
    x = integers(0, 9, 40, dtype=dtype)
    low, high = (None if b is None else np.array(b, dtype) for b in bounds)
    expected = x if low is None else np.maximum(x, low)
    expected = expected if high is None else np.minimum(expected, high)
    same(meaning("Clip", x, low, high), [expected])


@pytest.mark.parametrize("dtype", list(dtypes.every()), ids=lambda d: d.name)
def test_where_takes_every_type(dtype):
    if dtype is dtypes.string:
        x, y = (np.array(list(w), object) for w in ("abcd", "wxyz"))
    else:
        x, y = (np.array(v).astype(dtype.numpy) for v in ([0, 1, 1, 0], [1, 0, 1, 1]))
    condition = np.array([[True], [False]])
    got = meaning("Where", condition, x, y)[0]
    assert got.dtype == x.dtype
    assert got.tobytes() == np.stack([x, y]).tobytes()


def test_equal_of_strings():
    a, b = np.array(["a", "b", "c"], object), np.array([["a"], ["c"]], object)
    agree("Equal", a, b)
    assert meaning("Equal", np.array("x", object), np.array("x", object))[0].shape == ()


@pytest.mark.parametrize("name", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_comparisons(name):
    agree(name, integers(0, 3, 4, 1, dtype=np.int32), integers(0, 3, 5, dtype=np.int32, seed=1))
    agree(name, SPECIAL, SPECIAL[::-1].copy())


@pytest.mark.parametrize("name", ["And", "Or", "Xor"])
def test_logic(name):
    agree(name, integers(0, 2, 4, 1, dtype=bool), integers(0, 2, 6, dtype=bool))


def test_not():
    agree("Not", integers(0, 2, 9, dtype=bool))
    agree("BitwiseNot", integers(-9, 9, 9, dtype=np.int16))


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(direction):
    agree("BitShift", integers(0, 255, 30, dtype=np.uint8), integers(0, 7, 30, dtype=np.uint8), direction=direction)


@pytest.mark.parametrize("negative", [0, 1])
@pytest.mark.parametrize("positive", [0, 1])
def test_is_inf(negative, positive):
    agree("IsInf", SPECIAL, detect_negative=negative, detect_positive=positive)
    agree("IsNaN", SPECIAL)


@pytest.mark.parametrize("slope", [(1,), (3, 1, 1), (4,)])
def test_prelu(slope):
    agree("PRelu", normal(2, 3, 4, 4), normal(*slope, seed=1))


def test_shapes_that_do_not_broadcast_are_refused():
    with pytest.raises(errors.InvalidArgument, match=r"Add.*broadcast.*\[3\], \[4\]"):
        meaning("Add", normal(3), normal(4))


def test_absurd_broadcasts_are_refused():
    a = np.broadcast_to(np.float32(1), (1 << 20, 1))
    with pytest.raises(errors.OutOfBudget, match="Mul"):
        registry.find("", "Mul").numpy(a, a.T)


def test_programs_can_be_found():
    program = pointwise.program_of("LeakyRelu", 1, alpha=0.5)
    assert program is not None and program.arity == 1
    assert pointwise.program_of("Clip", (True, False, True)).arity == 2
    assert pointwise.program_of("MatMul", 2) is None


def test_meanings_have_the_attributes_and_defaults_of_the_schemas():
    """Every attribute of the newest schema is a keyword, with the schema's default."""
    registry.every()
    for domain, name in pointwise.PROGRAMS:
        if domain:
            continue
        schema, found = onnx.defs.get_schema(name), registry.find("", name)
        assert found.attributes == set(schema.attributes), name
        parameters = inspect.signature(found.numpy).parameters
        for key, attribute in schema.attributes.items():
            if not attribute.required:
                default = onnx.helper.get_attribute_value(attribute.default_value)
                assert parameters[key].default == (default.decode() if isinstance(default, bytes) else default), name

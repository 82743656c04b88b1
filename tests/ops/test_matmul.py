import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import (
    agree,
    integers,
    meaning,
    multiplied_exactly,
    normal,
    onnxruntime,
    reference,
    rounds_once,
    same,
)

SHAPES = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((2, 3, 4), (4,)),
    ((2, 1, 3, 4), (5, 4, 6)),
    ((2, 3, 4), (4, 5)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint32, np.uint64])
def test_matmul(a, b, dtype):
    x, y = (normal(*s, dtype=np.float64) * 100 for s in (a, b))
    agree("MatMul", np.abs(x).astype(dtype), np.abs(y).astype(dtype), peer=onnxruntime if 0 not in a else reference)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_round_once(dtype):
    rounds_once("MatMul", dtype, normal(5, 200), normal(200, 7))
    rounds_once("Gemm", dtype, normal(5, 40), normal(40, 7), normal(7), alpha=0.3)
    rounds_once("Einsum", dtype, normal(5, 40), normal(40, 7), equation="ij,jk->ki")
    rounds_once("Det", dtype, normal(2, 4, 4))


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c", [None, (), (5,), (3, 1), (1, 5), (3, 5)])
def test_gemm(trans_a, trans_b, c):
    a = normal(*((4, 3) if trans_a else (3, 4)))
    b = normal(*((5, 4) if trans_b else (4, 5)), seed=1)
    bias = None if c is None else np.asarray(normal(*c))
    agree("Gemm", a, b, bias, alpha=0.5, beta=-2.0, transA=trans_a, transB=trans_b)


def test_gemm_of_integers():
    a, b, c = integers(-9, 9, 3, 4), integers(-9, 9, 4, 5), integers(-9, 9, 5)
    same(meaning("Gemm", a, b, c), (a @ b + c,))
    same(meaning("Gemm", a, b, c, alpha=2.0, beta=3.0), (2 * (a @ b) + 3 * c,))


@pytest.mark.parametrize("depth", [7, 300])
@pytest.mark.parametrize("types", [(np.uint8, np.uint8), (np.int8, np.int8), (np.uint8, np.int8)])
def test_integer_products_are_exact(depth, types):
    a, b = (integers(-128, 256, *s, dtype=t) for s, t in zip(((2, 6, depth), (depth, 5)), types, strict=True))
    zeros = np.array(7, types[0]), np.array(-3 if types[1] is np.int8 else 3, types[1])
    agree("MatMulInteger", a, b, *zeros, peer=reference)
    agree("MatMulInteger", a, b, peer=reference)
    rows, columns = integers(0, 9, 6, dtype=types[0]), integers(0, 9, 5, dtype=types[1])
    expected = (a.astype(np.int32) - rows[:, None].astype(np.int32)) @ (b.astype(np.int32) - columns)
    same(meaning("MatMulInteger", a, b, rows, columns), (expected.astype(np.int32),))


def test_qlinear_matmul():
    a, wide = integers(0, 256, 2, 6, 40, dtype=np.uint8), integers(-128, 128, 40, 5, dtype=np.int8)
    b, f = multiplied_exactly(wide), np.float32
    args = (a, f(0.02), np.uint8(120), b, f(0.01), np.int8(0), f(0.1), np.uint8(100))
    agree("QLinearMatMul", *(np.asarray(v) for v in args))
    agree("QLinearMatMul", *(np.asarray(wide if v is b else v) for v in args), peer=reference)
    scales, zeros = np.linspace(0.01, 0.02, 5, dtype=f), np.zeros(5, np.int8)
    args = (a, f(0.02), np.uint8(120), b, scales, zeros, f(0.1), np.uint8(101))
    agree("QLinearMatMul", *(np.asarray(v) for v in args))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_quantized_products_in_float8(name):
    """Neither onnx's reference nor onnxruntime has them: the formula of the specification, in float64."""
    dtype = np.dtype(getattr(ml_dtypes, name))
    a, b = integers(0, 256, 5, 12, dtype=np.uint8), integers(-128, 128, 12, 7, dtype=np.int8)
    scales, zero = [np.asarray(v, np.float32) for v in (0.02, 0.01, 2)], np.asarray(-1.5, dtype)
    args = (a, scales[0], np.uint8(120), b, scales[1], np.int8(3), scales[2], zero)
    (got,) = meaning("QLinearMatMul", *(np.asarray(v) for v in args))
    real = (a.astype(np.float64) - 120) @ (b.astype(np.float64) - 3) * 0.02 * 0.01 / 2 - 1.5
    assert got.dtype == dtype and (real < -1).any() and (real != np.rint(real)).all()
    np.testing.assert_array_equal(got.astype(np.float32), real.astype(np.float32).astype(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("ij,jk", [(3, 4), (4, 5)]),
        ("ba", [(3, 4)]),
        ("ii", [(4, 4)]),
        ("ii->i", [(4, 4)]),
        ("...ij->...ji", [(2, 3, 4, 5)]),
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 6)]),
        ("...ij,jk", [(2, 3, 4), (4, 5)]),
        ("b...,b...->b", [(2, 3, 4), (2, 3, 4)]),
        ("bhid, bhjd -> bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("i,j,k->kij", [(2,), (3,), (4,)]),
        ("i,i->", [(5,), (5,)]),
        ("Ab,bA->Ab", [(2, 3), (3, 2)]),
        ("->", [()]),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_einsum(equation, shapes, dtype):
    inputs = [np.asarray(normal(*s, seed=k, dtype=np.float64) * 9).astype(dtype) for k, s in enumerate(shapes)]
    agree("Einsum", *inputs, equation=equation, peer=reference)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 4, 4), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_det(shape, dtype):
    agree("Det", normal(*shape, dtype=dtype), peer=reference)


@pytest.mark.parametrize(
    ("name", "shapes", "attributes"),
    [
        ("MatMul", [(3, 4), (5, 6)], {}),
        ("MatMul", [(2, 3, 4), (3, 4, 5)], {}),
        ("MatMul", [(), (4,)], {}),
        ("Gemm", [(3, 4), (5, 6)], {}),
        ("Gemm", [(3, 4), (4, 5), (4,)], {}),
        ("Gemm", [(3, 4, 1), (4, 5)], {}),
        ("Einsum", [(3, 4), (5, 6)], {"equation": "ij,jk->ik"}),
        ("Einsum", [(3, 4)], {"equation": "i->i"}),
        ("Einsum", [(3, 4)], {"equation": "ij->z"}),
        ("Det", [(3, 4)], {}),
    ],
)
def test_shapes_that_do_not_fit(name, shapes, attributes):
    with pytest.raises(errors.InvalidArgument):
        meaning(name, *(np.asarray(normal(*s)) for s in shapes), **attributes)


def test_an_absurd_outer_product_is_refused():
    column = np.broadcast_to(np.float32(1), (10**7, 1))
    with pytest.raises(errors.OutOfBudget):
        meaning("MatMul", column, column.T)

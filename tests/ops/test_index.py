import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import agree, integers, meaning, normal, reference, same


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather(axis, shape, dtype):
    agree("Gather", normal(4, 5, 6), integers(-4, 4, *shape, dtype=dtype), axis=axis)


def test_gather_of_strings():
    agree("Gather", np.array(["a", "b", "c"], object), np.array([2, -3]))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis):
    agree("GatherElements", normal(4, 4, 4), integers(-4, 4, 4, 4, 4), axis=axis)
    x, indices = normal(4, 5), integers(-4, 4, 3, 2)
    expected = [np.take_along_axis(x[:, :2] if axis == 0 else x[:3], indices, axis)]
    same(meaning("GatherElements", x, indices, axis=axis), expected)


@pytest.mark.parametrize(
    ("batch", "shape"), [(0, (3, 1)), (0, (2, 3, 2)), (1, (4, 2)), (1, (4, 5, 1)), (2, (4, 4, 1)), (0, (3,))]
)
def test_gather_nd(batch, shape):
    agree("GatherND", normal(4, 4, 4, 3), integers(-3, 3, *shape), batch_dims=batch)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_elements(reduction, dtype, axis):
    x = integers(1, 9, 6, 6, dtype=dtype)
    indices = np.argsort(normal(6, 6), axis)[:4, :5] if reduction == "none" else integers(-6, 6, 4, 5)
    agree("ScatterElements", x, indices, integers(1, 9, 4, 5, dtype=dtype, seed=1), axis=axis, reduction=reduction)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd(reduction, depth):
    x = normal(4, 5, 6)
    count = 3 if reduction == "none" else 20
    indices = np.stack([np.arange(count) % n - (1 if a else 0) for a, n in enumerate(x.shape[:depth])], -1)
    agree("ScatterND", x, indices, normal(count, *x.shape[depth:], seed=2), reduction=reduction)


def test_scatter_of_other_types():
    x = np.array(["a", "b", "c"], object)
    same(meaning("ScatterElements", x, np.array([1]), np.array(["z"], object)), [np.array(["a", "z", "c"], object)])
    x = np.ones(3, ml_dtypes.bfloat16)
    got = meaning("ScatterND", x, np.array([[1], [1]]), np.ones(2, ml_dtypes.bfloat16), reduction="add")
    same(got, [np.array([1, 3, 1], ml_dtypes.bfloat16)])


OUTSIDE = [
    ("Gather", [normal(3, 4), np.array([0, 5])], {"axis": 1}, "axis 1.*-4, 3.*got: 5"),
    ("Gather", [normal(3), np.array(-4)], {}, "-3, 2.*got: -4"),
    ("GatherElements", [normal(3, 4), np.array([[3, 0, 0, 0]])], {}, "-3, 2.*got: 3"),
    ("GatherND", [normal(3, 4), np.array([[0, 9]])], {}, "axis 1.*-4, 3.*got: 9"),
    ("ScatterElements", [normal(3), np.array([-7]), normal(1)], {}, "-3, 2.*got: -7"),
    ("ScatterND", [normal(3, 4), np.array([[1, 4]]), normal(1)], {}, "axis 1.*-4, 3.*got: 4"),
]


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "message"), OUTSIDE, ids=[f"{o[0]}-{i}" for i, o in enumerate(OUTSIDE)]
)
def test_indices_out_of_range_are_refused(name, inputs, attributes, message):
    with pytest.raises(errors.InvalidArgument, match=f"{name}.*{message}"):
        meaning(name, *inputs, **attributes)


UNFIT = [
    ("GatherElements", [normal(3, 4), np.zeros((4, 5), int)]),
    ("GatherND", [normal(3, 4), np.zeros((2, 3), int)]),
    ("ScatterElements", [normal(3, 4), np.zeros((2, 2), int), normal(2, 3)]),
    ("ScatterND", [normal(3, 4), np.zeros((2, 1), int), normal(2, 3)]),
    ("OneHot", [np.array([1]), np.array(0), np.array([0.0, 1.0])]),
]


@pytest.mark.parametrize(("name", "inputs"), UNFIT, ids=[u[0] for u in UNFIT])
def test_shapes_that_do_not_fit_are_refused(name, inputs):
    with pytest.raises(errors.InvalidArgument, match=name):
        meaning(name, *inputs)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.float32])
def test_one_hot(axis, dtype):
    indices = np.array([[0, 3, -1], [-5, 9, 4]]).astype(dtype)
    agree("OneHot", indices, np.array(5, np.int64), np.array([-1, 2], np.float32), axis=axis, peer=reference)


def test_one_hot_of_unusual_indices():
    values = np.array(["off", "on"], object)
    got = meaning("OneHot", np.array([0, 1 << 63, (1 << 64) - 1], np.uint64), np.array(2), values)[0]
    assert got.tolist() == [["on", "off"], ["off", "off"], ["off", "off"]]
    agree("OneHot", np.array([-100, 100], np.int8), np.array(300), np.array([0, 1]), peer=reference)
    whole = np.array([np.nan, np.inf, -np.inf, 1e30, -0.5, 1.5, -1.5, 2, -2, -3], np.float32)
    got = meaning("OneHot", whole, np.array(2), np.array([0, 1]))[0]
    assert got.tolist() == [[0, 0]] * 4 + [[1, 0], [0, 1], [0, 1], [0, 0], [1, 0], [0, 0]]

import ml_dtypes
import numpy as np
import pytest

import sardonyx
from sardonyx import errors
from tests.ops.peers import agree, integers, meaning, model, normal, onnxruntime, rounds_once, same

REDUCTIONS = [
    "ReduceSum", "ReduceProd", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
    "ReduceLogSum", "ReduceLogSumExp",
]  # fmt: skip
AXES = [None, [0], [-1], [0, 2], [1, -1], [0, 1, 2]]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reduce(name, axes, keepdims):
    x = np.abs(normal(3, 4, 5)) + 0.1
    agree(name, x, None if axes is None else np.array(axes), keepdims=keepdims)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("name", REDUCTIONS[:8])
def test_reduce_of_integers(name, dtype):
    agree(name, integers(-9, 9, 3, 4, dtype=dtype), np.array([1]))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_no_axes_mean_none_or_all(name):
    x = np.abs(normal(3, 4)) + 0.1
    agree(name, x, np.zeros(0, np.int64), noop_with_empty_axes=1)
    agree(name, x, np.zeros(0, np.int64), noop_with_empty_axes=0)


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_accumulate_in_f32(name, dtype):
    rounds_once(name, dtype, np.abs(normal(2, 300)), np.array([1]))


def test_sums_of_narrow_floats_keep_small_terms():
    assert meaning("ReduceSum", np.ones(5000, np.float16))[0].item() == 5000


EMPTY = {
    "ReduceSum": 0, "ReduceProd": 1, "ReduceMax": -np.inf, "ReduceMin": np.inf, "ReduceL1": 0, "ReduceL2": 0,
    "ReduceSumSquare": 0, "ReduceLogSum": -np.inf, "ReduceLogSumExp": -np.inf,
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), EMPTY.items())
def test_empty_sets(name, value):
    same(
        meaning(name, np.zeros((2, 0, 3), np.float32), np.array([1]), keepdims=0), [np.full((2, 3), value, np.float32)]
    )


def test_extremes_of_other_types():
    x = integers(0, 2, 3, 5, dtype=bool)
    same(meaning("ReduceMax", x, np.array([1])), [x.any(1, keepdims=True)])
    same(meaning("ReduceMin", x, np.array([1])), [x.all(1, keepdims=True)])
    none = np.zeros((0, 2), bool)
    same(meaning("ReduceMax", none, np.array([0]), keepdims=0), [np.zeros(2, bool)])
    same(meaning("ReduceMin", none, np.array([0]), keepdims=0), [np.ones(2, bool)])
    same(meaning("ReduceMax", np.zeros((0, 2), np.uint8), np.array([0])), [np.zeros((1, 2), np.uint8)])
    same(meaning("ReduceMax", np.zeros((0, 2), np.int8), np.array([0])), [np.full((1, 2), -128, np.int8)])


def test_nan_wins():
    x = np.array([[1, np.nan, 3], [4, 5, 6]], np.float32)
    same(meaning("ReduceMax", x, np.array([1])), [np.array([[np.nan], [6]], np.float32)])


def test_log_sum_exp_neither_overflows_nor_loses_infinities():
    x = np.array([[1000, 1000], [-np.inf, -np.inf], [np.inf, 0], [-1000, -1001]], np.float32)
    expected = np.array([1000 + np.log(2), -np.inf, np.inf, -1000 + np.log1p(np.exp(-1))], np.float32)
    same(meaning("ReduceLogSumExp", x, np.array([1]), keepdims=0), [expected])


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0, 0], [1, -2], [2, 0, -1]])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_an_axis_named_twice_is_reduced_once(name, axes, keepdims):
    agree(name, np.abs(normal(2, 3, 4)) + 0.1, np.array(axes), keepdims=keepdims, peer=onnxruntime)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0], [-1], [-1, 0]])
@pytest.mark.parametrize("name", [*REDUCTIONS, "ArgMax", "ArgMin"])
def test_a_scalar_has_an_axis(name, axes, keepdims):
    """onnxruntime refuses those whose rank the model states, and answers where it does not."""
    x = np.array(3, np.float32)
    along = {"axis": axes[0]} if name.startswith("Arg") else {}
    given = (x,) if along else (x, np.array(axes))
    stated = model(name, given, 1, {"keepdims": keepdims, **along})
    stated.graph.input[0].type.tensor_type.ClearField("shape")
    ort = pytest.importorskip("onnxruntime")
    theirs = ort.InferenceSession(stated.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {f"i{k}": v for k, v in enumerate(given)}
    expected = theirs.run(None, feeds)
    same(meaning(name, *given, keepdims=keepdims, **along), expected)
    same(sardonyx.InferenceSession(stated.SerializeToString()).run(None, feeds), expected)


@pytest.mark.parametrize("axes", [[1], [-2], [0, 1]])
def test_a_scalar_has_no_other_axis(axes):
    with pytest.raises(errors.InvalidArgument, match="ReduceMax"):
        meaning("ReduceMax", np.array(3, np.float32), np.array(axes))


@pytest.mark.parametrize("axes", [[3], [-4], [0, 3]])
def test_wrong_axes_are_refused(axes):
    with pytest.raises(errors.InvalidArgument, match="ReduceSum"):
        meaning("ReduceSum", normal(2, 3, 4), np.array(axes))


@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_arg(name, axis, last, keepdims, dtype):
    x = integers(-3, 3, 3, 6, 5, dtype=dtype)
    agree(name, x, axis=axis, select_last_index=last, keepdims=keepdims)


@pytest.mark.parametrize("name", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_arg_over_an_empty_axis_where_the_result_is_empty(name, keepdims):
    agree(name, np.zeros((0, 3, 0), np.float32), axis=2, keepdims=keepdims, peer=onnxruntime)


def test_arg_of_nothing_is_refused():
    with pytest.raises(errors.InvalidArgument, match="empty"):
        meaning("ArgMax", np.zeros((2, 0), np.float32), axis=1)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_cumulative(exclusive, reverse, axis, dtype):
    x = integers(-4, 5, 3, 6, dtype=dtype)
    agree("CumSum", x, np.array(axis), exclusive=exclusive, reverse=reverse)
    turned = np.flip(x, axis) if reverse else x
    products = np.cumprod(turned, axis, dtype=dtype)
    if exclusive:
        products = np.insert(products, 0, 1, axis).take(range(x.shape[axis]), axis)
    expected = np.flip(products, axis) if reverse else products
    same(meaning("CumProd", x, np.array(axis), exclusive=exclusive, reverse=reverse), [expected])


def test_cumulative_of_little():
    same(meaning("CumSum", np.zeros((2, 0), np.float32), np.array(1), exclusive=1), [np.zeros((2, 0), np.float32)])
    same(meaning("CumSum", np.ones(1, np.float16), np.array([0]), exclusive=1), [np.zeros(1, np.float16)])


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(name, axis):
    agree(name, normal(3, 4, 5) * 30, axis=axis)
    rounds_once(name, np.float16, normal(3, 40), tolerance=2e-3 if name == "Softmax" else 0)


def test_softmax_of_large_and_empty_rows():
    same(meaning("Softmax", np.array([[1e30, 0, 1e30]], np.float32)), [np.array([[0.5, 0, 0.5]], np.float32)])
    assert meaning("Softmax", np.zeros((2, 0), np.float32))[0].shape == (2, 0)


TOPK_TYPES = [np.float32, np.float64, np.float16, np.int8, np.uint8, np.int32, np.int64, np.uint64, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", TOPK_TYPES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("k", [0, 1, 5, 40])
def test_top_k_with_ties(dtype, largest, axis, k):
    x = integers(0, 12, 40, 40, dtype=np.float32).astype(dtype)
    x = x if np.dtype(dtype).kind == "u" else (x.astype(np.float32) - 6).astype(dtype)
    order = np.argsort(x.astype(np.float64) * (-1 if largest else 1), axis, kind="stable").take(range(k), axis)
    expected = [np.take_along_axis(x, order, axis), order.astype(np.int64)]
    same(meaning("TopK", x, np.array([k]), axis=axis, largest=largest, outputs=2), expected)


def test_top_k_agrees_with_onnxruntime():
    agree("TopK", normal(7, 500), np.array([17]), outputs=2)
    x = np.array([[3, -0.0, np.inf, 0.0, -np.inf, -3]], np.float32)
    same(meaning("TopK", x, np.array([6]), outputs=2), onnxruntime("TopK", x, np.array([6]), outputs=2))


@pytest.mark.parametrize("k", [-1, 6])
def test_top_k_out_of_range_is_refused(k):
    with pytest.raises(errors.InvalidArgument, match=r"\[0, 5\]"):
        meaning("TopK", normal(2, 5), np.array([k]))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_unique(order, axis):
    x = integers(0, 3, 6, 2, dtype=np.int64)
    attributes = {"sorted": order} if axis is None else {"sorted": order, "axis": axis}
    agree("Unique", x, outputs=4, **attributes)
    agree("Unique", x.astype(np.float32), outputs=4, **attributes)


def test_unique_strings():
    words = np.array([["b", "a"], ["b", "a"], ["a", "c"]], object)
    agree("Unique", words, outputs=4)
    y, first, inverse, counts = meaning("Unique", words, axis=0, outputs=4)
    assert y.tolist() == [["a", "c"], ["b", "a"]]
    assert (first.tolist(), inverse.tolist(), counts.tolist()) == ([2, 0], [1, 1, 0], [1, 2])


@pytest.mark.parametrize("dtype", [np.float32, bool, np.int64])
def test_non_zero(dtype):
    agree("NonZero", integers(0, 2, 3, 4, 5, dtype=dtype))
    agree("NonZero", np.zeros((2, 2), dtype))
    assert meaning("NonZero", np.array(1, dtype))[0].shape == (0, 1)

import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from sardonyx.ops import registry
from tests.ops.peers import agree, meaning, normal, rounds_once, same

POOLS = [
    ((1, 2, 17), {"kernel_shape": [3], "strides": [2]}),
    ((2, 3, 9, 11), {"kernel_shape": [3, 2], "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((2, 3, 9, 11), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((2, 3, 10, 12), {"kernel_shape": [3, 3], "strides": [3, 4], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
    ((1, 3, 9, 11), {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [1, 2]}),
    ((1, 3, 9, 10), {"kernel_shape": [3, 4], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 9, 10), {"kernel_shape": [2, 4], "strides": [2, 3], "auto_pad": "SAME_LOWER"}),
    ((1, 3, 9, 10), {"kernel_shape": [2, 4], "auto_pad": "VALID"}),
    ((1, 2, 9, 9), {"kernel_shape": [3, 3], "dilations": [2, 3], "pads": [2, 2, 1, 2], "strides": [2, 1]}),
    ((1, 2, 5, 6), {"kernel_shape": [9, 20], "strides": [2, 3], "pads": [7, 11, 6, 10]}),
    ((1, 2, 5, 6, 7), {"kernel_shape": [2, 3, 2], "strides": [2, 1, 3], "pads": [1, 1, 0, 0, 1, 1]}),
]


@pytest.mark.parametrize(("shape", "attributes"), POOLS)
@pytest.mark.parametrize("name", ["MaxPool", "AveragePool", "LpPool"])
def test_pools(name, shape, attributes):
    agree(name, normal(*shape), **attributes)


@pytest.mark.parametrize(("shape", "attributes"), POOLS)
def test_average_counts_padding_on_demand(shape, attributes):
    agree("AveragePool", normal(*shape), count_include_pad=1, **attributes)


@pytest.mark.parametrize(("shape", "attributes"), POOLS)
@pytest.mark.parametrize("storage_order", [0, 1])
def test_max_pool_indices(shape, attributes, storage_order):
    agree("MaxPool", normal(*shape), outputs=2, storage_order=storage_order, **attributes)


def test_max_pool_of_bytes_ties_and_minus_infinity():
    x = np.random.default_rng(0).integers(-3, 3, (2, 3, 8, 8)).astype(np.int8)
    agree("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    y, where = meaning(
        "MaxPool", np.full((1, 1, 3, 3), -np.inf, np.float32), kernel_shape=[2, 2], pads=[1, 1, 1, 1], outputs=2
    )
    assert np.isneginf(y).all() and where.min() >= 0 and where.max() < 9


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp(p):
    agree("LpPool", normal(2, 3, 8, 9), kernel_shape=[3, 2], strides=[2, 2], p=p)
    agree("GlobalLpPool", normal(2, 3, 8, 9), p=p)


@pytest.mark.parametrize("shape", [(2, 3, 7), (2, 3, 7, 5), (2, 3, 4, 5, 6)])
def test_global(shape):
    agree("GlobalAveragePool", normal(*shape))
    agree("GlobalMaxPool", normal(*shape))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_floats_round_once(dtype):
    x = normal(2, 3, 9, 9)
    for name in ("AveragePool", "LpPool", "MaxPool"):
        rounds_once(name, dtype, x, kernel_shape=[3, 3], strides=[2, 2])
    rounds_once("MaxPool", dtype, x, kernel_shape=[3, 3], outputs=2)
    for name in ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"):
        rounds_once(name, dtype, x)


def test_unpool_inverts_pool():
    x = normal(2, 3, 8, 10)
    y, where = meaning("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], outputs=2)
    agree("MaxUnpool", y, where, kernel_shape=[2, 2], strides=[2, 2])
    (back,) = meaning("MaxUnpool", y, where, kernel_shape=[2, 2], strides=[2, 2])
    assert ((back == x) | (back == 0)).all() and np.count_nonzero(back) == y.size
    (larger,) = meaning("MaxUnpool", y, where, np.array([2, 3, 9, 12]), kernel_shape=[2, 2], strides=[2, 2])
    same((larger[:, :, :8, :10],), (back,))
    assert larger.shape == (2, 3, 9, 12) and np.count_nonzero(larger) == y.size


@pytest.mark.parametrize("bad", [-1, 480])
def test_unpool_checks_its_indices(bad):
    y, where = meaning("MaxPool", normal(2, 3, 8, 10), kernel_shape=[2, 2], strides=[2, 2], outputs=2)
    where[0, 0, 0, 0] = bad
    with pytest.raises(errors.InvalidArgument, match=f"0 to 479.*got: {bad}"):
        meaning("MaxUnpool", y, where, kernel_shape=[2, 2], strides=[2, 2])


@pytest.mark.parametrize("grid", [(1, 1), (2, 3), (7, 7)])
@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_max_roi_pool(grid, scale):
    corners = np.abs(normal(6, 2)) * 8
    rois = np.concatenate([np.arange(6)[:, None] % 2, corners, corners + np.abs(normal(6, 2, seed=1)) * 9], axis=1)
    agree("MaxRoiPool", normal(2, 3, 12, 14), rois.astype(np.float32), pooled_shape=list(grid), spatial_scale=scale)


def test_max_roi_pool_checks_its_batch_index():
    with pytest.raises(errors.InvalidArgument, match="got: 2"):
        meaning("MaxRoiPool", normal(2, 3, 5, 5), np.array([[2, 0, 0, 1, 1]], np.float32), pooled_shape=[1, 1])


@pytest.mark.parametrize(
    "attributes", [{"kernel_shape": [9, 9]}, {"kernel_shape": [2]}, {"kernel_shape": [2, 2], "strides": [0, 1]}]
)
def test_windows_that_do_not_fit(attributes):
    with pytest.raises(errors.InvalidArgument):
        meaning("MaxPool", normal(1, 1, 4, 4), **attributes)


def test_a_huge_window_over_nothing_takes_no_time() -> None:
    """Padded to its window, the image has no element and two billion columns."""
    found = registry.find("", "MaxPool")
    assert found is not None
    made = found.numpy(np.zeros((0, 3, 6, 3), np.float32), kernel_shape=[3, 1 << 31], auto_pad="SAME_LOWER")
    assert made.shape == (0, 3, 6, 3)


def test_a_window_much_larger_than_its_image() -> None:
    """It is clipped: padded to the window, an image would have 40 GB."""
    x = normal(1, 2, 11, 12)
    window = {"kernel_shape": [100_000, 50_000], "strides": [99_990, 49_990], "ceil_mode": 1}
    for name, pool in (("MaxPool", np.max), ("AveragePool", np.mean)):
        (got,) = meaning(name, x, **window)
        np.testing.assert_allclose(got, pool(x, (2, 3), keepdims=True), rtol=1e-5)
    (got, where) = meaning("MaxPool", x, outputs=2, **window)
    assert where.reshape(-1).tolist() == [int(x[0, c].argmax()) + c * 132 for c in range(2)]
    (got,) = meaning("AveragePool", x, kernel_shape=[20, 20], pads=[5, 4, 4, 4], count_include_pad=1)
    np.testing.assert_allclose(got, x.sum((2, 3), keepdims=True) / 400, rtol=1e-5)

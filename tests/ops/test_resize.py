import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import agree, integers, meaning, normal, onnxruntime, reference, rounds_once, same

f32 = np.float32
COORDINATES = ["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"]
SIZES = [(1, 2, 10, 14), (1, 2, 3, 4), (1, 2, 5, 7), (1, 2, 11, 3)]


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("sizes", SIZES)
def test_sizes(mode, coordinates, sizes):
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    agree("Resize", normal(1, 2, 5, 7), None, None, np.array(sizes), **attributes)


@pytest.mark.parametrize("rule", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("sizes", SIZES)
def test_nearest(rule, coordinates, sizes):
    attributes = {"nearest_mode": rule, "coordinate_transformation_mode": coordinates}
    peer = reference if coordinates == "half_pixel_symmetric" else onnxruntime
    agree("Resize", normal(1, 2, 5, 7), None, None, np.array(sizes), peer=peer, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 0.6, 1.7), (1, 1, 4 / 3, 5 / 3)])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
def test_scales(mode, scales, coordinates):
    x = normal(2, 3, 6, 9)
    agree("Resize", x, None, np.array(scales, f32), mode=mode, coordinate_transformation_mode=coordinates)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scales", [(0.6, 0.6), (0.3, 0.51), (2.0, 0.4), (1.5, 1.5)])
def test_antialias(mode, scales):
    x = normal(1, 1, 9, 12)
    attributes = {"mode": mode, "antialias": 1, "axes": [2, 3]}
    agree("Resize", x, None, np.array(scales, f32), peer=reference, **attributes)
    agree("Resize", x, None, np.array(scales, f32), peer=reference, exclude_outside=1, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("roi", [(0, 0, 1, 1), (0.2, 0.3, 0.7, 0.9), (-0.4, 0.2, 1.3, 1.1)])
def test_crop(mode, roi):
    start, stop = (0, 0, *roi[:2]), (1, 1, *roi[2:])
    attributes = {"mode": mode, "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    agree("Resize", normal(1, 2, 6, 8), np.array(start + stop, f32), None, np.array([1, 2, 5, 9]), **attributes)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [[2, 3], [3, 2], [-1, -2]])
def test_aspect_ratio(policy, axes):
    x = normal(1, 2, 6, 8)
    attributes = {"mode": "linear", "keep_aspect_ratio_policy": policy}
    (got,) = meaning("Resize", x, None, None, np.array([9, 10]), axes=axes, **attributes)
    ratios = [9 / x.shape[axes[0]], 10 / x.shape[axes[1]]]
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    assert got.shape == (1, 2, int(6 * ratio + 0.5), int(8 * ratio + 0.5))
    if min(axes) > 0:
        agree("Resize", x, None, None, np.array([9, 10]), axes=axes, peer=reference, **attributes)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_an_empty_input_has_no_aspect_ratio(policy):
    x = normal(0, 3)
    with pytest.raises(errors.InvalidArgument, match="aspect ratio"):
        meaning("Resize", x, None, None, np.array([5]), axes=[0], keep_aspect_ratio_policy=policy)


@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("a", [-0.5, -0.75])
def test_cubic_options(exclude, a):
    x, sizes = normal(1, 1, 7, 7), np.array([1, 1, 10, 4])
    agree("Resize", x, None, None, sizes, mode="cubic", exclude_outside=exclude, cubic_coeff_a=a)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_integers(dtype):
    x = integers(-100, 250, 1, 3, 8, 9, dtype=dtype)
    sizes = np.array([1, 3, 5, 12])
    agree("Resize", x, None, None, sizes)
    for mode in ("linear", "cubic"):
        agree("Resize", x, None, None, sizes, mode=mode, peer=reference)


def test_other_types():
    sizes = np.array([3, 2])
    words = np.array([["a", "b"], ["c", "d"]], object)
    assert meaning("Resize", words, None, None, sizes)[0].tolist() == [["a", "b"], ["a", "b"], ["c", "d"]]
    for dtype in (np.float64, np.complex64, bool):
        same(
            meaning("Resize", normal(4, 4).astype(dtype), None, None, sizes),
            (normal(4, 4).astype(dtype)[np.ix_([0, 1, 3], [0, 2])],),
        )
    agree(
        "Resize", normal(1, 1, 4, 5, dtype=np.float64), None, None, np.array([1, 1, 7, 3]), mode="cubic", peer=reference
    )
    for dtype in (np.float16, ml_dtypes.bfloat16):
        for mode in ("nearest", "linear", "cubic"):
            rounds_once("Resize", dtype, normal(5, 6), None, None, sizes, mode=mode)


def test_one_and_three_dimensions():
    agree("Resize", normal(1, 2, 9), None, None, np.array([1, 2, 14]), mode="linear", peer=reference)
    x, sizes = normal(1, 2, 4, 5, 6), np.array([1, 2, 7, 3, 8])
    agree("Resize", x, None, None, sizes, mode="linear")
    agree("Resize", x, None, None, sizes, mode="cubic", peer=reference)


@pytest.mark.parametrize(
    ("scales", "sizes", "attributes"),
    [
        (None, None, {}),
        ([1, 1], None, {}),
        ([1, 1, 0, 1], None, {}),
        ([1, 1, -2, 1], None, {}),
        ([1, 1, np.nan, 1], None, {}),
        (None, [1, 1, 4, -4], {}),
        (None, [1, 1, 4, 4], {"mode": "quintic"}),
        (None, [1, 1, 4, 4], {"coordinate_transformation_mode": "sideways"}),
        (None, [4], {"axes": [4]}),
    ],
)
def test_nonsense(scales, sizes, attributes):
    args = (None if scales is None else np.array(scales, f32), None if sizes is None else np.array(sizes))
    with pytest.raises(errors.InvalidArgument):
        meaning("Resize", normal(1, 1, 3, 3), None, *args, **attributes)


def test_absurd_sizes_are_refused_before_memory_is_taken():
    with pytest.raises(errors.OutOfBudget):
        meaning("Resize", normal(1, 1, 3, 3), None, np.array([1, 1, 1e7, 1e7], f32))
    with pytest.raises(errors.OutOfBudget):
        meaning("Resize", normal(1, 1, 3, 3), None, None, np.array([1, 1, 10**9, 10**9]), mode="linear")

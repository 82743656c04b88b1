import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import agree, integers, meaning, normal, onnxruntime, reference, rounds_once, same

PADDINGS = ["zeros", "border", "reflection"]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode, padding, corners):
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners, "tolerance": 1e-4}
    # At the border, onnx.reference moves cubic coordinates; onnxruntime and PyTorch move the pixels they read.
    peer = onnxruntime if (mode, padding) == ("cubic", "border") else reference
    agree("GridSample", normal(2, 3, 5, 6), normal(2, 4, 7, 2) * 1.2, peer=peer, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample_agrees_with_onnxruntime(mode, padding, corners):
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": corners, "tolerance": 1e-4}
    agree("GridSample", normal(2, 3, 5, 6), normal(2, 4, 7, 2) * 1.2, **attributes)
    agree("GridSample", normal(2, 3, 3, 5, 6), normal(2, 2, 4, 7, 3), **attributes)


def test_grid_sample_of_other_types():
    x, grid = integers(-50, 50, 1, 2, 5, 6), normal(1, 3, 4, 2)
    same(
        meaning("GridSample", x, grid, mode="nearest"),
        [meaning("GridSample", x.astype(np.float64), grid, mode="nearest")[0].astype(np.int64)],
    )
    agree("GridSample", normal(1, 2, 5, 6, dtype=np.float64), grid.astype(np.float64), peer=reference, tolerance=1e-5)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        rounds_once("GridSample", dtype, normal(1, 2, 5, 6), grid)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grids_far_outside_stay_in_bounds(mode, padding):
    grid = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 1e9], np.float32).repeat(2).reshape(1, 6, 1, 2)
    (y,) = meaning("GridSample", normal(1, 2, 4, 4), grid, mode=mode, padding_mode=padding)
    assert y.shape == (1, 2, 6, 1)
    if padding == "zeros":
        assert not y.any()


@pytest.mark.parametrize("size", [(2, 1, 4, 5), (2, 1, 3, 4, 5)])
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_affine_grid(size, corners, dtype):
    rank = len(size) - 2
    theta = normal(2, rank, rank + 1, dtype=dtype)
    expected = reference("AffineGrid", theta, np.array(size), align_corners=corners)
    same(meaning("AffineGrid", theta, np.array(size), align_corners=corners), [e.astype(dtype) for e in expected], 1e-6)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_roi_align(mode, coordinates, ratio, scale):
    corners = normal(7, 2) * 5 + 4
    rois = np.concatenate([corners, corners + np.abs(normal(7, 2, seed=1)) * 9 + 1], axis=1)
    attributes = {"coordinate_transformation_mode": coordinates, "sampling_ratio": ratio, "spatial_scale": scale}
    x, where = normal(2, 3, 10, 12), integers(0, 2, 7)
    agree("RoiAlign", x, rois, where, mode=mode, output_height=3, output_width=4, **attributes)


@pytest.mark.parametrize("bad", [-1, 2])
def test_roi_align_checks_its_batch_indices(bad):
    with pytest.raises(errors.InvalidArgument, match=f"0 to 1; got: {bad}"):
        meaning("RoiAlign", normal(2, 1, 4, 4), np.zeros((1, 4), np.float32), np.array([bad]))


def test_an_absurd_roi_is_refused():
    with pytest.raises(errors.OutOfBudget):
        meaning("RoiAlign", normal(1, 1, 4, 4), np.array([[0, 0, 1e12, 1e12]], np.float32), np.array([0]))
    with pytest.raises(errors.InvalidArgument):
        meaning("RoiAlign", normal(1, 1, 4, 4), np.array([[0, 0, np.nan, 1]], np.float32), np.array([0]))


@pytest.mark.parametrize(
    ("name", "inputs", "attributes"),
    [
        ("GridSample", (normal(1, 2, 4, 4), normal(2, 3, 3, 2)), {}),
        ("GridSample", (normal(1, 2, 4, 4), normal(1, 3, 3, 3)), {}),
        ("GridSample", (normal(1, 2, 4, 4), normal(1, 3, 3, 2)), {"mode": "quintic"}),
        ("AffineGrid", (normal(1, 2, 3), np.array([2, 1, 4, 4])), {}),
        ("AffineGrid", (normal(1, 2, 3), np.array([1, 1, 4, -4])), {}),
    ],
)
def test_nonsense(name, inputs, attributes):
    with pytest.raises(errors.InvalidArgument):
        meaning(name, *inputs, **attributes)

import ml_dtypes
import numpy as np
import pytest

from sardonyx import dtypes, errors
from sardonyx.ir.tensor import Tensor
from tests.ops.peers import agree, integers, meaning, normal, reference, same

I64 = np.iinfo(np.int64)


def ints(*values):
    return np.array(values, np.int64)


RESHAPES = [((2, 3, 4), [4, 6], 0), ((2, 3, 4), [0, -1], 0), ((2, 3, 4), [-1], 0), ((2, 3, 4), [0, 0, 2, 2], 0)]
RESHAPES += [((0, 3), [3, 0], 1), ((1,), [], 0)]


@pytest.mark.parametrize(("shape", "target", "allowzero"), RESHAPES)
def test_reshape(shape, target, allowzero):
    agree("Reshape", normal(*shape), ints(*target), allowzero=allowzero, peer=reference)


BAD_RESHAPES = [
    ([5, -1], 0, "divide"), ([2, -1, -1], 0, "-1"), ([1, 1, 1, 0], 0, "lacks"), ([0, -1], 1, "together"),
    ([5, 5], 0, "24 elements"), ([-2, 12], 0, "at least"), ([0, 3, 4], 1, "24 elements"), ([1 << 62, 4, 0], 1, "24"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "allowzero", "why"), BAD_RESHAPES)
def test_wrong_reshapes_are_refused(target, allowzero, why):
    with pytest.raises(errors.InvalidArgument, match=why):
        meaning("Reshape", normal(2, 3, 4), ints(*target), allowzero=allowzero)


@pytest.mark.parametrize("axis", [-3, -1, 0, 1, 3])
def test_flatten(axis):
    agree("Flatten", normal(2, 3, 4), axis=axis)


@pytest.mark.parametrize("perm", [None, [0, 2, 1], [2, 0, 1]])
def test_transpose(perm):
    agree("Transpose", normal(2, 3, 4), **({} if perm is None else {"perm": perm}))


@pytest.mark.parametrize("perm", [[0, 1], [0, 0, 1], [0, 1, 3]])
def test_wrong_transposes_are_refused(perm):
    with pytest.raises(errors.InvalidArgument, match="permutation"):
        meaning("Transpose", normal(2, 3, 4), perm=perm)


def test_squeeze_and_unsqueeze():
    x = normal(1, 3, 1, 4)
    for axes in (None, ints(0), ints(-2), ints(0, 2)):
        agree("Squeeze", x, axes)
    for axes in (ints(0), ints(-1), ints(0, 5), ints(4, 2)):
        agree("Unsqueeze", x, axes)
    with pytest.raises(errors.InvalidArgument, match="3 at axis 1"):
        meaning("Squeeze", x, ints(1))
    with pytest.raises(errors.InvalidArgument, match="twice"):
        meaning("Unsqueeze", x, ints(1, 1))


@pytest.mark.parametrize("shape", [[3, 4], [2, 3, 4], [1], [5, 1, 1, 4], [3, 1]])
def test_expand(shape):
    agree("Expand", normal(3, 1), ints(*shape))


def test_tile():
    agree("Tile", normal(2, 3), ints(2, 3))
    agree("Tile", normal(2, 3), ints(0, 1))
    with pytest.raises(errors.InvalidArgument, match="repeats"):
        meaning("Tile", normal(2, 3), ints(2))


ABSURD = [
    ("Expand", [normal(1), ints(1 << 40)], {}),
    ("Tile", [normal(3), ints(1 << 40)], {}),
    ("Range", [np.array(0), np.array(1 << 60), np.array(1)], {}),
    ("ConstantOfShape", [ints(1 << 31, 1 << 31)], {}),
    ("OneHot", [ints(1, 2), np.array(1 << 60), np.array([0.0, 1.0])], {}),
    ("Pad", [normal(3), ints(0, 1 << 60)], {}),
    ("CenterCropPad", [normal(3), ints(1 << 60)], {}),
    ("RandomNormal", [], {"shape": [1 << 40]}),
]


@pytest.mark.parametrize(("name", "inputs", "attributes"), ABSURD, ids=[a[0] for a in ABSURD])
def test_absurd_sizes_are_refused_before_memory_is_taken(name, inputs, attributes):
    with pytest.raises(errors.OutOfBudget, match=name if name != "RandomNormal" else "random"):
        meaning(name, *inputs, **attributes)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_and_split(axis):
    x = normal(4, 6, 2)
    agree("Concat", x, x[::-1].copy(), axis=axis)
    agree("Split", x, ints(1, x.shape[axis] - 1), axis=axis, outputs=2)
    agree("Split", x, axis=axis, num_outputs=2, outputs=2)


def test_uneven_splits():
    agree("Split", normal(7), num_outputs=3, outputs=3)
    parts = meaning("Split", normal(4), num_outputs=3, outputs=3)
    assert [p.shape for p in parts] == [(2,), (2,), (0,)]
    with pytest.raises(errors.InvalidArgument, match="sum"):
        meaning("Split", normal(7), ints(3, 5), outputs=2)


def test_concat_of_unlike_shapes_is_refused():
    with pytest.raises(errors.InvalidArgument, match=r"\[2, 3\], \[2, 4\]"):
        meaning("Concat", normal(2, 3), normal(2, 4), axis=0)


SLICES = [
    ([1], [3], None, None), ([0, 1], [2, 4], None, None), ([-3], [-1], [1], None), ([5], [0], [1], [-2]),
    ([I64.max], [I64.min], [0], [-1]), ([0], [I64.max], [-1], [2]), ([-100], [100], [1], None), ([3], [1], [0], None),
    ([4, 1], [-100, 3], [1, 0], [-1, 1]), ([2], [-1], [0], [-1]),
]  # fmt: skip


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), SLICES)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_slice(starts, ends, axes, steps, dtype):
    clamp = lambda v: None if v is None else np.clip(v, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)  # noqa: E731
    agree("Slice", normal(5, 6), *map(clamp, (starts, ends, axes, steps)))


def test_wrong_slices_are_refused():
    x = normal(5, 6)
    with pytest.raises(errors.InvalidArgument, match="step"):
        meaning("Slice", x, ints(0), ints(1), ints(0), ints(0))
    with pytest.raises(errors.InvalidArgument, match=r"\[-2, 1\]"):
        meaning("Slice", x, ints(0), ints(1), ints(2))
    with pytest.raises(errors.InvalidArgument, match="length"):
        meaning("Slice", x, ints(0, 1), ints(1))


PADS = [[0, 1, 2, 1], [2, 0, 0, 3], [0, 0, 0, 0], [1, 2, 1, 2]]


@pytest.mark.parametrize("pads", [*PADS, [-1, 2, 1, -1], [-2, -1, 0, 0]], ids=str)
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(mode, pads):
    agree("Pad", normal(4, 5), ints(*pads), np.array(1.5, np.float32) if mode == "constant" else None, mode=mode)


def test_pad_some_axes_and_types():
    agree("Pad", normal(2, 3, 4), ints(1, 2), None, ints(-1))
    agree("Pad", integers(0, 9, 3, 3, dtype=np.int8), ints(0, 1, 1, 0), np.array(-3, np.int8))
    agree("Pad", integers(0, 2, 3, dtype=bool), ints(1, 1), np.array(True))
    same(meaning("Pad", np.array(["a"], object), ints(1, 0)), [np.array(["", "a"], object)])
    same(meaning("Pad", np.array([1, 2], ml_dtypes.int4), ints(0, 1)), [np.array([1, 2, 0], ml_dtypes.int4)])


def test_reflections_repeat():
    x = np.arange(3, dtype=np.float32)
    same(meaning("Pad", x, ints(5, 7), mode="reflect"), [np.pad(x, (5, 7), mode="reflect")])
    same(meaning("Pad", x[:1], ints(2, 2), mode="reflect"), [np.zeros(5, np.float32)])


def test_wrong_pads_are_refused():
    for pads, mode in (([1], "constant"), ([1, 1], "mirror")):
        with pytest.raises(errors.InvalidArgument, match="Pad"):
            meaning("Pad", normal(3), ints(*pads), mode=mode)
    with pytest.raises(errors.InvalidArgument, match="nothing to repeat"):
        meaning("Pad", normal(0), ints(1, 1), mode="edge")


@pytest.mark.parametrize("shape", [[10, 8], [3, 9], [4, 4], [7, 2]])
def test_center_crop_pad(shape):
    agree("CenterCropPad", normal(5, 7), ints(*shape), peer=reference)
    agree("CenterCropPad", normal(2, 7, 5), ints(*shape), axes=[-1, 1], peer=reference)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode):
    agree("DepthToSpace", normal(2, 12, 3, 4), blocksize=2, mode=mode)
    x = normal(2, 3, 6, 4)
    deep = meaning("SpaceToDepth", x, blocksize=2, mode=mode)[0]
    same(meaning("DepthToSpace", deep, blocksize=2, mode=mode), [x])
    agree("SpaceToDepth", x, blocksize=2)
    with pytest.raises(errors.InvalidArgument, match="divide"):
        meaning("SpaceToDepth", x, blocksize=4)


@pytest.mark.parametrize(("batch", "time"), [(0, 1), (1, 0)])
def test_reverse_sequence(batch, time):
    x = normal(4, 4, 3)
    agree("ReverseSequence", x, ints(1, 4, 2, 3), batch_axis=batch, time_axis=time)
    with pytest.raises(errors.InvalidArgument, match=r"\[0, 4\]"):
        meaning("ReverseSequence", x, ints(1, 5, 2, 3), batch_axis=batch, time_axis=time)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis):
    attributes = {} if axis is None else {"axis": axis}
    agree("Compress", normal(3, 4), np.array([False, True, True]), **attributes)
    with pytest.raises(errors.InvalidArgument, match="past"):
        meaning("Compress", normal(3, 4), np.ones(20, bool), **attributes)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -2, 100, I64.min, I64.max])
def test_trilu(upper, k):
    x = normal(2, 4, 5)
    same(
        meaning("Trilu", x, None if k is None else np.array(k), upper=upper),
        [(np.triu if upper else np.tril)(x, int(np.clip(k or 0, -9, 9)))],
    )


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, -2, -1])
def test_tensor_scatter(mode, axis):
    past = normal(2, 3, 5, 6)
    length = past.shape[axis] - 2
    update = normal(*(length if a == axis % 4 else n for a, n in enumerate(past.shape)), seed=3)
    starts = ints(1, 2) if mode == "linear" else ints(4, 2)
    agree("TensorScatter", past, update, starts, mode=mode, axis=axis, peer=reference)


def test_tensor_scatter_checks_positions():
    with pytest.raises(errors.InvalidArgument, match=r"\[0, 5\)"):
        meaning("TensorScatter", normal(2, 3, 5, 4), normal(2, 3, 2, 4), ints(0, 4))


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("bounds", [(1, 10, 2), (10, 1, -3), (5, 5, 1), (3, 1, 1), (0, 1, 1)])
def test_range(dtype, bounds):
    agree("Range", *(np.array(b, dtype) for b in bounds))


def test_range_of_reals():
    agree("Range", *(np.array(b, np.float32) for b in (0.1, 1.7, 0.3)))
    got = meaning("Range", *(np.array(b, ml_dtypes.bfloat16) for b in (0, 600, 1)))[0]
    np.testing.assert_array_equal(got, np.arange(600).astype(ml_dtypes.bfloat16))
    with pytest.raises(errors.InvalidArgument, match="delta"):
        meaning("Range", np.array(0), np.array(5), np.array(0))
    with pytest.raises(errors.InvalidArgument, match="finite"):
        meaning("Range", np.array(0.0), np.array(np.inf), np.array(1.0))


@pytest.mark.parametrize(("start", "end"), [(0, None), (1, 2), (-2, None), (0, -1), (5, 9), (-9, 9), (2, 1)])
def test_shape_and_size(start, end):
    attributes = {"start": start} if end is None else {"start": start, "end": end}
    agree("Shape", normal(2, 3, 4), **attributes)
    agree("Size", normal(2, 3, 4))


def test_constants():
    x = normal(2, 3)
    same(meaning("Constant", value=Tensor.of(x)), [x])
    same(meaning("Constant", value_float=1.5), [np.array(1.5, np.float32)])
    same(meaning("Constant", value_ints=[1, 2]), [ints(1, 2)])
    same(meaning("Constant", value_strings=["a", "b"]), [np.array(["a", "b"], object)])
    same(meaning("Constant", value_string="abc"), [np.array("abc", object)])
    same(meaning("ConstantOfShape", ints(2, 0)), [np.zeros((2, 0), np.float32)])
    same(meaning("ConstantOfShape", ints(), value=Tensor.of(np.array([7], np.int8))), [np.array(7, np.int8)])
    with pytest.raises(errors.InvalidArgument, match="negative"):
        meaning("ConstantOfShape", ints(-1))


@pytest.mark.parametrize("k", [0, 2, -1, 50])
def test_eye_like(k):
    agree("EyeLike", integers(0, 9, 3, 4, dtype=np.int32), k=k)
    agree("EyeLike", normal(3, 4), k=k, dtype=dtypes.f64.onnx)

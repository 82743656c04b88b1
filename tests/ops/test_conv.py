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

CONVS = [
    ((1, 3, 20), (4, 3, 5), {}),
    ((2, 4, 17), (4, 1, 3), {"group": 4, "pads": [2, 1], "strides": [2]}),
    ((2, 3, 9, 11), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((2, 3, 9, 11), (5, 3, 3, 2), {"pads": [0, 2, 1, 3], "strides": [2, 3], "dilations": [2, 1]}),
    ((1, 4, 8, 8), (6, 2, 3, 3), {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 4, 7, 8), (6, 2, 2, 4), {"group": 2, "auto_pad": "SAME_LOWER", "strides": [3, 2]}),
    ((1, 4, 7, 8), (3, 4, 3, 3), {"auto_pad": "VALID"}),
    ((3, 8, 10, 10), (8, 1, 3, 3), {"group": 8, "pads": [1, 1, 1, 1]}),
    ((3, 4, 10, 10), (12, 1, 5, 3), {"group": 4, "pads": [2, 1, 2, 1], "strides": [2, 1]}),
    ((2, 6, 9, 9), (4, 6, 1, 1), {}),
    ((2, 6, 9, 9), (4, 3, 1, 1), {"group": 2, "strides": [2, 2]}),
    ((2, 6, 9, 9), (4, 6, 1, 1), {"pads": [1, 0, 0, 1]}),
    ((1, 2, 6, 7, 5), (4, 2, 3, 2, 3), {"pads": [1, 0, 1, 1, 1, 1], "strides": [2, 1, 1]}),
    ((1, 2, 2, 2), (4, 2, 4, 4), {"pads": [1, 1, 1, 1]}),
    ((1, 16, 140, 140), (3, 16, 5, 5), {"pads": [2, 2, 2, 2]}),
]


@pytest.mark.parametrize(("x", "w", "attributes"), CONVS)
@pytest.mark.parametrize("bias", [False, True])
def test_conv(x, w, attributes, bias):
    agree("Conv", normal(*x), normal(*w, seed=1), normal(w[0]) if bias else None, **attributes)


def test_conv_of_doubles_and_narrow_floats():
    x, w, b = normal(2, 4, 9, 9), normal(6, 2, 3, 3), normal(6)
    wide = [v.astype(np.float64) for v in (x, w, b)]
    agree("Conv", *wide, group=2, peer=reference, tolerance=1e-12)
    rounds_once("Conv", np.float16, x, w, b, group=2, pads=[1, 1, 1, 1])
    rounds_once("Conv", ml_dtypes.bfloat16, x, w, b, group=2)


def test_the_block_size_changes_nothing(monkeypatch):
    from sardonyx.ops import conv

    x, dense, depthwise = normal(3, 6, 13, 12), normal(4, 3, 3, 3), normal(12, 1, 3, 3)
    whole = meaning("Conv", x, dense, group=2), meaning("Conv", x, depthwise, group=6)
    for nbytes in (1, 4000, 20000):
        monkeypatch.setattr(conv, "_COLUMNS_NBYTES", nbytes)
        monkeypatch.setattr(conv, "_ACCUMULATOR_NBYTES", nbytes)
        same(meaning("Conv", x, dense, group=2), whole[0])
        same(meaning("Conv", x, depthwise, group=6), whole[1])


TRANSPOSED = [
    ((1, 3, 7), (3, 2, 4), {"strides": [3]}),
    ((2, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    ((2, 4, 5, 6), (4, 3, 3, 2), {"group": 2, "dilations": [2, 3], "strides": [1, 2]}),
    ((1, 4, 5, 6), (4, 1, 3, 3), {"group": 4, "pads": [1, 0, 0, 2]}),
    ((1, 2, 5, 6), (2, 3, 3, 3), {"strides": [3, 2], "output_shape": [16, 14]}),
    ((1, 2, 5, 6), (2, 3, 4, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 5, 6), (2, 3, 4, 4), {"strides": [3, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 3, 4, 5), (2, 3, 2, 3, 2), {"strides": [2, 1, 2], "pads": [0, 1, 0, 1, 1, 0]}),
]


@pytest.mark.parametrize("window", [(1, 1), (3, 3)])
@pytest.mark.parametrize(("x", "group"), [((0, 4, 5, 6), 1), ((0, 4, 5, 6), 2), ((2, 0, 5, 6), 1)])
def test_convs_of_nothing(x, group, window):
    """No image, and images without channels, whose sums are the bias."""
    w, b = normal(6, x[1] // group, *window), normal(6)
    (y,) = meaning("Conv", normal(*x), w, b, group=group, pads=[window[0] // 2] * 4)
    same((y,), (np.broadcast_to(b[:, None, None], (x[0], 6, 5, 6)),))


@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED)
@pytest.mark.parametrize("bias", [False, True])
def test_conv_transpose(x, w, attributes, bias):
    channels = w[1] * attributes.get("group", 1)
    agree("ConvTranspose", normal(*x), normal(*w, seed=1), normal(channels) if bias else None, **attributes)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("strides", [[3, 4], [2, 5], [5, 1]])
def test_transposed_windows_with_gaps_between_them(auto_pad, strides):
    """The padding that makes sizes times strides is negative; onnxruntime gives smaller results."""
    attributes = {"auto_pad": auto_pad, "strides": strides, "kernel_shape": [2, 1]}
    agree("ConvTranspose", normal(2, 3, 4, 5), normal(3, 2, 2, 1, seed=1), normal(2), peer=reference, **attributes)


@pytest.mark.parametrize("signed", [np.uint8, np.int8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_convs(signed, per_channel):
    x = integers(0, 256, 2, 40, 9, 9, dtype=np.uint8)
    w = integers(-128, 256, 6, 20, 3, 3, dtype=signed)
    zero = np.array(3, signed) if signed is np.uint8 or not per_channel else np.zeros(6, signed)
    attributes = {"group": 2, "pads": [1, 1, 0, 0], "strides": [2, 1]}
    agree("ConvInteger", x, w, np.array(117, np.uint8), np.array(3, signed), peer=reference, **attributes)
    scale = (np.abs(normal(6)) * 0.01 + 0.001) if per_channel and signed is np.int8 else np.array(0.01, np.float32)
    image = (x, np.array(0.02, np.float32), np.array(117, np.uint8))
    y = (np.array(0.5, np.float32), np.array(121, np.uint8), integers(-5000, 5000, 6, dtype=np.int32))
    agree("QLinearConv", *image, multiplied_exactly(w), scale, zero, *y, **attributes)
    agree("QLinearConv", *image, w, np.array(0.01, np.float32), np.array(3, signed), *y, peer=reference, **attributes)


@pytest.mark.parametrize("offset_group", [1, 2])
@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 0, 1, 2], "strides": [2, 1]}, {"dilations": [2, 1]}])
def test_deform_conv(offset_group, attributes):
    x, w = normal(2, 4, 7, 8), normal(6, 2, 3, 2)
    shape = meaning("Conv", x, normal(1, 4, 3, 2), **attributes)[0].shape[2:]
    offset = normal(2, offset_group * 12, *shape) * 3
    mask = np.abs(normal(2, offset_group * 6, *shape))
    attributes = {"group": 2, "offset_group": offset_group, **attributes}
    agree("DeformConv", x, w, offset, normal(6), mask, **attributes)
    agree("DeformConv", x, w, offset, **attributes)


@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ((5, 6), (2, 3), {}),
        ((6, 7), (2, 2), {"pads": [1, 0, 1, 1], "strides": [2, 2]}),
        ((7, 7), (3, 2), {"dilations": [2, 3]}),
        ((9,), (3,), {"strides": [2]}),
        ((3, 4, 5), (2, 2, 2), {}),
    ],
)
def test_col2im(image, block, attributes):
    ones = np.zeros((1, 1, *image), np.float32)
    blocks = meaning("Conv", ones, np.zeros((1, 1, *block), np.float32), **attributes)[0].size
    x = normal(2, 3 * int(np.prod(block)), blocks)
    agree("Col2Im", x, np.array(image), np.array(block), peer=reference, **attributes)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_causal_conv_returns_its_state(activation, dtype):
    x, w, b = normal(2, 4, 11, dtype=dtype), normal(4, 1, 4, dtype=dtype), normal(4, dtype=dtype)
    past = normal(2, 4, 3, dtype=dtype, seed=2)
    whole = meaning("CausalConvWithState", x, w, b, past, outputs=2, activation=activation)
    first = meaning("CausalConvWithState", x[:, :, :1], w, b, past, outputs=2, activation=activation)
    rest = meaning("CausalConvWithState", x[:, :, 1:], w, b, first[1], outputs=2, activation=activation)
    same((np.concatenate([first[0], rest[0]], axis=2), rest[1]), whole)
    if activation == "none":
        plain = meaning("Conv", np.concatenate([past, x], axis=2), w, b, group=4)
        same(whole[:1], plain)


@pytest.mark.parametrize(
    ("name", "shapes", "attributes"),
    [
        ("Conv", ((1, 3, 8, 8), (4, 2, 3, 3)), {}),
        ("Conv", ((1, 3, 8, 8), (4, 3, 3, 3)), {"group": 2}),
        ("Conv", ((1, 3, 8, 8), (4, 3, 3)), {}),
        ("Conv", ((1, 3, 2, 2), (4, 3, 3, 3)), {}),
        ("Conv", ((1, 3, 8, 8), (4, 3, 3, 3)), {"kernel_shape": [3, 2]}),
        ("Conv", ((1, 3, 8, 8), (4, 3, 3, 3)), {"strides": [0, 1]}),
        ("Conv", ((1, 3, 8, 8), (4, 3, 3, 3)), {"pads": [1, 1]}),
        ("Conv", ((1, 3, 8, 8), (4, 3, 3, 3), (5,)), {}),
        ("ConvTranspose", ((1, 3, 8, 8), (4, 3, 3, 3)), {}),
        ("ConvTranspose", ((1, 3, 1, 1), (3, 3, 1, 1)), {"pads": [1, 1, 1, 1]}),
    ],
)
def test_shapes_that_do_not_fit(name, shapes, attributes):
    with pytest.raises(errors.InvalidArgument):
        meaning(name, *(normal(*s) for s in shapes), **attributes)


def test_absurd_padding_is_refused_before_memory_is_taken():
    with pytest.raises(errors.OutOfBudget):
        meaning("Conv", normal(1, 1, 4, 4), normal(1, 1, 1, 1), pads=[10**7] * 4)


def test_an_empty_batch():
    same(
        meaning("Conv", normal(0, 3, 8, 8), normal(4, 3, 3, 3)),
        onnxruntime("Conv", normal(0, 3, 8, 8), normal(4, 3, 3, 3)),
    )

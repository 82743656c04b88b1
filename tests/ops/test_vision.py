import builtins
import io

import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import agree, meaning, normal

f32 = np.float32


def boxes(count, center, seed=0):
    start = np.abs(normal(2, count, 2, seed=seed)) * 10
    size = np.abs(normal(2, count, 2, seed=seed + 1)) * 8
    return np.concatenate([start, size if center else start + size], axis=2).astype(f32)


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("limit", [0, 3, 100])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("least", [None, 0.5])
def test_non_max_suppression(center, limit, overlap, least):
    scores = np.abs(normal(2, 3, 60))
    threshold = None if least is None else np.array([least], f32)
    args = (boxes(60, center), scores, np.array([limit]), np.array([overlap], f32), threshold)
    agree("NonMaxSuppression", *args, center_point_box=center)


def test_ties_flipped_corners_and_empty_boxes():
    b = boxes(40, 0)
    b[:, ::3] = b[:, ::3, [2, 3, 0, 1]]
    b[:, 5] = 0
    scores = (np.abs(normal(2, 2, 40)) * 3).round().astype(f32)
    agree("NonMaxSuppression", b, scores, np.array([50]), np.array([0.4], f32))


def test_without_a_limit_nothing_is_selected():
    assert meaning("NonMaxSuppression", boxes(5, 0), normal(2, 1, 5))[0].shape == (0, 3)


@pytest.mark.parametrize(
    ("b", "s", "overlap"),
    [
        (boxes(5, 0), normal(2, 1, 6), 0.5),
        (boxes(5, 0)[..., :3], normal(2, 1, 5), 0.5),
        (boxes(5, 0), normal(2, 1, 5), 1.5),
    ],
)
def test_inputs_that_do_not_fit(b, s, overlap):
    with pytest.raises(errors.InvalidArgument):
        meaning("NonMaxSuppression", b, s, np.array([5]), np.array([overlap], f32))


def test_image_decoder():
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    stream = io.BytesIO()
    image.fromarray(pixels).save(stream, "png")
    encoded = np.frombuffer(stream.getvalue(), np.uint8)
    np.testing.assert_array_equal(meaning("ImageDecoder", encoded)[0], pixels)
    np.testing.assert_array_equal(meaning("ImageDecoder", encoded, pixel_format="BGR")[0], pixels[..., ::-1])
    grey = np.asarray(image.fromarray(pixels).convert("L"))[..., None]
    np.testing.assert_array_equal(meaning("ImageDecoder", encoded, pixel_format="Grayscale")[0], grey)
    with pytest.raises(errors.InvalidArgument):
        meaning("ImageDecoder", encoded[:20])


def test_image_decoder_without_pillow(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(errors.NotImplemented, match="Pillow"):
        meaning("ImageDecoder", np.zeros(3, np.uint8))


def test_image_decoder_reads_only_the_formats_that_onnx_names():
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.new("RGB", (2, 2)).save(stream, "EPS")
    with pytest.raises(errors.InvalidArgument, match="no image that can be read"):
        meaning("ImageDecoder", np.frombuffer(stream.getvalue(), np.uint8))


def test_image_decoder_refuses_a_decompression_bomb(monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("SARDONYX_MAX_VALUE_NBYTES", "1000")
    stream = io.BytesIO()
    image.new("L", (9000, 9000)).save(stream, "PNG")
    with pytest.raises(errors.OutOfBudget, match="the image of ImageDecoder"):
        meaning("ImageDecoder", np.frombuffer(stream.getvalue(), np.uint8))

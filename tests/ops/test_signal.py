import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import agree, meaning, normal, reference, rounds_once, same

i64 = np.int64


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("axis", [None, 1, 2, -2, -3])
@pytest.mark.parametrize("length", [None, 4, 12])
def test_dft(parts, inverse, axis, length):
    x = normal(2, 7, 8, parts)
    args = (x, None if length is None else np.array(length), None if axis is None else np.array(axis))
    agree("DFT", *args, inverse=inverse)


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("length", [None, 5, 12])
def test_one_sided(axis, length):
    n = None if length is None else np.array(length)
    agree("DFT", normal(2, 7, 8, 1), n, np.array(axis), onesided=1)
    spectrum = normal(2, 7, 8, 2)
    agree("DFT", spectrum, n, np.array(axis), onesided=1, inverse=1, peer=reference)


def test_dft_types():
    agree("DFT", normal(2, 9, 2, dtype=np.float64), peer=reference, tolerance=1e-12)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        rounds_once("DFT", dtype, normal(2, 9, 1))


@pytest.mark.parametrize(
    ("args", "attributes"),
    [
        ((normal(2, 7, 3),), {}),
        ((normal(2, 7, 1), None, np.array(2)), {}),
        ((normal(2, 7, 1), None, np.array(-1)), {}),
        ((normal(2, 7, 1), np.array(0)), {}),
        ((normal(2, 7, 1), np.array(-4)), {}),
        ((normal(2, 7, 2),), {"onesided": 1}),
    ],
)
def test_dft_nonsense(args, attributes):
    with pytest.raises(errors.InvalidArgument):
        meaning("DFT", *args, **attributes)


def test_an_absurd_length_is_refused():
    with pytest.raises(errors.OutOfBudget):
        meaning("DFT", normal(2, 7, 1), np.array(10**13))


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("step", [3, 8])
@pytest.mark.parametrize("how", ["window", "length", "both"])
def test_stft(onesided, step, how):
    window = None if how == "length" else np.abs(normal(16))
    length = None if how == "window" else np.array(16)
    agree("STFT", normal(2, 64, 1), np.array(step), window, length, onesided=onesided, peer=reference)
    if not onesided:
        agree("STFT", normal(2, 64, 2), np.array(step), window, length, onesided=0, peer=reference)


@pytest.mark.parametrize(("step", "length"), [(0, 8), (4, 0), (4, 65), (-1, 8)])
def test_stft_nonsense(step, length):
    with pytest.raises(errors.InvalidArgument):
        meaning("STFT", normal(1, 64, 1), np.array(step), None, np.array(length))


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("size", [3, 9, 10])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(name, size, periodic):
    agree(name, np.array(size), periodic=periodic, tolerance=1e-5)
    (wide,) = meaning(name, np.array(size), periodic=periodic, output_datatype=11)
    assert wide.dtype == np.float64
    same(meaning(name, np.array(size, np.int32), periodic=periodic), (wide.astype(np.float32),))


@pytest.mark.parametrize("name", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_a_symmetric_window_of_one_sample_is_0_over_0(name):
    agree(name, np.array(1), periodic=0)


@pytest.mark.parametrize(
    ("mels", "length", "rate", "low", "high"),
    [(8, 16, 8192, 0, 4096), (20, 512, 16000, 20, 7600), (80, 400, 16000, 0, 8000)],
)
def test_mel_weights(mels, length, rate, low, high):
    args = [np.array(v, i64) for v in (mels, length, rate)] + [np.array(v, np.float32) for v in (low, high)]
    agree("MelWeightMatrix", *args)


def test_mel_edges_outside_the_spectrum():
    args = [np.array(v, i64) for v in (8, 16, 8000)] + [np.array(v, np.float32) for v in (0, 40000)]
    with pytest.raises(errors.InvalidArgument):
        meaning("MelWeightMatrix", *args)

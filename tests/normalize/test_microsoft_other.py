"""com.microsoft's older names for indexing, sampling and transforms, its hashes, and its channels-last internals."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx import InferenceSession, errors
from tests.normalize.contrib import agree, fresh_numbers, gives, model, normal, onnxruntime, ours, rng  # noqa: F401

I32, F32 = np.int32, np.float32


@pytest.mark.parametrize("n", [6, 8])
def test_real_transforms(n):
    x, y = normal(2, n), normal(2, n // 2 + 1, 2)
    flags = {"signal_ndim": 1, "normalized": 0, "onesided": 1}
    spectrum = np.fft.rfft(x).astype(np.complex64)
    gives("Rfft", (x,), [np.stack([spectrum.real, spectrum.imag], -1)], **flags)
    back = np.fft.irfft(y[..., 0] + 1j * y[..., 1])
    gives("Irfft", (y,), [back.astype(F32)], **flags)


def test_complex_products():
    a, b = normal(2, 3, 2), normal(2, 3, 2)
    za, zb = a[..., 0] + 1j * a[..., 1], b[..., 0] + 1j * b[..., 1]
    for name, z in (("ComplexMul", za * zb), ("ComplexMulConj", za * zb.conj())):
        gives(name, (a, b), [np.stack([z.real, z.imag], -1).astype(F32)])


def test_older_names():
    for k in (None, np.array(1), np.array(-1)):
        agree("Trilu", normal(2, 4, 5), k, upper=0)
        agree("Trilu", normal(4, 5), k)
    for axis in (0, 1, -1, -2):
        agree("ExpandDims", normal(2, 3), np.array(axis, I32), const=(1,))
    agree("GatherND", normal(3, 4, 5), rng.integers(0, 3, (6, 2)).astype(I32))
    agree("GatherND", normal(3, 4, 5), rng.integers(0, 3, (2, 2, 1)))
    agree("Unique", rng.integers(0, 5, 20).astype(F32), outputs=3)
    for dtype in (F32, np.int64, I32):
        agree("Range", np.array([1], dtype), np.array([9], dtype), np.array([2], dtype))
        agree("Range", np.array(1, dtype), np.array(9, dtype))
    agree("SampleOp", normal(3))
    gives("TorchEmbedding", (table := normal(4, 3), places := rng.integers(0, 4, (2, 2))), [table[places]])


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
def test_pad(mode):
    value = (np.array([2.0], F32),) if mode == "constant" else ()
    agree("Pad", normal(3, 4), np.array([[1, 1, 0, 2]]), *value, mode=mode)
    agree("Pad", normal(3, 4), np.array([0, -1, 1, 0]))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode, padding, corners):
    if (mode, padding) == ("bicubic", "border"):
        pytest.skip("onnxruntime clamps positions before it interpolates; ai.onnx clamps the pixels that are read")
    grid = rng.uniform(-1.3, 1.3, (2, 4, 3, 2)).astype(F32)
    options = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    agree("GridSample", normal(2, 3, 5, 6), grid, tolerance=1e-4, **options)


@pytest.mark.parametrize(("dim", "size", "step"), [(-1, 3, 1), (1, 2, 2), (0, 2, 1), (-2, 3, 2)])
def test_unfold(dim, size, step):
    agree("UnfoldTensor", normal(4, 5, 6), dim=dim, size=size, step=step)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
@pytest.mark.parametrize("dtype", [F32, np.float64])
def test_distances(metric, dtype):
    agree("CDist", normal(4, 5, dtype=dtype), normal(3, 5, dtype=dtype), metric=metric)


def by_definition(metric, a, b, p):
    """Distances in float64, pair by pair, as scipy.spatial.distance defines them."""
    a, b = a.astype(np.float64)[:, None], b.astype(np.float64)[None]
    apart = np.abs(a - b)
    if metric in ("cosine", "correlation"):
        if metric == "correlation":
            a, b = a - a.mean(-1, keepdims=True), b - b.mean(-1, keepdims=True)
        return 1 - (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))
    sizes = np.abs(a) + np.abs(b)
    return {
        "braycurtis": lambda: apart.sum(-1) / np.abs(a + b).sum(-1),
        "canberra": lambda: np.divide(apart, sizes, out=np.zeros_like(sizes), where=sizes != 0).sum(-1),
        "chebyshev": lambda: apart.max(-1),
        "cityblock": lambda: apart.sum(-1),
        "euclidean": lambda: np.sqrt((apart**2).sum(-1)),
        "hamming": lambda: (apart != 0).mean(-1),
        "manhattan": lambda: apart.sum(-1),
        "minkowski": lambda: apart.max(-1) if p == np.inf else (apart**p).sum(-1) ** (1 / p),
        "sqeuclidean": lambda: (apart**2).sum(-1),
    }[metric]()


METRICS = ("braycurtis", "canberra", "chebyshev", "cityblock", "correlation", "cosine", "euclidean", "hamming")


@pytest.mark.parametrize("metric", [*METRICS, "manhattan", "minkowski", "sqeuclidean"])
@pytest.mark.parametrize("dtype", [F32, np.float64])
def test_every_metric(metric, dtype):
    a, b = normal(4, 5, dtype=dtype), normal(3, 5, dtype=dtype)
    a[0, 2] = b[1, 2] = a[1, 1] = b[2, 1] = 0
    for p in (1.0, 2.0, 3.0, 1.5, np.inf) if metric == "minkowski" else (None,):
        extra = {} if p is None else {"p": p}
        wanted = by_definition(metric, a, b, p).astype(dtype)
        gives("CDist", (a, b), [wanted], metric=metric, tolerance=2e-6 if dtype is F32 else 1e-14, **extra)


def test_a_non_finite_row_does_not_affect_others():
    a, b = normal(3, 4), normal(5, 4)
    a[1, 0], b[2, 1], b[3, 3] = np.nan, np.inf, np.nan
    (got,) = ours(model("CDist", (a, b), {}), {"i0": a, "i1": b})
    kept = np.ix_([0, 2], [0, 1, 4])
    np.testing.assert_allclose(got[kept], by_definition("sqeuclidean", a, b, None)[kept], rtol=1e-6)


@pytest.mark.parametrize("extra", [{"metric": "mahalanobis"}, {"metric": "minkowski", "p": -1.0}])
def test_unknown_metrics_are_refused(extra):
    with pytest.raises(errors.NotImplemented, match=f"{list(extra.values())[-1]}"):
        ours(model("CDist", (normal(2, 3), normal(2, 3)), extra), {})


def test_rows_of_different_lengths_are_refused():
    with pytest.raises(errors.InvalidGraph, match=r"differ in length"):
        ours(model("CDist", (normal(2, 1), normal(2, 3)), {}), {})


@pytest.mark.parametrize("offset", [1e3, 1e5])
def test_distances_of_rows_far_from_zero(offset):
    a = (normal(20, 6) + offset).astype(F32)
    b = np.concatenate([a[:2], (normal(8, 6) + offset).astype(F32)])
    proto = model("CDist", (a, b), {"metric": "sqeuclidean"}, symbolic=True).SerializeToString()
    (got,) = InferenceSession(proto).run(None, {"i0": a, "i1": b})
    np.testing.assert_allclose(got, by_definition("sqeuclidean", a, b, None), rtol=1e-6, atol=1e-10)


def test_inverse():
    x = normal(2, 4, 4) + 3 * np.eye(4, dtype=F32)
    for dtype, tolerance in ((F32, 1e-5), (np.float64, 1e-12), (np.float16, 1e-2)):
        agree("Inverse", x.astype(dtype), tolerance=tolerance)
    with pytest.raises(errors.InvalidArgument, match=r"[Ss]ingular"):
        ours(model("Inverse", (x * 0,), {}), {"i0": x * 0})


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("dtype", [I32, np.uint32, np.int64, np.float32, np.float64, object])
def test_murmur_hash(dtype, positive):
    words = np.array(["a", "bcde", "hello wörld", "", "xyz12"], object)
    x = words if dtype is object else (normal(3, 4) * 99).astype(np.int64).astype(dtype)
    agree("MurmurHash3", x, outputs=[np.uint32 if positive else I32], positive=positive, seed=7)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(4, 5), (1, 1), (7, 2)])
def test_crop_and_resize(mode, size):
    boxes = np.sort(rng.uniform(-0.2, 1.3, (4, 2, 2)), 1).reshape(4, 4).astype(F32)
    where = np.array([0, 1, 1, 0], I32), np.array(size, I32)
    agree("CropAndResize", normal(2, 3, 8, 9), boxes, *where, mode=mode, extrapolation_value=0.5)


def test_finiteness():
    x, bad = normal(3, 4), np.array([1, np.inf, np.nan], F32)
    for inputs, attributes, want in (
        ((x, x), {}, True),
        ((x, bad), {}, False),
        ((bad[:2],), {"isnan_only": 1}, True),
        ((bad[::2],), {"isinf_only": 1}, True),
        ((bad,), {"isinf_only": 1}, False),
    ):
        gives("IsAllFinite", inputs, [np.array(want)], **attributes)


def test_padding_is_removed_and_restored():
    x, lengths = normal(2, 4, 3), np.array([2, 3], I32)
    offsets = np.array([[0, 1, 4, 5], [6, 2, 3, 7]], I32)
    tokens = x.reshape(-1, 3)[offsets.ravel()[:5]]
    want = [tokens, offsets, np.array([0, 2, 5], I32), np.array([3], I32)]
    gives("RemovePadding", (x, lengths), want)
    kept = x.copy()
    kept[0, 2:] = kept[1, 3:] = 0
    gives("RestorePadding", (tokens, offsets), [kept])


NHWC = "com.ms.internal.nhwc"


@pytest.mark.parametrize(
    ("name", "rest", "attributes"),
    [
        ("Conv", [(8, 4, 3, 3)], {"pads": [1, 1, 1, 1]}),
        ("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("AveragePool", [], {"kernel_shape": [2, 2]}),
        ("GlobalAveragePool", [], {}),
        ("InstanceNormalization", [(4,), (4,)], {}),
        ("DepthToSpace", [], {"blocksize": 2}),
    ],
)
def test_channels_last_internals(name, rest, attributes):
    """What onnxruntime's layout pass writes is the ai.onnx operator between two transposes."""
    x, others = normal(1, 4, 6, 6), [normal(*s) for s in rest]
    feeds = {f"i{k}": v for k, v in enumerate((x, *others))}
    (want,) = onnxruntime(model(name, (x, *others), attributes, domain=""), feeds)
    last = x.transpose(0, 2, 3, 1).copy()
    proto = model(name, (last, *others), attributes, domain=NHWC)
    proto.opset_import.add(domain=NHWC, version=11)
    (got,) = ours(proto, {**feeds, "i0": last})
    np.testing.assert_allclose(got, want.transpose(0, 2, 3, 1), rtol=1e-5, atol=1e-5)

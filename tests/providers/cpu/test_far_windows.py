"""Windows whose strides, dilations and sizes are larger than any image: they decide neither time nor memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

import sardonyx

ort = pytest.importorskip("onnxruntime")

FAR = {"last": (1 << 63) - 1, "40 bits": 1 << 40, "20 bits": 1 << 20}
CHIPS = ("x86-64", "haswell", "sapphirerapids")
BODIES = {
    "depthwise": ("y = Conv<strides = [{far}, 2], group = 8>(x, w)", (8, 1, 3, 3)),
    "depthwise, along rows": ("y = Conv<strides = [2, {far}], group = 8>(x, w)", (8, 1, 3, 3)),
    "convolution": ("y = Conv<strides = [{far}, 2]>(x, w)", (24, 8, 3, 3)),
    "one tap": ("y = Conv<dilations = [{far}, {far}], strides = [1, {far}]>(x, w)", (8, 8, 1, 1)),
    "max pool": ("y = MaxPool<strides = [1, {far}], kernel_shape = [2, 2]>(x)", None),
    "average pool": ("y = AveragePool<strides = [{far}, 1], kernel_shape = [2, 2]>(x)", None),
}


def built(body: str, weights: tuple[int, ...] | None, shape: str = "1,8,9,17") -> bytes:
    head = '<ir_version: 10, opset_import: ["" : 21]>'
    model = parse_model(f"{head} g (float[{shape}] x) => (float[a,b,c,d] y) {{ {body} }}")
    if weights is not None:
        w = np.random.default_rng(1).standard_normal(weights).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return bytes(model.SerializeToString())


def image(*shape: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


def expected(model: bytes, feeds: dict[str, Any]) -> Any:
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)[0]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("shape", ["1,8,9,17", "n,8,h,w"], ids=["stated", "open"])
def test_far(name: str, far: str, chip: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that moves past the image has one output, whatever the distance is."""
    monkeypatch.setenv("SARDONYX_CPU", chip)
    (body, weights), feeds = BODIES[name], image(1, 8, 9, 17)
    session = sardonyx.InferenceSession(built(body.format(far=FAR[far]), weights, shape))
    (got,) = session.run(None, feeds)
    np.testing.assert_allclose(got, expected(built(body.format(far=50), weights), feeds), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [31, 32, 33, 1 << 20, (1 << 62) + 1])
@pytest.mark.parametrize("shape", ["1,16,4,4", "n,c,h,w"], ids=["stated", "open"])
def test_responses_of_more_channels_than_there_are(size: int, shape: str) -> None:
    """The sum is over all channels from 31 on; alpha is divided by what is stated."""
    feeds = image(1, 16, 4, 4)
    (got,) = sardonyx.InferenceSession(built(f"y = LRN<size = {size}, alpha = {size}.0>(x)", None, shape)).run(
        None, feeds
    )
    same = built("y = LRN<size = 33, alpha = 33.0>(x)", None, "1,16,4,4")
    np.testing.assert_allclose(got, expected(same, feeds), rtol=1e-5)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_pools_of_many_rows(op: str) -> None:
    feeds = image(1, 2, 2002, 2)
    model = built(f"y = {op}<kernel_shape = [2000, 1]>(x)", None, "1,2,2002,2")
    session = sardonyx.InferenceSession(model)
    assert "reference" not in str(session.explain())
    np.testing.assert_allclose(session.run(None, feeds)[0], expected(model, feeds), rtol=1e-4, atol=1e-5)

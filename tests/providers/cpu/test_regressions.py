"""Small models that the compiler once got wrong, answered as onnx's reference does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import sardonyx
from sardonyx.errors import SardonyxError
from sardonyx.interpret.context import RunContext
from sardonyx.providers.cpu import CpuProvider
from sardonyx.session.build import BuildOptions, Engine, build

Array = np.ndarray[Any, Any]
HEADER = '<ir_version: 10, opset_import: ["" : 22]>\n'


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def compiled(text: str) -> Engine:
    return build(parsed(text).SerializeToString(), BuildOptions(providers=[CpuProvider()]))


def results(engine: Engine, feeds: dict[str, Array]) -> list[Any]:
    return engine.run(feeds, [v.name for v in engine.outputs], RunContext())


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    shapes: tuple[tuple[int, ...], ...]
    """Of ``x``, one run each."""
    dtype: Any = np.float32
    tolerance: float = 1e-5


CASES = [
    Case("a constant axis of nothing", """
        g (float[a,4] x) => (float[a,n] y, float[a,4] z) <int64[1] far = {9}, int64[1] end = {99}, int64[1] axis = {1}>
        { cut = Slice(x, far, end, axis)  y = Relu(cut)  z = Neg(x) }""",
        ((3, 4), (0, 4))),
    Case("norm, then an index along an axis of one", """
        g (float[a,1,b,4] x) => (float[a,b,4] y, int64[a,1,b,4] z)
        <float[4] scale = {1.5, -1.0, 0.5, 2.0}, float[4] bias = {1.0, 2.0, 3.0, 4.0}, int64[1] one = {1}>
        { n = LayerNormalization(x, scale, bias)  y = Squeeze(n, one)  z = ArgMin<axis = 1>(n) }""",
        ((3, 1, 5, 4), (1, 1, 1, 4))),
    Case("the index along a flattened axis", """
        g (float[a,b] x) => (int64[c,d] y)
        <int64[1] start = {1}, int64[1] end = {-2}, int64[1] axis = {0}, int64[1] step = {3}>
        { rows = Slice(x, start, end, axis, step)  flat = Flatten<axis = 0>(rows)  y = ArgMin<axis = 1>(flat) }""",
        ((17, 33), (11, 2))),
    Case("a constant matrix that is repeated", """
        g (float[a,b,4] x) => (float[a,b,3] y)
        <float[1,4,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, int64[1] zero = {0}, int64[2] rest = {4, 3}>
        { s = Shape<start = 0, end = 1>(x)  shape = Concat<axis = 0>(s, rest)  many = Expand(w, shape)
          y = MatMul(x, many) }""",
        ((2, 5, 4), (3, 1, 4))),
    Case("halves reduced to one number", """
        g (float16[a] x) => (float16[1] y, float16[1] z) <int64[1] axis = {0}>
        { y = ReduceMax(x, axis)  z = ReduceSum(x, axis) }""",
        ((5,), (100,), (40_000,)), np.float16, 1e-2),
    Case("a size of nothing in a shape", """
        g (float[a,b,c] x) => (float[n,p,q] y) <int64[1] rest = {-1}>
        { r = Relu(x)  first = Shape<start = 0, end = 1>(x)  last = Shape<start = 2, end = 3>(x)
          shape = Concat<axis = 0>(rest, last, first)  y = Reshape(r, shape) }""",
        ((2, 3, 4), (0, 3, 4))),
    Case("windows side by side", """
        g (float[a,3,h,w] x) => (float[a,3,p,q] y, float[a,3,p,q] z)
        { y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
          z = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(x) }""",
        ((2, 3, 4, 18), (1, 3, 5, 7))),
    Case("a bias beside an image of one column", """
        g (float[a,2,h,2] x) => (float[a,4,p,1] y)
        <float[4,1,1,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float[4] b = {10, 20, 30, 40}>
        { y = Conv<group = 2, strides = [2, 2], pads = [1, 1, 1, 1]>(x, w, b) }""",
        ((2, 2, 5, 2), (1, 2, 9, 2))),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_answers(case: Case) -> None:
    engine, peer = compiled(case.text), ReferenceEvaluator(parsed(case.text))
    assert "cpu" in engine.explain().counts()
    rng = np.random.default_rng(0)
    for shape in case.shapes:
        feeds = {"x": rng.standard_normal(shape).astype(case.dtype)}
        for got, want in zip(results(engine, feeds), peer.run(None, feeds), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=case.tolerance, atol=case.tolerance)


REFUSED = {
    "a negative repeat": "g (float[2] x) => (float[n] y) <int64[1] n = {-1}> { y = Tile(x, n) }",
    "an axis twice": "g (float[2] x) => (float[1,1,2] y) <int64[2] n = {0, 0}> { y = Unsqueeze(x, n) }",
    "three values": """g (float[2] x) => (float[2,4] y) <int64 depth = {4}, float[3] v = {0, 1, 2}>
        { i = Cast<to = 7>(x)  y = OneHot(i, depth, v) }""",
    "a window of nothing": """g (float[2] x) => (float[1,1,a] y) <int64[3] s = {1, 1, 2}>
        { r = Reshape(x, s)  y = MaxPool<kernel_shape = [0]>(r) }""",
    "2^80 elements": """g (float[1] x) => (float[a,b] y) <int64[2] n = {1099511627776, 1099511627776}>
        { r = Relu(x)  y = Expand(r, n) }""",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_refuses(text: str) -> None:
    with pytest.raises(SardonyxError):
        results(compiled(text), {"x": np.ones([2 if "[2] x" in text else 1], np.float32)})


LONG: dict[str, Callable[[], list[onnx.NodeProto]]] = {
    "a chain": lambda: [onnx.helper.make_node("Neg", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(1000)],
    "a sum": lambda: [onnx.helper.make_node("Sum", ["x"] * 5000, ["v1000"])],
}


@pytest.mark.parametrize("nodes", LONG.values(), ids=LONG)
def test_long_groups_are_split_into_several_kernels(nodes: Callable[[], list[onnx.NodeProto]]) -> None:
    f32, helper = onnx.TensorProto.FLOAT, onnx.helper
    ends = ([helper.make_tensor_value_info(name, f32, ["n"])] for name in ("x", "v1000"))
    model = helper.make_model(helper.make_graph(nodes(), "g", *ends), opset_imports=[helper.make_opsetid("", 22)])
    engine = build(model.SerializeToString(), BuildOptions(level="disabled", providers=[CpuProvider()]))
    (y,) = results(engine, {"x": np.ones(3, np.float32)})
    np.testing.assert_array_equal(y, 5000.0 if len(model.graph.node) == 1 else 1.0)


def test_a_missing_file_is_named_with_the_cache_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("SARDONYX_CACHE", str(cache))
    model = parsed("g (float[2] x) => (float[2] y) { y = Add(x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(SardonyxError, match=r"w\.bin"):
        sardonyx.InferenceSession(tmp_path / "m.onnx")

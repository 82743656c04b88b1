"""What a file states of computed values decides nothing: answers are onnxruntime's, whatever ``value_info`` says."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import sardonyx
from sardonyx.errors import SardonyxError
from sardonyx.interpret.context import RunContext
from sardonyx.providers.cpu import CpuProvider
from sardonyx.session.build import build
from sardonyx.session.engine import BuildOptions

onnxruntime = pytest.importorskip("onnxruntime")


def model(text: str, opset: int = 17) -> bytes:
    head = f'<ir_version: 9, opset_import: ["" : {opset}, "ai.onnx.ml" : 3]>'
    return parser.parse_model(f"{head}\n{text}").SerializeToString()


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def ints(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


IMAGE = "float[?,?,?,?] x"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "Concat": ("g (float[?] x, float[?] y) => (float[4] z) { z = Concat<axis=0>(x, y) }", {"y": floats(50)}),
    "Slice": (
        "g (float[?] x, int64[1] e) => (float[8] z) { s = Constant<value_ints=[0]>() z = Slice(x, s, e) }",
        {"e": ints(5)},
    ),
    "Slice, longer": (
        "g (float[?] x, int64[1] e) => (float[8] z) { s = Constant<value_ints=[0]>() z = Slice(x, s, e) }",
        {"e": ints(95)},
    ),
    "Pad": ("g (float[?] x, int64[2] p) => (float[8] z) { z = Pad(x, p) }", {"p": ints(5, 3)}),
    "Tile": ("g (float[?] x, int64[1] r) => (float[8] z) { z = Tile(x, r) }", {"r": ints(5)}),
    "Expand": ("g (float[1] x, int64[1] s) => (float[8] z) { z = Expand(x, s) }", {"x": floats(1), "s": ints(50)}),
    "Reshape": ("g (float[?] x, int64[2] s) => (float[2,2] z) { z = Reshape(x, s) }", {"s": ints(4, 25)}),
    "Split": ("g (float[?] x, int64[2] s) => (float[2] z, float[2] w) { z, w = Split(x, s) }", {"s": ints(1, 99)}),
    "ConstantOfShape": ("g (int64[2] s) => (float[2,2] z) { z = ConstantOfShape(s) }", {"s": ints(7, 9)}),
    "Range": (
        "g (int64 e) => (int64[8] z) { a = Constant<value_int=0>() b = Constant<value_int=1>() z = Range(a, e, b) }",
        {"e": np.array(30)},
    ),
    "Conv": (
        "g (float[1,1,?,?] x, float[1,1,3,3] w) => (float[1,1,4,4] z) { z = Conv(x, w) }",
        {"x": floats(1, 1, 10, 10), "w": floats(1, 1, 3, 3)},
    ),
    "MaxPool": (
        "g (float[1,1,?,?] x) => (float[1,1,2,2] z) { z = MaxPool<kernel_shape=[2,2]>(x) }",
        {"x": floats(1, 1, 6, 4)},
    ),
    "AveragePool": (
        "g (float[1,1,?,?] x) => (float[1,1,2,2] z) { z = AveragePool<kernel_shape=[2,2]>(x) }",
        {"x": floats(1, 1, 6, 4)},
    ),
    "MaxUnpool": (
        f"""g ({IMAGE}, int64[?,?,?,?] i) => (float[1,1,4,4] z)
        {{ z = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(x, i) }}""",
        {"x": floats(1, 1, 4, 4), "i": np.arange(16).reshape(1, 1, 4, 4) * 3},
    ),
    "DepthToSpace": (
        f"g ({IMAGE}) => (float[1,1,2,2] z) {{ z = DepthToSpace<blocksize=2>(x) }}",
        {"x": floats(1, 4, 5, 6)},
    ),
    "GridSample": (
        f"g ({IMAGE}, float[?,?,?,2] y) => (float[1,1,2,2] z) {{ z = GridSample(x, y) }}",
        {"x": floats(1, 4, 5, 6), "y": floats(1, 7, 8, 2)},
    ),
    "Resize": (
        "g (float[1,1,?,?] x, int64[4] s) => (float[1,1,2,2] z) { z = Resize(x, , , s) }",
        {"x": floats(1, 1, 6, 4), "s": ints(1, 1, 7, 9)},
    ),
    "NegativeLogLikelihoodLoss": (
        'g (float[?,?] x, int64[?] y) => (float[2] z) { z = NegativeLogLikelihoodLoss<reduction="none">(x, y) }',
        {"x": floats(6, 4), "y": ints(0, 1, 2, 3, 0, 1)},
    ),
    "GatherND": (
        "g (float[?,?] x, int64[?,1] i) => (float[2,2] z) { z = GatherND(x, i) }",
        {"x": floats(6, 4), "i": ints(0, 1, 5).reshape(3, 1)},
    ),
    "ArrayFeatureExtractor": (
        "g (float[N,3] x, int64 i) => (float[N,4] z) { z = ai.onnx.ml.ArrayFeatureExtractor(x, i) }",
        {"x": floats(5, 3), "i": np.array(1)},
    ),
    "Scan": (
        """g (float[?,3] x) => (float[2,3] z)
        { z = Scan<num_scan_inputs=1, body=b (float[3] a) => (float[3] c) { c = Relu(a) }>(x) }""",
        {"x": floats(6, 3)},
    ),
    "Loop that grows": (
        """g (float[?] x) => (float[4] z) { n = Constant<value_int=3>()
        z = Loop(n, , x)<body = b (int64 i, bool c, float[2] s) => (bool d, float[2] t)
        { d = Identity(c) t = Concat<axis=0>(s, s) }> }""",
        {"x": floats(5)},
    ),
    "an input behind Identity": (
        "g (float[?,3] x) => (float[4,3] z) { y = Identity(x) z = Relu(y) }",
        {"x": floats(7, 3)},
    ),
    "an output that is an input": ("g (float[?,3] x) => (float[4,3] z) { z = Identity(x) }", {"x": floats(7, 3)}),
    "a lie in the middle": (
        """g (float[?] x, float[?] y) => (float[?] z) <float[4] m, float[3] k>
        { m = Concat<axis=0>(x, y) k = Relu(m) z = Mul(k, k) }""",
        {"y": floats(50)},
    ),
    "a lying rank": (
        "g (float[?] x, float[?] y) => (float[?] z) <float[4,5] m> { m = Concat<axis=0>(x, y) z = Relu(m) }",
        {"y": floats(50)},
    ),
    "names that the engine makes up": (
        'g (float["?in1"] x, float["?2"] y) => (float["?1"] z) { z = Concat<axis=0>(x, y) }',
        {"y": floats(9)},
    ),
    "names that look like arithmetic": (
        'g (float["a` + `b"] x, float["a"] y, float["b"] w) => (float[n] z) { z = Concat<axis=0>(x, y, w) }',
        {"y": floats(9), "w": floats(3)},
    ),
    "a fed shape that is an initializer": (
        "g (float[?] x, int64[2] s) => (float[a,b] z) <int64[2] s = {3, 4}> { z = Reshape(x, s) }",
        {"s": ints(4, 25)},
    ),
}


@pytest.mark.parametrize("level", [sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL, None])
@pytest.mark.parametrize("name", CASES)
def test_stated_shapes_change_no_answer(name: str, level: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CHECK_ADDRESSES", "1")
    text, given = CASES[name]
    data = model(text)
    declared = [i.name for i in onnx.load_from_string(data).graph.input]
    feeds = {n: given[n] if n in given else floats(100) for n in declared}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    expected = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    ours = sardonyx.SessionOptions()
    if level is not None:
        ours.graph_optimization_level = level
    got = sardonyx.InferenceSession(data, ours).run(None, feeds)
    for e, g in zip(expected, got, strict=True):
        assert e.dtype == g.dtype and e.shape == g.shape
        np.testing.assert_allclose(g, e, 1e-5, 1e-6)


def test_branches_of_an_if_are_as_long_as_they_are() -> None:
    """onnxruntime fails here: it allocates the stated size."""
    text = """g (float[?] x, bool c) => (float[4] z) { z = If(c)<
        then_branch = t () => (float[4] a) { a = Relu(x) }, else_branch = e () => (float[4] b) { b = Neg(x) }> }"""
    x = floats(100)
    session = sardonyx.InferenceSession(model(text))
    for c, expected in ((True, np.maximum(x, 0)), (False, -x)):
        np.testing.assert_array_equal(session.run(None, {"x": x, "c": np.array(c)})[0], expected)


def test_a_stale_shape_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    text = "g (float[3] x) => (float[5] z) <float[4] y, float[6] w> { y = Relu(x) w = Neg(y) z = Abs(w) }"
    with caplog.at_level(logging.WARNING, "sardonyx"):
        session = sardonyx.InferenceSession(model(text))
    (message,) = [r.getMessage() for r in caplog.records]
    assert "f32[4] for 'y'" in message and "f32[3]" in message and "2 more" in message
    assert session.run(None, {"x": floats(3)})[0].shape == (3,)


CASTING_BODIES = {
    "Loop": """g (double[4] x) => (double[4] z) { n = Constant<value_int=3>()
        z = Loop(n, , x)<body = b (int64 i, bool c, double[4] s) => (bool d, int8[4] t)
        { d = Identity(c) t = Cast<to=3>(s) }> }""",
    "Loop whose body declares another type": """g (double[4] x) => (float[4] z) { n = Constant<value_int=3>()
        z = Loop(n, , x)<body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t)
        { d = Identity(c) t = Relu(s) }> }""",
    "Scan": """g (double[4] x, float[2,4] y) => (double[4] z, float[2,4] w) {
        z, w = Scan<num_scan_inputs=1, body = b (double[4] s, float[4] a) => (int8[4] t, float[4] c)
        { t = Cast<to=3>(s) c = Relu(a) }>(x, y) }""",
    "If": """g (double[4] x, bool c) => (double[4] z) { z = If(c)<
        then_branch = t () => (double[4] a) { a = Relu(x) },
        else_branch = e () => (int8[4] b) { b = Cast<to=3>(x) }> }""",
}


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", CASTING_BODIES)
def test_bodies_that_change_a_type_are_refused(name: str, compiled: bool) -> None:
    data = model(CASTING_BODIES[name])
    feeds = {"x": np.arange(4.0), "y": floats(2, 4), "c": np.array(False)}
    with pytest.raises(SardonyxError):
        engine = build(data, BuildOptions([CpuProvider()] if compiled else [], level="disabled"))
        engine.run({v.name: feeds[v.name] for v in engine.inputs}, ["z"], RunContext())

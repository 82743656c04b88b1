"""Slices between bounds that are data, assigned to: ``x[:, a:b] = y``."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import sardonyx
from tests.optimize.rewritten import Case, check

WRITTEN = """one = Constant <value_int = 1>()
    column = Constant <value_ints = {column}>()
    numbers = Range(a, b, one) c = Reshape(numbers, column) i = {spread}(c, {sizes})
    u = Expand(y, {shape}) z = ScatterElements <axis = {axis}>(x, i, u)"""
COMPARED = ["GreaterOrEqual", "Less", "And", "GreaterOrEqual", "Less", "And", "Or", "Where"]


def case(
    a: int, b: int, after: list[str] = COMPARED, *, x: Any = (2, 7, 3), y: Any = (2, 1, 3), axis: int = 1, **more: Any
) -> Case:
    feeds = {"x": x, "y": y, "a": np.array(a, np.int64), "b": np.array(b, np.int64)}
    shape = feeds["x"] if isinstance(x, tuple) else x.shape
    sizes = [b - a if i == axis % len(shape) else n for i, n in enumerate(shape)]
    repeats = [1 if i == axis % len(shape) else n for i, n in enumerate(shape)]
    column = [-1 if i == axis % len(shape) else 1 for i in range(len(shape))]
    written = WRITTEN.format(column=column, spread="Tile", sizes="t", shape="r", axis=axis)
    body = f"t = Constant <value_ints = {repeats}>() r = Constant <value_ints = {sizes}>() {written}"
    return Case(body, after, feeds, outputs=more.pop("outputs", "float[] z"), **more)


@pytest.mark.parametrize(
    "one",
    [
        case(2, 5),
        case(0, 7),
        case(4, 4),
        case(-3, -1),
        case(6, 7, y=(1, 3)),
        case(1, 2, y=(1,), axis=-1),
        case(0, 1, x=(5,), y=(1,), axis=0),
        case(3, 4, x=np.arange(14, dtype=np.int32).reshape(2, 7), y=np.array([[9], [8]], np.int32),
             outputs="int32[] z"),
    ],
)  # fmt: skip
def test_shapes_no_longer_depend_on_the_bounds(one: Case) -> None:
    check(one, "FuseSliceAssignment", "FoldConstants")


@pytest.mark.parametrize(
    "one",
    [
        case(2, 4, y=(2, 2, 3), reason="differs along the axis"),
        case(2, 4, symbols={"x": "[2, n, m]"}, reason="not all of the other axes is replaced"),
    ],
)
def test_near_misses_are_reported_with_a_reason(one: Case) -> None:
    one.after = ["Range", "Reshape", "Tile", "Expand", "ScatterElements"]
    check(one, "FuseSliceAssignment")


@pytest.mark.parametrize("spread", ["Tile", "Expand"])
@pytest.mark.parametrize("sizes", ["3, 6, 4", "batch, rows, 4"])
def test_a_decoder_writes_one_row_in_each_trip(spread: str, sizes: str) -> None:
    """Sizes are those of a Slice, as Paddle's exporter writes them."""
    middle = "ones" if spread == "Tile" else "length"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
    g (float[{sizes}] start, int64 trips, bool keep) => (float[{sizes}] z) {{
        z = Loop(trips, keep, start) <body = row (int64 a, bool go, float[{sizes}] x) => (bool on, float[{sizes}] z) {{
            on = Identity(go) step = Constant <value_int = 1>() b = Add(a, step)
            zero = Constant <value_ints = [0]>() ones = Constant <value_ints = [1]>()
            s = Reshape(a, ones) e = Reshape(b, ones) part = Slice(x, s, e, ones, ones) shape = Shape(part)
            first = Shape <start = 0, end = 1>(part) last = Shape <start = 2>(part) length = Sub(e, s)
            sizes = Concat <axis = 0>(first, {middle}, last)
            low = ReduceMax <keepdims = 1>(x, ones) y = Cos(low)
            {WRITTEN.format(column=[1, -1, 1], spread=spread, sizes="sizes", shape="shape", axis=1)}
        }}>
    }}""").SerializeToString()
    session = sardonyx.InferenceSession(model)
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(3)
    for trips in (0, 2, 6):
        feeds = {
            "start": rng.normal(size=(3, 6, 4)).astype(np.float32),
            "trips": np.array(trips),
            "keep": np.array(True),
        }
        np.testing.assert_allclose(session.run(None, feeds)[0], theirs.run(None, feeds)[0], rtol=1e-6, atol=1e-6)
    assert "FuseSliceAssignment" in str(session.explain())

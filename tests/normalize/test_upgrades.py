"""Nodes of old opsets, against onnxruntime's kernels for those very versions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sardonyx
from tests.comparing import Tolerance, assert_same

ort = pytest.importorskip("onnxruntime")

Array = np.ndarray[Any, Any]
_rng = np.random.default_rng(11)


def f(*shape: int) -> Array:
    return _rng.standard_normal(shape).astype(np.float32)


def pos(*shape: int) -> Array:
    return np.abs(f(*shape)) + np.float32(0.1)


@dataclass
class Case:
    op: str
    opset: int
    inputs: list[Array]
    attrs: dict[str, Any] = field(default_factory=dict)
    consts: list[Array] = field(default_factory=list)
    outputs: int = 1

    def __str__(self) -> str:
        shapes = "x".join(str(list(x.shape)) for x in [*self.inputs, *self.consts])
        return f"{self.op}-{self.opset}-{self.attrs}-{shapes}-{self.outputs}".replace(" ", "")

    @property
    def feeds(self) -> dict[str, Array]:
        return {f"x{i}": x for i, x in enumerate(self.inputs)}

    def model(self, *, shapes: bool) -> bytes:
        consts = {f"c{i}": c for i, c in enumerate(self.consts)}
        outs = [f"y{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, [*self.feeds, *consts], outs, **self.attrs)
        inputs = [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape if shapes else None)
            for k, v in self.feeds.items()
        ]
        graph = helper.make_graph(
            [node],
            "g",
            inputs,
            [helper.make_empty_tensor_value_info(o) for o in outs],
            [numpy_helper.from_array(v, k) for k, v in consts.items()],
        )
        opset = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


NEAR = Tolerance(relative=1e-4, absolute=1e-5)


X = f(2, 3, 4, 4)
STATS = [pos(3) for _ in range(4)]
CASES = [
    *(Case("BatchNormalization", v, [X, *STATS], outputs=n) for v in (7, 8, 9) for n in (1, 5)),
    *(Case("BatchNormalization", v, [X, *(pos(3, 4, 4) for _ in range(4))], {"spatial": 0}) for v in (7, 8)),
    *(Case("Dropout", v, [X], {"ratio": 0.3}, outputs=n) for v in (7, 9, 10, 11) for n in (1, 2)),
    Case("Dropout", 12, [X], outputs=2),
    *(
        Case(op, v, [X], {} if axis is None else {"axis": axis})
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for v, axis in ((1, None), (9, 0), (9, 2), (9, 3), (11, -1), (11, -3), (13, 1))
    ),
    *(
        Case(f"Reduce{kind}", v, [pos(2, 3, 4)], attrs)
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
        for v, attrs in ((1, {}), (11, {"axes": [-1], "keepdims": 0}), (12, {"axes": [0, 2]}))
    ),
    *(
        Case("Upsample", v, [X], {"scales": [1.0, 1.0, *s], "mode": mode})
        for v in (7, 8)
        for s in ((2.0, 2.0), (2.5, 1.3))
        for mode in ("nearest", "linear")
    ),
    *(
        Case(op, v, [X, *([] if const else [s])], {"mode": mode}, [s] if const else [])
        for op, v, const, scales in (
            ("Upsample", 9, True, (2.0, 3.0)),
            ("Resize", 10, True, (2.5, 1.3)),
            ("Resize", 10, True, (0.6, 0.5)),
            ("Resize", 10, True, (0.6, 1.7)),
            ("Resize", 10, False, (0.6, 1.7)),
        )
        for mode in ("nearest", "linear")
        for s in [np.array([1, 1, *scales], np.float32)]
    ),
    *(
        Case(
            "Resize",
            11,
            [X],
            {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": rounding},
            [np.zeros(0, np.float32), np.array([1, 1, *scales], np.float32)],
        )
        for rounding in ("floor", "round_prefer_floor")
        for scales in ((2.0, 3.0), (0.6, 1.7))
    ),
    Case("Slice", 1, [X], {"starts": [0, -2], "ends": [1, 100], "axes": [1, 2]}),
    Case("Slice", 1, [X], {"starts": [1], "ends": [2]}),
    Case("Split", 2, [X], {"axis": 2}, outputs=2),
    Case("Split", 11, [X], {"axis": -1, "split": [1, 3]}, outputs=2),
    Case("Split", 13, [X], {"axis": 2}, outputs=2),
    Case("Reshape", 1, [X], {"shape": [0, -1]}),
    Case("Squeeze", 1, [f(1, 2, 1)], {"axes": [0]}),
    Case("Squeeze", 11, [f(1, 2, 1)]),
    Case("Unsqueeze", 1, [X], {"axes": [0, 2]}),
    Case("Unsqueeze", 11, [X], {"axes": [-1]}),
    Case("TopK", 1, [X], {"k": 2, "axis": 1}, outputs=2),
    Case("Clip", 6, [X], {"min": -0.5}),
    Case("Clip", 6, [X], {"max": 0.5, "min": -0.2}),
    Case("Clip", 6, [X]),
    *(
        Case("Pad", 2, [X], {"pads": [0, 0, 1, 2, 0, 0, 1, 0], "value": 1.5, "mode": m})
        for m in ("constant", "reflect", "edge")
    ),
    Case("Scatter", 9, [X, np.zeros((1, 1, 2, 2), np.int64), f(1, 1, 2, 2)], {"axis": 1}),
    Case("PRelu", 7, [X, f(3, 1, 1)]),
    Case("Selu", 6, [X]),
    Case("GroupNormalization", 18, [f(2, 6, 4), f(2), f(2)], {"num_groups": 2}),
    Case("GroupNormalization", 21, [f(2, 6, 4), f(6), f(6)], {"num_groups": 2}),
    *(Case("DFT", 17, [f(2, 8, 3, 1)], a) for a in ({}, {"axis": 2}, {"axis": 2, "onesided": 1})),
    *(Case("GridSample", 16, [X, f(2, 3, 3, 2)], {"mode": m}) for m in ("bilinear", "bicubic", "nearest")),
    *(
        Case("RoiAlign", v, [X, pos(2, 4).cumsum(axis=1), np.array([0, 1])], {"output_height": 2, "output_width": 2})
        for v in (10, 16)
    ),
    Case("LpPool", 2, [X], {"kernel_shape": [2, 2]}),
    Case("GlobalLpPool", 2, [X], {"p": 3}),
    Case("LayerNormalization", 11, [X, f(4), f(4)]),
    Case("Gemm", 7, [f(2, 3), f(3, 4), f(4)], {"alpha": 0.5, "beta": 2.0}),
    Case("OneHot", 9, [np.array([-1, 0, 5])], {}, [np.array([3]), np.array([0, 1], np.float32)]),
    Case("Cast", 6, [X], {"to": onnx.TensorProto.INT64}),
    Case("LSTM", 7, [f(3, 2, 4), f(1, 12, 4), f(1, 12, 3)], {"hidden_size": 3}, outputs=3),
    # experimental operators that were never released
    Case("Affine", 8, [X], {"alpha": 2.0, "beta": 1.0}),
    Case("Crop", 8, [X], {"border": [1, 1, 0, 1]}),
    Case("Crop", 8, [X], {"border": [1, 1, 0, 1], "scale": [2, 2]}),
    Case("ImageScaler", 8, [X], {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}),
    Case("ParametricSoftplus", 8, [X], {"alpha": 2.0, "beta": 0.5}),
    Case("Scale", 8, [X], {"scale": 2.0}),
    Case("ScaledTanh", 8, [X], {"alpha": 2.0, "beta": 0.5}),
    Case("ThresholdedRelu", 8, [X], {"alpha": 0.5}),
    *(
        Case("MeanVarianceNormalization", 8, [X], {"across_channels": a, "normalize_variance": n})
        for a in (0, 1)
        for n in (0, 1)
    ),
    Case("DynamicSlice", 1, [X, np.array([0, 1]), np.array([1, 2])]),
    Case("DynamicSlice", 1, [X, np.array([0, 1]), np.array([1, 2]), np.array([1, 3])]),
]


@pytest.mark.parametrize("shapes", [True, False], ids=["shaped", "shapeless"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_old_kernel(case: Case, shapes: bool) -> None:
    model = case.model(shapes=shapes)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    theirs = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, case.feeds)
    assert_same(sardonyx.InferenceSession(model).run(None, case.feeds), theirs, NEAR)


def _scan(lengths: bool, directions: list[int]) -> bytes:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Mul", ["t", "x"], ["y"])],
        "body",
        [info("s", 1, [2]), info("x", 1, [2])],
        [info("t", 1, [2]), info("y", 1, [2])],
    )
    node = helper.make_node(
        "Scan",
        ["n" if lengths else "", "s0", "xs"],
        ["last", "ys"],
        body=body,
        num_scan_inputs=1,
        directions=directions,
    )
    inputs = [info("s0", 1, [3, 2]), info("xs", 1, [3, 4, 2]), *([info("n", 7, [3])] if lengths else [])]
    graph = helper.make_graph([node], "g", inputs, [info("last", 1, [3, 2]), info("ys", 1, [3, 4, 2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4).SerializeToString()


@pytest.mark.parametrize("directions", [[0], [1]])
@pytest.mark.parametrize("lengths", [False, True])
def test_scan_over_batches(lengths: bool, directions: list[int]) -> None:
    model = _scan(lengths, directions)
    feeds = {"s0": f(3, 2), "xs": f(3, 4, 2)} | ({"n": np.array([4, 2, 3])} if lengths else {})
    theirs = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, feeds)
    assert_same(sardonyx.InferenceSession(model).run(None, feeds), theirs, NEAR)

"""The layers of a model in QDQ format, one by one: what onnxruntime makes of the integers that ours read.

A sum that lies between two integers becomes one or the other by its last bit, and later layers amplify that. So the
outputs of two right engines may be far apart, but not what a layer makes of the same integers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx

MOST = 1e-3
"""The share of integers that may be one off."""
TOLERANCE = 1e-4
"""Of an output in reals, relative to its largest."""
CORRELATION = 0.99
"""Of the outputs with those of the model as it is, which is compiled into other kernels."""


def check_layers(path: Path, feeds: dict[str, Any], options: Any = None, **more: Any) -> None:
    """A session of the model, with its integers as outputs, has in each layer onnxruntime's results; and a session of
    the model alone has nearly the same outputs.
    """
    peer = pytest.importorskip("onnxruntime")
    model = onnx.load(path)
    integers = [node.output[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    names = [*integers, *(output.name for output in model.graph.output)]
    whole, cut = with_integers(model, integers)
    session = sardonyx.InferenceSession(whole, options, **more)
    session._sess.engine.as_written = lambda: pytest.fail("the compiled model was not used")
    ours = dict(zip(names, session.run(names, feeds), strict=True))
    outputs = [output.name for output in sardonyx.InferenceSession(str(path), options, **more).get_outputs()]
    alone = sardonyx.InferenceSession(str(path), options, **more).run(outputs, feeds)
    for name, got in zip(outputs, alone, strict=True):
        assert correlation(got, ours[name]) >= CORRELATION, name
    plain = peer.SessionOptions()
    plain.graph_optimization_level = peer.GraphOptimizationLevel.ORT_DISABLE_ALL
    read = {f"{name} read": ours[name] for name in integers}
    theirs = peer.InferenceSession(cut, plain, providers=["CPUExecutionProvider"]).run(names, {**feeds, **read})
    apart = 0
    for name, want in zip(names, theirs, strict=True):
        if name in integers:
            distance = np.abs(want.astype(np.int32) - ours[name].astype(np.int32))
            assert distance.max() <= 1, name
            apart += int(np.count_nonzero(distance))
        else:
            np.testing.assert_allclose(ours[name], want, rtol=0, atol=TOLERANCE * np.abs(want).max(), err_msg=name)
    assert apart <= MOST * sum(ours[name].size for name in integers)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    x, y = (array.astype(np.float64).ravel() for array in (a, b))
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def with_integers(model: onnx.ModelProto, integers: list[str]) -> tuple[bytes, bytes]:
    """The model with these results as outputs; and the same, with layers that read them from inputs instead."""
    types = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    model.graph.output.extend(types[name] for name in integers)
    whole = model.SerializeToString()
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name in integers:
                node.input[i] = f"{name} read"
    for name in integers:
        types[name].name = f"{name} read"
        model.graph.input.append(types[name])
    del model.graph.value_info[:]
    return whole, model.SerializeToString()

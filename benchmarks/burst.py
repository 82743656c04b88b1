"""One call on one thread, timed; and onnxruntime for such calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def burst_s(run: Callable[[], Any], least_s: float = 0.004, clock: Callable[[], float] = time.thread_time) -> float:
    """Processor seconds of one call, of this thread by default, the best of as many as fit into a burst."""
    best, until = float("inf"), clock() + least_s
    while True:
        start = clock()
        run()
        now = clock()
        best = min(best, now - start)
        if now >= until:
            return best


def onnxruntime_call(nodes: Sequence[Any], x: Array, constants: dict[str, Array]) -> Callable[[], Any]:
    """A graph from ``x`` to ``y``, both of the rank of x, on one thread of onnxruntime."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * x.ndim) for name in "xy"]
    held = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "call", infos[:1], infos[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})

"""A model run in float64, to tell whose rounding a difference is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.interpret.bind import compile_graph
from sardonyx.interpret.context import RunContext
from sardonyx.ir.graph import Graph
from sardonyx.ir.tensor import Tensor
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize


def run_in_float64(path: Path, feeds: dict[str, Any]) -> dict[str, Any]:
    """Outputs by name, every float32 of the model widened to float64."""
    model = load(path)
    normalize(model)
    _widen(model.graph)
    args = [_double(feeds[v.name]) for v in model.graph.inputs]
    return dict(zip(model.graph.output_names, compile_graph(model.graph).run(args, RunContext()), strict=True))


def _widen(graph: Graph) -> None:
    for value in graph.initializers.values():
        if value.const is not None:
            value.const = _tensor(value.const)
    for node in graph.nodes:
        for key, attr in node.attrs.items():
            if isinstance(attr, Tensor):
                node.attrs[key] = _tensor(attr)
        if node.op_type == "Cast" and node.attrs["to"] == dtypes.f32.onnx:
            node.attrs["to"] = dtypes.f64.onnx
        for _, sub in node.subgraphs():
            _widen(sub)


def _tensor(t: Tensor) -> Tensor:
    return Tensor.of(t.numpy().astype(np.float64), t.name) if t.dtype is dtypes.f32 else t


def _double(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x

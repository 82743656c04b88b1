"""What a rewritten model answers, beside the original: operators counted, sessions run, distances told."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sardonyx.bench.arrays import Feeds

PROVIDERS = ["CPUExecutionProvider"]
AGREES = 1e-4
COARSELY = 5e-2
"""Relative L2 distances beyond which answers differ: COARSELY for quantized models, whose steps flip, and halves."""
FLOOR = 1e-3
"""Outputs whose root mean square is less are measured against this: a sigmoid's 1e-5 is right to 1e-7, no better."""
QUANTIZED_OPERATORS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulNBits"}


def operators(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    """The operator of every node, those inside If, Loop and Scan included."""
    for node in graph.node:
        if node.op_type != "Constant":
            yield f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from operators(inner)


def count(model: onnx.ModelProto) -> Counter[str]:
    return Counter(name for body in (model.graph, *model.functions) for name in operators(body))


def allowance(model: onnx.ModelProto) -> float:
    """How far the answers of a rewritten model may be from the original's."""
    half = any(t.data_type == onnx.TensorProto.FLOAT16 for t in model.graph.initializer)
    coarse = half or bool(QUANTIZED_OPERATORS & {name.split(":")[-1] for name in count(model)})
    return COARSELY if coarse else AGREES


def answers(package: Any, model: Path, feeds: Feeds, names: list[str] | None = None) -> Feeds:
    """What a session of a package without an optimizer gives."""
    options = package.SessionOptions()
    options.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = package.InferenceSession(str(model), options, providers=PROVIDERS)
    names = names or [o.name for o in session.get_outputs() if o.type.startswith("tensor")]
    given = {i.name: feeds[i.name] for i in session.get_inputs() if i.name in feeds}
    return dict(zip(names, session.run(names, given), strict=True))


def distance(got: Feeds, wanted: Feeds) -> float:
    """The largest relative L2 distance over the outputs; infinite where shape, type or a string differs."""
    worst = 0.0
    for name, right in wanted.items():
        left = got[name]
        if left.shape != right.shape or left.dtype != right.dtype:
            return math.inf
        if right.dtype.kind not in "fc":
            worst = max(worst, float(np.mean(left != right)) if right.size else 0.0)
            continue
        norm = float(np.linalg.norm(right.astype(np.float64).ravel()))
        error = float(np.linalg.norm((left.astype(np.float64) - right).ravel()))
        worst = max(worst, error / max(norm, FLOOR * math.sqrt(max(right.size, 1))))
    return worst if math.isfinite(worst) else math.inf


def guarded(call: Any, *args: Any) -> tuple[Any, str]:
    """A call's result and no reason, or none and the reason."""
    try:
        return call(*args), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"


def models_in(paths: list[Path], only: list[str]) -> list[Path]:
    files = [f for path in paths for f in (sorted(path.glob("*.onnx")) if path.is_dir() else [path])]
    return [f for f in files if any(part in f.stem for part in only)]

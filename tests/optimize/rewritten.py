"""A rewrite, and whether the model still says the same: before and after, on random data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model
from sardonyx.ir.tensor import Tensor
from sardonyx.model.text import from_text
from sardonyx.normalize.run import normalize
from sardonyx.optimize.report import Report
from tests.comparing import Tolerance, assert_same
from tests.optimize.graphs import apply, ops

TYPES = {"float32": "float", "float16": "float16", "float64": "double", "int64": "int64", "int32": "int32",
         "uint8": "uint8", "int8": "int8", "bool": "bool"}  # fmt: skip


@dataclass
class Case:
    """``body`` reads ``feeds`` and ``consts``, each by shape or as an array, and makes the ``outputs``."""

    body: str
    after: list[str]
    feeds: dict[str, Any] = field(default_factory=lambda: {"x": (2, 3, 6, 6)})
    consts: dict[str, Any] = field(default_factory=dict)
    outputs: str = "float[] y"
    symbols: dict[str, str] = field(default_factory=dict)
    """Shapes of feeds that are not all numbers, as ONNX text."""
    reason: str = ""
    """For a graph that stays as it is: a part of why."""


def check(case: Case, *passes: str, tolerance: float = 1e-4) -> Report:
    """Apply passes; the operators must be those of the case and the outputs what they were."""
    rng = np.random.default_rng(0)
    feeds, consts = ({k: _array(v, rng) for k, v in given.items()} for given in (case.feeds, case.consts))
    model = _model(case, feeds, consts)
    expected = run(model, feeds)
    after = clone(model)
    report = apply(after, "InferShapes", "FoldConstants", "InferShapes", *passes, "RemoveDeadCode")
    assert ops(after.graph) == case.after, [str(d) for d in report.declined]
    allowed = Tolerance(relative=tolerance, of_largest=tolerance, least=1.0)
    assert_same(run(after, feeds), expected, dict.fromkeys(("float16", "float32", "float64"), allowed))
    if case.reason:
        assert any(case.reason in d.reason for d in report.declined), [str(d) for d in report.declined]
    return report


def unchecked(case: Case) -> Model:
    """The model of a case, which may be wrong."""
    rng = np.random.default_rng(0)
    return _model(case, *({k: _array(v, rng) for k, v in given.items()} for given in (case.feeds, case.consts)))


def run(model: Model, feeds: dict[str, Any]) -> list[Any]:
    graph = model.graph
    program = Program(list(graph.nodes), graph.inputs, graph.outputs, bind)
    return list(program.run([feeds[v.name] for v in graph.inputs], RunContext()))


def _array(given: Any, rng: np.random.Generator) -> Any:
    return given if isinstance(given, np.ndarray) else rng.normal(size=given).astype(np.float32)


def _model(case: Case, feeds: dict[str, Any], consts: dict[str, Any]) -> Model:
    given = {**feeds, **consts}
    shapes = {name: case.symbols.get(name, list(a.shape) or "") for name, a in given.items()}
    declared = [f"{TYPES[str(a.dtype)]}{shapes[name]} {name}" for name, a in given.items()]
    head = f'<ir_version: 10, opset_import: ["" : 21]> g ({", ".join(declared)}) => ({case.outputs})'
    model = from_text(f"{head} {{ {case.body} }}")
    normalize(model)
    _freeze(model.graph, consts)
    return model


def _freeze(graph: Graph, consts: dict[str, Any]) -> None:
    """Make constants of inputs."""
    for value in [v for v in graph.inputs if v.name in consts]:
        value.const = Tensor.of(consts[value.name], value.name)
        graph.inputs.remove(value)
        graph.initializers[value.name] = value

"""Small models as text, for passes."""

from __future__ import annotations

from sardonyx.ir.graph import Graph, Model
from sardonyx.ir.spec import verify
from sardonyx.model.text import from_text
from sardonyx.normalize.run import normalize
from sardonyx.optimize import manager, pipelines
from sardonyx.optimize.report import Report

assert pipelines.LEVELS, "importing the pipelines registers every pass"


def parse(body: str, *, inputs: str = "float[2,3] x", outputs: str = "float[2,3] y") -> Model:
    model = from_text(f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => ({outputs}) {{ {body} }}')
    normalize(model)
    return model


def apply(model: Model, *passes: str) -> Report:
    report = manager.run(model.graph, passes)
    verify(model.graph, "test")
    return report


def ops(graph: Graph) -> list[str]:
    return [node.op_type for node in graph.nodes]

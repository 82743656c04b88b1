"""Lowered graphs against the operators' own meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.ir import dims
from sardonyx.ir.graph import Graph
from sardonyx.ir.types import TensorType
from sardonyx.lower import interpret
from sardonyx.lower.build import Lowered, lower
from sardonyx.lower.claims import refusals
from sardonyx.lower.groups import Group
from sardonyx.model.text import from_text
from sardonyx.normalize.run import normalize
from sardonyx.optimize import manager, pipelines
from sardonyx.partition.provider import Part
from tests.comparing import Tolerance, assert_same

assert pipelines.LEVELS, "importing the pipelines registers every pass"

ROUNDING = {
    name: Tolerance(relative=share, of_largest=share / 10, least=1e-3)
    for name, share in {"float16": 2e-2, "bfloat16": 6e-2, "float32": 2e-4, "float64": 1e-9}.items()
}
"""How far results may be from those of the operators' own meanings, by type."""

OPSETS = '"" : 26, "ai.onnx.ml" : 5, "ai.onnx.preview.training" : 1'


def parse(body: str, inputs: str, outputs: str, opsets: str = OPSETS) -> Graph:
    model = from_text(f"<ir_version: 10, opset_import: [{opsets}]> g ({inputs}) => ({outputs}) {{ {body} }}")
    normalize(model)
    manager.run(model.graph, ("InferShapes", "FoldConstants", "RemoveDeadCode"))
    return model.graph


def part_of(graph: Graph) -> Part:
    """All nodes of a graph; what it gives back without computing it is left out."""
    inputs = tuple(v for v in graph.inputs if not v.is_const and v.uses)
    return Part(tuple(graph.nodes), inputs, tuple(dict.fromkeys(v for v in graph.outputs if v.producer is not None)))


def lowered(graph: Graph) -> Lowered:
    assert not any(refusals(graph).values()), refusals(graph)
    return lower(part_of(graph))


def feeds(part: Part, sizes: Mapping[str, int], seed: int = 0, top: int = 3) -> list[Any]:
    """Random inputs: reals around 0, integers from 0 to below ``top``."""
    rng = np.random.default_rng(seed)
    given = []
    for value in part.inputs:
        assert isinstance(value.type, TensorType) and value.type.shape is not None
        shape = [dims.evaluate(d, sizes) for d in value.type.shape]
        if value.type.dtype.is_float:
            given.append(rng.standard_normal(shape).astype(value.type.dtype.numpy))
        else:
            given.append(rng.integers(0, top, shape).astype(value.type.dtype.numpy))
    return given


def compare(graph: Graph, *every: Mapping[str, int], seed: int = 0) -> tuple[Group, ...]:
    """Run what a graph is lowered to for several sizes, and fail where its nodes answer otherwise."""
    part, found = part_of(graph), lowered(graph)
    program = Program(part.nodes, part.inputs, part.outputs, bind)
    for sizes in every or ({},):
        given = feeds(part, sizes, seed)
        expected = program.run(given, RunContext())
        for want, got in zip(expected, interpret.run(found, given), strict=True):
            assert_same(got, want, ROUNDING)
    return found.groups


def kinds(groups: tuple[Group, ...]) -> list[str]:
    """What each group is, and of which operators."""
    return [f"{type(g).__name__}({' '.join(n.op_type for n in g.nodes)})" for g in groups]

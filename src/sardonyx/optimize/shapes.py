"""Type and shape inference over the graph, and dimensions that the user fixes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sardonyx.ir import dims
from sardonyx.ir.dims import Dim
from sardonyx.ir.graph import Graph, Value
from sardonyx.ir.types import TensorType
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.symbolic import Facts


@optimization("InferShapes")
def infer_shapes(graph: Graph, log: Log) -> None:
    """Infer the type of every value, with dimensions as expressions of the inputs' dimensions."""
    Facts().walk(graph)


def fix_dimensions(graph: Graph, by_name: Mapping[str, int], by_denotation: Mapping[str, int]) -> None:
    """Replace free dimensions by the user's sizes, everywhere."""
    for value in graph.inputs:
        if value.denotation and isinstance(value.type, TensorType) and value.type.shape is not None:
            dims = zip(value.type.shape, value.denotation, strict=True)
            value.type = replace(value.type, shape=tuple(by_denotation.get(d, dim) for dim, d in dims))
    if by_name:
        _substitute(graph, by_name)


def separate_dimensions(graph: Graph, kept: Collection[str]) -> None:
    """Forget the names of the inputs' dimensions, so that those of one name may differ; names in ``kept`` stay."""
    for value in graph.inputs:
        t = value.type
        if isinstance(t, TensorType) and t.shape is not None:
            value.type = replace(t, shape=tuple(d if isinstance(d, int) or d in kept else None for d in t.shape))


def _substitute(graph: Graph, sizes: Mapping[str, int]) -> None:
    values: list[Value] = [*graph.inputs]
    for node in graph.nodes:
        values += node.outputs
        for _, sub in node.subgraphs():
            _substitute(sub, sizes)
    for value in values:
        t = value.type
        if isinstance(t, TensorType) and t.shape is not None and any(isinstance(d, str) for d in t.shape):
            value.type = replace(t, shape=tuple(_fixed(d, sizes) for d in t.shape))


def _fixed(d: Dim, sizes: Mapping[str, int]) -> Dim:
    """A dimension with numbers for the given names; the text of an expression may be given as a name too."""
    if not isinstance(d, str) or d in sizes:
        return sizes.get(d, d) if isinstance(d, str) else d
    return dims.evaluate(d, sizes) if any(name in sizes for name in dims.names(d)) else d

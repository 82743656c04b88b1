"""Gelu by its tanh approximation, which some hardware prefers; only on request."""

from __future__ import annotations

from sardonyx.ir.graph import Graph
from sardonyx.optimize.manager import Log, optimization

NAME = "ApproximateGelu"


@optimization(NAME)
def approximate_gelu(graph: Graph, log: Log) -> None:
    """Gelu(x)  ->  Gelu<approximate="tanh">(x); the two differ by up to 5e-4."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            approximate_gelu(sub, log)
        if node.op_type == "Gelu" and not node.domain and node.attrs.get("approximate", "none") == "none":
            node.attrs["approximate"] = "tanh"
            log.did(node, "Gelu -> its tanh approximation")

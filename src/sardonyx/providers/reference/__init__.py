"""The reference provider: runs every operator by numpy. It runs what other providers do not claim, and is the tests'
oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sardonyx.interpret.bind import bind, is_runnable
from sardonyx.interpret.control import Body
from sardonyx.interpret.program import Program
from sardonyx.interpret.single import Single
from sardonyx.ir.graph import Graph, Node
from sardonyx.ir.types import MapType, SequenceType
from sardonyx.partition.provider import Claims, Executable, Part
from sardonyx.providers.reference.widen import widen


class ReferenceProvider:
    name = "reference"

    def __init__(self, body: Callable[[Graph], Body] | None = None) -> None:
        """``body`` compiles the bodies of control flow, perhaps for other providers; by default they run here."""
        self._bind = partial(bind, body=body)

    def probe(self) -> str | None:
        return None

    def claims(self, graph: Graph) -> Claims:
        known: Claims = {}
        for node in graph.nodes:
            inner = [n for _, sub in node.subgraphs() for n in sub.all_nodes()]
            missing = next((n for n in (node, *inner) if not is_runnable(n)), None)
            known[node] = None if missing is None else f"{missing.domain or 'ai.onnx'}.{missing.op_type} has no meaning"
        return known

    def prepare(self, graph: Graph, owned: list[Node]) -> None:
        widen(graph, owned)

    def compile(self, part: Part) -> Executable:
        program = Program(part.nodes, part.inputs, part.outputs, self._bind)
        return Single(program) if _is_single(part) else program


def _is_single(part: Part) -> bool:
    """Whether a part consists of one node with the part's inputs and outputs, whose results are maps."""
    if len(part.nodes) != 1 or len(part.outputs) != 1:
        return False
    node, made = part.nodes[0], part.outputs[0].type
    is_maps = isinstance(made, SequenceType) and isinstance(made.elem, MapType)
    return is_maps and tuple(node.inputs) == part.inputs and not any(node.subgraphs())

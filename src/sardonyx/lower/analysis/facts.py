"""Shapes of all values of a graph in symbolic sizes, and the elements of small tensors, before it runs."""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.ir import dims
from sardonyx.ir.dims import Expr, Known
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.lower.sizes import DataDependent, only_tensors
from sardonyx.optimize import contents
from sardonyx.optimize.guards import Taken
from sardonyx.optimize.symbolic import Facts
from sardonyx.partition.provider import Part


class GraphFacts:
    """Shapes and small contents of values, as expressions of named sizes."""

    def __init__(self, facts: Facts) -> None:
        self._symbolic = facts
        self._shapes: dict[Value, tuple[Known, ...]] = {}

    @staticmethod
    def of(graph: Graph) -> GraphFacts:
        """The facts of a whole model, subgraphs included, in terms of the sizes of its inputs."""
        while graph.parent is not None and graph.parent.graph is not None:
            graph = graph.parent.graph
        facts = GraphFacts(Facts(assumes=True))
        facts._symbolic.walk(graph, facts._note)
        return facts

    def within(self, part: Part) -> GraphFacts:
        """The facts of one part, in terms of the sizes of its inputs; input sizes that do not follow from others get
        new names.
        """
        seen = [d for v in part.inputs for d in self.shape(v) if isinstance(d, Expr)]
        names = {str(d) for d in seen if is_name(d)}
        named = {d: dims.fresh(f"size{i}") for i, d in enumerate(dict.fromkeys(seen)) if _lacks(d, names)}
        nodes = [*part.nodes, *(n for node in part.nodes for _, sub in node.subgraphs() for n in sub.all_nodes())]
        bodies = [sub for node in nodes for _, sub in node.subgraphs()]
        values = [
            *part.inputs,
            *(out for node in nodes for out in node.outputs),
            *(v for b in bodies for v in b.inputs),
        ]
        types = [v.type for v in values]
        facts = GraphFacts(_Local(assumes=True))
        try:
            for v in part.inputs:
                shape = tuple(named.get(d, d) if isinstance(d, Expr) else d for d in self.shape(v))
                assert v.dtype is not None
                v.type = TensorType(v.dtype, shape)
                content = self._symbolic.content(v)
                if content is not None:
                    known = [named.get(d, None if _lacks(d, names) else d) for d in content.flat]
                    facts._symbolic.contents[v] = contents.objects(known, content.shape)
            facts._record(part.inputs)
            for node in part.nodes:
                facts._symbolic.learn(node, facts._note)
                facts._note(None, node)
        finally:
            for v, t in zip(values, types, strict=True):
                v.type = t
        return facts

    def _note(self, _: Graph | None, node: Node) -> None:
        self._record((*node.inputs, *node.outputs))
        for _key, body in node.subgraphs():
            self._record((*body.inputs, *body.outputs))

    def _record(self, values: Iterable[Value | None]) -> None:
        for v in values:
            if v is not None and v not in self._shapes and isinstance(v.type, TensorType) and v.type.shape is not None:
                shape = [d for d in map(dims.known, v.type.shape) if d is not None]
                if len(shape) == len(v.type.shape):
                    self._shapes[v] = tuple(shape)

    def __contains__(self, value: Value) -> bool:
        """Whether the rank is known."""
        return value in self._shapes

    def shape(self, value: Value) -> tuple[Known, ...]:
        found = self._shapes.get(value)
        if found is None:
            is_tensor = value.type is None or isinstance(value.type, TensorType)
            raise DataDependent(f"the rank of {value.name!r} is not known" if is_tensor else only_tensors(value))
        return found

    def trips(self, node: Node) -> Known | None:
        """The number of iterations of a Loop or Scan, if it follows from sizes."""
        return self._symbolic.trips.get(node)

    def taken(self, node: Node) -> Taken | None:
        """The branch that an If takes, if that does not depend on data."""
        return self._symbolic.taken.get(node)

    def content(self, value: Value) -> list[Known | None] | None:
        """The elements of a small tensor in row-major order; None for an unknown element."""
        found = self._symbolic.content(value)
        return None if found is None else list(found.reshape(-1))

    def follows_from_sizes(self, value: Value) -> bool:
        """Whether every element of a small tensor is an expression of sizes."""
        found = self._symbolic.content(value)
        return found is not None and contents.is_complete(found)


class _Local(Facts):
    """Facts whose made-up names do not clash with those of the whole graph, which the part's inputs may contain."""

    PREFIX = "in"


def is_name(d: Known) -> bool:
    """Whether a size is a single name."""
    return isinstance(d, Expr) and list(dims.names(d)) == [str(d)]


def _lacks(d: Known | None, names: set[str]) -> bool:
    return isinstance(d, Expr) and not names.issuperset(dims.names(d))

"""What is certain of every value of a graph before it runs: its shape in symbolic sizes, and small contents."""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.ir import dims
from sardonyx.ir.dims import Expr, Known
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.lower.sizes import Later
from sardonyx.optimize import contents
from sardonyx.optimize.guards import Taken
from sardonyx.optimize.symbolic import Facts
from sardonyx.partition.provider import Part


class Learned:
    """Shapes and contents of values, in sizes that have names."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._shapes: dict[Value, tuple[Known, ...]] = {}

    @staticmethod
    def of(graph: Graph) -> Learned:
        """Of a whole model, subgraphs included, by the sizes of its inputs."""
        while graph.parent is not None and graph.parent.graph is not None:
            graph = graph.parent.graph
        learned = Learned(Facts(assumes=True))
        learned._facts.walk(graph, learned._note)
        return learned

    def within(self, part: Part) -> Learned:
        """Of a part alone: sizes of its inputs that cannot be computed from other sizes of them get names."""
        seen = [d for v in part.inputs for d in self.shape(v) if isinstance(d, Expr)]
        plain = {str(d) for d in seen if is_name(d)}
        named = {d: dims.fresh(f"size{i}") for i, d in enumerate(dict.fromkeys(seen)) if _lacks(d, plain)}
        nodes = [*part.nodes, *(n for node in part.nodes for _, sub in node.subgraphs() for n in sub.all_nodes())]
        bodies = [sub for node in nodes for _, sub in node.subgraphs()]
        values = [
            *part.inputs,
            *(out for node in nodes for out in node.outputs),
            *(v for b in bodies for v in b.inputs),
        ]
        types = [v.type for v in values]
        learned = Learned(_Local(assumes=True))
        try:
            for v in part.inputs:
                shape = tuple(named.get(d, d) if isinstance(d, Expr) else d for d in self.shape(v))
                assert v.dtype is not None
                v.type = TensorType(v.dtype, shape)
                content = self._facts.content(v)
                if content is not None:
                    known = [named.get(d, None if _lacks(d, plain) else d) for d in content.flat]
                    learned._facts.contents[v] = contents.objects(known, content.shape)
            learned._record(part.inputs)
            for node in part.nodes:
                learned._facts.learn(node, learned._note)
                learned._note(None, node)
        finally:
            for v, t in zip(values, types, strict=True):
                v.type = t
        return learned

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
            raise Later(f"the rank of {value.name!r} is not known")
        return found

    def trips(self, node: Node) -> Known | None:
        """How often the body of a Loop or Scan runs, where that follows from sizes."""
        return self._facts.trips.get(node)

    def taken(self, node: Node) -> Taken | None:
        """The branch that an If takes, where it does not depend on data."""
        return self._facts.taken.get(node)

    def content(self, value: Value) -> list[Known | None] | None:
        """The elements of a small tensor in order, None for one that is not known."""
        found = self._facts.content(value)
        return None if found is None else list(found.reshape(-1))

    def is_shapely(self, value: Value) -> bool:
        """Whether every element follows from the sizes."""
        found = self._facts.content(value)
        return found is not None and contents.is_complete(found)


class _Local(Facts):
    """Facts whose new names differ from those of the whole graph, which the inputs of a part may have."""

    PREFIX = "in"


def is_name(d: Known) -> bool:
    """Whether a size is a name, not an expression of names."""
    return isinstance(d, Expr) and list(dims.names(d)) == [str(d)]


def _lacks(d: Known | None, names: set[str]) -> bool:
    return isinstance(d, Expr) and not names.issuperset(dims.names(d))

"""Fusions: a pattern, the conditions under which it may be replaced, and the replacement.

    class FuseRMSNorm(Fusion):
        \"\"\"x / sqrt(mean(x*x) + eps) * scale  ->  RMSNormalization(x, scale).\"\"\"
        def pattern(self, op, x, scale, eps): ...
        def rewrite(self, op, m):
            require(m.eps.is_scalar_const, "epsilon is not a scalar constant", m.eps)
            return op.RMSNormalization(m.x, m.scale, axis=-1, epsilon=m.eps.item())

``rewrite`` checks conditions, refusing with a reason, before it writes nodes; nodes written before a refusal are
removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, TypeVar

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Apply, Match, written

MAX_READINGS = 8
"""Ways to match one expression that are tried: a commutative operator has two."""


class Refused(Exception):
    """A pattern matches, but a condition does not hold."""


def require(holds: object, reason: str, value: Value | None = None) -> None:
    """Refuse a rewrite unless ``holds``, naming the value at fault."""
    if not holds:
        raise Refused(reason if value is None else f"{reason} ({value.name})")


class Fusion:
    """A rewrite rule. ``pattern`` may return a tuple of expressions. With ``shares``, inner values may have other
    readers.
    """

    shares = False

    def __init__(self) -> None:
        self.name = type(self).__name__
        self.patterns: tuple[Apply, ...] = written(self.pattern)

    def pattern(self, op: Any, *variables: Any) -> Any:
        raise NotImplementedError

    def rewrite(self, op: Builder, m: Match) -> Any:
        """Build the replacement of the root's first output, or of all its outputs as a tuple."""
        raise NotImplementedError

    def apply(self, graph: Graph, root: Node, log: Log) -> bool:
        """Replace the expression that ends at ``root``, if it matches."""
        for pattern in self.patterns:
            for m in islice(pattern.match(root.outputs[pattern.output], Match({}, {})), MAX_READINGS):
                if self._replace(graph, root, m, log):
                    return True
        return False

    def _replace(self, graph: Graph, root: Node, m: Match, log: Log) -> bool:
        nodes = list(dict.fromkeys(m.nodes.values()))
        op = Builder(graph, root, prefix=root.name or root.outputs[0].name, origin=_origins(nodes))
        try:
            if not self.shares:
                _require_private(nodes, root)
            result = self.rewrite(op, m)
        except Refused as e:
            take_back(graph, op.made)
            log.declined(root, str(e))
            return False
        new = result if isinstance(result, tuple) else (result,)
        before, after = (" + ".join(n.op_type for n in ns) for ns in (reversed(nodes), op.made))
        what = f"{before} -> {after or 'nothing'}"
        return log.replace(graph, nodes, root.outputs[: len(new)], new, op.made, what)


F = TypeVar("F", bound=type[Fusion])


def fusion(cls: F) -> F:
    """Register a fusion as the pass of its name."""
    one = cls()
    optimization(cls.__name__)(lambda graph, log: fuse(graph, [one], log))
    return cls


def fuse(graph: Graph, fusions: Iterable[Fusion], log: Log) -> None:
    """Apply fusions to every node of a graph and of its subgraphs, in order."""
    by_root: dict[str, list[Fusion]] = {}
    for fusion in fusions:
        for op_type in dict.fromkeys(t for p in fusion.patterns for t in p.op_types):
            by_root.setdefault(op_type, []).append(fusion)
    _fuse(graph, by_root, log)


def _fuse(graph: Graph, by_root: dict[str, list[Fusion]], log: Log) -> None:
    for node in graph.nodes if graph.has_any(by_root) else graph.owners:
        for _, sub in node.subgraphs():
            _fuse(sub, by_root, log)
        for fusion in by_root.get(node.op_type, ()):
            if node.graph is None:
                break
            fusion.apply(graph, node, log)


def _require_private(nodes: list[Node], root: Node) -> None:
    """Refuse if nodes outside the pattern read values that would be removed."""
    inside = set(nodes)
    for node in nodes:
        if node is root:
            continue
        for out in node.outputs:
            if out.is_output:
                raise Refused(f"{out.name!r}, inside the pattern, is a graph output")
            for reader in out.consumers:
                if reader not in inside:
                    raise Refused(f"{out.name!r}, inside the pattern, is also read by {reader.label}")


def _origins(nodes: list[Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for node in reversed(nodes) for name in node.origin))


def take_back(graph: Graph, made: list[Node]) -> None:
    """Remove the nodes of a refused rewrite."""
    for node in reversed(made):
        graph.remove(node)

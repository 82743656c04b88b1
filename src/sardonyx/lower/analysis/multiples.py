"""Sizes assumed to be multiples of a number, where images of several scales are combined.

A feature pyramid downsamples an image by 2, upsamples it again and adds the two. For a size n the sum then has size
``broadcast(2*div(n + 1, 2), n)``, which cannot be simplified: whether the operands fit depends on n modulo 2. With
n = 2*m it is 2*m. A part with such sizes is lowered once under the assumption that its input sizes are multiples that
resolve them; a guard checks the assumption, and other sizes take another lowering.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from sardonyx.ir import dims
from sardonyx.ir.dims import Expr, Known
from sardonyx.ir.graph import Node, Value
from sardonyx.lower.analysis.facts import GraphFacts
from sardonyx.lower.sizes import DataDependent
from sardonyx.partition.provider import Part

MAX_MULTIPLE = 256
"""The largest number of which a size may be assumed to be a multiple."""


class Multiples(GraphFacts):
    """Facts with some named sizes n replaced by multiples k * m of new names m."""

    def __init__(self, facts: GraphFacts, times: Mapping[str, int]) -> None:
        super().__init__(facts._symbolic)
        self._general, self._sizes = facts, _substitution(times)
        self._known: dict[Known, Known | None] = {}

    def _size(self, d: Known) -> Known | None:
        if d not in self._known:
            self._known[d] = dims.evaluate(d, self._sizes)
        return self._known[d]

    def __contains__(self, value: Value) -> bool:
        return value in self._general

    def shape(self, value: Value) -> tuple[Known, ...]:
        shape = self._general.shape(value)
        found = tuple(d for d in map(self._size, shape) if d is not None)
        return found if len(found) == len(shape) else shape

    def trips(self, node: Node) -> Known | None:
        found = self._general.trips(node)
        return None if found is None else self._size(found)

    def content(self, value: Value) -> list[Known | None] | None:
        found = self._general.content(value)
        return None if found is None else [None if d is None else self._size(d) for d in found]

    def within(self, part: Part) -> GraphFacts:
        raise DataDependent("sizes are assumed to be multiples only where the inputs determine all of them")


def multiples(part: Part, facts: GraphFacts) -> Multiples | None:
    """Facts under the assumption of multiples that resolve broadcasts in the part; None if there are no such."""
    given = {d for v in part.inputs for d in facts.shape(v)}
    shapes = (facts.shape(v) for node in part.nodes for v in node.outputs if v in facts)
    times: dict[str, int] = {}
    for d in {d for shape in shapes for d in shape if _is_unresolved(d)}:
        found: dict[str, int] = {}
        for name, n in _divisors(d):
            found[name] = math.lcm(found.get(name, 1), n)
        found = {name: n for name, n in found.items() if n > 1}
        is_determined = bool(found) and given.issuperset(found)
        if is_determined and not _is_unresolved(dims.evaluate(d, _substitution(found))):
            times |= {name: math.lcm(times.get(name, 1), n) for name, n in found.items()}
    return Multiples(facts, times) if times and max(times.values()) <= MAX_MULTIPLE else None


def _substitution(times: Mapping[str, int]) -> dict[str, Known]:
    """For each name n, a multiple k * m of a new name m."""
    return {name: dims.mul(n, dims.fresh(f"{name}:{n}")) or 0 for name, n in times.items()}


def _is_unresolved(d: Known | None) -> bool:
    """Whether a size contains a broadcast that is not resolved."""
    return d is None or (isinstance(d, Expr) and "broadcast(" in d)


def _divisors(d: Known) -> Iterator[tuple[str, int]]:
    """Names in an expression, each with a number whose multiples make its quotients exact."""
    if isinstance(d, Expr):
        for atom in (atom for m in d.terms for atom in m):
            by = atom.args[1] if atom.fn == "div" else 1
            if not atom.fn:
                yield str(atom), 1
            for name, n in (found for arg in atom.args for found in _divisors(arg)):
                yield name, n * by if isinstance(by, int) else n

"""Sizes that are taken to be multiples of a number, where images of several scales meet.

A pyramid halves an image, doubles the halves and adds the two. That fits for some sizes only, and what rest they leave
decides it: ``broadcast(2*div(n + 1, 2), n)`` is a size about which nothing else is certain. With 2*m in place of n it
is 2*m. So a part in which such sizes occur is lowered for the multiples that make them plain. Other sizes are another
lowering's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from sardonyx.ir import dims
from sardonyx.ir.dims import Expr, Known
from sardonyx.ir.graph import Node, Value
from sardonyx.lower.analysis.facts import Learned
from sardonyx.lower.sizes import Later
from sardonyx.partition.provider import Part

MOST = 256
"""A number of which sizes may be taken to be multiples."""


class Multiples(Learned):
    """What is learned of values, with a multiple of another name in place of some names."""

    def __init__(self, learned: Learned, times: Mapping[str, int]) -> None:
        super().__init__(learned._facts)
        self._learned, self._sizes = learned, _in_place_of(times)
        self._known: dict[Known, Known | None] = {}

    def _size(self, d: Known) -> Known | None:
        if d not in self._known:
            self._known[d] = dims.evaluate(d, self._sizes)
        return self._known[d]

    def __contains__(self, value: Value) -> bool:
        return value in self._learned

    def shape(self, value: Value) -> tuple[Known, ...]:
        shape = self._learned.shape(value)
        found = tuple(d for d in map(self._size, shape) if d is not None)
        return found if len(found) == len(shape) else shape

    def trips(self, node: Node) -> Known | None:
        found = self._learned.trips(node)
        return None if found is None else self._size(found)

    def content(self, value: Value) -> list[Known | None] | None:
        found = self._learned.content(value)
        return None if found is None else [None if d is None else self._size(d) for d in found]

    def within(self, part: Part) -> Learned:
        raise Later("sizes are multiples where inputs tell all names")


def multiples(part: Part, learned: Learned) -> Multiples | None:
    """What is learned, for multiples that make sizes of the part plain; None where none do."""
    given = {d for v in part.inputs for d in learned.shape(v)}
    shapes = (learned.shape(v) for node in part.nodes for v in node.outputs if v in learned)
    times: dict[str, int] = {}
    for d in {d for shape in shapes for d in shape if _is_open(d)}:
        found: dict[str, int] = {}
        for name, n in _divisors(d):
            found[name] = math.lcm(found.get(name, 1), n)
        found = {name: n for name, n in found.items() if n > 1}
        is_told = bool(found) and given.issuperset(found)
        if is_told and not _is_open(dims.evaluate(d, _in_place_of(found))):
            times |= {name: math.lcm(times.get(name, 1), n) for name, n in found.items()}
    return Multiples(learned, times) if times and max(times.values()) <= MOST else None


def _in_place_of(times: Mapping[str, int]) -> dict[str, Known]:
    """For each name a multiple of another."""
    return {name: dims.mul(n, dims.fresh(f"{name}:{n}")) or 0 for name, n in times.items()}


def _is_open(d: Known | None) -> bool:
    """Whether a size is, or depends on, that of operands of which one may be stretched."""
    return d is None or (isinstance(d, Expr) and "broadcast(" in d)


def _divisors(d: Known) -> Iterator[tuple[str, int]]:
    """Names in an expression, with numbers whose multiples leave no rest in its quotients."""
    if isinstance(d, Expr):
        for atom in (atom for m in d.terms for atom in m):
            by = atom.args[1] if atom.fn == "div" else 1
            if not atom.fn:
                yield str(atom), 1
            for name, n in (found for arg in atom.args for found in _divisors(arg)):
                yield name, n * by if isinstance(by, int) else n

"""Conditions that depend on sizes, as guards on those sizes.

Exporters write ``If(Equal(Shape(x)[k], 1))`` around a Squeeze of a dynamic axis: the branches differ in rank, and the
sizes of a run select one. Code for one branch is valid for the sizes that its guard allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Graph, Node, Value

if TYPE_CHECKING:
    from sardonyx.optimize.contents import Array

Content = Callable[[Value], "Array | None"]


class Guard(NamedTuple):
    """True if ``size`` is one of ``allowed``, or at least ``least``."""

    size: Known
    allowed: tuple[Known, ...] = ()
    least: int | None = None


class Taken(NamedTuple):
    """The branch that an If takes, and the guard under which it does; no guard means always."""

    body: Graph
    guard: Guard | None


def decided(node: Node, content: Content) -> Taken | None:
    """The branch that an If takes for all sizes."""
    flag = None if node.inputs[0] is None else content(node.inputs[0])
    if flag is None or flag.size != 1 or flag.flat[0] is None:
        return None
    return Taken(_branch(node, bool(flag.flat[0])), None)


def assumed(node: Node, content: Content) -> Taken | None:
    """The first branch of an If whose condition depends on sizes."""
    guard = None if node.inputs[0] is None else _guard(node.inputs[0], True, content)
    return None if guard is None else Taken(_branch(node, True), guard)


def _branch(node: Node, outcome: bool) -> Graph:
    body = node.attrs["then_branch" if outcome else "else_branch"]
    assert isinstance(body, Graph)
    return body


def _guard(value: Value, outcome: bool, content: Content) -> Guard | None:
    """The guard under which a condition equals ``outcome``."""
    node = value.producer
    source = None if node is None else node.input(0)
    if node is None or node.domain or source is None:
        return None
    if node.onnx_op in ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape"):
        return _guard(source, outcome, content)
    if node.onnx_op == "Not":
        return _guard(source, not outcome, content)
    if node.onnx_op not in _LEAST or node.inputs[1] is None:
        return None
    a, b = (_element(content(v)) for v in node.inputs if v is not None)
    more = dims.sub(a, b)
    if a is None or b is None or more is None:
        return None
    if node.onnx_op == "Equal":
        square = dims.mul(more, more)
        return Guard(a, (b,)) if outcome else None if square is None else Guard(square, least=1)
    sign, least = _LEAST[node.op_type]
    size = more if (sign > 0) == outcome else dims.neg(more)
    return None if size is None else Guard(size, least=least if outcome else 1 - least)


_LEAST = {"Equal": (0, 0), "Greater": (1, 1), "GreaterOrEqual": (1, 0), "Less": (-1, 1), "LessOrEqual": (-1, 0)}
"""For comparisons of a and b: the sign of a - b that counts, and its least value."""


def _element(array: Array | None) -> Known | None:
    return array.flat[0] if array is not None and array.size == 1 else None

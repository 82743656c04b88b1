"""Operators that change only the shape: Reshape, Flatten, Squeeze, Unsqueeze."""

from __future__ import annotations

from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.shape import Dim, Shape
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.axes import perm_of
from sardonyx.optimize.fusions.rules import Found, each
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Match, attribute

RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


@fusion
class FuseReshapes(Fusion):
    """Reshape(Reshape(x))  ->  Reshape(x), for any operators that keep the order of elements."""

    def pattern(self, op: Any, x: Any) -> Any:
        inner = op.call("", RESHAPES, x, op.optional("s"), name="inner")
        return op.call("", RESHAPES, inner, op.optional("t"), name="outer")

    def rewrite(self, op: Builder, m: Match) -> Any:
        inner, outer = m.node("inner"), m.node("outer")
        if _cancel(inner, outer) or same_shape(m.x.shape, outer.output.shape):
            return m.x
        both = {inner.op_type, outer.op_type}
        if both == {"Unsqueeze"} and m.s.is_const and m.t.is_const:
            return op.Unsqueeze(m.x, _both_axes(m.s, m.t, outer.output))
        infers = any(_infers(v) for v in (m.s, m.t))
        target = _explicit(outer, m)
        if target is None:
            certain = all(_is_certain(node) for node in (inner, outer))
            require(certain, "a Squeeze asserts that an axis has length 1", inner.output)
            target = target_shape(m.x.shape, outer.output.shape, infers=infers)
        require(target is not None, "no constant target makes the result, whatever is 0", outer.output)
        return op.Reshape(m.x, target)


@optimization("FoldUnitTranspose")
def fold_unit_transpose(graph: Graph, log: Log) -> None:
    """Transpose(x)  ->  Reshape(x), if only axes of size 1 move."""
    each(graph, "Transpose", _unit_transpose, log)


def _unit_transpose(op: Builder, node: Node) -> Found | None:
    x, perm = node.inputs[0], perm_of(node)
    if x is None or x.shape is None or perm is None:
        return None
    moved = [axis for axis in perm if x.shape[axis] != 1]
    target = target_shape(x.shape, tuple(x.shape[axis] for axis in perm)) if moved == sorted(moved) else None
    return None if target is None else ([op.Reshape(x, target)], [])


@fusion
class FuseFlatSoftmax(Fusion):
    """Reshape(Softmax(Flatten(x)), Shape(x))  ->  Softmax(x), if at most one flattened axis has a size other than 1.

    Normalization writes the Softmax of old opsets in this form.
    """

    def pattern(self, op: Any, x: Any, s: Any) -> Any:
        kinds = ("Softmax", "LogSoftmax", "Hardmax")
        flat = op.Flatten(x, name="flat")
        return op.Reshape(
            op.call("", kinds, flat, name="soft"), op.either(op.Shape(x, start=0, end=None), s), name="back"
        )

    def rewrite(self, op: Builder, m: Match) -> Any:
        soft, rank = m.node("soft"), m.x.rank
        require(rank is not None, "the rank is not known", m.x)
        require(int(attribute(soft, "axis")) in (1, -1), "the Softmax is not over the flattened axes")
        back = "s" not in m.values or same_shape(m.x.shape, m.node("back").output.shape)
        require(back, "the result has another shape", m.x)
        axis = int(attribute(m.node("flat"), "axis"))
        first = axis + rank if axis < 0 else axis
        require(0 <= first < rank, "no axis of it was flattened into the rows", m.x)
        long = [axis for axis in range(first, rank) if m.x.shape[axis] != 1] or [rank - 1]
        require(len(long) == 1, "more than one axis was flattened", m.x)
        return op.call("", soft.op_type, m.x, axis=long[0])


def same_shape(a: Shape | None, b: Shape | None) -> bool:
    """Whether two shapes are known to be equal."""
    return a is not None and a == b and None not in a


def target_shape(given: Shape | None, wanted: Shape | None, *, infers: bool = False) -> list[int] | None:
    """The second input of a Reshape from one shape to another: sizes, 0 for an axis that keeps its position, one -1.

    A copied axis may have size 0, and then -1 is ambiguous: the two are used together only if the model did so
    (``infers``).
    """
    if wanted is None:
        return None
    kept = given or ()
    target = [_size(d, kept[i] if i < len(kept) else None) for i, d in enumerate(wanted)]
    decided = infers or not {0, -1} <= set(target)
    return target if decided and target.count(-1) <= 1 and 0 not in wanted else None


def _infers(target: Value | None) -> bool:
    """Whether a constant shape has both a -1 and a 0."""
    return target is not None and target.is_const and {0, -1} <= set(target.numpy().reshape(-1).tolist())


def _size(wanted: Dim, given: Dim) -> int:
    if isinstance(wanted, int):
        return wanted
    return 0 if wanted is not None and wanted == given else -1


def _explicit(outer: Node, m: Match) -> list[int] | None:
    """The constant shape of a Reshape that does not refer to axes of its input."""
    if outer.onnx_op != "Reshape" or not m.t.is_const or attribute(outer, "allowzero"):
        return None
    target: list[int] = m.t.numpy().tolist()
    return target if 0 not in target else None


def _is_certain(node: Node) -> bool:
    """Whether all axes that a Squeeze removes are known to have size 1: otherwise it can fail where a Reshape does
    not.
    """
    x, axes = node.inputs[0], node.input(1)
    if node.onnx_op != "Squeeze" or x is None or x.shape is None or axes is None or not axes.is_const:
        return True
    shape = x.shape
    return all(shape[a] == 1 for a in axes.numpy().reshape(-1).tolist() if -len(shape) <= a < len(shape))


def _cancel(inner: Node, outer: Node) -> bool:
    """Unsqueeze and Squeeze of the same axes, in either order."""
    if {inner.op_type, outer.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    a, b = inner.input(1), outer.input(1)
    wide = inner.output if inner.onnx_op == "Unsqueeze" else outer.output
    if a is None or b is None or not a.is_const or not b.is_const:
        return False
    return _axes(a, wide.rank) == _axes(b, wide.rank)


def _axes(axes: Value, rank: int | None) -> list[int]:
    return sorted(a if rank is None else a % rank for a in axes.numpy().tolist())


def _both_axes(first: Value, second: Value, result: Value) -> list[int]:
    """The axes of one Unsqueeze that is equivalent to two."""
    rank = result.rank
    require(rank is not None, "the rank of the result is not known", result)
    assert rank is not None
    outer = _axes(second, rank)
    left = [axis for axis in range(rank) if axis not in outer]
    return sorted(outer + [left[a % len(left)] for a in first.numpy().reshape(-1).tolist()])

"""Slices, concatenations and expansions that cancel or repeat each other."""

from __future__ import annotations

from typing import Any

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.fold import MAX_NBYTES
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import Constant
from sardonyx.optimize.fusions.axes import perm_of, transposed
from sardonyx.optimize.fusions.rules import Found, each
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Match, attribute


@fusion
class FuseSlices(Fusion):
    """Slice(Slice(x))  ->  Slice(x), of different axes."""

    def pattern(self, op: Any, x: Any) -> Any:
        inner = op.Slice(x, *map(Constant, ("s0", "e0", "a0")), op.optional("t0"))
        return op.Slice(inner, *map(Constant, ("s1", "e1", "a1")), op.optional("t1"))

    def rewrite(self, op: Builder, m: Match) -> Any:
        parts = [_slices(m.s0, m.e0, m.a0, m.t0, m.x.rank), _slices(m.s1, m.e1, m.a1, m.t1, m.x.rank)]
        require(not set(parts[0]) & set(parts[1]), "both slice the same axis")
        both = {**parts[0], **parts[1]}
        starts, ends, steps = ([cut[i] for cut in both.values()] for i in range(3))
        return op.Slice(m.x, starts, ends, list(both), steps)


def _slices(starts: Value, ends: Value, axes: Value, steps: Value | None, rank: int | None) -> dict[int, list[int]]:
    """Start, end and step by axis."""
    where = axes.numpy().tolist()
    require(rank is not None or min(where, default=0) >= 0, "an axis counts from the end of an unknown rank", axes)
    require(steps is None or steps.is_const, "the steps are not constant", steps)
    stride = [1] * len(where) if steps is None else steps.numpy().tolist()
    cuts = zip(starts.numpy().tolist(), ends.numpy().tolist(), stride, strict=True)
    return {a if rank is None else a % rank: list(cut) for a, cut in zip(where, cuts, strict=True)}


@fusion
class FuseGatherUnsqueeze(Fusion):
    """Unsqueeze(Gather(x, i))  ->  Gather(x, [i]), if Unsqueeze restores the removed axis."""

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Unsqueeze(op.Gather(x, Constant("i"), name="gather"), Constant("axes"), name="outer")

    def rewrite(self, op: Builder, m: Match) -> Any:
        gather, rank = m.node("gather"), m.node("outer").output.rank
        axes, axis = m.axes.numpy().tolist(), int(attribute(gather, "axis"))
        require(m.i.rank == 0, "the index is not a scalar", m.i)
        known = rank is not None and m.x.rank is not None
        require(known or (axis >= 0 and axes[0] >= 0), "the rank is not known", m.x)
        same = len(axes) == 1 and (axes[0] % rank == axis % m.x.rank if known else axes[0] == axis)
        require(same, "Unsqueeze restores another axis", m.axes)
        return op.Gather(m.x, m.i.numpy().reshape(1), axis=axis)


@fusion
class FoldGatherND(Fusion):
    """GatherND(x, Unsqueeze(i, -1))  ->  Gather(x, i), along the first axis."""

    def pattern(self, op: Any, x: Any, i: Any) -> Any:
        return op.GatherND(x, op.Unsqueeze(i, Constant("axes"), name="tuples"), batch_dims=0)

    def rewrite(self, op: Builder, m: Match) -> Any:
        tuples = m.node("tuples").output
        require(tuples.rank is not None, "the rank of the indices is not known", tuples)
        last = (tuples.rank or 0) - 1
        require(m.axes.numpy().tolist() in ([-1], [last]), "an index has several parts", tuples)
        return op.Gather(m.x, m.i, axis=0)


@optimization("FuseConcats")
def fuse_concats(graph: Graph, log: Log) -> None:
    """Concat(Concat(a, b), c)  ->  Concat(a, b, c), along one axis."""
    each(graph, "Concat", _concat_of_concat, log)


@optimization("CancelSplits")
def cancel_splits(graph: Graph, log: Log) -> None:
    """Concat(Split(x))  ->  x;  Split(Concat(a, b))  ->  a, b, along one axis."""
    each(graph, "Concat", _concat_of_split, log)
    each(graph, "Split", _split_of_concat, log)


@optimization("FoldTransposedConstants")
def fold_transposed_constants(graph: Graph, log: Log) -> None:
    """Transpose(w)  ->  w', for a constant of any size, computed on first use."""
    each(graph, "Transpose", _transposed_constant, log)


def _axis(node: Node) -> int | None:
    """The axis of a Concat or Split as a non-negative number, if known."""
    axis = int(attribute(node, "axis"))
    rank = next((v.rank for v in node.inputs if v is not None and v.rank is not None), None)
    return axis if axis >= 0 else None if rank is None else axis + rank


def _concat_of_concat(op: Builder, node: Node) -> Found | None:
    axis, parts, inner = _axis(node), list[Any](), dict[Node, None]()
    for v in node.inputs:
        assert v is not None
        made = v.producer
        private = len(v.uses) == 1 and not v.is_output
        if made is not None and made.op_type == "Concat" and not made.domain and private and _axis(made) == axis:
            parts += made.inputs
            inner[made] = None
        else:
            parts.append(v)
    if not inner or axis is None:
        return None
    return [op.Concat(*parts, axis=axis)], list(inner)


def _concat_of_split(op: Builder, node: Node) -> Found | None:
    first = node.inputs[0]
    split = first.producer if first is not None else None
    if split is None or split.onnx_op != "Split" or list(node.inputs) != list(split.outputs):
        return None
    x = split.inputs[0]
    if x is None or _axis(split) is None or _axis(split) != _axis(node):
        return None
    return [x], [split]


def _split_of_concat(op: Builder, node: Node) -> Found | None:
    x = node.inputs[0]
    concat = x.producer if x is not None else None
    if concat is None or concat.onnx_op != "Concat" or len(concat.inputs) != len(node.outputs):
        return None
    axis = _axis(node)
    if axis is None or axis != _axis(concat):
        return None
    sizes = [v.shape[axis] if v is not None and v.shape is not None else None for v in concat.inputs]
    pieces = [out.shape[axis] if out.shape is not None else None for out in node.outputs]
    if sizes != pieces or any(not isinstance(size, int) for size in sizes):
        return None
    return [v for v in concat.inputs if v is not None], [concat]


def _transposed_constant(op: Builder, node: Node) -> Found | None:
    w, perm = node.inputs[0], perm_of(node)
    if w is None or not w.is_const or w.const is None or perm is None:
        return None
    if w.const.nbytes > MAX_NBYTES and (len(w.uses) > 1 or w.is_output):
        return None
    return [op.const(transposed(w.const, w.const.shape, perm))], []

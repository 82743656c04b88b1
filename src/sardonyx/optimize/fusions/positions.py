"""Masks computed from positions: 0, 1, 2 ... along an axis, compared or used as indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.attention_parts import attention, rewritten, same
from sardonyx.optimize.fusions.masks import Dim, typed
from sardonyx.optimize.pattern import Match, Var


def position(x: Value | None) -> tuple[int, Dim] | None:
    """The axis along which a value counts 0, 1, 2 ... and its size; all other axes have size 1."""
    node = None if x is None else x.producer
    if x is None or node is None or x.rank is None:
        return None
    if node.onnx_op == "Range":
        start, _, step = node.inputs
        counts = _is_number(start, 0) and _is_number(step, 1)
        return (0, x.shape[0]) if counts and x.shape is not None else None
    if node.onnx_op != "Unsqueeze" or node.inputs[1] is None or not node.inputs[1].is_const:
        return None
    inner, new = position(node.inputs[0]), {a % x.rank for a in node.inputs[1].numpy().tolist()}
    kept = [axis for axis in range(x.rank) if axis not in new]
    return None if inner is None else (kept[inner[0]], inner[1])


def _is_number(x: Value | None, number: int) -> bool:
    return x is not None and x.is_scalar_const and x.item() == number


@fusion
class FoldPositionGather(Fusion):
    """x[rows, columns], both 0, 1, 2 ... along an axis of the result  ->  Unsqueeze(x)."""

    shares = True

    def pattern(self, op: Any, x: Any, rows: Any, columns: Any, width: Any, to: Any, a: Any, b: Any) -> Any:
        row, column = (op.Unsqueeze(op.Expand(v, s), axes=[-1]) for v, s in ((rows, a), (columns, b)))
        flat = op.Gather(op.Flatten(x, axis=2), columns + rows * width, axis=0)
        return op.GatherND(x, op.Concat(row, column, axis=-1), batch_dims=0), op.Reshape(flat, to, name="flat")

    def rewrite(self, op: Builder, m: Match) -> Any:
        (root, *_), found = m.nodes.values(), [position(m.rows), position(m.columns)]
        require(m.x.rank == 2 and None not in found, "the indices are not known to be positions", m.rows)
        assert m.x.shape is not None
        axes: list[int] = []
        for place, size in zip(found, m.x.shape, strict=True):
            assert place is not None
            require(same(place[1], size), "the positions are not known to cover the axis", m.x)
            axes.append(place[0])
        if "width" in m.values:
            require(_is_size(m.width, m.x.shape[1]), "rows are not known to be this far apart", m.width)
        shape = root.outputs[0].shape
        require(shape is not None and axes[0] < axes[1], "the indices change the order of axes", m.x)
        assert shape is not None
        new = [i for i in range(len(shape)) if i not in axes]
        one = all(shape[i] == 1 for i in new) and all(same(shape[a], d) for a, d in zip(axes, m.x.shape, strict=True))
        require(one, "the indices are repeated", root.outputs[0])
        return op.Unsqueeze(m.x, op.const(new))


def _is_size(x: Value, size: Dim) -> bool:
    """Whether a Shape returns this size only."""
    node = x.producer
    if node is None or node.onnx_op != "Shape" or node.inputs[0] is None or node.inputs[0].shape is None:
        return False
    return node.inputs[0].shape[node.attrs.get("start", 0) : node.attrs.get("end")] == (size,)


MAX_DEPTH = 8
"""Deepest nesting of conjunctions that is inspected."""


def simplified_condition(condition: Value, depth: int = MAX_DEPTH) -> Value | None:
    """A condition without parts that always hold, and without repetition over axes other than keys."""
    if depth == 0:
        return condition
    if condition.is_const:
        return None if bool(np.all(condition.numpy())) else condition
    node = condition.producer
    if node is None:
        return condition
    if node.onnx_op == "GreaterOrEqual" and position(node.inputs[0]) is not None and _is_number(node.inputs[1], 0):
        return None
    if node.onnx_op not in ("And", "Expand"):
        return condition
    parts = [
        simplified_condition(x, depth - 1) for x in node.inputs[: 1 if node.onnx_op == "Expand" else 2] if x is not None
    ]
    if all(part is None for part in parts):
        return None
    left = next(part for part in parts if part is not None)
    alone = node.onnx_op == "Expand" or None in parts
    return left if alone and left.shape and condition.shape and same(left.shape[-1], condition.shape[-1]) else condition


def _condition(mask: Value) -> Value | None:
    """The condition that selects between 0 and a fill, or a boolean mask itself."""
    if mask.dtype is dtypes.bool_:
        return mask
    node = mask.producer
    return node.inputs[0] if node is not None and node.onnx_op == "Where" and _is_number(node.inputs[1], 0) else None


class RedundantMask(Var):
    """Matches a mask part of whose condition is redundant."""

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        condition = None if value is None else _condition(value)
        if condition is not None and simplified_condition(condition) is not condition:
            yield from super().match(value, m)


@fusion
class FoldMask(Fusion):
    """Attention(q, k, v, mask)  ->  Attention(q, k, v, mask') without conditions that always hold.

    Attention broadcasts a mask over examples, heads and queries, so expansions are removed as well.
    """

    shares = True

    def pattern(self, op: Any, q: Any, k: Any, v: Any) -> Any:
        return attention(op, q, k, v, mask=RedundantMask("mask"))

    def rewrite(self, op: Builder, m: Match) -> Any:
        condition = _condition(m.mask)
        assert condition is not None
        mask = simplified_condition(condition)
        if mask is not None and condition is not m.mask:
            mask = typed(op.Where(mask, *m.mask.producer.inputs[1:]))
        return rewritten(op, m, m.q, m.k, m.v, mask=mask)

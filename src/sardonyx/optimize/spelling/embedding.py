"""BERT's embedding layer: look-ups of words, positions and segments, added and normalized."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.checks import fits_trailing
from sardonyx.optimize.pattern import Match, attribute
from sardonyx.optimize.spelling import MICROSOFT
from sardonyx.optimize.spelling.activation import require_kernel


@fusion
class SpellEmbedLayerNorm(Fusion):
    """LayerNormalization(words[ids] + segments[segment_ids] + positions[places])  ->  EmbedLayerNormalization."""

    def pattern(self, op: Any, gamma: Any, beta: Any, t1: Any, t2: Any, t3: Any, i1: Any, i2: Any, i3: Any) -> Any:
        a, b, c = (op.Gather(t, i, axis=0) for t, i in ((t1, i1), (t2, i2), (t3, i3)))
        return tuple(op.LayerNormalization(total, gamma, beta, name="norm") for total in ((a + b) + c, a + b))

    def rewrite(self, op: Builder, m: Match) -> Any:
        norm = m.node("norm")
        require(attribute(norm, "axis") in (-1, 2), "it normalizes more than the last axis", norm.inputs[0])
        tables: list[Any] = [(m.values[f"t{n}"], m.values[f"i{n}"]) for n in (1, 2, 3) if f"t{n}" in m.values]
        for table, _ in tables:
            require_kernel(table)
            require(table.is_const and table.rank == 2, "a table is not a constant matrix", table)
        for v in (m.gamma, m.beta):
            require(v.is_const and fits_trailing(v, tables[0][0]), "it does not fit the tables", v)
        ids, places, segments = _roles(tables)
        position_ids = None if _counts(places[1], ids[1]) else _narrow(op, places[1])
        segment, segment_ids = (None, None) if segments is None else (segments[0], _narrow(op, segments[1]))
        y, _ = op.call(
            MICROSOFT,
            "EmbedLayerNormalization",
            _narrow(op, ids[1]),
            segment_ids,
            ids[0],
            places[0],
            segment,
            m.gamma,
            m.beta,
            None,
            position_ids,
            outputs=2,
            epsilon=float(attribute(norm, "epsilon")),
        )
        return y


def _roles(tables: list[tuple[Value, Value]]) -> tuple[Any, Any, Any]:
    """Which look-up is that of the words, the positions and the segments: (table, indices) each.

    Positions are one row for all examples, or counted; words have the larger of the tables that are left.
    """
    places = [t for t in tables if t[1].rank == 2 and t[1].shape is not None and t[1].shape[0] == 1]
    require(len(places) == 1, "which look-up is that of positions is not known", tables[0][1])
    rest = sorted((t for t in tables if t is not places[0]), key=lambda t: -int(t[0].shape[0]))  # type: ignore[index,arg-type]
    for _, indices in rest:
        require(indices.rank == 2 and indices.shape == rest[0][1].shape, "the indices have different shapes", indices)
    return rest[0], places[0], rest[1] if len(rest) > 1 else None


def _counts(places: Value, ids: Value) -> bool:
    """Whether indices are known to be 0, 1, ... as many as there are words, which is what the operator supposes."""
    if places.shape is None or ids.shape is None or ids.shape[1] is None:
        return False
    if places.is_const:
        return places.shape[1] == ids.shape[1] and _is_range(places)
    cut = places.producer
    if cut is None or cut.op_type != "Slice" or len(cut.inputs) < 4:
        return False
    data, start, end, axes = cut.inputs[:4]
    step = cut.input(4)
    if data is None or start is None or end is None or axes is None or not data.is_const or not _is_range(data):
        return False
    plain = start.is_scalar_const and start.item() == 0 and axes.is_scalar_const and axes.item() in (1, -1)
    return plain and (step is None or (step.is_scalar_const and step.item() == 1)) and _is_length(end, ids.shape[1])


def _is_range(v: Value) -> bool:
    array = v.numpy()
    return array.ndim == 2 and array.shape[0] == 1 and bool((array[0] == np.arange(array.shape[1])).all())


def _is_length(v: Value, dim: Any) -> bool:
    """Whether a value is the size of the second axis of something that is ``dim`` long there."""
    node, part = v.producer, None
    while node is not None and node.op_type in ("Unsqueeze", "Squeeze", "Reshape", "Cast", "Gather"):
        if node.op_type == "Gather":
            part = node.input(1)
        node = _producer(node)
    if node is None or node.op_type != "Shape":
        return False
    x, start, end = node.inputs[0], node.attrs.get("start", 0), node.attrs.get("end")
    whole = part is not None and part.is_scalar_const and part.item() == 1 and start == 0
    picked = whole or (part is None and (start, end) == (1, 2))
    return picked and x is not None and x.shape is not None and x.rank == 2 and x.shape[1] == dim


def _producer(node: Node) -> Node | None:
    return None if node.inputs[0] is None else node.inputs[0].producer


def _narrow(op: Builder, ids: Value) -> Any:
    """Indices as i32, which is what the operator takes."""
    require(ids.dtype in (dtypes.i32, dtypes.i64), "the indices are not known to be integers", ids)
    return ids if ids.dtype is dtypes.i32 else op.Cast(ids, to=dtypes.i32.onnx)

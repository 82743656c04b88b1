"""Embedding layers: lookups of words, positions and segments, added and normalized."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.optimize.fusion import Refused, require
from sardonyx.optimize.fusions.checks import fits_trailing, same_shape
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import attribute
from sardonyx.optimize.spelling import MICROSOFT
from sardonyx.optimize.spelling.activation import require_kernel
from sardonyx.records import Record

REPEATS_ROW = ("Unsqueeze", "Reshape", "Tile", "Expand", "Cast")
"""Operators that repeat a row of positions for every example and keep its length."""


class LookUp(Record):
    """table[indices]"""

    node: Node
    table: Value
    indices: Value


class Layer(Record):
    """Which lookup is of words, which of positions, which of segments."""

    words: LookUp
    places: LookUp
    segments: LookUp | None
    is_counted: bool
    """Positions are 0, 1, ..., which is the operator's default."""

    @staticmethod
    def of(look_ups: list[LookUp]) -> Layer:
        words, places, segments = _roles(look_ups)
        is_counted = _are_positions(places.indices, words.indices)
        fits = is_counted or _same_length(places.indices, words.indices)
        require(fits, "positions may be of another length", places.indices)
        return Layer(words, places, segments, is_counted)


@optimization("SpellEmbedLayerNorm")
def spell_embeddings(graph: Graph, log: Log) -> None:
    """LayerNormalization(words[ids] + segments[segment_ids] + positions[places])  ->  EmbedLayerNormalization.

    The sum becomes an output if it has other readers. Positions 0, 1, ... are the operator's default.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    for node in list(order):
        for _, sub in node.subgraphs():
            spell_embeddings(sub, log)
        if node.op_type != "LayerNormalization" or node.domain:
            continue
        found = _look_ups(node.inputs[0], graph)
        if found is not None:
            try:
                _spell(graph, node, *found, order, log)
            except Refused as why:
                log.declined(node, str(why))


def _look_ups(total: Value | None, graph: Graph) -> tuple[list[Node], list[LookUp]] | None:
    """The additions, last first, and the two or three lookups whose sum a value is."""
    added = _adds(total, graph)
    if added is None:
        return None
    adds, terms = [added], list(added.inputs)
    for i, term in enumerate(terms[:2]):
        inner = _adds(term, graph)
        if inner is not None:
            adds.append(inner)
            terms[i : i + 1] = inner.inputs
            break
    found = []
    for term in terms:
        node = None if term is None else term.producer
        if node is None or node.onnx_op != "Gather" or attribute(node, "axis") != 0 or node.graph is not graph:
            return None
        table, indices = node.inputs
        assert table is not None and indices is not None
        found.append(LookUp(node, table, indices))
    return adds, found


def _adds(v: Value | None, graph: Graph) -> Node | None:
    node = None if v is None else v.producer
    return node if node is not None and node.onnx_op == "Add" and node.graph is graph else None


def _spell(
    graph: Graph, norm: Node, adds: list[Node], look_ups: list[LookUp], order: dict[Node, int], log: Log
) -> None:
    total = adds[0].output
    _check_parts(adds, look_ups)
    _check_norm(norm, total, look_ups[0].table)
    layer = Layer.of(look_ups)
    shapes = _shape_readers(layer, adds, look_ups, order)
    is_read = len(total.uses) > 1 or total.is_output or bool(shapes)
    # The new node is inserted before the first reader of the sum or of its shape.
    before = min((adds[0], *shapes), key=lambda node: order[node])
    nodes = [norm, *adds, *(one.node for one in look_ups)]
    origin = tuple(dict.fromkeys(name for node in reversed(nodes) for name in node.origin))
    op = Builder(graph, before, prefix=norm.name or norm.outputs[0].name, origin=origin)
    made = _call(op, layer, norm, 3 if is_read else 2)
    old, new = ([norm.outputs[0], total], [made[0], made[2]]) if is_read else ([norm.outputs[0]], [made[0]])
    what = f"{' + '.join(n.op_type for n in reversed(nodes))} -> EmbedLayerNormalization"
    if log.replace(graph, nodes, old, new, op.made, what):
        for node in shapes:
            node.set_input(0, made[2])


def _check_norm(norm: Node, total: Value, table: Value) -> None:
    require(attribute(norm, "axis") in (-1, 2), "it normalizes more than the last axis", total)
    require(all(out.is_dead for out in norm.outputs[1:]), "its statistics are read", norm.outputs[0])
    for v in (norm.inputs[1], norm.input(2)):
        fits = v is not None and v.is_const and fits_trailing(v, table)
        require(fits, "scale and bias do not fit the tables", v or total)


def _check_parts(adds: list[Node], look_ups: list[LookUp]) -> None:
    for one in look_ups:
        require_kernel(one.table)
        require(one.table.is_const and one.table.rank == 2, "a table is not a constant matrix", one.table)
    for add in adds[1:]:
        require(len(add.output.uses) == 1 and not add.output.is_output, "a part of the sum is read", add.output)


def _shape_readers(layer: Layer, adds: list[Node], look_ups: list[LookUp], order: dict[Node, int]) -> list[Node]:
    """The nodes that read the shape of a lookup, which is that of the sum. Nothing else may read a lookup."""
    shapes = [node for one in look_ups for node in _other_readers(one, adds)]
    read = [one.indices for one in look_ups if one is not layer.places or not layer.is_counted]
    for node in shapes:
        of_sum = node.onnx_op == "Shape" and same_shape(node.inputs[0], adds[0].output)  # type: ignore[arg-type]
        ready = node in order and all(v.producer is None or order[v.producer] < order[node] for v in read)
        require(of_sum and ready, f"a look-up is also read by {node.label}", node.inputs[0])
    return shapes


def _call(op: Builder, layer: Layer, norm: Node, outputs: int) -> Any:
    words, places, segments = layer.words, layer.places, layer.segments
    return op.call(
        MICROSOFT,
        "EmbedLayerNormalization",
        _narrow(op, words.indices),
        None if segments is None else _narrow(op, segments.indices),
        words.table,
        places.table,
        None if segments is None else segments.table,
        norm.inputs[1],
        norm.input(2),
        None,
        None if layer.is_counted else _narrow(op, places.indices),
        outputs=outputs,
        epsilon=float(attribute(norm, "epsilon")),
    )


def _other_readers(one: LookUp, adds: list[Node]) -> list[Node]:
    require(not one.node.output.is_output, "a look-up is a graph output", one.node.output)
    return [reader for reader in one.node.output.consumers if reader not in adds]


def _roles(look_ups: list[LookUp]) -> tuple[LookUp, LookUp, LookUp | None]:
    """Which lookup is that of words, of positions and of segments.

    The positions' lookup has one row for all examples; otherwise tables are distinguished by size. The sum is the same
    anyway.
    """
    rest = sorted(look_ups, key=lambda one: -int(one.table.shape[0]))  # type: ignore[index,arg-type]
    for one in rest:
        require(one.indices.rank == 2, "the indices are not known to have two axes", one.indices)
    rows = [one for one in rest if one.indices.shape is not None and one.indices.shape[0] == 1]
    places = rows[0] if rows and len(rows) < len(rest) else rest[1]
    rest.remove(places)
    words, *segments = rest
    for one in segments:
        require(same_shape(one.indices, words.indices), "the indices have different shapes", one.indices)
    return words, places, segments[0] if segments else None


def _same_length(places: Value, ids: Value) -> bool:
    assert places.shape is not None and ids.shape is not None
    length = ids.shape[1]
    return length is not None and places.shape[1] == length and (places.shape[0] == 1 or same_shape(places, ids))


def _are_positions(places: Value, ids: Value) -> bool:
    """Whether indices are known to be 0, 1, ..., one per word, which is the operator's default."""
    assert ids.shape is not None
    length = ids.shape[1]
    node = places.producer
    while length is not None and node is not None and node.onnx_op in REPEATS_ROW:
        inner = node.inputs[0]
        if inner is None or not inner.shape or not places.shape or inner.shape[-1] != places.shape[-1]:
            return False
        places, node = inner, inner.producer
    if length is None or places.shape is None:
        return False
    if places.is_const:
        return places.shape[-1] == length and _is_range(places)
    if node is None or node.onnx_op not in ("Range", "Slice"):
        return False
    if node.onnx_op == "Range":
        start, _, step = node.inputs
        return places.shape[0] == length and _equals(start, 0) and _equals(step, 1)
    data, start, end, axes = node.inputs[:4] if len(node.inputs) >= 4 else (None,) * 4
    if data is None or end is None or not data.is_const or not _is_range(data):
        return False
    plain = _equals(start, 0) and (_equals(axes, -1) or _equals(axes, len(data.shape or ()) - 1))
    return plain and (node.input(4) is None or _equals(node.input(4), 1)) and _is_length(end, length)


def _equals(v: Value | None, number: int) -> bool:
    return v is not None and v.is_scalar_const and v.item() == number


def _is_range(v: Value) -> bool:
    array = v.numpy().reshape(-1)
    return v.const is not None and v.const.shape[-1:] == array.shape and bool((array == np.arange(array.size)).all())


def _is_length(v: Value, dim: Any) -> bool:
    """Whether a value is the size of the second axis of a tensor whose second axis is ``dim``."""
    node, part = v.producer, None
    while node is not None and node.onnx_op in ("Unsqueeze", "Squeeze", "Reshape", "Cast", "Gather"):
        if node.onnx_op == "Gather":
            part = node.input(1)
        node = _producer(node)
    if node is None or node.onnx_op != "Shape":
        return False
    x, start, end = node.inputs[0], node.attrs.get("start", 0), node.attrs.get("end")
    whole = part is not None and part.is_scalar_const and part.item() == 1 and start == 0
    picked = whole or (part is None and start in (1, -1) and end in (2, None))
    return picked and x is not None and x.shape is not None and x.rank == 2 and x.shape[1] == dim


def _producer(node: Node) -> Node | None:
    source = node.input(0)
    return None if source is None else source.producer


def _narrow(op: Builder, ids: Value) -> Any:
    """Indices as i32, the type that the operator takes."""
    require(ids.dtype in (dtypes.i32, dtypes.i64), "the indices are not known to be integers", ids)
    return ids if ids.dtype is dtypes.i32 else op.Cast(ids, to=dtypes.i32.onnx)

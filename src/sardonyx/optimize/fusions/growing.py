"""Loops that only append to a carried value collect rows instead, which takes one copy and no sizes that grow."""

from __future__ import annotations

from sardonyx.ir import dims
from sardonyx.ir.builder import Builder
from sardonyx.ir.clone import clone_node
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.optimize.loop_inference import LoopSignature
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.trips import CARRIED
from sardonyx.records import Record


class _Appended(Record):
    """A carried value to whose end every trip appends a row."""

    index: int
    """Of the carried value, among all of them."""
    row: Value
    joins: tuple[Node, ...] = ()
    """If it is a sequence: the nodes that join its elements."""


@optimization("CollectRows")
def collect_rows(graph: Graph, log: Log) -> None:
    """Loop(..., v) with v = Concat(v, row) in its body  ->  Concat(v, the rows that a Loop collects).

    ConcatFromSequence(Loop(..., [])) with v = SequenceInsert(v, row)  ->  the rows that a Loop collects.
    """
    for node in list(graph.nodes):
        for _, sub in node.subgraphs():
            collect_rows(sub, log)
        loop: Node | None = node if node.onnx_op == "Loop" else None
        while loop is not None:
            found = _first_appended(loop)
            loop = None if found is None else _collect(graph, loop, found, log)


def _first_appended(node: Node) -> _Appended | None:
    signature = LoopSignature.of(node)
    if signature is None:
        return None
    found = (_appended(node, signature, i) for i in range(len(signature.states)))
    return next((each for each in found if each is not None), None)


def _appended(node: Node, signature: LoopSignature, index: int) -> _Appended | None:
    state, after, start = signature.states[index], signature.nexts[index], signature.starts[index]
    adding, out = after.producer, node.outputs[index]
    if start is None or adding is None or adding.graph is not signature.body or len(adding.inputs) != 2:
        return None
    row = adding.inputs[1]
    if adding.inputs[0] is not state or len(state.uses) != 1 or state.is_output or after.uses or after.is_output != 1:
        return None
    if row is None or row is state or not isinstance(row.type, TensorType) or row.shape is None:
        return None
    if row not in signature.body.inputs and (row.producer is None or row.producer.graph is not signature.body):
        return None
    if adding.onnx_op == "Concat":
        is_row = len(row.shape) == start.rank and _can_join(node, row, adding.attrs["axis"])
        return _Appended(index, row) if is_row else None
    if adding.onnx_op != "SequenceInsert" or start.producer is None or start.producer.onnx_op != "SequenceEmpty":
        return None
    joins = tuple(dict.fromkeys(user for user, _ in out.uses))
    if out.is_output or any(n.onnx_op != "ConcatFromSequence" or n.graph is not node.graph for n in joins):
        return None
    can_join = all(_can_join(node, row, n.attrs["axis"], stacked=bool(n.attrs.get("new_axis"))) for n in joins)
    return _Appended(index, row, joins) if joins and can_join else None


def _can_join(node: Node, row: Value, axis: int, *, stacked: bool = False) -> bool:
    """Whether collected rows can be rearranged to what joins them: all but one of their sizes must be known."""
    assert row.shape is not None
    rank = len(row.shape) + stacked
    if not -rank <= axis < rank:
        return False
    axis %= rank
    others = [d for i, d in enumerate(row.shape) if stacked or i != axis]
    if not all(isinstance(d, int) and d > 0 for d in others):
        return False
    return stacked or ((row.shape[axis] == 1 or axis == 0) and _is_fixed(row.shape[axis], node))


def _is_fixed(size: object, node: Node) -> bool:
    """Whether a size is the same in every trip: it consists of sizes from outside the body."""
    if isinstance(size, int):
        return True
    outside = {name for v in node.inputs if v is not None for d in v.shape or () for name in dims.names(d)}
    return isinstance(size, dims.Expr) and outside.issuperset(dims.names(size))


def _collect(graph: Graph, node: Node, found: _Appended, log: Log) -> Node | None:
    """The Loop that takes this one's place."""
    body: Graph = node.attrs["body"]
    at, row, start = CARRIED + found.index, found.row, node.inputs[CARRIED + found.index]
    assert isinstance(row.type, TensorType) and row.type.shape is not None and start is not None
    new = _rebuilt(body, at, row)
    op = Builder(graph, node, prefix=node.name or node.outputs[0].name, origin=node.origin)
    inputs = [v for i, v in enumerate(node.inputs) if i != at]
    results = [Value(out.name, out.type) for i, out in enumerate(node.outputs) if i != found.index]
    rows = Value(f"{op.prefix}/rows", TensorType(row.type.dtype, (None, *row.type.shape)))
    op.call("", node.op_type, *inputs, outputs=[*results, rows], **{**node.attrs, "body": new})
    old = [out for i, out in enumerate(node.outputs) if i != found.index]
    if not found.joins:
        old.append(node.outputs[found.index])
        axis = _inserted_at(body, at).attrs["axis"] % len(row.type.shape)
        results.append(op.Concat(start, _joined(op, rows, axis), axis=axis))
    for join in found.joins:
        stacked = bool(join.attrs.get("new_axis"))
        old.append(join.output)
        results.append(_joined(op, rows, join.attrs["axis"] % (len(row.type.shape) + stacked), stacked=stacked))
    loop = op.made[0]
    gone = [*found.joins, node]
    is_done = log.replace(graph, gone, old, results, op.made, "rows that every trip appends are collected")
    return loop if is_done else None


def _joined(op: Builder, rows: Value, axis: int, *, stacked: bool = False) -> Value:
    """Collected rows, joined along an axis, or stacked along a new one."""
    assert isinstance(rows.type, TensorType) and rows.type.shape is not None
    rank = len(rows.type.shape)
    joined: Value
    if axis == 0:
        joined = rows if stacked else op.Reshape(rows, [-1, *rows.type.shape[2:]])
        return joined
    joined = op.Transpose(rows, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)])
    return joined if stacked else op.Squeeze(joined, [axis + 1])


def _inserted_at(body: Graph, at: int) -> Node:
    """The node that appends to the carried input ``at``."""
    node = body.outputs[at - 1].producer
    assert node is not None
    return node


def _rebuilt(body: Graph, left_out: int, row: Value) -> Graph:
    """The body without a carried input, which collects a row."""
    copies: dict[Value, Value] = {v: Value(v.name, v.type) for v in body.inputs}
    new = Graph(body.name, [copies[v] for i, v in enumerate(body.inputs) if i != left_out], doc=body.doc)
    for name, v in body.initializers.items():
        copies[v] = new.initializers[name] = Value(v.name, v.type, const=v.const)
    for inner in body.nodes:
        if inner is not _inserted_at(body, left_out):
            new.append(clone_node(inner, copies))
    for i, (v, name) in enumerate(zip(body.outputs, body.output_names, strict=True)):
        if i != left_out - 1:
            new.add_output(copies.get(v, v), name)
    name = row.name
    while name in new.output_names:
        name += "_row"
    new.add_output(copies[row], name)
    return new

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
    axis: int


@optimization("CollectRows")
def collect_rows(graph: Graph, log: Log) -> None:
    """Loop(..., v) with v = Concat(v, row) in its body  ->  Concat(v, the rows that a Loop collects)."""
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
    concat = after.producer
    if start is None or concat is None or concat.onnx_op != "Concat" or concat.graph is not signature.body:
        return None
    if len(concat.inputs) != 2 or concat.inputs[0] is not state or len(state.uses) != 1 or state.is_output:
        return None
    row = concat.inputs[1]
    if after.uses or after.is_output != 1 or row is None or row is state:
        return None
    if row not in signature.body.inputs and (row.producer is None or row.producer.graph is not signature.body):
        return None
    shape, rank = row.shape, start.rank
    if shape is None or rank is None or len(shape) != rank or not isinstance(row.type, TensorType):
        return None
    axis = concat.attrs["axis"] % rank
    others = [d for i, d in enumerate(shape) if i != axis]
    if not all(isinstance(d, int) and d > 0 for d in others) or (shape[axis] != 1 and axis > 0):
        return None
    if not _is_fixed(shape[axis], node):
        return None
    return _Appended(index, row, axis)


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
    axis, rank = found.axis, len(row.type.shape)
    if axis == 0:
        merged = op.Reshape(rows, [-1, *row.type.shape[1:]])
    else:
        moved = op.Transpose(rows, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank + 1)])
        merged = op.Squeeze(moved, [axis + 1])
    whole = op.Concat(start, merged, axis=axis)
    results.insert(found.index, whole)
    loop = op.made[0]
    is_done = log.replace(graph, [node], node.outputs, results, op.made, "rows that every trip appends are collected")
    return loop if is_done else None


def _rebuilt(body: Graph, left_out: int, row: Value) -> Graph:
    """The body without a carried input, which collects a row."""
    copies: dict[Value, Value] = {v: Value(v.name, v.type) for v in body.inputs}
    new = Graph(body.name, [copies[v] for i, v in enumerate(body.inputs) if i != left_out], doc=body.doc)
    for name, v in body.initializers.items():
        copies[v] = new.initializers[name] = Value(v.name, v.type, const=v.const)
    for inner in body.nodes:
        if inner is not body.outputs[left_out - 1].producer:
            new.append(clone_node(inner, copies))
    for i, (v, name) in enumerate(zip(body.outputs, body.output_names, strict=True)):
        if i != left_out - 1:
            new.add_output(copies.get(v, v), name)
    name = row.name
    while name in new.output_names:
        name += "_row"
    new.add_output(copies[row], name)
    return new

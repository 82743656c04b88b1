"""Moves loop-invariant values and nodes out of loops."""

from __future__ import annotations

from sardonyx.ir.builder import Builder
from sardonyx.ir.clone import clone_node
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import attribute

CARRIED = 2
"""Index of the first loop-carried input of a Loop and of its body."""


@optimization("FoldLoopInvariants")
def fold_invariants(graph: Graph, log: Log) -> None:
    """Loop(..., v) whose body returns v unchanged  ->  a Loop whose body captures v."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            fold_invariants(sub, log)
        if node.op_type == "Loop" and not node.domain:
            found = _invariants(graph, node)
            if found:
                _fold(graph, node, found, log)


def _invariants(graph: Graph, node: Node) -> set[int]:
    """Indices of carried values that no trip changes and that no subgraph output depends on."""
    body: Graph = node.attrs["body"]
    found = set()
    for i, (inner, out) in enumerate(zip(body.inputs[CARRIED:], node.outputs, strict=False)):
        handed_on = body.outputs[1 + i]
        elsewhere = inner.is_output - (handed_on is inner)
        if _source(handed_on) is not inner or elsewhere or node.input(CARRIED + i) is None:
            continue
        if not (out.is_output and graph.parent is not None):
            found.add(i)
    return found


def _source(v: Value) -> Value:
    """The value that a chain of Identity nodes passes on."""
    while v.producer is not None and v.producer.onnx_op == "Identity" and v.producer.inputs[0] is not None:
        v = v.producer.inputs[0]
    return v


def _fold(graph: Graph, node: Node, found: set[int], log: Log) -> None:
    body: Graph = node.attrs["body"]
    outer = list(node.inputs[CARRIED:])
    copies: dict[Value, Value] = {}
    for i, inner in enumerate(body.inputs[CARRIED:]):
        value = outer[i] if i in found else None
        copies[inner] = Value(inner.name, inner.type) if value is None else value
    for v in body.inputs[:CARRIED]:
        copies[v] = Value(v.name, v.type)
    kept = [v for i, v in enumerate(body.inputs) if i - CARRIED not in found]
    new = Graph(body.name, [copies[v] for v in kept], doc=body.doc)
    for name, v in body.initializers.items():
        copies[v] = new.initializers[name] = Value(v.name, v.type, const=v.const)
    for inner_node in body.nodes:
        new.append(clone_node(inner_node, copies))
    for i, (v, name) in enumerate(zip(body.outputs, body.output_names, strict=True)):
        if i - 1 not in found:
            new.add_output(copies.get(v, v), name)
    op = Builder(graph, node, prefix=node.name or node.outputs[0].name, origin=node.origin)
    inputs = [*node.inputs[:CARRIED], *(v for i, v in enumerate(outer) if i not in found)]
    left = [Value(out.name) for i, out in enumerate(node.outputs) if i not in found]
    op.call("", "Loop", *inputs, outputs=left, **{**node.attrs, "body": new})
    made = iter(left)
    results = [outer[i] if i in found else next(made) for i in range(len(node.outputs))]
    what = f"{len(found)} carried values that no turn changes are read from outside"
    log.replace(graph, [node], node.outputs, [v for v in results if v is not None], op.made, what)


CANNOT_FAIL = frozenset((
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "Conv", "Cos", "Div", "Equal", "Erf", "Exp", "Flatten", "Floor",
    "Gelu", "Gemm", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "LayerNormalization",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul", "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow",
    "Reciprocal", "ReduceMean", "ReduceSum", "Relu", "Shape", "Sigmoid", "Sin", "Softmax", "Softplus", "Sqrt", "Sub",
    "Tanh", "Transpose", "Where",
))  # fmt: skip
"""Operators that cannot fail for any elements, so they may run even if the loop has no trip."""

CANNOT_FAIL_WITH_CONSTANTS = frozenset(("Expand", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"))
"""The same, if all operands but the first are constants."""


@optimization("HoistLoopInvariants")
def hoist_invariants(graph: Graph, log: Log) -> None:
    """Loop(f(v))  ->  f(v) before the Loop, if v is defined outside."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            hoist_invariants(sub, log)
        if node.op_type in ("Loop", "Scan") and not node.domain:
            _hoist(graph, node, log)


def _hoist(graph: Graph, node: Node, log: Log) -> None:
    body: Graph = node.attrs["body"]
    own = {*body.inputs, *(out for inner in body.nodes for out in inner.outputs)}
    copies: dict[Value, Value] = {}
    moved: list[Node] = []
    made: list[Node] = []
    for inner in body.nodes:
        if inner.domain or not _cannot_fail(inner) or any(out.is_output for out in inner.outputs):
            continue
        if all(v is None or v.is_const for v in inner.inputs) or any(v in own for v in inner.inputs):
            continue
        for v in inner.inputs:
            if v is not None and v in body.initializers.values() and v not in copies:
                assert v.const is not None
                copies[v] = graph.add_const(v.const, v.name)
        copies |= {out: Value(graph.fresh_name(out.name), out.type) for out in inner.outputs}
        own.difference_update(inner.outputs)
        moved.append(inner)
        made.append(graph.insert(clone_node(inner, copies), before=node))
    if moved:
        old = [out for inner in moved for out in inner.outputs]
        what = f"{len(moved)} nodes that say the same in every trip run in front of the loop"
        log.replace(graph, moved[::-1], old, [copies[v] for v in old], made[::-1], what)


def _cannot_fail(node: Node) -> bool:
    rest = node.inputs[1:]
    return node.onnx_op in CANNOT_FAIL or (
        node.onnx_op in CANNOT_FAIL_WITH_CONSTANTS and all(v is None or v.is_const for v in rest)
    )


@optimization("HoistLoopProducts")
def hoist_products(graph: Graph, log: Log) -> None:
    """Loop(x[i] @ w)  ->  Loop((x @ w)[i]): the weights are read once for all trips."""
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            hoist_products(sub, log)
        if node.op_type == "Loop" and not node.domain:
            body: Graph = node.attrs["body"]
            own = {*body.inputs, *(out for inner in body.nodes for out in inner.outputs)}
            for inner in body.nodes:
                row = _row(inner, own)
                if row is not None:
                    _hoist_product(graph, node, body, inner, row, log)


def _row(node: Node, own: set[Value]) -> Node | None:
    """The Gather of a row, from a value outside the body, that a node multiplies by a constant."""
    is_matmul = node.onnx_op == "MatMul" or (
        node.onnx_op == "Gemm"
        and not any(int(attribute(node, name)) for name in ("transA", "transB"))
        and all(float(attribute(node, name)) == 1.0 for name in ("alpha", "beta"))
    )
    if node.domain or not is_matmul:
        return None
    row, w = node.inputs[:2]
    gather = None if row is None else row.producer
    if gather is None or gather.op_type != "Gather" or gather.domain or int(attribute(gather, "axis")) != 0:
        return None
    x, i = gather.inputs
    if x is None or i is None or w is None or x in own or x.is_const or x.rank != 3 or i.rank != 0:
        return None
    return gather if gather.graph is node.graph and w.is_const and w.rank == 2 else None


def _hoist_product(graph: Graph, loop: Node, body: Graph, node: Node, gather: Node, log: Log) -> None:
    (x, i), w = gather.inputs, node.inputs[1]
    assert x is not None and w is not None and w.const is not None
    if w in body.initializers.values():
        w = graph.add_const(w.const, w.name)
    outside = Builder(graph, loop, prefix=node.name or node.outputs[0].name, origin=node.origin)
    product = outside.MatMul(x, w)
    if isinstance(x.type, TensorType) and x.shape is not None and w.shape is not None:
        product.type = TensorType(x.type.dtype, (*x.shape[:2], w.shape[1]))
    op = Builder(body, node, prefix=node.name or node.outputs[0].name, origin=node.origin)
    new = op.Gather(product, i, axis=0)
    c = node.input(2)
    if c is not None:
        new.type = node.output.type
        new = op.Add(new, c)
    what = "rows of one product in front of the loop"
    log.replace(body, [node, gather], node.outputs, [new], op.made, what)

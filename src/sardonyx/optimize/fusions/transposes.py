"""Merges Transposes, drops them before reductions, or cancels them by computing the nodes between them in another order
of axes.

A region is a connected set of operators that are elementwise or have axis attributes, so it can be computed in any one
order of axes. Its inputs and outputs are then transposed, unless that cancels an existing Transpose. A region is
permuted if that leaves fewer Transposes at its border; so each step lowers their number, and each node is visited once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.optimize.fusion import Fusion, fusion, require
from sardonyx.optimize.fusions.affine import Constant
from sardonyx.optimize.fusions.axes import (
    Perm,
    composed,
    inverse,
    is_data,
    member_rank,
    perm_of,
    permuted_const,
    permuted_inputs,
)
from sardonyx.optimize.fusions.rules import Found, each
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.pattern import Match

CANDIDATES = 4
"""Orders of axes that are tried for a region: the most frequent ones at its border."""


@fusion
class FuseTransposes(Fusion):
    """Transpose(Transpose(x))  ->  Transpose(x), or x."""

    shares = True

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Transpose(op.Transpose(x, name="inner"), name="outer")

    def rewrite(self, op: Builder, m: Match) -> Any:
        inner, outer = perm_of(m.node("inner")), perm_of(m.node("outer"))
        require(inner is not None and outer is not None, "the rank of the input is not known", m.x)
        assert inner is not None and outer is not None
        both = composed(inner, outer)
        return m.x if both == sorted(both) else op.Transpose(m.x, perm=both)


@fusion
class FoldTransposeReduce(Fusion):
    """Reduce(Transpose(x), axes)  ->  Reduce(x, axes'), if the remaining axes keep their order."""

    shares = True

    def pattern(self, op: Any, x: Any) -> Any:
        kinds = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2")
        return op.call("", kinds, op.Transpose(x, name="transpose"), Constant("axes"), name="reduce", keepdims=0)

    def rewrite(self, op: Builder, m: Match) -> Any:
        perm, reduce = perm_of(m.node("transpose")), m.node("reduce")
        require(perm, "the rank of the input is not known, or 0", m.x)
        assert perm is not None
        axes = {a % len(perm) for a in m.axes.numpy().tolist()}
        require(axes, "it reduces nothing, or everything", m.axes)
        left = [axis for i, axis in enumerate(perm) if i not in axes]
        require(left == sorted(left), "the remaining axes change their order")
        return op.call("", reduce.op_type, m.x, sorted(perm[a] for a in axes), **reduce.attrs)


@optimization("FoldShapeOfTranspose")
def fold_shape_of_transpose(graph: Graph, log: Log) -> None:
    """Shape(Transpose(x))  ->  Gather(Shape(x), perm), if the Transpose's shape alone is used."""
    each(graph, "Shape", _shape_of_transpose, log)


def _shape_of_transpose(op: Builder, node: Node) -> Found | None:
    transposed = node.inputs[0]
    transpose = transposed.producer if transposed is not None else None
    perm = perm_of(transpose)
    if transposed is None or transpose is None or perm is None or node.attrs.get("start") or "end" in node.attrs:
        return None
    if transposed.is_output or any(reader.onnx_op != "Shape" for reader in transposed.consumers):
        return None
    shape = op.Shape(transpose.inputs[0])
    shape.type = TensorType(dtypes.i64, (len(perm),))
    return [op.Gather(shape, perm)], [transpose]


@optimization("CancelTransposes")
def cancel_transposes(graph: Graph, log: Log) -> None:
    """Transpose(f(Transpose(x)))  ->  f'(x), for a region f that can work in any order of axes."""
    for region in _regions(graph):
        _permute_if_cheaper(graph, region, log)
    for node in graph.nodes:
        for _, sub in node.subgraphs():
            cancel_transposes(sub, log)


def _regions(graph: Graph) -> list[list[Node]]:
    """The regions next to a Transpose, each in order."""
    transposes = [node for node in graph.nodes if node.onnx_op == "Transpose"]
    ranks: dict[Node, int | None] = {}
    region: dict[Node, list[Node]] = {}
    found = []
    for start in (near for transpose in transposes for near in _neighbours(transpose)):
        if start in region or start.graph is not graph:
            continue
        rank = ranks[start] = member_rank(start)
        if rank is None:
            continue
        nodes = region[start] = [start]
        found.append(nodes)
        for node in nodes:
            for near in _neighbours(node):
                if near not in ranks:
                    ranks[near] = member_rank(near) if near.graph is graph else None
                if ranks[near] == rank and near not in region:
                    region[near] = nodes
                    nodes.append(near)
    at = {node: i for i, node in enumerate(graph.nodes)} if found else {}
    return [sorted(nodes, key=at.__getitem__) for nodes in found]


def _neighbours(node: Node) -> list[Node]:
    """Nodes that share a value of full rank with this one."""
    makers = [v.producer for i, v in enumerate(node.inputs) if v is not None and is_data(node, i) and v.producer]
    readers = [n for out in node.outputs for n, i in out.uses if is_data(n, i)]
    return makers + readers


class _Border:
    """The inputs and outputs of a region."""

    def __init__(self, graph: Graph, nodes: list[Node], rank: int) -> None:
        self.graph, self.nodes, self.rank = graph, nodes, rank
        inside = set(nodes)
        values = [v for node in nodes for i, v in enumerate(node.inputs) if v is not None and is_data(node, i)]
        self.entering = [
            v for v in dict.fromkeys(values) if v.rank == rank and not v.is_const and v.producer not in inside
        ]
        self.transposes: list[Node] = []
        """Transposes that read from the region."""
        self.leaving: list[Value] = []
        """Values with readers outside the region."""
        self.private: set[Value] = set()
        """Inputs without other readers."""
        for v in self.entering:
            if not v.is_output and all(node in inside for node, _ in v.uses):
                self.private.add(v)
        for out in (out for node in nodes for out in node.outputs):
            readers = [reader for reader in out.consumers if reader not in inside]
            transposes = [reader for reader in readers if reader.onnx_op == "Transpose" and reader.graph is graph]
            self.transposes += transposes
            if out.is_output or len(transposes) < len(readers):
                self.leaving.append(out)

    def orders(self) -> list[Perm]:
        """The orders that would cancel most of the Transposes at the border."""
        wanted: Counter[tuple[int, ...]] = Counter()
        for v in self.entering:
            if (perm := perm_of(v.producer)) is not None:
                wanted[tuple(inverse(perm))] += 1
        for transpose in self.transposes:
            if (perm := perm_of(transpose)) is not None:
                wanted[tuple(perm)] += 1
        return [list(perm) for perm, _ in wanted.most_common(CANDIDATES)]

    def saved(self, order: Perm) -> int:
        """How many Transposes fewer there are if the region is computed in this order."""
        identity = list(range(self.rank))
        total = -len(self.leaving)
        for v in self.entering:
            perm = perm_of(v.producer)
            if perm is None:
                total -= 1
            else:
                total += (v in self.private) - (composed(perm, order) != identity)
        back = inverse(order)
        for transpose in self.transposes:
            perm = perm_of(transpose)
            total += perm is not None and composed(back, perm) == identity
        return total


def _permute_if_cheaper(graph: Graph, nodes: list[Node], log: Log) -> None:
    rank = member_rank(nodes[0])
    assert rank is not None
    border = _Border(graph, nodes, rank)
    if any(v.producer in border.transposes for v in border.entering):
        return
    saved, order = max(((border.saved(order), order) for order in border.orders()), default=(0, []), key=lambda s: s[0])
    if saved > 0:
        _permute(border, order, saved, log)


def _permute(border: _Border, order: Perm, saved: int, log: Log) -> None:
    """Rebuild the region in another order of axes."""
    graph, made, back = border.graph, list[Node](), inverse(order)
    new: dict[Value, Value] = {}
    entering, leaving = set(border.entering), set(border.leaving)
    old: list[Value] = []
    now: list[Value] = []
    for node in border.nodes:
        op = Builder(graph, node, prefix=node.name or node.outputs[0].name, origin=node.origin)
        inputs, attrs = permuted_inputs(node, order)
        for i, v in enumerate(node.inputs):
            if v is None or v.rank == 0 or not is_data(node, i):
                continue
            if v not in new:
                new[v] = _entering(op, v, order) if v in entering else op.const(permuted_const(v, order, border.rank))
            inputs[i] = new[v]
        outs = [Value(f"{out.name}/transposed", _permuted_type(out, order)) for out in node.outputs]
        op.call("", node.op_type, *inputs, outputs=outs, **attrs)
        for out, transposed in zip(node.outputs, outs, strict=True):
            new[out] = transposed
            if out in leaving:
                old.append(out)
                now.append(op.Transpose(transposed, perm=back))
            for transpose in (t for t in border.transposes if t.inputs[0] is out):
                perm = perm_of(transpose)
                assert perm is not None
                both = composed(back, perm)
                old.append(transpose.output)
                now.append(transposed if both == sorted(both) else op.Transpose(transposed, perm=both))
        made += op.made
    transposes = [v.producer for v in border.entering if v.producer is not None and v.producer.onnx_op == "Transpose"]
    nodes = [*border.transposes, *reversed(border.nodes), *transposes]
    log.replace(graph, nodes, old, now, made, f"{len(border.nodes)} nodes permuted, {saved} Transpose fewer")


def _entering(op: Builder, value: Value, order: Perm) -> Value:
    perm = perm_of(value.producer)
    if perm is None or value.producer is None or value.producer.inputs[0] is None:
        transposed = op.Transpose(value, perm=order)
    else:
        source, both = value.producer.inputs[0], composed(perm, order)
        if both == sorted(both):
            return source
        transposed = op.Transpose(source, perm=both)
    transposed.type = _permuted_type(value, order)
    found: Value = transposed
    return found


def _permuted_type(value: Value, order: Perm) -> TensorType | None:
    t = value.type
    if not isinstance(t, TensorType) or t.shape is None:
        return None
    return TensorType(t.dtype, tuple(t.shape[axis] for axis in order))

"""Replaces the nodes of a model that read constant weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.errors import NotImplemented
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.normalize.run import raise_opset
from sardonyx.quantization.weight_only import spelling
from sardonyx.quantization.weight_only.pack import Array, Blocked
from sardonyx.quantization.weight_only.spelling import MICROSOFT, Suffixes, Written
from sardonyx.quantization.weight_only.tables import BlockedTable
from sardonyx.records import Record

logger = logging.getLogger(__name__)

REALS = (dtypes.f32, dtypes.f16, dtypes.bf16)
INT4_OPSET, INT4_IR_VERSION = 21, 10
"""The versions from which DequantizeLinear has blocks and tensors have elements of 4 bits."""


class Selection(Record):
    """Which nodes are quantized: those of the operator types and those named, without those excluded."""

    op_types: frozenset[str]
    include: frozenset[str] = frozenset()
    exclude: frozenset[str] = frozenset()

    def has(self, node: Node) -> bool:
        if node.name and node.name in self.exclude:
            return False
        return (bool(node.name) and node.name in self.include) or node.op_type in self.op_types


class Weight(Record, eq=False):
    """A constant that a node reads, and the graph whose constants stand for it."""

    node: Node
    tensor: Tensor
    name: str
    home: Graph
    shared: Any
    """Equal for nodes that read the same constant."""

    def array(self) -> Array:
        return np.asarray(self.tensor.peek())


class Spelled(Record, eq=False):
    """How products are written."""

    qdq: bool
    suffixes: Suffixes
    accuracy_level: int | None = None
    transposed: bool = False
    """In QDQ format, whether weights are stored transposed."""


def products(model: Model, selection: Selection) -> Iterator[Weight]:
    """The selected products of a value with a constant matrix, in order. Others are logged with the reason."""
    for node in list(model.graph.all_nodes()):
        if node.op_type == "MatMul" and not node.domain and selection.has(node):
            weight = _constant_of(node, 1)
            refusal = "its second operand is no constant" if weight is None else _refusal(node, weight)
            if refusal is None and weight is not None:
                yield weight
            else:
                logger.info("%s stays as it is: %s", node.label, refusal)


def gathers(model: Model, selection: Selection) -> Iterator[Weight]:
    """The selected Gathers from constant tables of reals."""
    for node in list(model.graph.all_nodes()):
        if node.op_type == "Gather" and not node.domain and selection.has(node):
            table = _constant_of(node, 0)
            if table is None or table.tensor.dtype not in REALS:
                logger.info("%s stays as it is: its table is no constant of reals", node.label)
            else:
                yield table


def rewrite_products(
    model: Model, weights: Collection[Weight], quantize: Callable[[Weight, Array], Blocked], spelled: Spelled
) -> int:
    """Replace the nodes that read these weights; the number of them."""
    done: dict[Any, tuple[Written, Blocked]] = {}
    for weight in weights:
        if weight.shared not in done:
            matrix = weight.array()
            found = quantize(weight, matrix.reshape(matrix.shape[-2:]))
            written = Written(weight.home, weight.name)
            if spelled.qdq:
                if found.has_real_zeros:
                    raise NotImplemented("DequantizeLinear has no zero points that are reals", hint="use QOperator")
                spelling.write_dequantized(written, found, transposed=spelled.transposed)
            else:
                spelling.write_nbits(written, found, spelled.suffixes)
            done[weight.shared] = written, found
        written, found = done[weight.shared]
        _replace(weight, lambda node, out, w=written, f=found: _product(node, out, w, f, spelled))  # type: ignore[misc]
    if weights and not spelled.qdq:
        model.opsets.setdefault(MICROSOFT, 1)
    _finish(model, weights, needs_int4=spelled.qdq)
    return len(weights)


def rewrite_gathers(model: Model, weights: Collection[Weight], quantize: Callable[[Array], BlockedTable]) -> int:
    """Replace the Gathers that read these tables; the number of them."""
    done: dict[Any, tuple[Written, BlockedTable]] = {}
    needs_int4 = False
    for weight in weights:
        if weight.shared not in done:
            found, written = quantize(weight.array()), Written(weight.home, weight.name)
            spelling.write_table(written, found)
            done[weight.shared] = written, found
        written, found = done[weight.shared]
        needs_int4 |= found.bits < 8
        _replace(weight, lambda node, out, w=written, f=found: [spelling.gather_node(node, out, w, f)])  # type: ignore[misc]
    if weights:
        model.opsets.setdefault(MICROSOFT, 1)
    _finish(model, weights, needs_int4=needs_int4)
    return len(weights)


def _product(node: Node, out: Value, written: Written, found: Blocked, spelled: Spelled) -> list[Node]:
    if spelled.qdq:
        return spelling.dequantize_nodes(node, out, written, found, transposed=spelled.transposed)
    return [spelling.nbits_node(node, out, written, found, spelled.accuracy_level)]


def _replace(weight: Weight, build: Callable[[Node, Value], list[Node]]) -> None:
    node, graph = weight.node, weight.node.graph
    assert graph is not None
    old = node.output
    new = Value(old.name, old.type)
    new.doc, new.denotation = old.doc, old.denotation
    ones = 0 if node.op_type != "MatMul" else _leading_ones(node, weight)
    product = Value(f"{old.name}_pre_reshape") if ones else new
    for made in build(node, product):
        graph.insert(made, before=node)
    if ones:
        axes = graph.add_const(np.arange(ones), f"{old.name}_leading_axes")
        graph.insert(Node("Unsqueeze", [product, axes], [new], origin=node.origin), before=node)
    graph.replace_uses(old, new)
    graph.remove(node)


def _leading_ones(node: Node, weight: Weight) -> int:
    """How many axes of length one the weight adds to the result."""
    first = node.inputs[0]
    assert first is not None and (first.rank is not None or len(weight.tensor.shape) == 2)
    return max(0, len(weight.tensor.shape) - (first.rank or 2))


def _constant_of(node: Node, i: int) -> Weight | None:
    value = node.input(i)
    if value is None or node.graph is None:
        return None
    maker = value.producer
    if maker is not None and maker.op_type == "Constant" and not maker.domain:
        stated, home = maker.attrs.get("value"), maker.graph
        return Weight(node, stated, value.name, home, value) if isinstance(stated, Tensor) and home else None
    if value.const is None:
        return None
    home = node.graph
    while value not in home.initializers.values():
        if home.parent is None or home.parent.graph is None:
            return None
        home = home.parent.graph
    return Weight(node, value.const, value.name, home, value)


def _refusal(node: Node, weight: Weight) -> str | None:
    """Why a product cannot be quantized."""
    shape, first = weight.tensor.shape, node.input(0)
    if weight.tensor.dtype not in REALS:
        return f"its weight is {weight.tensor.type}"
    if len(shape) < 2 or any(size != 1 for size in shape[:-2]) or 0 in shape:
        return f"its weight is no matrix, but {weight.tensor.type}"
    rank = None if first is None else first.rank
    if rank is None and len(shape) > 2:
        return "the rank of its first operand is not known, and its weight has more than two axes"
    return "its first operand is a vector" if rank == 1 else None


def _finish(model: Model, weights: Collection[Weight], *, needs_int4: bool) -> None:
    """Drop weights that nobody reads, and raise the versions that the new constants need."""
    for weight in weights:
        value = weight.shared
        if not value.is_dead:
            continue
        if value.producer is not None:
            if value.producer.graph is not None:
                value.producer.graph.remove(value.producer)
            continue
        weight.home.initializers.pop(value.name, None)
        if value in weight.home.inputs:
            weight.home.inputs.remove(value)
    if needs_int4 and weights:
        raise_opset(model, INT4_OPSET)
        model.ir_version = max(model.ir_version, INT4_IR_VERSION)

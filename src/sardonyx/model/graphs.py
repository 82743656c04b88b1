"""GraphProto to ``ir.Graph``: names become edges, and every name must have exactly one definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from onnx import AttributeProto

from sardonyx.errors import BrokenGraph, DanglingName, InvalidArgument, InvalidGraph
from sardonyx.ir import types
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType, ValueType
from sardonyx.model.check import check_bodies, check_node, is_internal, rule_of
from sardonyx.model.functions import Versions
from sardonyx.model.inference import Stated, Tables, stated_of
from sardonyx.model.operands import check_types
from sardonyx.model.protos import label, subgraphs
from sardonyx.model.tensors import Payloads
from sardonyx.model.types import dtype_of, from_proto, text

MAX_NESTING = 64


class Scope:
    """The names that one graph defines, and those of the graphs around it."""

    __slots__ = ("outer", "own")

    def __init__(self, outer: Scope | None) -> None:
        self.own: dict[str, Value] = {}
        self.outer = outer

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            value = scope.own.get(name)
            if value is not None:
                return value
            scope = scope.outer
        return None


class GraphReader:
    """Reads the graphs of one model."""

    def __init__(
        self,
        payloads: Payloads,
        ir_version: int,
        opsets: dict[str, int],
        stated: Stated,
        tables: Tables,
        given: Mapping[str, Tensor] | None = None,
        versions: Versions | None = None,
        *,
        checks_types: bool = True,
    ) -> None:
        self.checks_types = checks_types
        self.payloads, self.opsets, self.stated, self.tables = payloads, opsets, stated, tables
        self.given = given or {}
        """Constants that replace initializers of the main graph, by name."""
        self.versions = versions or {}
        self.inputs_override = ir_version >= 4
        """Before IR version 4 every initializer had to be listed as an input, so that does not make it overridable."""
        self.stated_shapes: dict[str, TensorType] = {}

    def read(self, proto: onnx.GraphProto, outer: Scope | None = None, depth: int = 0) -> Graph:
        if depth > MAX_NESTING:
            raise InvalidGraph("subgraphs are nested too deeply", expected=f"at most {MAX_NESTING} levels")
        graph = Graph(text(proto.name, "graph"), doc=text(proto.doc_string, "graph"))
        scope = Scope(outer)
        self._read_inputs(proto, graph, scope)
        self._read_initializers(proto, graph, scope)
        known = {v.name: v.type for v in proto.value_info}
        known.update({v.name: v.type for v in proto.output if v.type.WhichOneof("value")})
        for node in _in_order(proto, scope):
            self._read_node(node, graph, scope, known, depth)
        for out in proto.output:
            value = scope.find(out.name)
            if value is None:
                raise BrokenGraph("no node produces a graph output", where=f"graph {proto.name!r}", got=repr(out.name))
            if outer is not None and value.stated is None:
                value.stated = self._stated(out)
            graph.add_output(value)
        return graph

    def _read_inputs(self, proto: onnx.GraphProto, graph: Graph, scope: Scope) -> None:
        for info in proto.input:
            name = text(info.name, "graph input")
            if name in scope.own or not name:
                raise BrokenGraph("a graph input has no name, or the name of another", got=repr(name))
            value = Value(name, types.checked_by_feeds(from_proto(info.type, f"input {name!r}")))
            if value.type is None and scope.outer is None:
                raise BrokenGraph("a model input states no type", where=f"input {name!r}")
            value.doc = text(info.doc_string, f"input {name!r}")
            value.stated = self._stated(info) if scope.outer is not None else None
            dims = info.type.tensor_type.shape.dim
            if any(d.denotation for d in dims):
                value.denotation = tuple(text(d.denotation, f"input {name!r}") for d in dims)
            scope.own[name] = value
            graph.inputs.append(value)

    def _stated(self, info: onnx.ValueInfoProto) -> ValueType | None:
        found = stated_of(info)
        return None if found is None else from_proto(found, f"value {info.name!r}")

    def _read_initializers(self, proto: onnx.GraphProto, graph: Graph, scope: Scope) -> None:
        """Constants by name. Of duplicates the last counts, as in onnxruntime."""
        for payload in proto.initializer:
            name = text(payload.name, "initializer")
            if not name:
                raise BrokenGraph("an initializer has no name", where=f"graph {proto.name!r}")
            given = self.given.get(name) if scope.outer is None else None
            if given is None:
                tensor = self.payloads.tensor(payload, f"initializer {name!r}")
            else:
                tensor = _in_place_of(payload, given, name)
            value = scope.own.get(name)
            if value is None:
                value = scope.own[name] = Value(name)
            elif name not in graph.initializers:
                if not isinstance(value.type, types.TensorType | None) or (
                    value.type is not None and value.type.dtype is not tensor.dtype
                ):
                    raise BrokenGraph(
                        "an initializer differs in type from the input of its name",
                        where=f"initializer {name!r}",
                        expected=value.type,
                        got=tensor.type,
                    )
                value.overridable = self.inputs_override and scope.outer is None
            value.const, value.type = tensor, value.type if value.overridable and value.type else tensor.type
            graph.initializers[name] = value
        graph.inputs = [v for v in graph.inputs if v.const is None or v.overridable]

    def _read_node(self, proto: onnx.NodeProto, graph: Graph, scope: Scope, known: dict[str, Any], depth: int) -> None:
        where = label(proto)
        opsets, opset = self.opsets, None
        if proto.domain in self.versions:
            proto.domain, opset = self.versions[proto.domain]
            opsets = {**opsets, proto.domain: opset}
            check_node(proto, where, opsets)
        inputs = [scope.find(name) if name else None for name in proto.input]
        outputs = []
        for name in proto.output:
            value = Value(text(name, where))
            if name:
                if name in scope.own:
                    raise BrokenGraph("a name is defined twice", where=where, got=repr(name))
                value.type = from_proto(known[name], f"value {name!r}") if name in known else None
                if depth == 0 and name in self.stated:
                    self._compare(value, from_proto(self.stated[name], where), proto, where)
                scope.own[name] = value
            outputs.append(value)
        attrs: dict[str, Any] = {}
        for a in self.tables.of(proto):
            if a.name in attrs:
                raise InvalidGraph("an attribute is given twice", where=where, got=repr(a.name))
            if is_internal(a.name):
                continue
            attrs[a.name] = self._attribute(a, where, scope, depth)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        node = Node(proto.op_type, inputs, outputs, attrs, domain=domain, name=proto.name, overload=proto.overload)
        node.doc, node.opset = text(proto.doc_string, where), opset
        graph.append(node)
        if self.checks_types:
            check_types(node, opsets.get(domain, 0))
        check_bodies(node, where, opsets)

    def _compare(self, value: Value, stated: ValueType | None, proto: onnx.NodeProto, where: str) -> None:
        """Compare the type that the file states with the inferred one: only the element type must agree.

        If nothing infers an operator's types, the stated element type is taken; a compiled part checks the arrays it
        gets.
        """
        found = value.type
        if found is None:
            domain = "" if proto.domain == "ai.onnx" else proto.domain
            if rule_of(domain, proto.op_type, self.opsets.get(domain, 0)) is None:
                value.type = TensorType(stated.dtype) if isinstance(stated, TensorType) else stated
            return
        if not isinstance(found, TensorType) or not isinstance(stated, TensorType) or proto.op_type == "Constant":
            return
        if found.dtype is not stated.dtype:
            raise BrokenGraph(
                f"Type Error: the stated type of {value.name!r} is not the type that the operator produces",
                where=where,
                expected=found,
                got=stated,
            )
        if stated.shape is not None:
            self.stated_shapes[value.name] = stated

    def _attribute(self, a: onnx.AttributeProto, where: str, scope: Scope, depth: int) -> Any:
        where = f"attribute {a.name!r} of {where}"
        kind = a.type or _guess_type(a)
        if a.ref_attr_name:
            raise InvalidGraph("an attribute refers to a function's attribute outside a function", where=where)
        if kind == AttributeProto.FLOAT:
            return a.f
        if kind == AttributeProto.INT:
            return a.i
        if kind == AttributeProto.STRING:
            return a.s.decode("utf-8", "surrogateescape")
        if kind == AttributeProto.TENSOR:
            return self.payloads.tensor(a.t, where)
        if kind == AttributeProto.GRAPH:
            return self.read(a.g, scope, depth + 1)
        if kind == AttributeProto.SPARSE_TENSOR:
            return self.payloads.sparse(a.sparse_tensor, where)
        if kind == AttributeProto.TYPE_PROTO:
            return from_proto(a.tp, where)
        if kind == AttributeProto.FLOATS:
            return list(a.floats)
        if kind == AttributeProto.INTS:
            return list(a.ints)
        if kind == AttributeProto.STRINGS:
            return _texts(a.strings)
        if kind == AttributeProto.TENSORS:
            return [self.payloads.tensor(t, where) for t in a.tensors]
        if kind == AttributeProto.GRAPHS:
            return [self.read(g, scope, depth + 1) for g in a.graphs]
        if kind == AttributeProto.SPARSE_TENSORS:
            return [self.payloads.sparse(t, where) for t in a.sparse_tensors]
        if kind == AttributeProto.TYPE_PROTOS:
            return [from_proto(t, where) for t in a.type_protos]
        raise InvalidGraph("an attribute has no known type", where=where, got=kind)


def _texts(strings: Iterable[bytes]) -> list[str]:
    """The texts of bytes; equal ones, such as the modes of a tree's nodes, are decoded once."""
    every = list(strings)
    known = {s: s.decode("utf-8", "surrogateescape") for s in set(every)}
    return [known[s] for s in every]


def _in_place_of(proto: onnx.TensorProto, given: Tensor, name: str) -> Tensor:
    if given.dtype.onnx != proto.data_type or given.shape != tuple(proto.dims):
        raise InvalidArgument(
            "a replaced initializer must keep its type and shape",
            where=f"initializer {name!r}",
            expected=TensorType(dtype_of(proto.data_type, name), tuple(proto.dims)),
            got=given.type,
        )
    return given


def _guess_type(a: onnx.AttributeProto) -> int:
    """The attribute's type from the field that is set: the oldest models leave ``type`` out."""
    for name, kind in (("floats", 6), ("ints", 7), ("strings", 8), ("tensors", 9), ("graphs", 10)):
        if getattr(a, name):
            return kind
    for name, kind in (("f", 1), ("i", 2), ("s", 3), ("t", 4), ("g", 5)):
        if a.HasField(name):
            return kind
    return 0


def _in_order(proto: onnx.GraphProto, scope: Scope) -> Iterable[onnx.NodeProto]:
    """The nodes in topological order; files need not be sorted."""
    made_by: dict[str, int] = {}
    needs: list[set[str]] = []
    for i, node in enumerate(proto.node):
        reads: set[str] = set(node.input)
        for g in subgraphs(node):
            reads |= _free_names(g, 0)
        reads.discard("")
        needs.append(reads)
        for name in node.output:
            if name:
                made_by.setdefault(name, i)
    sorted_already = True
    for i, reads in enumerate(needs):
        for name in reads:
            maker = made_by.get(name)
            if maker is None:
                if scope.find(name) is None:
                    raise DanglingName(
                        "a node reads a name that is no graph input, no initializer and no node's output",
                        where=label(proto.node[i]),
                        got=repr(name),
                    )
            elif maker >= i:
                sorted_already = False
    return proto.node if sorted_already else _sorted(proto, made_by, needs)


def _sorted(proto: onnx.GraphProto, made_by: dict[str, int], needs: list[set[str]]) -> list[onnx.NodeProto]:
    waiting: list[int] = []
    readers: dict[int, list[int]] = {}
    for i, reads in enumerate(needs):
        makers = {made_by[name] for name in reads if name in made_by}
        for maker in makers:
            readers.setdefault(maker, []).append(i)
        waiting.append(len(makers))
    order = [i for i, n in enumerate(waiting) if n == 0]
    for i in order:
        for reader in readers.get(i, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                order.append(reader)
    if len(order) < len(waiting):
        stuck = next(i for i, n in enumerate(waiting) if n)
        raise BrokenGraph("the graph has a cycle", where=label(proto.node[stuck]))
    return [proto.node[i] for i in order]


def _free_names(graph: onnx.GraphProto, depth: int) -> set[str]:
    """Names that a subgraph reads and does not define."""
    if depth > MAX_NESTING:
        raise InvalidGraph("subgraphs are nested too deeply", expected=f"at most {MAX_NESTING} levels")
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    reads = {o.name for o in graph.output}
    for node in graph.node:
        own.update(node.output)
        reads.update(node.input)
        for g in subgraphs(node):
            reads |= _free_names(g, depth + 1)
    return (reads - own) - {""}

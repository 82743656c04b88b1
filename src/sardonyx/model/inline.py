"""Replaces function calls by function bodies, by names alone: no types are needed.

A body's names are made unique in the model. Its nodes use the caller's values for the formal inputs and outputs, and
the caller's attributes, or the function's defaults, for attribute references.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import zip_longest

import onnx

from sardonyx.errors import InvalidGraph, OutOfBudget
from sardonyx.model.check import rule_of
from sardonyx.model.protos import every_node, label, subgraphs
from sardonyx.records import Record

MAX_DEPTH = 100
"""Levels of calls and subgraphs."""

Key = tuple[str, str, str]
Names = MutableMapping[str, str]

_UNCHANGED_SINCE = {"If": 1, "Loop": 1, "Scan": 9}
"""Versions since which control-flow operators have the same semantics, though their types were extended."""


def key_of(node: onnx.NodeProto) -> Key:
    return domain_of(node.domain), node.op_type, node.overload


def domain_of(name: str) -> str:
    return "" if name == "ai.onnx" else name


@dataclass
class Budget:
    """How large the model may become."""

    most_nodes: int
    most_nbytes: int
    nodes: int = 0
    nbytes: int = 0

    def spend(self, nodes: int, nbytes: int) -> None:
        self.nodes, self.nbytes = self.nodes + nodes, self.nbytes + nbytes
        self.check(self.nodes, self.nbytes)

    def check(self, nodes: int, nbytes: int) -> None:
        if nodes > self.most_nodes or nbytes > self.most_nbytes:
            raise OutOfBudget(
                "inlining the model's functions makes too many nodes",
                expected=f"at most {self.most_nodes} nodes and {self.most_nbytes} bytes",
                got=f"{nodes} nodes, {nbytes} bytes",
            )


class Call(Record):
    """One call of a function: the names of its values, its attributes, and the opsets of its body."""

    prefix: str
    names: dict[str, str]
    attributes: Mapping[str, onnx.AttributeProto]
    imports: Mapping[str, int]


class Inliner:
    """Rewrites the graphs of one model."""

    def __init__(
        self,
        bodies: Mapping[Key, onnx.FunctionProto],
        opsets: dict[str, int],
        budget: Budget,
        graph: onnx.GraphProto,
    ) -> None:
        self.bodies, self.opsets, self.budget = bodies, opsets, budget
        self.versions: dict[str, tuple[str, int]] = {}
        self._taken = set(_names(graph))
        self._next: dict[str, int] = {}

    def graph(self, graph: onnx.GraphProto, depth: int) -> None:
        """Replace the calls in a graph and in those below it."""
        if any(key_of(node) in self.bodies for node in every_node(graph.node)):
            flat = self._flat(graph.node, depth)
            rewritten = onnx.GraphProto(node=flat)
            del graph.node[:]
            graph.node.extend(rewritten.node)

    def _flat(self, nodes: Iterable[onnx.NodeProto], depth: int) -> list[onnx.NodeProto]:
        flat: list[onnx.NodeProto] = []
        for node in nodes:
            if depth > MAX_DEPTH:
                raise OutOfBudget(
                    "calls and subgraphs are nested too deeply", where=label(node), expected=f"at most {MAX_DEPTH}"
                )
            body = self.bodies.get(key_of(node))
            if body is not None:
                flat += self._flat(self._body(node, body), depth + 1)
                continue
            for g in subgraphs(node):
                self.graph(g, depth + 1)
            flat.append(node)
        return flat

    def _body(self, call: onnx.NodeProto, body: onnx.FunctionProto) -> list[onnx.NodeProto]:
        """The nodes that replace a call."""
        for what, formal, actual in (("inputs", body.input, call.input), ("outputs", body.output, call.output)):
            if len(actual) > len(formal):
                raise InvalidGraph(
                    f"a call has more {what} than its function",
                    where=label(call),
                    expected=len(formal),
                    got=len(actual),
                )
        names: dict[str, str] = {"": ""}
        names.update(zip_longest(body.input, call.input, fillvalue=""))
        passed: list[tuple[str, str]] = []
        for formal, actual in zip(body.output, call.output, strict=False):
            if formal in names:
                passed.append((names[formal], actual))
            elif actual:
                names[formal] = actual
        attributes = {a.name: a for a in (*body.attribute_proto, *call.attribute)}
        imports = {domain_of(entry.domain): entry.version for entry in body.opset_import}
        use = Call(call.name or call.op_type, names, attributes, imports)
        nodes = []
        for written in body.node:
            self.budget.spend(1 + sum(1 for g in subgraphs(written) for _ in every_node(g.node)), written.ByteSize())
            node = onnx.NodeProto()
            node.CopyFrom(written)
            self._adopt(node, use, names)
            nodes.append(node)
        nodes += [onnx.NodeProto(op_type="Identity", input=[old], output=[new]) for old, new in passed if new]
        return nodes

    def _adopt(self, node: onnx.NodeProto, use: Call, names: Names) -> None:
        """Adapt a copied node of a function to the caller's graph; ``names`` are those of its own graph."""
        node.input[:] = [self._name(name, use, names) for name in node.input]
        node.output[:] = [self._name(name, use, names) for name in node.output]
        if node.name:
            node.name = f"{use.prefix}/{node.name}"
        for g in subgraphs(node):
            self._adopt_graph(g, use, names)
        if any(a.ref_attr_name for a in node.attribute):
            kept = [a for a in (self._attribute(a, use) for a in node.attribute) if a is not None]
            del node.attribute[:]
            node.attribute.extend(kept)
        if key_of(node) not in self.bodies:
            node.domain = self._domain(node, use)

    def _adopt_graph(self, graph: onnx.GraphProto, use: Call, outer: Names) -> None:
        own = {name: self._fresh(name, use) for name in dict.fromkeys(_defined(graph)) if name}
        names = ChainMap(own, outer)
        for values in (graph.input, graph.output, graph.value_info):
            for value in values:
                value.name = self._name(value.name, use, names)
        for tensor in graph.initializer:
            tensor.name = own.get(tensor.name, "")
        for sparse in graph.sparse_initializer:
            sparse.values.name = own.get(sparse.values.name, "")
        for node in graph.node:
            self._adopt(node, use, names)

    def _name(self, name: str, use: Call, names: Names) -> str:
        """A value's name in the model. A name that the function does not define must not clash with the caller's."""
        found = names.get(name)
        if found is None:
            found = use.names[name] = self._fresh(name, use)
        return found

    def _fresh(self, name: str, use: Call) -> str:
        stem = f"{use.prefix}/{name}"
        while stem in self._taken:
            number = self._next[stem] = self._next.get(stem, 0) + 1
            other = f"{stem}_{number}"
            if other not in self._taken:
                stem = other
        self._taken.add(stem)
        return stem

    def _attribute(self, a: onnx.AttributeProto, use: Call) -> onnx.AttributeProto | None:
        """An attribute with references resolved; None if the caller leaves it out."""
        if not a.ref_attr_name:
            return a
        found = use.attributes.get(a.ref_attr_name)
        if found is None:
            return None
        graphs = [g for g in (found.g, *found.graphs) if g.node]
        self.budget.spend(sum(1 for g in graphs for _ in every_node(g.node)), found.ByteSize())
        copy = onnx.AttributeProto()
        copy.CopyFrom(found)
        copy.name = a.name
        return copy

    def _domain(self, node: onnx.NodeProto, use: Call) -> str:
        """The node's domain; a generated one if the model's version of the operator differs from the function's."""
        domain = domain_of(node.domain)
        version = use.imports.get(domain)
        if version is None:
            return domain
        wanted = self.opsets.setdefault(domain, version)
        if version == wanted or min(version, wanted) >= _UNCHANGED_SINCE.get(node.op_type, max(version, wanted)):
            return domain
        rules = rule_of(domain, node.op_type, version), rule_of(domain, node.op_type, wanted)
        if rules == (None, None) or (rules[0] and rules[1] and rules[0].version == rules[1].version):
            return domain
        name = f"{domain or 'ai.onnx'} version {version}"
        while name in self.opsets:
            name += "'"
        self.versions[name] = domain, version
        return name


def _defined(graph: onnx.GraphProto) -> Iterator[str]:
    """The names that a graph defines itself."""
    yield from (v.name for v in graph.input)
    yield from (t.name for t in graph.initializer)
    yield from (s.values.name for s in graph.sparse_initializer)
    for node in graph.node:
        yield from node.output


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Every name that a graph, or one below it, defines or reads."""
    yield from _defined(graph)
    for node in graph.node:
        yield from node.input
        for g in subgraphs(node):
            yield from _names(g)

"""Model-local functions: checked for recursion and size, then inlined."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from sardonyx.errors import InvalidGraph, OutOfBudget
from sardonyx.limits import Limits, check_time
from sardonyx.model.bounds import check_nodes
from sardonyx.model.inference import require_known_opset
from sardonyx.model.inline import MAX_DEPTH, Budget, Inliner, Key, domain_of, key_of
from sardonyx.model.protos import every_node, label
from sardonyx.model.types import text

MAX_GROWTH = 100
FREE_NODES, FREE_NBYTES = 20_000, 16 << 20
"""Inlining may multiply a model's size by ``MAX_GROWTH``, or bring it to this size if that is more."""

Versions = dict[str, tuple[str, int]]
"""Generated domains, each for an operator set in a version that the model does not import: the set and the version."""


def inline(model: onnx.ModelProto, opsets: dict[str, int], limits: Limits | None = None) -> Versions:
    """Replace every call of a local function by its body, in place; the result respects ``limits``.

    ``opsets`` gains the domains that only functions import. A function's node that is written for another version of an
    operator set than the model's, and differs there, gets a generated domain of the result.
    """
    if not model.functions:
        return {}
    _check_texts(model)
    bodies: dict[Key, onnx.FunctionProto] = {}
    for f in model.functions:
        if bodies.setdefault((domain_of(f.domain), f.name, f.overload), f) is not f:
            raise InvalidGraph("a function is defined twice", where=f"function {f.domain}.{f.name}")
        _check_imports(f)
    written, nbytes_written = _Sizes({}).of([*model.graph.node, *(n for f in model.functions for n in f.node)])
    budget = Budget(max(FREE_NODES, MAX_GROWTH * written), max(FREE_NBYTES, MAX_GROWTH * nbytes_written))
    sizes = _Sizes(bodies).of(model.graph.node)
    if limits is not None:
        check_nodes(sizes[0], limits, "the model has too many nodes when its functions are inlined")
        check_time()
    budget.check(*sizes)
    inliner = Inliner(bodies, opsets, budget, model.graph)
    inliner.graph(model.graph, 0)
    del model.functions[:]
    have = {domain_of(entry.domain) for entry in model.opset_import}
    for domain in opsets.keys() - have:
        model.opset_import.add(domain=domain, version=opsets[domain])
    for domain in inliner.versions:
        model.opset_import.add(domain=domain, version=1)
    return inliner.versions


def _check_texts(model: onnx.ModelProto) -> None:
    """Raise InvalidProtobuf unless the names that inlining copies are UTF-8."""
    for f in model.functions:
        where = f"function {f.domain}.{f.name}"
        domains = [entry.domain for entry in f.opset_import]
        for name in (f.domain, f.name, f.overload, *domains, *f.input, *f.output, *f.attribute):
            text(name, where)
        for a in f.attribute_proto:
            text(a.name, where)
    for node in every_node([*model.graph.node, *(n for f in model.functions for n in f.node)]):
        where = label(node)
        for name in (node.op_type, node.domain, node.name, node.overload, *node.input, *node.output):
            text(name, where)
        for a in node.attribute:
            text(a.name, where)
            text(a.ref_attr_name, where)


def _check_imports(f: onnx.FunctionProto) -> None:
    for entry in f.opset_import:
        domain = domain_of(entry.domain)
        where = f"function {f.domain}.{f.name}, domain {domain or 'ai.onnx'!r}"
        require_known_opset("a function", domain, entry.version, where)


class _Sizes:
    """Nodes and bytes after inlining. Each function is computed once; a recursive one is refused."""

    def __init__(self, bodies: dict[Key, onnx.FunctionProto]) -> None:
        self.bodies = bodies
        self.known: dict[Key, tuple[int, int]] = {}
        self.open: list[Key] = []

    def of(self, nodes: Iterable[onnx.NodeProto]) -> tuple[int, int]:
        count = nbytes = 0
        for node in every_node(nodes):
            key = key_of(node)
            more = self._function(key, node) if key in self.bodies else (1, node.ByteSize())
            count, nbytes = count + more[0], nbytes + more[1]
        return count, nbytes

    def _function(self, key: Key, call: onnx.NodeProto) -> tuple[int, int]:
        if key in self.open:
            raise InvalidGraph("a function calls itself", where=f"function {key[0]}.{key[1]}")
        if key not in self.known:
            if len(self.open) >= MAX_DEPTH:
                raise OutOfBudget(
                    "function calls are nested too deeply", where=label(call), expected=f"at most {MAX_DEPTH} levels"
                )
            self.open.append(key)
            self.known[key] = self.of(self.bodies[key].node)
            self.open.pop()
        return self.known[key]

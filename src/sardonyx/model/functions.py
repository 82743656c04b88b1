"""Model-local functions: checked for recursion and size, then inlined by onnx."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import inliner

from sardonyx.errors import InvalidGraph, OutOfBudget
from sardonyx.model.protos import every_node

MAX_GROWTH = 100
FREE_NODES, FREE_NBYTES = 20_000, 16 << 20
"""Inlining may make a model ``MAX_GROWTH`` times what was written, or this large if that is more."""
MAX_CALLS = 100

Key = tuple[str, str, str]


def inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every call to a local function replaced by its body."""
    if not model.functions:
        return model
    bodies: dict[Key, onnx.FunctionProto] = {}
    for f in model.functions:
        if bodies.setdefault((_domain(f.domain), f.name, f.overload), f) is not f:
            raise InvalidGraph("a function is defined twice", where=f"function {f.domain}.{f.name}")
    written, nbytes_written = _Sizes({}).of([*model.graph.node, *(n for f in model.functions for n in f.node)])
    nodes, nbytes = _Sizes(bodies).of(model.graph.node)
    if nodes > max(FREE_NODES, MAX_GROWTH * written) or nbytes > max(FREE_NBYTES, MAX_GROWTH * nbytes_written):
        raise OutOfBudget(
            "inlining the model's functions makes too many nodes",
            expected=f"at most {MAX_GROWTH} times the {written} nodes written",
            got=f"{nodes} nodes, {nbytes} bytes",
        )
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        _spell_defaults(nodes, bodies)
    try:
        flat = inliner.inline_local_functions(model)
        return inliner.inline_local_functions(model, convert_version=True) if _calls(flat, bodies) else flat
    except Exception as e:
        raise InvalidGraph(f"the model's functions cannot be inlined: {e}") from None


def _spell_defaults(nodes: Iterable[onnx.NodeProto], bodies: dict[Key, onnx.FunctionProto]) -> None:
    """Give every call the default attributes it leaves out; onnx's inliner would forget them."""
    for node in every_node(nodes):
        body = bodies.get(_key(node))
        if body is not None and body.attribute_proto:
            given = {a.name for a in node.attribute}
            node.attribute.extend(a for a in body.attribute_proto if a.name not in given)


def _calls(model: onnx.ModelProto, bodies: dict[Key, onnx.FunctionProto]) -> bool:
    """Whether a call is left: onnx inlines a function written for another opset only when told to convert it."""
    return any(_key(node) in bodies for node in every_node(model.graph.node))


class _Sizes:
    """Nodes and bytes after inlining. Each function is worked out once; one that reaches itself has no size."""

    def __init__(self, bodies: dict[Key, onnx.FunctionProto]) -> None:
        self.bodies = bodies
        self.known: dict[Key, tuple[int, int]] = {}
        self.open: list[Key] = []

    def of(self, nodes: Iterable[onnx.NodeProto]) -> tuple[int, int]:
        count = nbytes = 0
        for node in every_node(nodes):
            key = _key(node)
            more = self._function(key) if key in self.bodies else (1, node.ByteSize())
            count, nbytes = count + more[0], nbytes + more[1]
        return count, nbytes

    def _function(self, key: Key) -> tuple[int, int]:
        if key in self.open:
            raise InvalidGraph("a function calls itself", where=f"function {key[0]}.{key[1]}")
        if key not in self.known:
            if len(self.open) >= MAX_CALLS:
                raise OutOfBudget("function calls are nested too deeply", expected=f"at most {MAX_CALLS} levels")
            self.open.append(key)
            self.known[key] = self.of(self.bodies[key].node)
            self.open.pop()
        return self.known[key]


def _key(node: onnx.NodeProto) -> Key:
    return _domain(node.domain), node.op_type, node.overload


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name

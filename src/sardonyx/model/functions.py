"""Model-local functions: checked for recursion and size, then inlined by onnx."""

from __future__ import annotations

import onnx
from onnx import inliner

from sardonyx.errors import InvalidGraph, OutOfBudget

MAX_NODES = 1_000_000

Key = tuple[str, str, str]


def inline(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every call to a local function replaced by its body."""
    if not model.functions:
        return model
    bodies = {(_domain(f.domain), f.name, f.overload): f for f in model.functions}
    sizes: dict[Key, int] = {}
    total = _size(model.graph.node, bodies, sizes, ())
    if total > MAX_NODES:
        raise OutOfBudget("inlining the model's functions makes too many nodes", expected=MAX_NODES, got=total)
    try:
        return inliner.inline_local_functions(model)
    except Exception as e:
        raise InvalidGraph(f"the model's functions cannot be inlined: {e}") from None


def _size(nodes: object, bodies: dict[Key, onnx.FunctionProto], sizes: dict[Key, int], path: tuple[Key, ...]) -> int:
    """Nodes after inlining; each function's own size is worked out once."""
    total = 0
    for node in nodes:  # type: ignore[attr-defined]
        key = (_domain(node.domain), node.op_type, node.overload)
        if key in bodies:
            if key in path:
                raise InvalidGraph("a function calls itself", where=f"function {node.domain}.{node.op_type}")
            if key not in sizes:
                sizes[key] = _size(bodies[key].node, bodies, sizes, (*path, key))
            total += sizes[key]
        else:
            total += 1
        for a in node.attribute:
            for g in ([a.g] if a.HasField("g") else []) + list(a.graphs):
                total += _size(g.node, bodies, sizes, path)
    return total


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name

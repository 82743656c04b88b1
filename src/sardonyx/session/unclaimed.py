"""Nodes that no provider can run, and what the user can do about them."""

from __future__ import annotations

from collections.abc import Container

from sardonyx.errors import Fail, InvalidGraph
from sardonyx.interpret.bind import is_runnable
from sardonyx.ir.graph import Model, Node
from sardonyx.ops.infer import OPSETS

MIN_SIMILARITY = 0.8
"""Least similarity of an operator's name to a known one to be taken for a typo."""


def refuse_unclaimed(model: Model, owners: Container[Node]) -> None:
    """Raise for the first node that no provider owns; InvalidGraph if ONNX should know its operator."""
    for node in model.graph.nodes:
        if node not in owners:
            inner = [node, *(n for _, sub in node.subgraphs() for n in sub.all_nodes())]
            node = next((n for n in inner if not is_runnable(n)), node)
            kind = InvalidGraph if node.domain in OPSETS else Fail
            domain = node.domain or "ai.onnx"
            version = model.imports.get(node.domain)
            raise kind(
                f"{domain}.{node.op_type} is not a registered function or operator",
                where=node.label,
                got=f"a model that imports {f'opset {version} of {domain}' if version else f'no opset of {domain}'}",
                hint=_advice(node),
            )


def _advice(node: Node) -> str:
    if node.domain not in OPSETS:
        return (
            "define it with sardonyx.custom_op before the session is made, or name the Python file that does in "
            "SessionOptions.register_custom_ops_library"
        )
    from onnx import defs

    known = [s.name for s in defs.get_all_schemas() if s.domain == node.domain]
    import difflib

    near = difflib.get_close_matches(node.op_type, known, n=1, cutoff=MIN_SIMILARITY)
    if near:
        return f"did you mean {near[0]!r}?"
    return "check the operator's name and domain; an operator of another vocabulary needs its domain"

"""Known opsets, and the opsets that a normalized model can be written for."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from sardonyx.ir import types
from sardonyx.ir.graph import Model, Node
from sardonyx.normalize.registry import steps_of

ML = "ai.onnx.ml"


def newest_version(domain: str) -> int:
    """The newest opset of ai.onnx or ai.onnx.ml that onnx knows."""
    from onnx import defs

    return defs.onnx_opset_version() if domain == "" else defs.onnx_ml_opset_version()


def lowest_opset(model: Model, domain: str = "", *, at_least: int = 1) -> int:
    """The lowest opset of ``domain``, from ``at_least`` on, at which every node of a normalized model is legal as it
    is.

    The newest one if no single opset allows all nodes.
    """
    newest = newest_version(domain)
    valid = set(range(min(at_least, newest), newest + 1))
    for node in model.graph.all_nodes():
        if node.domain == domain:
            valid -= {v for v in valid if not _is_legal_at(node, v)}
    return min(valid, default=newest)


def _is_legal_at(node: Node, version: int) -> bool:
    """Whether a normalized node is legal at an opset with the same semantics; an operator that onnx lacks always is."""
    if _signature(node.op_type, newest_version(node.domain), node.domain) is None:
        return True
    if any(to > version for to, _ in steps_of(node.domain, node.op_type)):
        return False
    form = _signature(node.op_type, version, node.domain)
    if form is None or not form.inputs[0] <= len(node.inputs) <= form.inputs[1]:
        return False
    if len(node.outputs) > form.outputs or not node.attrs.keys() <= form.attrs:
        return False
    return all(
        value is None or not isinstance(value.type, types.TensorType) or types.ort_name(value.type) in allowed
        for values, allowed_at in ((node.inputs, form.input_types), (node.outputs, form.output_types))
        for i, value in enumerate(values)
        for allowed in allowed_at[min(i, len(allowed_at) - 1) :][:1]
    )


class _Signature(NamedTuple):
    """What a schema allows: numbers of inputs and outputs, attributes, and types at each position."""

    inputs: tuple[int, int]
    outputs: int
    attrs: frozenset[str]
    input_types: list[frozenset[str]]
    output_types: list[frozenset[str]]


@cache
def _signature(op_type: str, version: int, domain: str) -> _Signature | None:
    from onnx import defs

    try:
        schema = defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    allowed = {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints}
    input_types, output_types = (
        [allowed.get(formal.type_str, frozenset([formal.type_str])) for formal in formals]
        for formals in (schema.inputs, schema.outputs)
    )
    return _Signature(
        (schema.min_input, schema.max_input),
        schema.max_output,
        frozenset(schema.attributes),
        input_types,
        output_types,
    )

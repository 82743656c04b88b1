"""Types and shapes of a node's outputs: by our own rules if there are any, else by onnx's schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import shape_inference

from sardonyx.errors import SardonyxError
from sardonyx.ir import types
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import TensorType, ValueType
from sardonyx.model import save, unsafe
from sardonyx.model.types import from_proto, to_proto
from sardonyx.ops import (
    rules,
    rules_attention,
    rules_ml,
    rules_movement,
    rules_recurrent,
    rules_signal,
    rules_window,
)
from sardonyx.ops.rules import RULES, Content

FAMILIES = (rules_attention, rules_ml, rules_movement, rules_recurrent, rules_signal, rules_window)
"""Modules that register their rules when imported."""

MAX_DATA = 256
"""Largest constant input that is passed to onnx's inference, for operators whose shape depends on it."""

MAX_CONTENT = 64
"""Largest tensor that may be a shape, or a part of one."""

_HELD = {"value_int": np.int64, "value_ints": np.int64, "value_float": np.float32, "value_floats": np.float32}
"""Attributes of Constant that hold numbers."""

OPSETS = {"": onnx.defs.onnx_opset_version(), "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}
"""The versions to which ``normalize`` upgrades every node."""


@cache
def schema_of(domain: str, op_type: str) -> Any:
    """The newest schema of an operator, or None."""
    try:
        return onnx.defs.get_schema(op_type, domain=domain)
    except onnx.defs.SchemaError:
        return None


def constant_content(value: Value) -> np.ndarray[Any, Any] | None:
    """The elements of a small constant of integers, bools or integral floats; None for a fractional element."""
    const = _constant(value)
    if const is None or const.size > MAX_CONTENT or len(const.shape) > 2:
        return None
    kind = const.dtype.kind
    if kind not in ("int", "uint", "bool") and const.dtype.name not in ("f32", "f64"):
        return None
    numbers = const.numpy().reshape(-1).tolist()
    found = np.empty(len(numbers), object)
    found[:] = [int(n) if isinstance(n, int) or n.is_integer() else None for n in numbers]
    return found.reshape(const.shape)


def infer_node(node: Node, content: Content = constant_content) -> None:
    """Refine the types of ``node``'s outputs from its inputs' types and small constants."""
    for out, found in zip(node.outputs, output_types(node, content), strict=True):
        out.type = types.merge(found, out.type)


def output_types(node: Node, content: Content = constant_content) -> list[ValueType | None]:
    """What is known of each output, regardless of its present type."""
    rule = RULES.get((node.domain, node.op_type))
    if rule is not None:
        try:
            found = rule(node, content)
        except (rules.Undecided, SardonyxError, LookupError, ValueError, TypeError, ArithmeticError):
            found = None
        if found is not None:
            count = len(node.outputs)
            return [*found[:count], *[None] * (count - len(found))]
    return _by_schema(node)


def _by_schema(node: Node) -> list[ValueType | None]:
    nothing: list[ValueType | None] = [None] * len(node.outputs)
    schema = None if node.op_type in unsafe.OPERATORS else schema_of(node.domain, node.op_type)
    if schema is None or any(v is not None and v.type is None for v in node.inputs) or any(node.subgraphs()):
        return nothing
    if any(isinstance(d, int) and d < 0 for v in node.inputs if v is not None for d in v.shape or ()):
        return nothing  # some of onnx's functions crash
    proto = save.node_to_proto(node)
    for i, v in enumerate(node.inputs):
        proto.input[i] = "" if v is None else f"i{i}"
    for i, v in enumerate(node.outputs):
        proto.output[i] = f"o{i}" if v.name or not v.is_dead else ""
    in_types = {f"i{i}": to_proto(v.type) for i, v in enumerate(node.inputs) if v is not None}
    data = {f"i{i}": save.tensor_to_proto(small) for i, v in enumerate(node.inputs) if (small := _small(v)) is not None}
    imports = [onnx.helper.make_opsetid(d, n) for d, n in OPSETS.items()]
    try:
        found = shape_inference.infer_node_outputs(schema, proto, in_types, data, None, imports)
    except Exception:  # onnx's inference raises many kinds of errors; the run will report the real ones
        return nothing
    given = {d: d for v in node.inputs if v is not None for d in v.shape or () if isinstance(d, str)}
    return [_with_names(from_proto(found[f"o{i}"]), given) if f"o{i}" in found else None for i in range(len(nothing))]


def _with_names(t: ValueType | None, given: dict[str, str]) -> ValueType | None:
    """The type with its symbolic dimensions replaced by the inputs' equal expressions."""
    if not isinstance(t, TensorType) or t.shape is None:
        return t
    return TensorType(t.dtype, tuple(given.get(d) if isinstance(d, str) else d for d in t.shape))


def _small(value: Value | None) -> Tensor | None:
    const = None if value is None else _constant(value)
    return const if const is not None and const.size <= MAX_DATA else None


def _constant(value: Value) -> Tensor | None:
    """The tensor that a value always is: an initializer's, or that of a Constant node, which is folded only later."""
    if value.const is not None:
        return None if value.overridable else value.const
    node = value.producer
    if node is None or node.op_type != "Constant" or node.domain:
        return None
    ((key, held),) = node.attrs.items()
    if isinstance(held, Tensor):
        return held
    dtype = _HELD.get(key)
    return None if dtype is None else Tensor.of(np.array(held, dtype))

"""Removed experimental operators of ai.onnx, as bodies; onnxruntime still runs most of them below opset 10."""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.errors import InvalidGraph, NotImplemented
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import like, required_attribute, required_input
from sardonyx.normalize.registry import Result, expand


@expand("Affine", domain="")
def affine(op: Builder, node: Node) -> Result:
    """alpha * x + beta."""
    x = required_input(node, 0)
    return op.Add(op.Mul(x, _number(op, node, "alpha", 1.0, x)), _number(op, node, "beta", 0.0, x))


@expand("Scale", domain="")
def scale(op: Builder, node: Node) -> Result:
    x = required_input(node, 0)
    return op.Mul(x, _number(op, node, "scale", 1.0, x))


@expand("ScaledTanh", domain="")
def scaled_tanh(op: Builder, node: Node) -> Result:
    """alpha * tanh(beta * x)."""
    x = required_input(node, 0)
    inner = op.Tanh(op.Mul(x, _number(op, node, "beta", 1.0, x)))
    return op.Mul(inner, _number(op, node, "alpha", 1.0, x))


@expand("ParametricSoftplus", domain="")
def parametric_softplus(op: Builder, node: Node) -> Result:
    """alpha * log(1 + exp(beta * x))."""
    x = required_input(node, 0)
    inner = op.Softplus(op.Mul(x, _number(op, node, "beta", 1.0, x)))
    return op.Mul(inner, _number(op, node, "alpha", 1.0, x))


@expand("ImageScaler", domain="")
def image_scaler(op: Builder, node: Node) -> Result:
    """scale * image + bias, with a bias for each channel of NCHW."""
    x = required_input(node, 0)
    bias = op.const(np.array(node.attrs.get("bias", [0.0]), np.float32).reshape(-1, 1, 1))
    scaled = op.Mul(x, _number(op, node, "scale", 1.0, x))
    return op.Add(scaled, op.CastLike(bias, x))


@expand("Crop", domain="")
def crop(op: Builder, node: Node) -> Result:
    """The borders are left, top, right, bottom of NCHW; ``scale`` instead gives the height and width to keep."""
    x, border, size = required_input(node, 0), required_attribute(node, "border"), node.attrs.get("scale")
    if len(border) != 4 or (size is not None and len(size) != 2):
        raise InvalidGraph("Crop takes four borders and two sizes", where=node.label, got=(border, size))
    left, top, right, bottom = border
    if size is not None:
        return op.Slice(x, [top, left], [top + size[0], left + size[1]], [2, 3])
    ends = op.Sub(op.Shape(x, start=2, end=4), [bottom, right])
    return op.Slice(x, [top, left], ends, [2, 3])


@expand("DynamicSlice", domain="")
def dynamic_slice(op: Builder, node: Node) -> Result:
    return op.Slice(*node.inputs)


@expand("GivenTensorFill", domain="")
def given_tensor_fill(op: Builder, node: Node) -> Result:
    """The values of an attribute, in a shape from an attribute or from the input's shape and ``extra_shape``."""
    values = op.const(np.array(required_attribute(node, "values"), np.float32))
    return op.Reshape(values, _shape(op, node), allowzero=1)


@expand("ConstantFill", domain="")
def constant_fill(op: Builder, node: Node) -> Result:
    from onnx import helper

    dtype = helper.tensor_dtype_to_np_dtype(node.attrs.get("dtype", 1))
    value = np.array([node.attrs.get("value", 0.0)]).astype(dtype)
    return op.ConstantOfShape(_shape(op, node), value=value)


def _shape(op: Builder, node: Node) -> Any:
    x, extra = node.input(0), node.attrs.get("extra_shape", [])
    if x is None:
        return op.const(np.array([*node.attrs.get("shape", []), *extra], np.int64))
    shape = op.Cast(x, to=7) if node.attrs.get("input_as_shape") else op.Shape(x)
    return op.Concat(shape, op.const(extra), axis=0) if extra else shape


@expand("GRUUnit", domain="")
def gru_unit(op: Builder, node: Node) -> Result:
    """The last part of a GRU's step: gates (1, batch, 3 * hidden) are reset, update and candidate before activation.

    The reset gate has been applied to the candidate outside. Sequences shorter than the step keep their hidden state,
    or get zero with ``drop_states``.
    """
    hidden, gates, lengths, step = (required_input(node, i) for i in range(4))
    _, update, candidate = op.Split(gates, num_outputs=3, axis=-1, outputs=3)
    kept = op.Sigmoid(update)
    stepped = op.Add(op.Mul(kept, hidden), op.Mul(op.Sub(like(op, 1.0, hidden), kept), op.Tanh(candidate)))
    live = op.Less(op.Cast(step, to=7), op.Reshape(op.Cast(lengths, to=7), [-1, 1]))
    return op.Where(live, stepped, like(op, 0.0, hidden) if node.attrs.get("drop_states") else hidden)


@expand("ATen", domain="")
def aten(op: Builder, node: Node) -> Result:
    raise NotImplemented(
        f"ATen operator {node.attrs.get('operator', '')!r} is not defined outside PyTorch",
        where=node.label,
        hint="export the model again with a newer PyTorch, which writes ONNX operators",
    )


def _number(op: Builder, node: Node, name: str, default: float, x: Value) -> Any:
    return like(op, node.attrs.get(name, default), x)

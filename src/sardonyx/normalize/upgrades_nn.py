"""Normalizations, pooling, dropout and other layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import like, put_input, rank_of, required_input
from sardonyx.normalize.registry import Result, upgrade


@upgrade("Gemm", to=7)
def gemm_broadcast(op: Builder, node: Node) -> Result:
    node.attrs.pop("broadcast", None)
    return None


@upgrade("BatchNormalization", to=7)
def batch_norm_mode(op: Builder, node: Node) -> Result:
    """``is_test`` said whether statistics are given or computed from the batch; now the number of outputs does."""
    outputs = 1 if node.attrs.pop("is_test", 0) else 5
    if len(node.outputs) == outputs:
        return None
    y = op.BatchNormalization(*node.inputs, outputs=outputs, **node.attrs)
    return y if isinstance(y, tuple) else (y,)


@upgrade("BatchNormalization", to=9)
def batch_norm_spatial(op: Builder, node: Node) -> Result:
    """``spatial=0`` had statistics for every position, not only for every channel."""
    if node.attrs.pop("spatial", 1):
        return None
    x, scale, bias, mean, var = (required_input(node, i) for i in range(5))
    if len(node.outputs) == 1:
        return _normalized(op, node, x, scale, bias, mean, var)
    mean, var = _statistics(op, x, op.const([0]))
    return _trained(op, node, _normalized(op, node, x, scale, bias, mean, var), mean, var)


@upgrade("BatchNormalization", to=14)
def batch_norm_training(op: Builder, node: Node) -> Result:
    """More than one output meant training; the batch's statistics were among the outputs."""
    if len(node.outputs) == 1:
        return None
    x = required_input(node, 0)
    y, mean, var = op.BatchNormalization(*node.inputs, outputs=3, training_mode=1, **node.attrs)
    if all(out.is_dead for out in node.outputs[3:]):
        return y, mean, var
    positions = op.Range(2, op.Squeeze(rank_of(op, x)), 1)
    saved_mean, saved_var = _statistics(op, x, op.Concat([0], positions, axis=0))
    return y, mean, var, saved_mean, _inverse_std(op, node, saved_var)


def _normalized(op: Builder, node: Node, x: Value, scale: Value, bias: Value, mean: Value, var: Value) -> Any:
    return op.Add(op.Mul(op.Mul(op.Sub(x, mean), _inverse_std(op, node, var)), scale), bias)


def _inverse_std(op: Builder, node: Node, var: Value) -> Any:
    return op.Reciprocal(op.Sqrt(op.Add(var, like(op, node.attrs.get("epsilon", 1e-5), var))))


def _trained(op: Builder, node: Node, y: Value, mean: Value, var: Value) -> tuple[Value, ...]:
    """Running statistics are mixed with the batch's by momentum; the saved variance is an inverse deviation."""
    keep = node.attrs.get("momentum", 0.9)
    running = [
        op.Add(op.Mul(old, like(op, keep, old)), op.Mul(new, like(op, 1 - keep, new)))
        for old, new in ((required_input(node, 3), mean), (required_input(node, 4), var))
    ]
    return y, *running, mean, _inverse_std(op, node, var)


def _statistics(op: Builder, x: Value, axes: Value) -> tuple[Value, Value]:
    """Mean and variance over ``axes``."""
    centered = op.Sub(x, op.ReduceMean(x, axes))
    return op.ReduceMean(x, axes, keepdims=0), op.ReduceMean(op.Mul(centered, centered), axes, keepdims=0)


@upgrade("Dropout", to=7)
def dropout_mode(op: Builder, node: Node) -> Result:
    """Inference drops nothing, whatever ``is_test`` says."""
    node.attrs.pop("is_test", None)
    return None


@upgrade("Dropout", to=10)
def dropout_typed_mask(op: Builder, node: Node) -> Result:
    """The mask had the type of the data."""
    return _without_mask(op, node) or (op.Identity(x := required_input(node, 0)), op.CastLike(_falses(op, x), x))


@upgrade("Dropout", to=12)
def dropout_mask(op: Builder, node: Node) -> Result:
    """onnxruntime's older kernels fill the mask with false, newer ones with true."""
    node.attrs.pop("ratio", None)
    return _without_mask(op, node) or (op.Identity(x := required_input(node, 0)), _falses(op, x))


def _without_mask(op: Builder, node: Node) -> tuple[Any, ...] | None:
    return None if any(not out.is_dead for out in node.outputs[1:]) else (op.Identity(required_input(node, 0)),)


def _falses(op: Builder, x: Value) -> Any:
    return op.ConstantOfShape(op.Shape(x), value=np.array([False]))


@upgrade("GlobalLpPool", to=2)
def global_lp_pool_exponent(op: Builder, node: Node) -> Result:
    p = float(node.attrs.pop("p", 2.0))
    if p.is_integer():
        node.attrs["p"] = int(p)
        return None
    x = required_input(node, 0)
    return _root(op, op.GlobalAveragePool(_power(op, x, p)), _positions(op, x), p)


@upgrade("LpPool", to=2)
def lp_pool_exponent(op: Builder, node: Node) -> Result:
    p = float(node.attrs.pop("p", 2.0))
    if p.is_integer():
        node.attrs["p"] = int(p)
        return None
    x = required_input(node, 0)
    mean = op.AveragePool(_power(op, x, p), count_include_pad=1, **node.attrs)
    return _root(op, mean, like(op, math.prod(node.attrs.get("kernel_shape", [1])), x), p)


def _power(op: Builder, x: Value, p: float) -> Any:
    return op.Pow(op.Abs(x), like(op, p, x))


def _root(op: Builder, mean: Value, count: Value, p: float) -> Any:
    return op.Pow(op.Mul(mean, count), like(op, 1 / p, mean))


def _positions(op: Builder, x: Value) -> Any:
    return op.CastLike(op.ReduceProd(op.Shape(x, start=2), keepdims=0), x)


@upgrade("GroupNormalization", to=21)
def group_norm_per_channel(op: Builder, node: Node) -> Result:
    """Scale and bias were per group; each is repeated for the channels of its group."""
    channels, groups = op.Shape(required_input(node, 0), start=1, end=2), [node.attrs.get("num_groups", 1)]
    shape = op.Concat(groups, op.Div(channels, groups), axis=0)
    for i in (1, 2):
        per_group = op.Unsqueeze(required_input(node, i), [1])
        node.set_input(i, op.Reshape(op.Expand(per_group, shape), [-1]))
    return None


@upgrade("GridSample", to=20)
def grid_sample_modes(op: Builder, node: Node) -> Result:
    mode = node.attrs.get("mode", "bilinear")
    node.attrs["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return None


@upgrade("RoiAlign", to=16)
def roi_align_coordinates(op: Builder, node: Node) -> Result:
    node.attrs.setdefault("coordinate_transformation_mode", "output_half_pixel")
    return None


@upgrade("DFT", to=20)
def dft_axis(op: Builder, node: Node) -> Result:
    put_input(node, 2, op.const(node.attrs.pop("axis", 1)))
    return None


@upgrade("MeanVarianceNormalization", to=9)
def mean_variance_axes(op: Builder, node: Node) -> Result:
    """The experimental form selected the axes by a flag for channels."""
    axes = [0, 1, 2, 3] if node.attrs.pop("across_channels", 0) else [0, 2, 3]
    if node.attrs.pop("normalize_variance", 1):
        node.attrs["axes"] = axes
        return None
    x = required_input(node, 0)
    return op.Sub(x, op.ReduceMean(x, axes=axes, keepdims=1))

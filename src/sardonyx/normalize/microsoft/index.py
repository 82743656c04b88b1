"""Gathering, ranges, padding and sampling under their older names."""

from __future__ import annotations

from typing import Any

from sardonyx import dtypes
from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node, Value
from sardonyx.normalize.edits import required_attribute, required_input
from sardonyx.normalize.microsoft.body import (
    MICROSOFT,
    dim,
    like,
    rank_of,
    scalar,
    shape,
    shared_attributes,
    slice_axis,
)
from sardonyx.normalize.registry import expand


@expand("GatherND", domain=MICROSOFT)
def gather_nd(op: Builder, node: Node) -> Any:
    return op.GatherND(required_input(node, 0), op.Cast(required_input(node, 1), to=dtypes.i64.onnx))


@expand("ExpandDims", domain=MICROSOFT)
def expand_dims(op: Builder, node: Node) -> Any:
    axis = op.Reshape(op.Cast(required_input(node, 1), to=dtypes.i64.onnx), op.const([1]))
    return op.Unsqueeze(required_input(node, 0), axis)


@expand("Range", domain=MICROSOFT)
def range_(op: Builder, node: Node) -> Any:
    start, limit, delta = required_input(node, 0), required_input(node, 1), node.input(2)
    step = like(op, 1, start) if delta is None else scalar(op, delta)
    return op.Range(scalar(op, start), scalar(op, limit), step)


@expand("Pad", domain=MICROSOFT)
def pad(op: Builder, node: Node) -> Any:
    value = node.input(2)
    flat = op.Reshape(required_input(node, 1), op.const([-1]))
    return op.Pad(
        required_input(node, 0), flat, None if value is None else scalar(op, value), **shared_attributes(node, "mode")
    )


@expand("GridSample", domain=MICROSOFT)
def grid_sample(op: Builder, node: Node) -> Any:
    mode = node.attrs.get("mode", "bilinear")
    names = {"bilinear": "linear", "bicubic": "cubic"}
    attrs = shared_attributes(node, "align_corners", "padding_mode")
    return op.GridSample(required_input(node, 0), required_input(node, 1), mode=names.get(mode, mode), **attrs)


@expand("Trilu", domain=MICROSOFT)
def trilu(op: Builder, node: Node) -> Any:
    return op.Trilu(required_input(node, 0), node.input(1), **shared_attributes(node, "upper"))


@expand("Unique", domain=MICROSOFT)
def unique(op: Builder, node: Node) -> tuple[Value, ...]:
    """(values in order of appearance, the index of each element's value, the count of each value)."""
    values, _, places, counts = op.Unique(required_input(node, 0), outputs=4, sorted=0)
    return (values, places, counts)[: len(node.outputs)]


@expand("TorchEmbedding", domain=MICROSOFT)
def torch_embedding(op: Builder, node: Node) -> Any:
    return op.Gather(required_input(node, 0), required_input(node, 1))


@expand("UnfoldTensor", domain=MICROSOFT)
def unfold_tensor(op: Builder, node: Node) -> Any:
    """Windows of ``size`` elements along an axis, ``step`` apart, in a new last axis."""
    x, size, step = required_input(node, 0), required_attribute(node, "size"), node.attrs.get("step", 1)
    axis = node.attrs.get("dim", -1)
    starts = op.Range(op.const(0), scalar(op, op.Sub(dim(op, x, axis), op.const([size - 1]))), op.const(step))
    places = op.Add(op.Unsqueeze(starts, op.const([1])), op.const(list(range(size))))
    windows = op.Gather(x, places, axis=axis)
    if axis == -1:
        return windows
    rank = rank_of(node, 0)
    new = axis % rank + 1
    return op.Transpose(windows, perm=[*(i for i in range(rank + 1) if i != new), new])


@expand("RestorePadding", domain=MICROSOFT)
def restore_padding(op: Builder, node: Node) -> Any:
    """Tokens at their positions in (batch, length, hidden), with zeros between them."""
    x, offsets = required_input(node, 0), required_input(node, 1)
    size, width = op.Reshape(op.Size(offsets), op.const([1])), dim(op, x, 1)
    used = slice_axis(op, op.Reshape(offsets, op.const([-1])), 0, dim(op, x, 0), 0)
    empty = op.Expand(like(op, 0.0, x), shape(op, size, width))
    filled = op.ScatterND(empty, op.Cast(op.Unsqueeze(used, op.const([1])), to=dtypes.i64.onnx), x)
    return op.Reshape(filled, op.Concat(op.Shape(offsets), op.const([-1]), axis=0))


@expand("RemovePadding", domain=MICROSOFT)
def remove_padding(op: Builder, node: Node) -> tuple[Value, ...]:
    """(tokens without padding, offsets of tokens and then of padding, cumulative lengths, the longest length)."""
    x, lengths = required_input(node, 0), required_input(node, 1)
    batch, length = dim(op, x, 0), dim(op, x, 1)
    columns = op.Cast(op.Range(op.const(0), scalar(op, length), op.const(1)), to=dtypes.i32.onnx)
    valid = op.Less(columns, op.Unsqueeze(lengths, op.const([1])))
    flat = op.Reshape(op.Expand(valid, shape(op, batch, length)), op.const([-1]))
    used, padding = (op.Squeeze(op.NonZero(v), op.const([0])) for v in (flat, op.Not(flat)))
    tokens = op.Gather(op.Reshape(x, shape(op, -1, dim(op, x, 2))), used)
    offsets = op.Reshape(op.Cast(op.Concat(used, padding, axis=0), to=dtypes.i32.onnx), shape(op, batch, length))
    sums = op.CumSum(lengths, op.const(0))
    cumulated = op.Concat(op.const([0], dtypes.i32.numpy), sums, axis=0)
    longest = op.ReduceMax(lengths, op.const([0]), keepdims=1)
    return (tokens, offsets, cumulated, longest)[: len(node.outputs)]

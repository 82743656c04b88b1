"""Operators that move elements: former attributes are now inputs."""

from __future__ import annotations

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Node
from sardonyx.normalize.edits import ints_to_input, like, put_input, rank_of, required_input
from sardonyx.normalize.registry import Result, upgrade


@upgrade("Reshape", to=5)
def reshape_shape(op: Builder, node: Node) -> Result:
    node.attrs.pop("consumed_inputs", None)
    ints_to_input(op, node, "shape", 1)
    return None


@upgrade("Squeeze", "Unsqueeze", to=13)
def squeeze_axes(op: Builder, node: Node) -> Result:
    ints_to_input(op, node, "axes", 1, optional=node.op_type == "Squeeze")
    return None


@upgrade("Split", to=2)
def split_numbers(op: Builder, node: Node) -> Result:
    """The sizes could be an input already, in the type of the data."""
    sizes = node.input(1)
    if sizes is not None:
        node.set_input(1, op.Cast(sizes, to=7))
    return None


@upgrade("Split", to=13)
def split_sizes(op: Builder, node: Node) -> Result:
    ints_to_input(op, node, "split", 1, optional=True)
    return None


@upgrade("Split", to=18)
def split_count(op: Builder, node: Node) -> Result:
    if node.input(1) is None:
        node.attrs["num_outputs"] = len(node.outputs)
    return None


@upgrade("Slice", to=10)
def slice_bounds(op: Builder, node: Node) -> Result:
    for i, name in enumerate(("starts", "ends", "axes"), 1):
        ints_to_input(op, node, name, i, optional=name == "axes")
    return None


@upgrade("Pad", to=2)
def pad_name(op: Builder, node: Node) -> Result:
    if "paddings" in node.attrs:
        node.attrs["pads"] = node.attrs.pop("paddings")
    return None


@upgrade("Pad", to=11)
def pad_amounts(op: Builder, node: Node) -> Result:
    ints_to_input(op, node, "pads", 1)
    value = node.attrs.pop("value", 0.0)
    if value:
        put_input(node, 2, like(op, value, required_input(node, 0)))
    return None


@upgrade("TopK", to=10)
def topk_count(op: Builder, node: Node) -> Result:
    ints_to_input(op, node, "k", 1)
    return None


@upgrade("Tile", to=6)
def tile_repeats(op: Builder, node: Node) -> Result:
    """One axis and its number of copies become a number for every axis."""
    x, tiles, axis = (required_input(node, i) for i in range(3))
    one, count = op.const([1]), op.Reshape(op.Cast(tiles, to=7), [1])
    at = op.Reshape(op.Cast(axis, to=7), op.const(()))
    return op.Tile(x, op.OneHot(at, rank_of(op, x), op.Concat(one, count, axis=0), axis=0))


@upgrade("Concat", to=4)
def concat_axis(op: Builder, node: Node) -> Result:
    node.attrs.setdefault("axis", 1)
    return None


@upgrade("Scatter", to=11)
def scatter_elements(op: Builder, node: Node) -> Result:
    return op.ScatterElements(*node.inputs, **node.attrs)

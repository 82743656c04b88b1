"""Fuses concatenated strided slices into SpaceToDepth."""

from __future__ import annotations

import numpy as np

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.optimize.fusions.rules import Found, each
from sardonyx.optimize.manager import Log, optimization
from sardonyx.optimize.noop import TO_THE_END


@optimization("FuseSpaceToDepth")
def fuse_space_to_depth(graph: Graph, log: Log) -> None:
    """Concat(x[:, :, i::n, j::n] for all i, j)  ->  SpaceToDepth(x), with channels in the order of the slices."""
    each(graph, "Concat", _space_to_depth, log)


def _space_to_depth(op: Builder, node: Node) -> Found | None:
    block = round(len(node.inputs) ** 0.5)
    if block < 2 or block * block != len(node.inputs) or node.attrs.get("axis") not in (1, -3):
        return None
    grids = [_grid(v, block) for v in node.inputs if v is not None]
    nodes = list(dict.fromkeys(n for grid in grids if grid is not None for n in grid[2]))
    if None in grids or len({grid[0] for grid in grids if grid is not None}) != 1:
        return None
    x, _, _ = next(grid for grid in grids if grid is not None)
    blocks = [grid[1][0] * block + grid[1][1] for grid in grids if grid is not None]
    if (
        x.shape is None
        or len(x.shape) != 4
        or not isinstance(x.shape[1], int)
        or sorted(blocks) != list(range(block**2))
    ):
        return None
    deep = op.SpaceToDepth(x, blocksize=block)
    if x.dtype is not None:
        deep.type = TensorType(x.dtype, (x.shape[0], block * block * x.shape[1], None, None))
    if blocks == sorted(blocks):
        return [deep], nodes
    channels = np.arange(block * block * x.shape[1]).reshape(-1, x.shape[1])[blocks].reshape(-1)
    return [op.Gather(deep, channels, axis=1)], nodes


def _grid(value: Value, block: int) -> tuple[Value, tuple[int, int], list[Node]] | None:
    """The source of a chain of slices that take every ``block``-th row and column, their starts, and the chain, last
    first.
    """
    starts: dict[int, int] = {}
    nodes: list[Node] = []
    while value.producer is not None and value.producer.onnx_op == "Slice" and len(starts) < 2:
        node = value.producer
        x = node.inputs[0]
        given = [node.input(i) for i in range(1, 5)]
        if x is None or x.rank != 4 or any(v is None or not v.is_const for v in given):
            return None
        for start, end, axis, step in zip(*(v.numpy().tolist() for v in given if v is not None), strict=True):
            if step != block or end < TO_THE_END or not 0 <= start < block or axis % 4 in starts:
                return None
            starts[axis % 4] = start
        nodes.append(node)
        value = x
    return (value, (starts[2], starts[3]), nodes) if starts.keys() == {2, 3} else None

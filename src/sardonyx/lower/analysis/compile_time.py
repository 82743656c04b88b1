"""Compile-time operands: shapes, axes, bounds, counts, whose elements must be known before a node is lowered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sardonyx.ir.graph import Node, Value

COMPILE_TIME_OPERANDS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "Squeeze": (1,), "Unsqueeze": (1,), "Split": (1,), "Pad": (1, 3),
    "Slice": (1, 2, 3, 4), "ConstantOfShape": (0,), "Range": (0, 1, 2), "OneHot": (1,), "TopK": (1,), "Trilu": (1,),
    "CumSum": (1,), "CumProd": (1,), "Resize": (2, 3), "AffineGrid": (1,), "CenterCropPad": (1,), "Col2Im": (1, 2),
    "DFT": (1, 2), "STFT": (1, 3), "HannWindow": (0,), "HammingWindow": (0,), "BlackmanWindow": (0,),
    "MelWeightMatrix": (0, 1, 2, 3, 4), "MaxUnpool": (2,), "NonMaxSuppression": (2,),
    **{f"Reduce{kind}": (1,) for kind in
       ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")},
}  # fmt: skip
"""By operator, the inputs whose elements must be known before it is lowered."""


def compile_time_operands(nodes: Sequence[Node], inputs: Iterable[Value]) -> list[Value]:
    """The ``inputs`` from which compile-time operands of the nodes are computed."""
    wanted: set[Value] = set()
    for node in reversed(nodes):
        if any(out in wanted for out in node.outputs):
            wanted.update(v for v in node.inputs if v is not None)
        wanted.update(v for i in COMPILE_TIME_OPERANDS.get(node.onnx_op, ()) if (v := node.input(i)) is not None)
    return [v for v in inputs if v in wanted]

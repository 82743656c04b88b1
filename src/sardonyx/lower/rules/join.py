"""Operators that put several tensors into one: each is copied into its window of the result."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower import views
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import add


@rule("Concat")
def concat(low: Lowering, node: Node) -> None:
    parts = [low.view(low.input(i)) for i in range(len(node.inputs))]
    if len(parts) == 1:
        low.alias(node.output, parts[0])
        return
    out = low.make(node.output)
    axis = axis_of(node.attrs["axis"], len(out.shape))
    start: Known = 0
    for part in parts:
        for i, (size, whole) in enumerate(zip(part.shape, out.shape, strict=True)):
            if i != axis:
                low.require(f"Concat: shapes differ beside axis {axis}", size, whole)
        target = views.window(out, axis, start, part.shape[axis])
        if part.shape[axis] != 0:
            low.copy(View(part.storage, target.shape, part.strides, part.offset), target)
        start = add(start, part.shape[axis])

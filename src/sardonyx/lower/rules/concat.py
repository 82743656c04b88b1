"""Concat: each operand is copied into its slice of the result."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower import views
from sardonyx.lower.groups import View
from sardonyx.lower.lowering import Lowering, axis_of, rule
from sardonyx.lower.sizes import add, mul
from sardonyx.records import replace


@rule("Concat")
def concat(low: Lowering, node: Node) -> None:
    parts = [low.view(low.input(i)) for i in range(len(node.inputs))]
    if len(parts) == 1:
        low.alias(node.output, parts[0])
        return
    out = low.make(node.output)
    axis = axis_of(node.attrs["axis"], len(out.shape))
    parts = _merged_slices(parts, axis)
    start: Known = 0
    for part in parts:
        for i, (size, whole) in enumerate(zip(part.shape, out.shape, strict=True)):
            if i != axis:
                low.require(f"Concat: shapes differ in another axis than {axis}", size, whole)
        target = views.sliced(out, axis, start, part.shape[axis])
        if part.shape[axis] != 0:
            low.copy(View(part.storage, target.shape, part.strides, part.offset), target)
        start = add(start, part.shape[axis])


def _merged_slices(parts: list[View], axis: int) -> list[View]:
    """Merge neighbouring slices of one tensor, so that they are copied at once."""
    found = parts[:1]
    for part in parts[1:]:
        last = found[-1]
        end = add(last.offset, mul(last.shape[axis], last.strides[axis]))
        shapes = [v.shape[:axis] + v.shape[axis + 1 :] for v in (last, part)]
        if (
            part.storage is last.storage
            and part.strides == last.strides
            and shapes[0] == shapes[1]
            and part.offset == end
        ):
            size = add(last.shape[axis], part.shape[axis])
            found[-1] = replace(last, shape=(*last.shape[:axis], size, *last.shape[axis + 1 :]))
        else:
            found.append(part)
    return found

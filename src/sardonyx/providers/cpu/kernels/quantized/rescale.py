"""The step that scales integer sums to bytes, where it is the first of an epilogue (``layout.folded_scales``).

round((sums + units) * factor + offset) + zero, saturated, with constants for each channel. Kernels that know it pack
the constants in the order of their sums; what follows works on bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.lower.groups import Apply, Convolution, Expression, View
from sardonyx.records import Record

Array = np.ndarray[Any, Any]


class Rescale(Record):
    """The first step of an epilogue, and the group with the rest of it, which reads bytes in the place of sums."""

    units: View | None
    """Integers that are added to the sums."""
    factor: View
    offset: View | None
    zero: View | None
    to: DType
    rest: Convolution

    @staticmethod
    def of(group: Convolution) -> Rescale | None:
        """None where the epilogue begins otherwise, or reads the sums twice."""
        e = group.epilogue
        first, *others = e.steps if e.steps else (None,)
        if not isinstance(first, Apply) or not all(isinstance(step, Apply) for step in others):
            return None
        found = _places(first)
        n = len(e.operands)
        if found is None or 0 in e.results or any(0 in step.args for step in others if isinstance(step, Apply)):
            return None
        read = [None if place is None else first.args[place] for place in found]
        if any(v is not None and not 0 < v < n for v in read):
            return None
        units, factor, offset, zero = (None if v is None else group.extra[v - 1] for v in read)
        assert factor is not None
        return Rescale(units, factor, offset, zero, first.dtype, replace(group, **_rest(group)))

    def per_channel(self, view: View | None, channels: int) -> Array | None:
        """What a view has for each channel, in f64; None if it is no such constant. No view: zeros."""
        if view is None:
            return np.zeros(channels)
        tensor, axes = view.storage.tensor, enumerate(view.strides)
        if tensor is None or not isinstance(view.offset, int) or any(s for axis, s in axes if axis != 1):
            return None
        content, stride = np.asarray(tensor.peek()).reshape(-1), view.strides[1]
        if not isinstance(stride, int):
            return None
        return np.asarray(content[view.offset + stride * np.arange(channels)], np.float64)


def _places(step: Apply) -> tuple[int | None, int, int | None, int | None] | None:
    """The places of units, factor, offset and zero point among the arguments of a step that scales the sums."""
    program = step.program
    steps, arity = program.steps, program.arity

    def argument(number: int) -> int | None:
        return steps[number].value if steps[number].op == "arg" else None

    last = steps[-1]
    if last.op != "saturate":
        return None
    scaled, point = (steps[number] for number in last.args)
    if scaled.op not in ("fma", "mul") or (point.op != "arg" and point.value != 0):
        return None
    x, *others = scaled.args
    if steps[x].op != "cast" or x < arity:
        return None
    sums, units = steps[x].args[0], None
    if steps[sums].op == "add":
        sums, more = steps[sums].args
        units = argument(more)
        if units is None:
            return None
    place, given = argument(sums), [argument(number) for number in others]
    if place is None or step.args[place] != 0 or given[0] is None or None in given:
        return None
    return units, given[0], given[1] if scaled.op == "fma" else None, argument(last.args[1])


def _rest(group: Convolution) -> dict[str, Any]:
    """The epilogue without its first step, and the operands that it reads."""
    e, n = group.epilogue, len(group.epilogue.operands)
    later = [step for step in e.steps[1:] if isinstance(step, Apply)]
    read = {a for step in later for a in step.args if a < n}
    kept = [v for v in range(1, n) if v in read or v in e.results]
    place = {n: 0} | {v: 1 + i for i, v in enumerate(kept)}
    place |= {n + 1 + i: 1 + len(kept) + i for i in range(len(later))}
    steps = tuple(replace(step, args=tuple(place[a] for a in step.args)) for step in later)
    types = (e.steps[0].dtype, *(e.operands[v] for v in kept))
    expression = Expression(types, steps, tuple(place[r] for r in e.results))
    return {"epilogue": expression, "extra": tuple(group.extra[v - 1] for v in kept)}

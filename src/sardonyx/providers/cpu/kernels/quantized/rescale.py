"""The step that scales integer sums to bytes, where it is the first of an epilogue (``layout.folded_scales``).

round((sums + units) * factor + offset) + zero, saturated, with constants for each channel. Kernels that know it pack
the constants in the order of their sums; what follows works on bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir.scalar import Emitter, Expr, trace
from sardonyx.lower.groups import Apply, Convolution, Expression, View
from sardonyx.providers.cpu.language.values import f32
from sardonyx.records import Record, replace

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
        read = _operands(group)
        if read is None:
            return None
        units, factor, offset, zero = (None if v is None else group.extra[v - 1] for v in read)
        assert factor is not None
        return Rescale(units, factor, offset, zero, group.epilogue.steps[0].dtype, replace(group, **_rest(group)))

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


def begun_with_units(group: Convolution) -> tuple[Array | None, Convolution]:
    """What the sums of each filter begin with, and the group whose epilogue does not add it any more.

    None, and the group as it is, where the epilogue begins otherwise, or adds no constants for each filter.
    """
    found, read, e = Rescale.of(group), _operands(group), group.epilogue
    units = None if found is None or found.units is None else found.per_channel(found.units, int(group.w.shape[0]))
    if found is None or read is None or units is None:
        return None, group
    program = trace(_scaled, (True, *(v is not None for v in read[1:])), dtype=found.to)
    scale = Apply(program, (0, *(v for v in read[1:] if v is not None)), found.to)
    later = (step for step in e.steps[1:] if isinstance(step, Apply))
    return units, replace(group, **_renumbered(group, 0, (scale, *later), len(e.operands)))


def _scaled(e: Emitter, sums: Expr, factor: Expr, offset: Expr | None, zero: Expr | None, *, dtype: DType) -> Expr:
    x = e.cast(sums, f32)
    return e.saturate(x * factor if offset is None else e.fma(x, factor, offset), zero, dtype)


def _operands(group: Convolution) -> list[int | None] | None:
    """The operands that are the units, factor, offset and zero point of the epilogue's first step; None where that step
    does something else, or others read the sums too.
    """
    e = group.epilogue
    first, *others = e.steps if e.steps else (None,)
    if not isinstance(first, Apply) or not all(isinstance(step, Apply) for step in others):
        return None
    found = _places(first)
    if found is None or 0 in e.results or any(0 in step.args for step in others if isinstance(step, Apply)):
        return None
    read = [None if place is None else first.args[place] for place in found]
    return read if all(v is None or 0 < v < len(e.operands) for v in read) else None


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
    later = tuple(step for step in e.steps[1:] if isinstance(step, Apply))
    return _renumbered(group, n, later, n + 1)


def _renumbered(group: Convolution, sums: int, steps: Sequence[Apply], first: int) -> dict[str, Any]:
    """An epilogue of these steps with the value ``sums`` in the place of sums, and the operands that they read; their
    own values are numbered from ``first`` on.
    """
    e = group.epilogue
    kept = [v for v in range(1, len(e.operands)) if any(v in step.args for step in steps) or v in e.results]
    read = [sums, *kept]
    place = {v: i for i, v in enumerate(read)} | {first + i: len(read) + i for i in range(len(steps))}
    made = tuple(replace(step, args=tuple(place[a] for a in step.args)) for step in steps)
    expression = Expression(tuple(map(e.dtype_of, read)), made, tuple(place[r] for r in e.results))
    return {"epilogue": expression, "extra": tuple(group.extra[v - 1] for v in kept)}

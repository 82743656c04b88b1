"""Scalar expressions over arrays: loops and epilogues."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.ir.scalar import run_numpy
from sardonyx.lower.groups import Apply, Count, EpilogueGroup, Expression, Loop, Reduce, View
from sardonyx.lower.interpret.memory import Array, Memory, meaning
from sardonyx.records import replace


def wide(x: Array) -> Array:
    return x if x.dtype.kind in "biu" or x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def evaluate(expression: Expression, operands: Sequence[Array], extents: tuple[int, ...], reduced: int) -> list[Array]:
    """The results over a box whose last ``reduced`` axes are reduced. Intermediate narrow floats are not rounded.

    Values per row have one element along the reduced axes.
    """
    axes = tuple(range(len(extents) - reduced, len(extents)))
    count = math.prod(extents[i] for i in axes)
    values = [wide(x) for x in operands]
    for step in expression.steps:
        if isinstance(step, Apply):
            got = run_numpy(step.program, *(values[a] for a in step.args))
            values.append(wide(got) if got.dtype.kind != "f" else got)
        elif isinstance(step, Count):
            values.append(np.asarray(count, wide(np.empty(0, step.dtype.numpy)).dtype))
        else:
            x = values[step.arg]
            whole = tuple(extents[i] if i in axes else d for i, d in enumerate(x.shape))
            values.append(_reduce(step, np.broadcast_to(x, whole), axes))
    return [values[r] for r in expression.results]


def _reduce(step: Reduce, x: Array, axes: tuple[int, ...]) -> Array:
    if step.kind in ("argmax", "argmin"):
        (axis,) = axes
        find = np.argmax if step.kind == "argmax" else np.argmin
        if step.is_last:
            return np.asarray(x.shape[axis] - 1 - find(np.flip(x, axis), axis=axis, keepdims=True), np.int64)
        return np.asarray(find(x, axis=axis, keepdims=True), np.int64)
    if step.kind in ("sum", "prod"):
        combine = np.sum if step.kind == "sum" else np.prod
        return np.asarray(combine(x, axes, x.dtype, keepdims=True))
    info: Any = {"f": (-np.inf, np.inf), "b": (False, True)}.get(x.dtype.kind)
    low, high = info if info is not None else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    if step.kind == "max":
        return np.asarray(np.max(x, axes, keepdims=True, initial=low))
    return np.asarray(np.min(x, axes, keepdims=True, initial=high))


@meaning(Loop)
def loop(memory: Memory, group: Loop) -> None:
    extents = tuple(map(memory.size, group.extents))
    outer = len(extents) - group.reduced
    operands = [memory.at(_by_row(v, outer)) for v in group.inputs]
    for view, result in zip(group.outputs, evaluate(group.expression, operands, extents, group.reduced), strict=True):
        target = memory.at(view)
        if target.ndim < len(extents):
            assert math.prod(result.shape[outer:]) == 1, "a result per row differs along the row"
            result = result.reshape(result.shape[:outer])
        target[...] = result.astype(target.dtype)


def _by_row(view: View, outer: int) -> View:
    """An operand that is broadcast along the reduced axes, with one element per row instead."""
    if any(s != 0 for s in view.strides[outer:]):
        return view
    return replace(view, shape=(*view.shape[:outer], *[1] * (len(view.shape) - outer)))


def finish(memory: Memory, group: EpilogueGroup, result: Array) -> None:
    operands = [result, *(memory.at(v) for v in group.extra)]
    for view, result in zip(group.outputs, evaluate(group.epilogue, operands, (), 0), strict=True):
        target = memory.at(view)
        target[...] = result.astype(target.dtype)

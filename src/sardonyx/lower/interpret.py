"""Groups run by numpy on concrete sizes: what every provider's kernels must agree with."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.scalar import run_numpy
from sardonyx.lower.build import Lowered
from sardonyx.lower.groups import (
    Apply,
    Attention,
    Contraction,
    Convolution,
    Count,
    Expression,
    Fill,
    Gather,
    Group,
    Loop,
    Pool,
    Reduce,
    Storage,
    View,
    Window,
)

Array = np.ndarray[Any, Any]


def run(lowered: Lowered, args: Sequence[Array]) -> list[Array]:
    """The outputs of a part for its inputs."""
    sizes = bind(lowered, [a.shape for a in args])
    memory = _Memory(sizes)
    for view, array in zip(lowered.inputs, args, strict=True):
        memory.arrays[view.storage] = np.ascontiguousarray(array).reshape(-1)
    with np.errstate(all="ignore"):
        for group in lowered.groups:
            _RUN[type(group)](memory, group)
    return [np.array(memory.at(view)) for view in lowered.outputs]


def bind(lowered: Lowered, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The sizes that shapes of inputs give to names; every condition on them is looked at."""
    sizes = {name: shapes[i][axis] for name, (i, axis) in lowered.sizes.items()}
    for view, shape in zip(lowered.inputs, shapes, strict=True):
        wanted = tuple(dims.evaluate(d, sizes) for d in view.shape)
        if wanted != shape:
            raise InvalidArgument("an input has the wrong shape", expected=wanted, got=shape)
    for check in lowered.checks:
        size = dims.evaluate(check.size, sizes)
        allowed = [dims.evaluate(d, sizes) for d in check.allowed]
        if not isinstance(size, int) or (size < check.least if check.least is not None else size not in allowed):
            raise InvalidArgument(check.what, where=check.node.label, expected=allowed or check.least, got=size)
    return sizes


class _Memory:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.arrays: dict[Storage, Array] = {}

    def size(self, d: Known) -> int:
        found = dims.evaluate(d, self.sizes)
        assert isinstance(found, int), d
        return found

    def at(self, view: View) -> Array:
        """The elements of a view, in place; everything is inside its storage."""
        flat = self.arrays.get(view.storage)
        if flat is None:
            if view.storage.tensor is not None:
                flat = view.storage.tensor.numpy().reshape(-1)
            else:
                flat = np.full(self.size(view.storage.elements), 77, view.storage.dtype.numpy)
            self.arrays[view.storage] = flat
        shape = tuple(map(self.size, view.shape))
        if 0 in shape:
            return np.empty(shape, flat.dtype)
        strides, offset = list(map(self.size, view.strides)), self.size(view.offset)
        reach = [(d - 1) * s for d, s in zip(shape, strides, strict=True)]
        low, high = offset + sum(min(r, 0) for r in reach), offset + sum(max(r, 0) for r in reach)
        assert low >= 0 and high < flat.size, (view, shape, flat.size)
        return np.lib.stride_tricks.as_strided(flat[offset:], shape, [s * flat.itemsize for s in strides])


def _wide(x: Array) -> Array:
    return x if x.dtype.kind in "biu" or x.dtype in (np.float32, np.float64) else x.astype(np.float32)


def _evaluate(expression: Expression, operands: Sequence[Array], extents: tuple[int, ...], reduced: int) -> list[Array]:
    """The results over a box whose ``axes`` are reduced; halves are not rounded in between.

    What is one number per row has one element along the reduced axes.
    """
    axes = tuple(range(len(extents) - reduced, len(extents)))
    count = math.prod(extents[i] for i in axes)
    values = [_wide(x) for x in operands]
    for step in expression.steps:
        if isinstance(step, Apply):
            got = run_numpy(step.program, *(values[a] for a in step.args))
            values.append(_wide(got) if got.dtype.kind != "f" else got)
        elif isinstance(step, Count):
            values.append(np.asarray(count, _wide(np.empty(0, step.dtype.numpy)).dtype))
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
        fold = np.sum if step.kind == "sum" else np.prod
        return np.asarray(fold(x, axes, x.dtype, keepdims=True))
    info: Any = {"f": (-np.inf, np.inf), "b": (False, True)}.get(x.dtype.kind)
    low, high = info if info is not None else (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    if step.kind == "max":
        return np.asarray(np.max(x, axes, keepdims=True, initial=low))
    return np.asarray(np.min(x, axes, keepdims=True, initial=high))


def _loop(memory: _Memory, group: Loop) -> None:
    extents = tuple(map(memory.size, group.extents))
    outer = len(extents) - group.reduced
    operands = [memory.at(_by_row(v, outer)) for v in group.inputs]
    for view, result in zip(group.outputs, _evaluate(group.expression, operands, extents, group.reduced), strict=True):
        target = memory.at(view)
        if target.ndim < len(extents):
            assert math.prod(result.shape[outer:]) == 1, "not one number per row"
            result = result.reshape(result.shape[:outer])
        target[...] = result.astype(target.dtype)


def _by_row(view: View, outer: int) -> View:
    """An operand that is the same all along the reduced axes, once per row."""
    if any(s != 0 for s in view.strides[outer:]):
        return view
    return replace(view, shape=(*view.shape[:outer], *[1] * (len(view.shape) - outer)))


def _contraction(memory: _Memory, group: Contraction) -> None:
    a, b = _wide(memory.at(group.a)), _wide(memory.at(group.b))
    _finish(memory, group, np.matmul(a, b))


def _finish(memory: _Memory, group: Contraction | Convolution | Pool, result: Array) -> None:
    operands = [result, *(memory.at(v) for v in group.extra)]
    for view, result in zip(group.outputs, _evaluate(group.epilogue, operands, (), 0), strict=True):
        target = memory.at(view)
        target[...] = result.astype(target.dtype)


def _taps(memory: _Memory, window: Window, x: Array, out: View, padding: Any) -> Iterator[Array]:
    """What each tap of a window sees: (batch, channels, *spatial of the result)."""
    count, pads = ([memory.size(d) for d in sizes] for sizes in (out.shape[2:], window.pads))
    axes = list(zip(count, pads, window.kernel, window.strides, window.dilations, x.shape[2:], strict=True))
    ends = [max(0, (n - 1) * s + (k - 1) * d + 1 - p - have) for n, p, k, s, d, have in axes]
    room = [(max(p, 0), end) for p, end in zip(pads, ends, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *room], constant_values=padding)
    for tap in np.ndindex(window.kernel):
        places = [np.arange(n) * s + t * d + max(-p, 0) for t, (n, p, _, s, d, _) in zip(tap, axes, strict=True)]
        yield padded[np.ix_(range(x.shape[0]), range(x.shape[1]), *places)]


def _convolution(memory: _Memory, group: Convolution) -> None:
    x, w, out = _wide(memory.at(group.x)), _wide(memory.at(group.w)), group.outputs[0]
    filters, each = len(w) // group.groups, w.shape[1]
    total = np.zeros(tuple(map(memory.size, out.shape)), x.dtype)
    for at, seen in enumerate(_taps(memory, group.window, x, out, 0)):
        for g in range(group.groups):
            mine = w[g * filters : (g + 1) * filters, :].reshape(filters, each, -1)[:, :, at]
            part = np.tensordot(mine, seen[:, g * each : (g + 1) * each], (1, 1)).swapaxes(0, 1)
            total[:, g * filters : (g + 1) * filters] += part
    _finish(memory, group, total)


def _pool(memory: _Memory, group: Pool) -> None:
    x, out, window = _wide(memory.at(group.x)), group.outputs[0], group.window
    if group.kind == "max":
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        _finish(memory, group, reduce(np.maximum, _taps(memory, window, x, out, lowest)))
        return
    total = reduce(np.add, _taps(memory, window, x, out, 0))
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if group.ends is not None:
        pads = [(memory.size(p), memory.size(e)) for p, e in zip(window.pads, group.ends, strict=True)]
        ones = np.pad(ones, [(0, 0), (0, 0), *pads], constant_values=1)
        window = replace(window, pads=(0,) * len(pads))
    _finish(memory, group, total / reduce(np.add, _taps(memory, window, ones, out, 0)))


def _attention(memory: _Memory, group: Attention) -> None:
    q, k, v = (_wide(memory.at(x)) for x in (group.q, group.k, group.v))
    before = 0
    if group.past is not None and group.present is not None:
        before = memory.size(group.past[0].shape[2])
        both = []
        for past, new, present in zip(group.past, (group.k, group.v), group.present, strict=True):
            target = memory.at(present)
            target[...] = np.concatenate([memory.at(past), memory.at(new)], axis=2)
            both.append(_wide(target))
        k, v = both
    shared = q.shape[1] // max(k.shape[1], 1)
    k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
    scores = np.matmul(q, k.swapaxes(2, 3)) * np.float32(group.scale)
    if group.softcap:
        scores = np.tanh(scores / group.softcap) * group.softcap
    if group.mask is not None:
        mask = memory.at(group.mask)
        scores = scores + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)
    if group.causal:
        rows, keys = scores.shape[2:]
        scores = np.where(np.arange(keys) > np.arange(rows)[:, None] + before, -np.inf, scores)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis=-1, keepdims=True)
    target = memory.at(group.out)
    target[...] = np.matmul(weights / np.where(total == 0, 1, total), v).astype(target.dtype)


def _gather(memory: _Memory, group: Gather) -> None:
    data, indices = memory.at(group.data), memory.at(group.indices)
    count = data.shape[group.axis]
    if indices.size and not -count <= indices.min() <= indices.max() < count:
        raise InvalidArgument("Gather: an index is out of range", where=group.nodes[0].label, expected=count)
    memory.at(group.out)[...] = np.take(data, np.where(indices < 0, indices + count, indices), axis=group.axis)


def _fill(memory: _Memory, group: Fill) -> None:
    target = memory.at(group.out)
    if group.start is not None and group.step is not None:
        numbers = memory.size(group.start) + np.arange(target.size) * memory.size(group.step)
    else:
        numbers = np.asarray([memory.size(d) for d in group.values])
    target[...] = numbers.reshape(target.shape).astype(target.dtype)


_RUN: dict[type[Group], Any] = {
    Loop: _loop, Contraction: _contraction, Convolution: _convolution, Pool: _pool, Attention: _attention,
    Gather: _gather, Fill: _fill,
}  # fmt: skip

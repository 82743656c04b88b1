"""Convolution and pooling, tap by tap."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np

from sardonyx.lower.groups import CentredConvolution, Convolution, IntegerConvolution, Pool, View, Window
from sardonyx.lower.interpret.expression import finish, wide
from sardonyx.lower.interpret.memory import Array, Memory, meaning
from sardonyx.records import replace


def _taps(memory: Memory, window: Window, x: Array, out: View, padding: Any) -> Iterator[Array]:
    """The input elements of each tap of a window: (batch, channels, *spatial of the result)."""
    count, pads = ([memory.size(d) for d in sizes] for sizes in (out.shape[2:], window.pads))
    axes = list(zip(count, pads, window.kernel, window.strides, window.dilations, x.shape[2:], strict=True))
    ends = [max(0, (n - 1) * s + (k - 1) * d + 1 - p - have) for n, p, k, s, d, have in axes]
    room = [(max(p, 0), end) for p, end in zip(pads, ends, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *room], constant_values=padding)
    for tap in np.ndindex(window.kernel):
        places = [np.arange(n) * s + t * d + max(-p, 0) for t, (n, p, _, s, d, _) in zip(tap, axes, strict=True)]
        yield padded[np.ix_(range(x.shape[0]), range(x.shape[1]), *places)]


@meaning(Convolution)
def convolution(memory: Memory, group: Convolution) -> None:
    _convolve(memory, group, wide(memory.at(group.x)), wide(memory.at(group.w)), 0)


@meaning(IntegerConvolution)
def integer_convolution(memory: Memory, group: IntegerConvolution) -> None:
    x, w, zero = (memory.at(v).astype(np.int32) for v in (group.x, group.w, group.zero))
    _convolve(memory, group, x, w, zero)


@meaning(CentredConvolution)
def centred_convolution(memory: Memory, group: CentredConvolution) -> None:
    x, zero = (memory.at(v).astype(np.float32) for v in (group.x, group.zero))
    _convolve(memory, group, x - zero, memory.at(group.w), 0)


def _convolve(memory: Memory, group: Convolution, x: Array, w: Array, padding: Any) -> None:
    out = group.outputs[0]
    filters, each = len(w) // group.groups, w.shape[1]
    total = np.zeros(tuple(map(memory.size, out.shape)), x.dtype)
    for at, seen in enumerate(_taps(memory, group.window, x, out, padding)):
        for g in range(group.groups):
            mine = w[g * filters : (g + 1) * filters, :].reshape(filters, each, -1)[:, :, at]
            part = np.tensordot(mine, seen[:, g * each : (g + 1) * each], (1, 1)).swapaxes(0, 1)
            total[:, g * filters : (g + 1) * filters] += part
    finish(memory, group, total)


@meaning(Pool)
def pool(memory: Memory, group: Pool) -> None:
    x, out, window = wide(memory.at(group.x)), group.outputs[0], group.window
    if group.kind == "max":
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        finish(memory, group, reduce(np.maximum, _taps(memory, window, x, out, lowest)))
        return
    total = reduce(np.add, _taps(memory, window, x, out, 0))
    if group.kind == "sum":
        finish(memory, group, total)
        return
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if group.ends is not None:
        pads = [(memory.size(p), memory.size(e)) for p, e in zip(window.pads, group.ends, strict=True)]
        ones = np.pad(ones, [(0, 0), (0, 0), *pads], constant_values=1)
        window = replace(window, pads=(0,) * len(pads))
    finish(memory, group, total / reduce(np.add, _taps(memory, window, ones, out, 0)))

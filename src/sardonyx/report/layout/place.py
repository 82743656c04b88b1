"""Horizontal coordinates: each node near the mean of its neighbours, in the order of its layer, without overlaps."""

from __future__ import annotations

from collections.abc import Sequence

SWEEPS = 8


def place(
    layers: Sequence[Sequence[int]],
    before: Sequence[Sequence[int]],
    after: Sequence[Sequence[int]],
    widths: Sequence[float],
    gap: float,
) -> list[float]:
    """The centre of each node, for nodes of these widths with ``gap`` between them."""
    x = [0.0] * len(widths)
    for layer in layers:
        at = 0.0
        for node in layer:
            x[node] = at + widths[node] / 2
            at += widths[node] + gap
        for node in layer:
            x[node] -= (at - gap) / 2
    for sweep in range(SWEEPS):
        is_down = sweep % 2 == 0
        for layer in layers if is_down else reversed(layers):
            near = before if is_down else after
            wanted = [sum(x[m] for m in near[n]) / len(near[n]) if near[n] else x[n] for n in layer]
            for node, at in zip(layer, separated(wanted, [widths[n] for n in layer], gap), strict=True):
                x[node] = at
    return x


def separated(wanted: Sequence[float], widths: Sequence[float], gap: float) -> list[float]:
    """The positions nearest to the wanted ones, in least squares, that keep the order and the gaps.

    Subtracting the least distance to the first element turns it into a fit of a rising sequence, which merging
    neighbours that violate the order solves exactly.
    """
    shifts, at = [], 0.0
    for i, width in enumerate(widths):
        at += 0.0 if i == 0 else (widths[i - 1] + width) / 2 + gap
        shifts.append(at)
    blocks: list[tuple[float, int]] = []
    for value, shift in zip(wanted, shifts, strict=True):
        total, size = value - shift, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / size:
            before, count = blocks.pop()
            total, size = total + before, size + count
        blocks.append((total, size))
    fitted = [total / size for total, size in blocks for _ in range(size)]
    return [value + shift for value, shift in zip(fitted, shifts, strict=True)]

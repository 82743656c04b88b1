"""Batches of images of few pixels: their pixels together fill the rows of tiles and blocks that one image leaves empty.

Where the images of a batch lie one behind the other, pixel by pixel, they are the planes of one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sardonyx.lower.groups import Convolution, Group, View, Window

FEW = 48
"""Pixels of a result below which a batch of them is taken together."""


def stacked(groups: Sequence[Group]) -> list[Group]:
    """The groups, with small images of a batch as planes."""
    return [_stacked(g) if isinstance(g, Convolution) and _is_small(g) else g for g in groups]


def _is_small(group: Convolution) -> bool:
    batch, _, *sizes = group.box
    known = [d for d in sizes if isinstance(d, int)]
    is_room = len(sizes) < 3 and group.groups == 1 and batch != 1
    lies_so = all(v.strides[1] == 1 or v.shape[1] == 1 for v in (group.x, *group.outputs))
    return is_room and lies_so and len(known) == len(sizes) and math.prod(known) < FEW


def _stacked(group: Convolution) -> Convolution:
    w, window = group.w, group.window
    return replace(
        group, x=_as_planes(group.x), extra=tuple(map(_as_planes, group.extra)),
        outputs=tuple(map(_as_planes, group.outputs)),
        w=View(w.storage, (*w.shape[:2], 1, *w.shape[2:]), (*w.strides[:2], 0, *w.strides[2:]), w.offset),
        window=Window((1, *window.kernel), (1, *window.strides), (1, *window.dilations), (0, *window.pads)),
    )  # fmt: skip


def _as_planes(view: View) -> View:
    batch, channels, *sizes = view.shape
    along, step, *strides = view.strides
    return View(view.storage, (1, channels, batch, *sizes), (0, step, along, *strides), view.offset)

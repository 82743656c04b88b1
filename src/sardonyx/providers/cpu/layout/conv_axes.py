"""Changes the spatial axes of convolutions so that rows are long, because kernels vectorize along rows.

Axes of one element move to the front. A batch of small NHWC images becomes one image whose depth is the batch: together
they fill the rows of tiles and blocks that a single image leaves empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.lower import views
from sardonyx.lower.groups import Convolution, Group, View, Window
from sardonyx.providers.cpu.kernels.common.window import is_nhwc
from sardonyx.records import replace

MIN_PIXELS = 48
"""Output pixels below which the batch becomes depth."""


def unit_axes_first(groups: Sequence[Group]) -> list[Group]:
    """The groups; convolutions have the spatial axes of one element first."""
    return [_unit_axes_first(g) if isinstance(g, Convolution) else g for g in groups]


def _unit_axes_first(group: Convolution) -> Convolution:
    window, rank = group.window, len(group.window.kernel)
    sides = zip(window.kernel, window.pads, group.x.shape[2:], group.box[2:], strict=True)
    order = sorted(range(rank), key=[side != (1, 0, 1, 1) for side in sides].__getitem__)
    axes = (0, 1, *(2 + i for i in order))
    x, w, *rest = (views.permuted(v, axes) for v in (group.x, group.w, *group.extra, *group.outputs))
    extra, outputs = tuple(rest[: len(group.extra)]), tuple(rest[len(group.extra) :])
    kernel, strides, dilations = (tuple(n[i] for i in order) for n in (window.kernel, window.strides, window.dilations))
    permuted = Window(kernel, strides, dilations, tuple(window.pads[i] for i in order))
    return replace(group, x=x, w=w, extra=extra, outputs=outputs, window=permuted)


def batch_as_depth(groups: Sequence[Group]) -> list[Group]:
    """The groups; convolutions of small images have the batch as depth."""
    return [_batch_as_depth(g) if isinstance(g, Convolution) and _is_small(g) else g for g in groups]


def _is_small(group: Convolution) -> bool:
    batch, _, *sizes = group.box
    known = [d for d in sizes if isinstance(d, int)]
    has_free_axis = len(sizes) < 3 and group.groups == 1 and batch != 1
    is_all_nhwc = all(map(is_nhwc, (group.x, *group.outputs)))
    return has_free_axis and is_all_nhwc and len(known) == len(sizes) and math.prod(known) < MIN_PIXELS


def _batch_as_depth(group: Convolution) -> Convolution:
    w, window = group.w, group.window
    return replace(
        group, x=_as_depth(group.x), extra=tuple(map(_as_depth, group.extra)),
        outputs=tuple(map(_as_depth, group.outputs)),
        w=View(w.storage, (*w.shape[:2], 1, *w.shape[2:]), (*w.strides[:2], 0, *w.strides[2:]), w.offset),
        window=Window((1, *window.kernel), (1, *window.strides), (1, *window.dilations), (0, *window.pads)),
    )  # fmt: skip


def _as_depth(view: View) -> View:
    batch, channels, *sizes = view.shape
    along, step, *strides = view.strides
    return View(view.storage, (1, channels, batch, *sizes), (0, step, along, *strides), view.offset)

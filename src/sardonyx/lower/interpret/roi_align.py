"""Regions of interest, by the numpy meaning of the operators."""

from __future__ import annotations

import numpy as np

from sardonyx.lower.groups import RoiAlign
from sardonyx.lower.interpret.expression import finish, wide
from sardonyx.lower.interpret.memory import Memory, meaning
from sardonyx.ops import pool, sample


@meaning(RoiAlign)
def roi_align(memory: Memory, group: RoiAlign) -> None:
    x, rois, batches = (memory.at(v) for v in group.operands)
    height, width = (memory.size(d) for d in group.box[2:])
    x = wide(x)
    if group.kind == "inside":
        boxes = np.concatenate([batches[:, None].astype(rois.dtype), rois], axis=1)
        found = pool.max_roi_pool(x, boxes, pooled_shape=[height, width], spatial_scale=group.spatial_scale)
    else:
        found = sample.roi_align(
            x,
            rois,
            batches.astype(np.int64),
            mode="avg" if group.kind == "mean" else "max",
            coordinate_transformation_mode="half_pixel" if group.shift else "output_half_pixel",
            output_height=height,
            output_width=width,
            sampling_ratio=group.sampling_ratio,
            spatial_scale=group.spatial_scale,
        )
    finish(memory, group, np.asarray(found))

"""Pooling, and images that are sampled."""

from sardonyx.lower.groups import GridSample, Group, Pool, Resample, RoiAlign
from sardonyx.providers.cpu.kernels.image import (
    grid_sample,
    grid_sample_nhwc,
    pool_nchw,
    pool_nhwc,
    resize,
    roi_align,
    roi_align_rows,
)
from sardonyx.providers.cpu.program.variants import Variant

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {
    GridSample: (
        Variant("image.grid_sample_nhwc", grid_sample_nhwc.steps, grid_sample_nhwc.supports, grid_sample_nhwc.pays),
        Variant("image.grid_sample", grid_sample.steps),
    ),
    Pool: (
        Variant("image.pool_nhwc", pool_nhwc.steps, pool_nhwc.supports),
        Variant("image.pool_nchw", pool_nchw.steps, pool_nchw.supports),
    ),
    Resample: (Variant("image.resize", resize.steps),),
    RoiAlign: (
        Variant("image.roi_align_rows", roi_align_rows.steps, roi_align_rows.supports, roi_align_rows.pays),
        Variant("image.roi_align", roi_align.steps),
    ),
}

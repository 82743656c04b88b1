"""Regions of interest of an image, each pooled into a grid of cells."""

from __future__ import annotations

from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.epilogue import EpilogueGroup


class RoiAlign(EpilogueGroup):
    """out[r, c, i, j] = epilogue(cell (i, j) of region r in channel c of image ``batch_indices[r]``, extra operands).

    Region r is the box (x1, y1, x2, y2) = ``rois[r]`` times ``spatial_scale``, divided into a grid of equal cells.
    ``kind`` ``mean`` and ``max`` (RoiAlign) pool bilinear samples: ``sampling_ratio`` along each side of a cell, or if
    that is 0 one for each pixel that the cell covers. ``shift`` is subtracted from coordinates; with a shift of 0 a
    region is at least one pixel large. ``kind`` ``inside`` (MaxRoiPool) takes the maximum of the pixels in the cell.
    Image indices and coordinates are checked.
    """

    x: View
    rois: View
    batch_indices: View
    kind: str
    spatial_scale: float
    shift: float = 0.0
    sampling_ratio: int = 0

    @property
    def operands(self) -> tuple[View, ...]:
        return self.x, self.rois, self.batch_indices

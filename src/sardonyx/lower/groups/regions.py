"""Parts of images that data name, each as a grid of cells."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.lower.groups.base import View
from sardonyx.lower.groups.finished import Finished


@dataclass(frozen=True)
class Regions(Finished):
    """out[r, c, i, j] = epilogue(what cell (i, j) of region r holds of channel c of image ``batches[r]``, further
    operands).

    Cells divide the region from (x1, y1) to (x2, y2), the columns of ``rois``, times ``scale``. ``kind`` says what they
    hold: the ``mean`` or the ``max`` of samples between pixels, ``ratio`` of them along each side of a cell, or as many
    as it covers pixels where that is 0 (RoiAlign: coordinates less ``shift``; a shift of 0 makes regions at least one
    pixel large); or the largest of the pixels that are ``inside`` (MaxRoiPool). Images and coordinates are checked.
    """

    x: View
    rois: View
    batches: View
    kind: str
    scale: float
    shift: float = 0.0
    ratio: int = 0

    @property
    def operands(self) -> tuple[View, ...]:
        return self.x, self.rois, self.batches

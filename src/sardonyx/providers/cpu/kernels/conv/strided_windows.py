"""Convolution of one channel along one axis as a matrix product: the front end of audio networks.

The windows of a sequence are the columns of a matrix that is a view of it, with overlapping columns; the filters are
the rows of another. Neighbouring outputs read elements ``stride`` apart, so a kernel that has them along its lanes
would gather each tap, or split the sequence into as many phases. A matrix product transposes the windows once, while it
packs them. Where the filters of an output are adjacent in memory, or outputs do not fill vectors, filters are along the
lanes instead (``im2col``).
"""

from __future__ import annotations

from sardonyx.lower import views
from sardonyx.lower.groups import Contraction, Convolution, Fill, Loop, Storage, View
from sardonyx.lower.sizes import product
from sardonyx.providers.cpu.kernels.common.matrices import problem
from sardonyx.providers.cpu.kernels.common.window import WindowGeometry
from sardonyx.providers.cpu.kernels.conv import im2col, stem
from sardonyx.providers.cpu.kernels.gemm.contraction import multiply_adds
from sardonyx.providers.cpu.kernels.loops import fill, loop
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import replace

MAX_PHASES = 2
"""Strides that the direct kernel reads as one vector, or as two that it deinterleaves."""

MIN_VECTORS = 4
"""Vectors of outputs from which on the lanes of the last one do not count."""


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    geometry = WindowGeometry.of(group)
    if group.groups != 1 or group.w.shape[1] != 1 or geometry.window.kernel[:2] != (1, 1):
        return Refusal("several channels, or a window along several axes")
    if not all(isinstance(p, int) and p >= 0 for p in group.window.pads) or stem.padded_sizes(group) is None:
        return Refusal("the padding is not known, or not expressible")
    return im2col.supports(group, analysis)


def pays(group: Convolution, analysis: Analysis) -> Refusal | None:
    if analysis.isa.amx:
        return Refusal("the chip has tiles")
    if group.window.strides[-1] <= MAX_PHASES or group.window.kernel[-1] == 1:
        return Refusal("neighbouring windows read neighbouring elements, or those two apart")
    if int(group.w.shape[0]) < analysis.isa.lanes:
        return Refusal("few filters")
    return None


def takes(group: Convolution, analysis: Analysis) -> bool:
    """Whether this kernel carries out a convolution, in whatever layout its outputs are."""
    is_allowed = analysis.target.policy.allows("conv.strided_windows")
    return is_allowed and supports(group, analysis) is None and pays(group, analysis) is None


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    before, geometry, depth = list[Step](), WindowGeometry.of(group), int(group.w.shape[-1])
    if not geometry.is_unpadded:
        before, x = _padded(group, analysis)
        geometry = WindowGeometry.of(replace(group, x=x))
    windows, outputs = im2col.windows_in_place(geometry, depth), group.box[-1]
    fills_vectors = not isinstance(outputs, int) or outputs > MIN_VECTORS * analysis.isa.lanes
    if not fills_vectors or all(view.strides[1] == 1 for view in group.outputs):
        return [*before, *im2col.product_steps(group, geometry, windows, analysis)]
    batch, filters = windows.shape[:3], int(group.w.shape[0])
    weights = View(group.w.storage, (*batch, filters, depth), (0, 0, 0, depth, 1), group.w.offset)
    extra, results = (
        tuple(views.permuted(v, (0, 2, 3, 1, 4)) for v in seen) for seen in (geometry.extra, geometry.outputs)
    )
    made = Contraction(
        group.nodes, group.epilogue, extra, results, batch, filters, windows.shape[3], depth, weights,
        views.permuted(windows, (0, 1, 2, 4, 3)),
    )  # fmt: skip
    return [*before, *multiply_adds(problem(made), analysis)]


def _padded(group: Convolution, analysis: Analysis) -> tuple[list[Step], View]:
    """A copy of the image with its padding, and the steps that make it."""
    x, sizes = group.x, stem.padded_sizes(group)
    assert sizes is not None
    shape = (*x.shape[:2], *sizes)
    image = views.dense(Storage("temporary", x.dtype, product(shape)), shape)
    within = image
    for i, (n, pad) in enumerate(zip(x.shape[2:], group.window.pads, strict=False)):
        within = views.sliced(within, 2 + i, pad, n)
    flat = View(image.storage, (image.storage.elements,), (1,), 0)
    zeros, copied = Fill(group.nodes, flat, start=0, step=0), Loop.copying(group.nodes, x, within)
    return [*fill.steps(zeros, analysis), *loop.fused_steps(copied, analysis)], image

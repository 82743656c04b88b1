"""Depthwise convolutions: every channel has filters of its own. One channel at a time (``channelwise``)."""

from __future__ import annotations

from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.isa import Isa
from sardonyx.providers.cpu.kernels import channelwise
from sardonyx.providers.cpu.kernels.matrices import Matrix, Problem
from sardonyx.providers.cpu.kernels.pack import packed_b
from sardonyx.providers.cpu.steps import Ref, Step
from sardonyx.providers.cpu.values import register_dtype


def steps(group: Convolution, isa: Isa, per_channel: Known) -> list[Step]:
    """``per_channel`` filters for each channel."""
    w, dtype = group.w, register_dtype(group.x.dtype)
    if w.dtype is dtype:
        return [channelwise.step(group, isa, channelwise.PRODUCTS, {"w": Ref.of(w)}, per_channel)]
    taps = w.strides[0]
    matrix = Matrix(w.storage, w.offset, (), taps, 1)
    p = Problem(group.nodes, (), 0, taps, w.shape[0], matrix, matrix, group.epilogue, (), ())
    assert isinstance(taps, int)
    before, panel = packed_b(p, dtype, taps, isa)
    weights = {"w": Ref(panel.storage)}
    return [*before, channelwise.step(group, isa, channelwise.PRODUCTS, weights, per_channel)]

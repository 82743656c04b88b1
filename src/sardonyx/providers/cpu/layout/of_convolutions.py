"""The passes that only change groups with convolutions, and find something only among them.

Their modules, and the kernels that these ask, are half of the compiler: they are imported for the first convolution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sardonyx.lower.fusion.inside import placed_inside
from sardonyx.lower.groups import Convolution, Group, Storage
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.variants import Choice

if TYPE_CHECKING:
    from sardonyx.providers.cpu.kernels.conv.summed_pair import SummedPair
    from sardonyx.providers.cpu.layout.packed_images import Image

Groups = Sequence[Group]


def has_convolutions(groups: Groups) -> bool:
    return any(isinstance(g, Convolution) for g in groups)


def centred(groups: Groups, analysis: Analysis) -> Groups:
    if not has_convolutions(groups):
        return groups
    from sardonyx.providers.cpu.layout import centre

    return centre.without_wide_vectors(groups, analysis)


def inside(groups: Groups, analysis: Analysis) -> tuple[Groups, Analysis]:
    if not has_convolutions(groups):
        return placed_inside(groups, set()), analysis
    from sardonyx.providers.cpu.layout import packed_images

    return placed_inside(groups, packed_images.packed_inputs(groups, analysis)), analysis


def widened(groups: Groups, analysis: Analysis) -> Groups:
    if not has_convolutions(groups):
        return groups
    from sardonyx.providers.cpu.layout import widen

    return widen.widened(groups, analysis)


def unit_axes_first(groups: Groups, analysis: Analysis) -> Groups:
    if not has_convolutions(groups):
        return groups
    from sardonyx.providers.cpu.layout import conv_axes

    return conv_axes.unit_axes_first(groups)


def to_nhwc(groups: Groups, analysis: Analysis) -> Groups:
    if not has_convolutions(groups):
        return groups
    from sardonyx.providers.cpu.layout import nhwc

    return nhwc.to_nhwc(groups, analysis)


def centred_rest(groups: Groups, analysis: Analysis) -> Groups:
    if not has_convolutions(groups):
        return groups
    from sardonyx.providers.cpu.layout import centre

    return centre.of_other_layouts(groups, analysis)


def batch_as_depth(groups: Groups, analysis: Analysis) -> Groups:
    if not has_convolutions(groups):
        return groups
    from sardonyx.providers.cpu.layout import conv_axes

    return conv_axes.batch_as_depth(groups)


def fused_pairs(groups: Groups, analysis: Analysis) -> Mapping[Storage, Convolution]:
    if not has_convolutions(groups):
        return {}
    from sardonyx.providers.cpu.kernels.conv import pointwise_depthwise

    return pointwise_depthwise.fusable_pairs(groups, analysis)


def summed_pairs(groups: Groups, analysis: Analysis) -> Mapping[Storage, SummedPair]:
    if not has_convolutions(groups):
        return {}
    from sardonyx.providers.cpu.kernels.conv import summed_pair

    return summed_pair.summed_pairs(groups, analysis)


def choices_of_pairs(groups: Groups, analysis: Analysis) -> Mapping[int, Choice]:
    if not has_convolutions(groups):
        return analysis.choices
    from sardonyx.providers.cpu.layout import conv_pairs

    return conv_pairs.choices_of_pairs(groups, analysis)


def images(groups: Groups, analysis: Analysis) -> Mapping[Storage, Image]:
    if not has_convolutions(groups):
        return {}
    from sardonyx.providers.cpu.layout import packed_images

    return packed_images.images(groups, analysis)

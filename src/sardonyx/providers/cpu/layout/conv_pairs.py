"""Convolutions that one step carries out together: their choices are the pair's, with the refusals of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.lower.groups import Convolution, Group
from sardonyx.providers.cpu.kernels.conv import pointwise_depthwise, summed_pair
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.variants import Choice
from sardonyx.providers.cpu.tables.conv import PAIRS
from sardonyx.records import replace


def choices_of_pairs(groups: Sequence[Group], analysis: Analysis) -> dict[int, Choice]:
    """The choices of all groups; those of ``fused_pairs`` and ``summed_pairs`` get the pair's variant."""
    found = dict(analysis.choices)
    fused, summed = analysis.fused_pairs, analysis.summed_pairs
    for group in groups:
        if not isinstance(group, Convolution):
            continue
        if (first := fused.get(group.x.storage)) is not None:
            found |= _of_pair(analysis.choices, first, group, pointwise_depthwise.NAME)
        for view in group.extra:
            if (pair := summed.get(view.storage)) is not None:
                found |= _of_pair(analysis.choices, pair.second, group, summed_pair.NAME)
    return found


def _of_pair(choices: Mapping[int, Choice], part: Group, group: Group, name: str) -> dict[int, Choice]:
    """The choices of a pair, by the groups' ids: the steps of ``group`` carry out ``part`` too, by variant ``name``."""
    refusals = tuple(dict.fromkeys((*choices[id(part)].refusals, *choices[id(group)].refusals)))
    (variant,) = (pair for pair in PAIRS if pair.name == name)
    made = Choice(variant, refusals)
    return {id(part): replace(made, is_part_of_another=True), id(group): made}

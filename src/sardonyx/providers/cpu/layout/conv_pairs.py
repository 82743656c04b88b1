"""Convolutions that one step carries out together: their choices are the pair's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sardonyx.lower.groups import Convolution, Group
from sardonyx.providers.cpu.kernels.conv import pointwise_depthwise, summed_pair
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.variants import Choice
from sardonyx.providers.cpu.select import by_name


def choices_of_pairs(groups: Sequence[Group], analysis: Analysis) -> dict[int, Choice]:
    """All choices, with those of the pairs that ``fused_pairs`` and ``summed_pairs`` have."""
    found = dict(analysis.choices)
    fused, summed = analysis.fused_pairs, analysis.summed_pairs
    for group in groups:
        if not isinstance(group, Convolution):
            continue
        written = {view.storage for view in group.outputs}
        is_first, is_second = not written.isdisjoint(fused), not written.isdisjoint(summed)
        if is_first or group.x.storage in fused:
            found[id(group)] = _of_pair(found[id(group)], pointwise_depthwise.NAME, is_part_of_another=is_first)
        if is_second or any(view.storage in summed for view in group.extra):
            found[id(group)] = _of_pair(found[id(group)], summed_pair.NAME, is_part_of_another=is_second)
    return found


def _of_pair(choice: Choice, name: str, *, is_part_of_another: bool) -> Choice:
    return replace(choice, variant=by_name()[name], refusals=(), few=None, is_part_of_another=is_part_of_another)

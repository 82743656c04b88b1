"""Recurrent networks."""

from sardonyx.lower.groups import Group, Recurrence
from sardonyx.providers.cpu.kernels.recurrent import recurrence
from sardonyx.providers.cpu.program.variants import Variant

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {Recurrence: (Variant("recurrent.recurrence", recurrence.steps),)}

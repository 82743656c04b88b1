"""Forests of decision trees."""

from sardonyx.lower.groups import Forest, Group
from sardonyx.providers.cpu.kernels.trees import forest
from sardonyx.providers.cpu.program.variants import Variant

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {Forest: (Variant("trees.forest", forest.steps),)}

"""Users' operators with kernels of their own."""

from sardonyx.lower.groups import Custom, Group
from sardonyx.providers.cpu.kernels.common import custom
from sardonyx.providers.cpu.program.variants import Variant

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {Custom: (Variant("common.custom", custom.steps),)}

"""Attention."""

from sardonyx.lower.groups import Attention, Group, LinearAttention
from sardonyx.providers.cpu.kernels.attention import amx, few_rows, linear, vector
from sardonyx.providers.cpu.program.variants import FewSizes, Variant

_FEW_QUERIES = FewSizes(few_rows.few_rows, ("attention.few_rows",))

VARIANTS: dict[type[Group], tuple[Variant, ...]] = {
    Attention: (
        Variant("attention.few_rows", few_rows.steps, pays=few_rows.pays),
        Variant("attention.amx", amx.steps, amx.supports, few=_FEW_QUERIES),
        Variant("attention.vector", vector.steps, few=_FEW_QUERIES),
    ),
    LinearAttention: (Variant("attention.linear", linear.steps),),
}

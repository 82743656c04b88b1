"""The choice among the kernel variants of each kind of group.

``tables`` lists variants in order of preference. The first one that supports a group, and pays for it, takes it; the
record of the choice says why those before it did not.
"""

from __future__ import annotations

from functools import partial

from sardonyx.errors import NotImplemented, Reporting
from sardonyx.lower.groups import Convolution, Group
from sardonyx.providers.cpu.program.analysis import Analysis, either
from sardonyx.providers.cpu.program.steps import SizeRange, Step
from sardonyx.providers.cpu.program.variants import Choice, Refusal, Variant
from sardonyx.providers.cpu.tables import VariantTable
from sardonyx.records import replace

VARIANTS = VariantTable()


def by_name() -> dict[str, Variant]:
    return {variant.name: variant for kind in VARIANTS for variant in (*VARIANTS[kind], *pairs_of(kind))}


def pairs_of(kind: type[Group]) -> tuple[Variant, ...]:
    """The variants that carry out two groups at once, of which the second is of this kind."""
    if kind is not Convolution:
        return ()
    from sardonyx.providers.cpu.tables.conv import PAIRS

    return PAIRS


def choose(group: Group, analysis: Analysis) -> Choice:
    """The variant that carries out a group, with the refusals before it; raises ``NotImplemented`` if none does."""
    with Reporting("compile", group.nodes[-1] if group.nodes else None):
        policy, refusals = analysis.target.policy, list[tuple[str, str]]()
        for variant in VARIANTS[type(group)]:
            found = policy.refusal(variant.name) or _refusal(variant, group, analysis)
            if found is None:
                return Choice(variant, tuple(refusals), _few(variant, group, analysis))
            refusals.append((variant.name, found.reason))
        for variant in VARIANTS[type(group)]:  # no forced variant supports the group: any that is not forbidden
            if variant.name not in policy.forbidden and _refusal(variant, group, analysis) is None:
                return Choice(variant, tuple(refusals), _few(variant, group, analysis))
        raise NotImplemented(refusals[-1][1], where=", ".join(node.op_type for node in group.nodes))


def _refusal(variant: Variant, group: Group, analysis: Analysis) -> Refusal | None:
    is_forced = variant.name in analysis.target.policy.forced
    return variant.supports(group, analysis) or (None if is_forced else variant.pays(group, analysis))


def _few(variant: Variant, group: Group, analysis: Analysis) -> tuple[SizeRange, Variant] | None:
    """The sizes that another variant takes at run time, and that variant; None if ``variant`` takes all sizes."""
    sizes = None if variant.few is None else variant.few.sizes(group, analysis)
    if variant.few is None or sizes is None:
        return None
    known = {other.name: other for other in VARIANTS[type(group)]}
    *others, last = (known[name] for name in variant.few.variants)
    for other in others:
        if analysis.target.policy.allows(other.name) and _refusal(other, group, analysis) is None:
            return sizes, other
    takes_last = analysis.target.policy.allows(last.name) and last.supports(group, analysis) is None
    return (sizes, last) if takes_last else None


def steps_of(group: Group, analysis: Analysis) -> list[Step]:
    """The steps that carry out a group, by the variant that was chosen, or is chosen now for a group by itself."""
    choice = analysis.choices.get(id(group)) or choose(group, analysis)
    if choice.is_part_of_another:
        return []
    with Reporting("compile", group.nodes[-1] if group.nodes else None):
        steps = choice.variant.steps
        if choice.few is None:
            made = steps(group, analysis)
        else:
            sizes, other = choice.few
            made = either(sizes, analysis, partial(other.few_steps or other.steps, group), partial(steps, group))
    return [replace(step, choice=choice) for step in made]

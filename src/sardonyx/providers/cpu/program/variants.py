"""Kernel variants: ways to carry out a group of work, and the record of which one was chosen and why.

A variant is named for the file of its kernel: ``conv.winograd_nhwc`` is ``kernels/conv/winograd_nhwc.py``. It says
whether it can take a group (``supports``), and whether it is the quickest of those that can (``pays``). Users choose
among variants that support a group by the configuration keys ``session.kernel.force`` and ``session.kernel.forbid``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sardonyx.plan.sizes import SizeRange
from sardonyx.records import Record

if TYPE_CHECKING:
    from sardonyx.providers.cpu.program.analysis import Analysis
    from sardonyx.providers.cpu.program.steps import Step


class Refusal(NamedTuple):
    """Why a variant does not take a group."""

    reason: str


def accepts(group: Any, analysis: Analysis) -> Refusal | None:
    """The answer of a variant that takes every group."""
    return None


class FewSizes(Record):
    """The sizes that another variant takes, where a number of rows or outputs is known at run time only."""

    sizes: Callable[[Any, Analysis], SizeRange | None]
    variants: tuple[str, ...]
    """The variants that may take these sizes, in order of preference; the last one need not pay."""


class Variant(Record):
    """A way to carry out groups of one kind."""

    name: str
    steps: Callable[[Any, Analysis], list[Step]]
    supports: Callable[[Any, Analysis], Refusal | None] = accepts
    """Why it cannot take a group; None if it can."""
    pays: Callable[[Any, Analysis], Refusal | None] = accepts
    """Why a variant further down is quicker for a group that this one supports; None if none is."""
    few: FewSizes | None = None
    """Sizes, known at run time only, that another variant takes; None if this one takes all."""
    few_steps: Callable[[Any, Analysis], list[Step]] | None = None
    """``steps`` for the few sizes that another variant leaves to this one, where they differ."""

    @property
    def family(self) -> str:
        return self.name.partition(".")[0]


class KernelPolicy(Record):
    """The variants that a user forces or forbids, by name."""

    forced: frozenset[str] = frozenset()
    """Taken wherever they support a group, whether they pay or not."""
    forbidden: frozenset[str] = frozenset()

    def refusal(self, name: str) -> Refusal | None:
        """Why the policy leaves a variant out, as long as another one supports the group."""
        if name in self.forbidden:
            return Refusal("forbidden by session.kernel.forbid")
        family = name.partition(".")[0]
        others = sorted(other for other in self.forced if other.partition(".")[0] == family)
        return Refusal(f"{', '.join(others)} forced by session.kernel.force") if others and name not in others else None

    def forces(self, *names: str) -> bool:
        """Whether one of these variants is taken wherever it supports a group."""
        return not self.forced.isdisjoint(names)

    def allows(self, *names: str) -> bool:
        """Whether any of these variants may be chosen."""
        return any(self.refusal(name) is None for name in names)


ANY_KERNEL = KernelPolicy()


class Choice(Record):
    """The record of a choice: what later passes, the steps and ``explain()`` go by."""

    variant: Variant
    refusals: tuple[tuple[str, str], ...] = ()
    """Variants that would be preferred, and why they were not taken."""
    few: tuple[SizeRange, Variant] | None = None
    """Sizes that another variant takes, where only the run tells."""
    is_part_of_another: bool = False
    """The steps of another group carry out this one too."""

    @property
    def name(self) -> str:
        return self.variant.name

"""What code is compiled for, and what the passes of a part found out for its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from sardonyx.ir import dims
from sardonyx.lower.groups import Convolution, Group, Storage, View
from sardonyx.plan.sizes import SizeRange
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.steps import Packed, Step
from sardonyx.providers.cpu.program.variants import ANY_KERNEL, Choice, KernelPolicy
from sardonyx.records import Record, replace

if TYPE_CHECKING:
    from sardonyx.providers.cpu.kernels.conv.summed_pair import SummedPair
    from sardonyx.providers.cpu.kernels.split.bf16 import PackedOperand
    from sardonyx.providers.cpu.layout.packed_images import Image

G = TypeVar("G", bound=Group)
T = TypeVar("T")

FAR = 4
"""Results larger than this number of L2 caches are not found in caches by their reader."""
DOUBLED = 1 << 21
"""Elements of weights up to which two packed layouts are stored, where only the run tells which is quicker."""


class Target(Record):
    """What code is compiled for: the chip, the precision of contractions, and the kernels that may be chosen."""

    isa: Isa
    precision: str = "highest"
    """``highest``, ``high`` or ``medium``."""
    policy: KernelPolicy = ANY_KERNEL

    def writes_non_temporal(self, view: View) -> bool:
        """Whether a result is written with non-temporal stores: it is larger than the caches and no step reads it, so
        an ordinary store would load lines in vain."""
        is_callers = view.storage.kind == "output" and self.isa.name in ("amx", "avx512")
        return is_callers and self.exceeds_cache(view, FAR)

    def exceeds_cache(self, view: View, times: int = 1) -> bool:
        """Whether a view is known to be larger than ``times`` times the L2 cache."""
        nbytes = dims.mul(dims.product(view.shape), view.dtype.itemsize)
        return isinstance(nbytes, int) and nbytes > times * self.isa.l2_nbytes


class Analysis(Record):
    """What the passes of ``pipeline`` found out about a part's groups. Each pass gives the next one a new record."""

    target: Target
    unrepresentable: frozenset[object] = frozenset()
    """Constants, by ``constants.identity``, with numbers outside the range of bf16 terms."""
    shared: frozenset[Storage] = field(default=frozenset(), repr=False)
    """Of groups that are a body of control flow: storages that are accessed outside of it (``layout.bodies``)."""
    is_repeated: bool = False
    """Whether the groups are the body of a loop."""
    is_stepwise: bool = False
    """Whether runs bring a few rows at a time, as decoding with a KV cache does."""
    choices: Mapping[int, Choice] = field(default_factory=dict, repr=False)
    """The kernel variant of each group, by the group's ``id``."""
    packed_operands: Mapping[Storage, PackedOperand] = field(default_factory=dict, repr=False)
    """Results written in the packed layout of the matrix product that reads them (``layout.packed_operands``)."""
    fused_pairs: Mapping[Storage, Convolution] = field(default_factory=dict, repr=False)
    """Pointwise convolutions, by their output, whose only reader is a depthwise convolution: one fused step computes
    both (``layout.conv_pairs``)."""
    summed_pairs: Mapping[Storage, SummedPair] = field(default_factory=dict, repr=False)
    """Convolutions, by their output, that another one adds to its own sums: one step computes both
    (``layout.conv_pairs``)."""
    unsigned: frozenset[Storage] = field(default=frozenset(), repr=False)
    """Storages without negative numbers (``lower.analysis.signs``)."""
    images: Mapping[Storage, Image] = field(default_factory=dict, repr=False)
    """Images that a convolution packs for its consumer (``layout.packed_images``)."""
    splits: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)
    """Operands that the steps of one group have split and those of others read too (``split.bf16``,
    ``conv.packed_image``). Kernels add to it as their steps are made."""
    panels: dict[tuple[Any, ...], Packed] = field(default_factory=dict, repr=False)
    """Constants in the panels that tiles and multiply-adds both read, by their content (``gemm.split_ahead``)."""
    answers: dict[tuple[Any, ...], tuple[Group, Any]] = field(default_factory=dict, repr=False)
    """What ``once`` found out, by question and what the answer depends on."""

    def once(self, question: str, group: G, answer: Callable[[G], T], *, key: tuple[Any, ...] = ()) -> T:
        """``answer(group)``, computed when the first variant or pass asks the ``question``.

        ``key``: what the answer depends on, if groups that differ in other things share it; by default the group.
        """
        whole = (question, *(key or (id(group),)))
        known = self.answers.get(whole)
        if known is None:
            known = self.answers[whole] = group, answer(group)
        found: T = known[1]
        return found

    @property
    def isa(self) -> Isa:
        return self.target.isa

    @property
    def precision(self) -> str:
        return self.target.precision


def either(
    few: SizeRange, analysis: Analysis, quick: Callable[[Analysis], list[Step]], other: Callable[[Analysis], list[Step]]
) -> list[Step]:
    """Steps for sizes in the range ``few``, made by ``quick``, and for sizes outside of it, made by ``other``.

    Operands that one of them splits are shared only among steps for the same sizes.
    """
    made: list[Step] = []
    for only, way in ((few, quick), (few.otherwise, other)):
        known = {key[1:]: found for key, found in analysis.splits.items() if key[0] == only}
        made += (replace(step, only=only) for step in way(replace(analysis, splits=known, images={})))
        analysis.splits.update({(only, *key): found for key, found in known.items()})
    return made

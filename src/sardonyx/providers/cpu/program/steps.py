"""Steps: kernels with their arguments, as the step table holds them before sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower.check import Check
from sardonyx.lower.groups import IndirectStorage, Storage, View
from sardonyx.plan.sizes import Only as Only  # noqa: PLC0414 -- kernels know it as a part of steps
from sardonyx.providers.cpu.language.dsl import Spec
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.prepack import Packing

FAR = 4
"""Times the cache that is a core's own: from that size on, whoever reads a result does not find it in caches."""


@dataclass(frozen=True)
class Ref:
    """A memory argument: a storage, and where in it the kernel's element 0 lies."""

    storage: Storage
    offset: Known = 0
    """In elements of the storage's type."""

    @staticmethod
    def of(view: View) -> Ref:
        return Ref(view.storage, view.offset)


@dataclass(frozen=True)
class Slot:
    """A number argument: which of a run's addresses is that of a moving storage."""

    storage: IndirectStorage


@dataclass(frozen=True)
class Holds:
    """A number argument: 1 where conditions on sizes hold, else 0."""

    checks: tuple[Check, ...]


DOUBLED = 1 << 20
"""Weights up to which they are kept in two layouts where only the run tells which of them is quicker."""


@dataclass(frozen=True)
class Step:
    """One call of a kernel by every thread of the team."""

    spec: Spec
    args: Mapping[str, Ref | Slot | Holds | Known | float]
    """By parameter name: memory, or a number that may follow from the shapes."""
    writes: frozenset[str]
    """The memory parameters that the kernel writes; it only reads the others."""
    nodes: tuple[Node, ...]
    scratch_nbytes: Known = 0
    """Memory of its own that each thread needs while the step runs."""
    flops: Known = 0
    nbytes: Known = 0
    """Work, for traces, shares of the limit and the choice of threads."""
    variant: str = ""
    """Which of several kernels was chosen, and why, in words."""
    is_control: bool = False
    """One thread carries it out, with all others waiting; it may decide which step comes next."""
    repeats: int = 0
    """How many steps right before this one it may go back."""
    is_bounded: bool = True
    """Whether sizes tell how often it does."""
    turns: Known = 1
    """How often the step runs."""
    only: Only | None = None
    """The sizes for which it does; None: all."""


@dataclass(eq=False)
class Packed(Storage):
    """A constant in the layout that a kernel wants, made when it is first needed and shared by equal ``key``."""

    key: tuple[Any, ...] = ()
    make: Callable[[], Any] = field(default=lambda: None)
    """Gives the packed array."""
    packing: Packing | None = None
    """The call of a kernel that gives it too, where nothing else is needed; what ``make`` refuses it need not."""


@dataclass(frozen=True)
class Target:
    """For what is compiled: the chip, and how exact contractions must be."""

    isa: Isa
    precision: str = "highest"
    """``highest``, ``high`` or ``medium``."""
    is_repeated: bool = False
    """Whether this is for the body of a loop."""
    is_stepwise: bool = False
    """Whether rows come a few at a time, as far as groups tell: attention sees keys from before."""
    exceptional: frozenset[object] = frozenset()
    """Constants, by ``constants.identity``, with numbers that parts of bf16 do not carry."""
    splits: dict[tuple[Any, ...], Any] = field(default_factory=dict, compare=False, repr=False)
    """What one group of a compilation has split into parts and others read too (``split.bf16``,
    ``conv.packed_image``)."""
    images: Mapping[Storage, Any] = field(default_factory=dict, compare=False, repr=False)
    """What convolutions write for each other, split and padded (``layout.packed_images``)."""
    between: Mapping[Storage, Any] = field(default_factory=dict, compare=False, repr=False)
    """Pointwise convolutions by what they write, which only a depthwise one reads: one step makes both
    (``conv.pointwise_depthwise``)."""
    beside: Mapping[Storage, Any] = field(default_factory=dict, compare=False, repr=False)
    """Convolutions by what would hold their sums, which another adds to its own: one step makes both
    (``conv.summed_pair``)."""
    unsigned: frozenset[Storage] = field(default=frozenset(), compare=False, repr=False)
    """What holds no negative number (``lower.signs``)."""
    handed: Mapping[Storage, Any] = field(default_factory=dict, compare=False, repr=False)
    """What is written in tiles for the matrix products that read it (``layout.packed_operands``)."""

    tiled: dict[int, tuple[object, int | None]] = field(default_factory=dict, compare=False, repr=False)
    """Convolutions by their ``id``, and how many parts they are split into (``conv.on_tiles``)."""

    def writes_past(self, view: View) -> bool:
        """Whether a result goes past the caches: a store that finds no line in them reads it first, which is in vain.

        What a later step reads stays within them.
        """
        is_callers = view.storage.kind == "output" and self.isa.name in ("amx", "avx512")
        return is_callers and self.exceeds_cache(view, FAR)

    def exceeds_cache(self, view: View, times: int = 1) -> bool:
        """Whether a view is known to be larger than the cache that is a core's own, or than several such."""
        nbytes = dims.mul(dims.product(view.shape), view.dtype.itemsize)
        return isinstance(nbytes, int) and nbytes > times * self.isa.l2_nbytes


def either(
    few: Only, target: Target, quick: Callable[[Target], list[Step]], other: Callable[[Target], list[Step]]
) -> list[Step]:
    """Steps for sizes in a range, and others beyond it.

    What one of them has split is there for those alone that are carried out for the same sizes.
    """
    made: list[Step] = []
    for only, way in ((few, quick), (few.otherwise, other)):
        known = {key[1:]: found for key, found in target.splits.items() if key[0] == only}
        made += (replace(step, only=only) for step in way(replace(target, splits=known, images={})))
        target.splits.update({(only, *key): found for key, found in known.items()})
    return made


class Exceptional(Exception):
    """A constant turned out, while it was packed, to hold numbers that its layout does not carry."""

    def __init__(self, identity: object) -> None:
        super().__init__(identity)
        self.identity = identity

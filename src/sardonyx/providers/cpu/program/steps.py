"""Steps: kernels with their arguments, before sizes are known; and the target that they are made for."""

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
"""Results larger than so many times the L2 cache are not found in caches by their reader."""


@dataclass(frozen=True)
class Ref:
    """A memory argument: a storage, and the offset of the kernel's element 0."""

    storage: Storage
    offset: Known = 0
    """In elements of the storage's type."""

    @staticmethod
    def of(view: View) -> Ref:
        return Ref(view.storage, view.offset)


@dataclass(frozen=True)
class Slot:
    """A number argument: the index of a moving storage's address among the bases of a run."""

    storage: IndirectStorage


@dataclass(frozen=True)
class Holds:
    """A number argument: 1 where conditions on sizes hold, else 0."""

    checks: tuple[Check, ...]


DOUBLED = 1 << 20
"""Elements of weights up to which two packed layouts are stored, where only the run tells which is quicker."""


@dataclass(frozen=True)
class Step:
    """One call of a kernel by every thread of the team."""

    spec: Spec
    args: Mapping[str, Ref | Slot | Holds | Known | float]
    """By parameter name: memory, or a number, which may be an expression of sizes."""
    writes: frozenset[str]
    """The memory parameters that the kernel writes; it only reads the others."""
    nodes: tuple[Node, ...]
    scratch_nbytes: Known = 0
    """Scratch bytes of each thread."""
    flops: Known = 0
    nbytes: Known = 0
    """Work, for traces, roofline shares and the choice of threads."""
    variant: str = ""
    """Which of several kernels was chosen, and why, for ``explain()``."""
    is_control: bool = False
    """A control step: one thread carries it out while the others wait, and it may decide which step comes next."""
    repeats: int = 0
    """How many steps right before this one form the loop that it may jump back over."""
    is_bounded: bool = True
    """Whether sizes bound the number of trips."""
    turns: Known = 1
    """How often the step runs in a run of the part."""
    only: Only | None = None
    """The sizes for which it runs; None for all."""

    def verify(self) -> None:
        """That the kernel's memory parameters have elements as large as those of the storages; bytes fit any."""
        for name, (kind, dtype) in self.spec.params.items():
            arg = self.args[name]
            if kind == "memory" and isinstance(arg, Ref) and dtype.bits not in (8, arg.storage.dtype.bits):
                raise TypeError(f"{self.spec.name} takes {name} as {dtype}, it is given {arg.storage.dtype}")


@dataclass(eq=False)
class Packed(Storage):
    """A constant in the layout of a kernel, packed when it is first needed and shared by equal ``key``."""

    key: tuple[Any, ...] = ()
    make: Callable[[], Any] = field(default=lambda: None)
    """Returns the packed array."""
    packing: Packing | None = None
    """The call of a kernel that packs it, where a tensor is all that is needed; it may report numbers as not
    representable that ``make`` accepts."""


@dataclass(frozen=True)
class Target:
    """What code is compiled for: the chip, the precision of contractions, and what layout passes found."""

    isa: Isa
    precision: str = "highest"
    """``highest``, ``high`` or ``medium``."""
    is_inside: bool = False
    """Whether the groups are a body of control flow: what they write may be read outside of it."""
    is_repeated: bool = False
    """Whether the groups are the body of a loop."""
    is_stepwise: bool = False
    """Whether runs bring a few rows at a time, as decoding with a KV cache does."""
    unrepresentable: frozenset[object] = frozenset()
    """Constants, by ``constants.identity``, with numbers outside the range of bf16 terms."""
    splits: dict[tuple[Any, ...], Any] = field(default_factory=dict, compare=False, repr=False)
    """Operands that one group has split and others read too (``split.bf16``, ``conv.packed_image``)."""
    images: Mapping[Storage, Any] = field(default_factory=dict, compare=False, repr=False)
    """Images that a convolution packs for its consumer (``layout.packed_images``)."""
    fused_pairs: Mapping[Storage, Any] = field(default_factory=dict, compare=False, repr=False)
    """Pointwise convolutions, by their output, whose only reader is a depthwise convolution: one fused step computes
    both (``conv.pointwise_depthwise``)."""
    summed_pairs: Mapping[Storage, Any] = field(default_factory=dict, compare=False, repr=False)
    """Convolutions, by their output, that another one adds to its own sums: one step computes both
    (``conv.summed_pair``)."""
    unsigned: frozenset[Storage] = field(default=frozenset(), compare=False, repr=False)
    """Storages without negative numbers (``lower.analysis.signs``)."""
    packed_operands: Mapping[Storage, Any] = field(default_factory=dict, compare=False, repr=False)
    """Results written in the packed layout of the matrix product that reads them (``layout.packed_operands``)."""

    tiled: dict[int, tuple[object, int | None]] = field(default_factory=dict, compare=False, repr=False)
    """Convolutions on tiles by their ``id``, with the number of bf16 terms (``conv.on_tiles``)."""

    def writes_non_temporal(self, view: View) -> bool:
        """Whether a result is written with non-temporal stores: it is larger than the caches and no step reads it, so
        an ordinary store would load lines in vain."""
        is_callers = view.storage.kind == "output" and self.isa.name in ("amx", "avx512")
        return is_callers and self.exceeds_cache(view, FAR)

    def exceeds_cache(self, view: View, times: int = 1) -> bool:
        """Whether a view is known to be larger than so many times the L2 cache."""
        nbytes = dims.mul(dims.product(view.shape), view.dtype.itemsize)
        return isinstance(nbytes, int) and nbytes > times * self.isa.l2_nbytes


def either(
    few: Only, target: Target, quick: Callable[[Target], list[Step]], other: Callable[[Target], list[Step]]
) -> list[Step]:
    """Steps for sizes in a range, and others for sizes outside of it.

    Operands that one of them splits are shared only among steps for the same sizes.
    """
    made: list[Step] = []
    for only, way in ((few, quick), (few.otherwise, other)):
        known = {key[1:]: found for key, found in target.splits.items() if key[0] == only}
        made += (replace(step, only=only) for step in way(replace(target, splits=known, images={})))
        target.splits.update({(only, *key): found for key, found in known.items()})
    return made


class Unrepresentable(Exception):
    """A constant holds numbers that its packed layout cannot represent; found while it was packed."""

    def __init__(self, identity: object) -> None:
        super().__init__(identity)
        self.identity = identity

"""Steps: kernels with their arguments, before sizes are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.lower.check import Check
from sardonyx.lower.groups import IndirectStorage, Storage, View
from sardonyx.plan.sizes import SizeRange as SizeRange  # noqa: PLC0414 -- kernels know it as a part of steps
from sardonyx.providers.cpu.language.dsl import Spec
from sardonyx.providers.cpu.program.prepack import Packing
from sardonyx.records import Record

if TYPE_CHECKING:
    from sardonyx.providers.cpu.program.variants import Choice


class Ref(Record):
    """A memory argument: a storage, and the offset of the kernel's element 0."""

    storage: Storage
    offset: Known = 0
    """In elements of the storage's type."""

    @staticmethod
    def of(view: View) -> Ref:
        return Ref(view.storage, view.offset)


class Slot(Record):
    """A number argument: the index of a moving storage's address among the bases of a run."""

    storage: IndirectStorage


class Holds(Record):
    """A number argument: 1 where conditions on sizes hold, else 0."""

    checks: tuple[Check, ...]


class Step(Record):
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
    executions: Known = 1
    """How often the step runs in a run of the part."""
    only: SizeRange | None = None
    """The sizes for which it runs; None for all."""
    can_fail: bool = False
    """Whether the kernel may refuse what it reads, an index for instance: it then runs though its results are empty."""
    choice: Choice | None = field(default=None, compare=False, repr=False)
    """Why its kernel carries out the group that it is of, for ``explain()``."""

    def verify(self) -> None:
        """Check that the kernel's memory parameters have elements as large as those of the storages. Parameters of
        bytes fit all storages.
        """
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


class Unrepresentable(Exception):
    """A constant holds numbers that its packed layout cannot represent; found while it was packed."""

    def __init__(self, identity: object) -> None:
        super().__init__(identity)
        self.identity = identity

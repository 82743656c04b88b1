"""The provider interface. Protocols only: providers need not inherit from anything here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from sardonyx.interpret.context import RunContext
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.records import Record

if TYPE_CHECKING:
    from sardonyx.optimize.report import Report

__all__ = ["Claims", "Declined", "Executable", "Memory", "Part", "Planned", "Provider", "RunContext", "RunsPlanned"]

Claims = dict[Node, str | None]
"""Node by node: None for yes, else the reason why not."""


class Part(Record):
    """Nodes that one provider runs together, with the part's inputs and outputs."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


class Declined(Exception):
    """A provider cannot compile a part whose nodes it claimed, for the reason given."""


class Executable(Protocol):
    """A compiled part. Any number of threads may run it at once, each with its own context."""

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        """The part's outputs for its inputs, in the order of ``Part``."""


class Memory(Record):
    """The memory that a part takes for one set of shapes, computed before it is allocated."""

    constants_nbytes: int
    intermediates_nbytes: int
    least_nbytes: int
    """The largest set of intermediates that are live at the same time: a lower bound for any plan."""
    scratch_nbytes: int
    outputs_nbytes: int

    @property
    def peak_nbytes(self) -> int:
        return self.constants_nbytes + self.intermediates_nbytes + self.scratch_nbytes + self.outputs_nbytes


class StepRow(NamedTuple):
    """A step of a compiled part, for ``explain(stage="cpu")``."""

    kernel: str
    variant: str
    """What the kernel was specialized for; empty if there is only one form."""
    nodes: tuple[str, ...]
    """The nodes that it computes, at least in part."""
    chosen: str = ""
    """The kernel variant that computes its group, by its name in ``session.kernel.force``."""
    refusals: tuple[tuple[str, str], ...] = ()
    """Variants that would have been preferred, and why they declined."""


@runtime_checkable
class Stepped(Protocol):
    """An executable that is a sequence of kernels."""

    def rows(self) -> list[StepRow]: ...


@runtime_checkable
class Planned(Protocol):
    """An executable that plans its memory."""

    def memory(self, shapes: Sequence[tuple[int, ...]]) -> Memory:
        """The memory for these shapes of the part's inputs."""


@runtime_checkable
class RunsPlanned(Protocol):
    """An executable whose outputs share no memory, and that can run without a context."""

    def run_planned(self, args: Sequence[Any], places: Mapping[int, Any] | None = None) -> list[Any] | None:
        """The outputs, if the shapes have a plan; may return None for others.

        ``places`` are arrays into which outputs may be written.
        """


class Provider(Protocol):
    """A backend that runs nodes."""

    name: str

    def probe(self) -> str | None:
        """None if usable on this machine, else the reason to show."""

    def claims(self, graph: Graph) -> Claims:
        """Which nodes of a graph this provider can run."""

    def prepare(self, graph: Graph, owned: list[Node]) -> Report | None:
        """Rewrite the nodes that this provider owns into the form that it runs best; it owns the nodes that it adds.

        The report, if any, is shown by ``session.explain()``.
        """

    def compile(self, part: Part) -> Executable:
        """Compile a part. Raising Declined hands the part to the last provider of the chain."""

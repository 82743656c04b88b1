"""What a provider is. Protocols only: providers need not inherit from anything here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from sardonyx.interpret.context import RunContext
from sardonyx.ir.graph import Graph, Node, Value
from sardonyx.records import Record

if TYPE_CHECKING:
    from sardonyx.optimize.report import Report

__all__ = ["Claims", "Declined", "Executable", "Memory", "Part", "Planned", "Provider", "Quick", "RunContext"]

Claims = dict[Node, str | None]
"""Node by node: None for yes, else the reason why not."""


class Part(Record):
    """Nodes that one provider runs together, and the values that cross its border."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


class Declined(Exception):
    """A provider cannot compile a part whose nodes it claimed, for the reason given."""


class Executable(Protocol):
    """A compiled part. Safe to run from many threads at once, each with a context of its own."""

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        """The part's outputs for its inputs, in the order of ``Part``."""


class Memory(Record):
    """What a part takes for one set of shapes, known before any of it is taken."""

    constants_nbytes: int
    intermediates_nbytes: int
    least_nbytes: int
    """The largest set of intermediates that live at once: no plan needs less for them."""
    scratch_nbytes: int
    outputs_nbytes: int

    @property
    def peak_nbytes(self) -> int:
        return self.constants_nbytes + self.intermediates_nbytes + self.scratch_nbytes + self.outputs_nbytes


class StepRow(NamedTuple):
    """A step of a compiled part, for ``explain(stage="cpu")``."""

    kernel: str
    variant: str
    """What the kernel was specialized for; empty where there is one form of it."""
    nodes: tuple[str, ...]
    """The nodes that it computes, or a part of."""
    chosen: str = ""
    """The kernel variant that carries out its group, as ``session.kernel.force`` names it."""
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
        """For the shapes of the part's inputs."""


@runtime_checkable
class Quick(Protocol):
    """An executable whose outputs share memory with nothing, and that can run without a context."""

    def run_again(self, args: Sequence[Any], places: Mapping[int, Any] | None = None) -> list[Any] | None:
        """The outputs, for shapes that ran before or are planned as such are; None for others, perhaps.

        ``places`` are arrays that outputs may be computed right into.
        """


class Provider(Protocol):
    """A way to run nodes."""

    name: str

    def probe(self) -> str | None:
        """None when usable on this machine, else the sentence to show."""

    def claims(self, graph: Graph) -> Claims:
        """Which nodes of a graph this provider can run."""

    def prepare(self, graph: Graph, owned: list[Node]) -> Report | None:
        """Rewrite the nodes that this provider owns to the form that it runs best; it owns the nodes that it adds.

        The report, if any, is shown by ``session.explain()``.
        """

    def compile(self, part: Part) -> Executable:
        """Make a part ready to run; Declined hands it to the last provider of the chain."""

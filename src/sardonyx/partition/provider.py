"""What a provider is. Protocols only: providers need not inherit from anything here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sardonyx.interpret.context import RunContext
from sardonyx.ir.graph import Graph, Node, Value

__all__ = ["Claims", "Executable", "Part", "Provider", "RunContext"]

Claims = dict[Node, str | None]
"""Node by node: None for yes, else the reason why not."""


@dataclass(frozen=True)
class Part:
    """Nodes that one provider runs together, and the values that cross its border."""

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


class Executable(Protocol):
    """A compiled part. Safe to run from many threads at once, each with a context of its own."""

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        """The part's outputs for its inputs, in the order of ``Part``."""


class Provider(Protocol):
    """A way to run nodes."""

    name: str

    def probe(self) -> str | None:
        """None when usable on this machine, else the sentence to show."""

    def claims(self, graph: Graph) -> Claims:
        """Which nodes of a graph this provider can run."""

    def prepare(self, graph: Graph, owned: list[Node]) -> None:
        """Rewrite the nodes that this provider owns to the form it runs best; nodes it adds are its own."""

    def compile(self, part: Part) -> Executable:
        """Make a part ready to run."""

"""Nodes that are compiled when a run tells what they wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sardonyx import forks
from sardonyx.partition.provider import Executable, RunContext

MAX_KINDS = 32
"""Kinds for which nodes are compiled; others run on numpy, where operands that never repeat belong."""

_compiling = forks.rlock()
"""Held for seconds, while a kind is compiled."""


class Kind(NamedTuple):
    """What decides how nodes are compiled: elements of operands, shapes of inputs."""

    contents: tuple[bytes | None, ...]
    shapes: tuple[tuple[int, ...], ...]


class Reads(NamedTuple):
    """The inputs, by number, that decide the kind."""

    steering: tuple[int, ...]
    """By their elements, where they are few."""
    open: tuple[int, ...]
    """By their shapes."""
    most: int
    """Elements that are few."""

    def kind(self, args: Sequence[Any]) -> Kind:
        contents = tuple([args[i].tobytes() if args[i].size <= self.most else None for i in self.steering])
        return Kind(contents, tuple([args[i].shape for i in (*self.open, *self.steering)]))


class Late:
    """Nodes compiled for each content of the operands that steer them, and each shape of inputs of unknown rank."""

    def __init__(
        self,
        name: str,
        reads: Reads,
        compile: Callable[[Sequence[Any]], Executable],
        otherwise: Callable[[], Executable],
    ) -> None:
        """``name`` tells the nodes from all others of the model.

        ``compile`` makes them ready for the kind of some arguments; ``otherwise``, for every kind.
        """
        self.name, self.reads = name, reads
        self._compile, self._otherwise = compile, otherwise
        self.keep: Callable[[Kind, Executable], object] | None = None
        """Is given what was compiled."""
        self._made: dict[Kind, Executable] = {}

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        kind = self.reads.kind(args)
        found = self._made.get(kind)
        if found is None:
            with _compiling:
                found = self._made.get(kind)
                if found is None and len(self._made) < MAX_KINDS:
                    found = self._made[kind] = self._compile(args)
                    if self.keep is not None:
                        self.keep(kind, found)
        return (found or self._otherwise()).run(args, context)

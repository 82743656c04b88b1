"""Nodes that are compiled in a run, once for each set of operand contents and shapes that decides their code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sardonyx import forks
from sardonyx.partition.provider import Executable, RunContext

MAX_SPECIALIZATIONS = 32
"""Further ones run on numpy: operands that never repeat are not worth compiling for."""
TOO_MANY = (
    f"runs brought more than {MAX_SPECIALIZATIONS} different shapes, or contents of operands that decide shapes or "
    "axes, and the nodes are compiled for so many"
)

_compiling = forks.rlock()
"""Held for the seconds that a compilation takes."""


class SpecializationKey(NamedTuple):
    """What decides how nodes are compiled: contents of small operands, shapes of inputs."""

    contents: tuple[bytes | None, ...]
    shapes: tuple[tuple[int, ...], ...]


class KeyInputs(NamedTuple):
    """The inputs, by number, that make up a specialization's key."""

    compile_time: tuple[int, ...]
    """Inputs whose contents are in the key, if they have up to ``max_elements`` elements."""
    open: tuple[int, ...]
    """Inputs whose shapes alone are in the key."""
    max_elements: int

    def key(self, args: Sequence[Any]) -> SpecializationKey:
        contents, shapes = [], [args[i].shape for i in self.open]
        for i in self.compile_time:
            given = args[i]
            contents.append(given.tobytes() if given.size <= self.max_elements else None)
            shapes.append(given.shape)
        return SpecializationKey(tuple(contents), tuple(shapes))


class DeferredExecutable:
    """Compiles its nodes for the key of a run's arguments, and reuses what it compiled for that key before."""

    def __init__(
        self,
        name: str,
        reads: KeyInputs,
        compile: Callable[[Sequence[Any]], Executable | None],
        otherwise: Callable[[], Executable],
        nodes: Sequence[str] = (),
        on_numpy: dict[str, str] | None = None,
    ) -> None:
        """``name`` is unique in the model. ``compile`` specializes for some arguments, or returns None if that is not
        worth it.

        ``otherwise`` makes the executable for all arguments without a specialization; when a run takes it, the names of
        the ``nodes`` are put into ``on_numpy``, with the reason.
        """
        self.name, self.reads = name, reads
        self.nodes, self._on_numpy = nodes, {} if on_numpy is None else on_numpy
        self._compile, self._otherwise = compile, otherwise
        self._fallback: Executable | None = None
        self.keep: Callable[[SpecializationKey, Executable], object] | None = None
        """Called with each new specialization, to write it to the compiled-model cache."""
        self._made: dict[SpecializationKey, Executable] = {}

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        key = self.reads.key(args)
        found = self._made.get(key)
        if found is None:
            with _compiling:
                found = self._made.get(key)
                if found is None and len(self._made) < MAX_SPECIALIZATIONS:
                    found = self._compile(args)
                    if found is not None:
                        self._made[key] = found
                    if found is not None and self.keep is not None:
                        self.keep(key, found)
        if found is None:
            self._on_numpy.update(dict.fromkeys(self.nodes, TOO_MANY))
            found = self.fallback()
        return found.run(args, context)

    @property
    def planned_run(self) -> Callable[[Sequence[Any]], Sequence[Any] | None]:
        """Runs what was compiled for the key of the arguments, if it can without a context; None for other keys."""
        return self._run_planned

    def _run_planned(self, args: Sequence[Any]) -> Sequence[Any] | None:
        found = self._made.get(self.reads.key(args))
        planned: Callable[[Sequence[Any]], Sequence[Any] | None] | None = getattr(found, "planned_run", None)
        return None if planned is None else planned(args)

    def fallback(self) -> Executable:
        """The executable for all arguments without a specialization."""
        if self._fallback is None:
            self._fallback = self._otherwise()
        return self._fallback

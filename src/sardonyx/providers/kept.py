"""Compiled parts in plain values and arrays, from which others are made that run as they do, without the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sardonyx.interpret import kept as programs
from sardonyx.interpret.kept import KeptProgram, ModelNeeded, Unkept
from sardonyx.interpret.program import Program
from sardonyx.interpret.single import Single
from sardonyx.partition.chain import Chain, Link
from sardonyx.partition.provider import Executable
from sardonyx.providers.cpu.program.prepack import Source
from sardonyx.providers.cpu.runtime import serialize as tables
from sardonyx.providers.cpu.runtime.deferred import Kind, Late, Reads
from sardonyx.providers.cpu.runtime.executable import CpuExecutable

if TYPE_CHECKING:
    from sardonyx.providers.cpu import CpuProvider

Frozen = tuple[str, Any]
"""What kind of executable, and its plain values."""


class Freezer:
    """Takes executables to pieces, and gathers their arrays."""

    def __init__(self, file: object = None) -> None:
        """``file`` is what the origins of the model's tensors know its file by, if that may be asked for arrays."""
        self._file = file
        self.arrays: list[Any] = []
        self.sources: list[Source | None] = []
        """Of each array, where the file has what it is made of."""
        self._late: set[str] = set()

    def chain(self, made: Any) -> tuple[Any, ...]:
        """Of what is a chain: the parts of a graph, or the pieces of one."""
        chain: Chain | None = getattr(made, "chain", None)
        if chain is None:
            raise Unkept(f"{type(made).__name__} is not a chain of what can be kept")
        return chain.inputs, [(self.executable(link.executable), link.takes) for link in chain.links], chain.gives

    def executable(self, executable: Executable) -> Frozen:
        if isinstance(executable, CpuExecutable):
            return "table", self._with_arrays(*tables.freeze(executable), tables.sources(executable, self._file))
        if isinstance(executable, Single):
            return "single", self._with_arrays(*programs.freeze(executable.program))
        if isinstance(executable, Program):
            return "program", self._with_arrays(*programs.freeze(executable))
        if isinstance(executable, Late):
            if executable.name in self._late:
                raise Unkept("what waits for a run has no name of its own")
            self._late.add(executable.name)
            return "late", (executable.name, tuple(executable.reads))
        return "chain", self.chain(executable)

    def _with_arrays(
        self, plain: dict[str, Any], arrays: Sequence[Any], sources: Sequence[Source | None] | None = None
    ) -> tuple[dict[str, Any], int, int]:
        """Plain values, and where their arrays are."""
        first = len(self.arrays)
        self.arrays += arrays
        self.sources += sources or [None] * len(arrays)
        return plain, first, len(self.arrays)


class Gone(Exception):
    """A compiled object that executables need is no longer there."""


class Reviver:
    """Puts executables together again. What a run of theirs lacks, the model has: they raise ``ModelNeeded``."""

    def __init__(
        self, arrays: Sequence[Any], provider: CpuProvider, find: Callable[[str, Kind], Executable | None] | None
    ) -> None:
        """``find`` gives a kind of the nodes of a name, if it was kept; None where no nodes wait for a run."""
        self._arrays, self._provider, self._find = arrays, provider, find

    def chain(self, plain: Any) -> Chain:
        inputs, links, gives = plain
        return Chain(inputs, [Link(self.executable(frozen), takes) for frozen, takes in links], gives)

    def executable(self, frozen: Frozen) -> Executable:
        kind, plain = frozen
        if kind == "chain":
            return self.chain(plain)
        if kind == "late":
            name, reads = plain
            return self._late(name, Reads(*reads))
        plain, first, end = plain
        arrays = self._arrays[first:end]
        if kind == "table":
            made = tables.revive(plain, arrays, self._provider)
            if made is None:
                raise Gone
            return made
        program = KeptProgram(plain, arrays)
        return Single(program) if kind == "single" else program

    def _late(self, name: str, reads: Reads) -> Late:
        find = self._find
        assert find is not None

        def found(args: Sequence[Any]) -> Executable:
            return find(name, reads.kind(args)) or missing()

        def missing() -> Executable:
            raise ModelNeeded

        return Late(name, reads, found, missing)


def lates(made: Any) -> Iterator[Late]:
    """What waits for a run in the parts of a graph."""
    for _, executable in made.compiled:
        if isinstance(executable, Late):
            yield executable
        elif hasattr(executable, "compiled"):
            yield from lates(executable)

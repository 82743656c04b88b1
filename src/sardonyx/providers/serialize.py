"""Serialization of executables to plain values and arrays; deserialization does not need the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sardonyx.errors import SardonyxError
from sardonyx.interpret import serialize as programs
from sardonyx.interpret.context import ModelNeeded
from sardonyx.interpret.program import Program
from sardonyx.interpret.serialize import DeserializedProgram, NotSerializable
from sardonyx.interpret.single import Single
from sardonyx.partition.chain import Chain, Link
from sardonyx.partition.provider import Executable
from sardonyx.providers.cpu.program.prepack import Source, StreamSource
from sardonyx.providers.cpu.runtime import serialize as tables
from sardonyx.providers.cpu.runtime.deferred import DeferredExecutable, KeyInputs, SpecializationKey
from sardonyx.providers.cpu.runtime.executable import CpuExecutable

if TYPE_CHECKING:
    from sardonyx.providers.cpu import CpuProvider
    from sardonyx.providers.cpu.runtime.tier_up import TierUp

MAX_FALLBACK_NBYTES = 1 << 16
"""Largest total size of the constants of nodes whose numpy program is stored beside their specializations."""
MAX_ASKED = 1 << 12
"""Of keys without a specialization, so many are remembered."""
Serialized = tuple[str, Any]
"""The kind of an executable, and its plain values."""


class Serializer:
    """Converts executables to plain values and collects their arrays."""

    def __init__(self, files: Sequence[object] = ()) -> None:
        """``files`` identify the model's files, from which large arrays may be read again instead of being stored."""
        self._files = {file: number for number, file in enumerate(files)}
        self.arrays: list[Any] = []
        self.sources: list[Source | StreamSource | None] = []
        """For each array, what it can be made from instead, if anything."""
        self._deferred: set[str] = set()

    def chain(self, made: Any) -> tuple[Any, ...]:
        """Serialize the parts of a graph, or of a dynamic partition."""
        chain: Chain | None = getattr(made, "chain", None)
        if chain is None:
            raise NotSerializable(f"{type(made).__name__} cannot be serialized")
        links = [(self.executable(link.executable), link.takes) for link in chain.links]
        first = len(self.arrays)
        self._with_arrays({}, [value for _, value in chain.constants])
        return chain.inputs, links, chain.gives, [i for i, _ in chain.constants], first

    def executable(self, executable: Executable) -> Serialized:
        if isinstance(executable, CpuExecutable):
            plain, arrays = tables.serialize(executable)
            by_shape = executable.specialized
            is_alone = by_shape is not None and by_shape.name not in self._deferred
            plain["specialized"] = self._deferred_plain(by_shape) if by_shape is not None and is_alone else None
            return "table", self._with_arrays(plain, arrays, tables.sources(executable, self._files))
        if isinstance(executable, Single):
            return "single", self._with_arrays(*programs.serialize(executable.program, self.executable))
        if isinstance(executable, Program):
            return "program", self._with_arrays(*programs.serialize(executable, self.executable))
        if isinstance(executable, DeferredExecutable):
            if executable.name in self._deferred:
                raise NotSerializable("two deferred parts have one name")
            return "deferred", self._deferred_plain(executable)
        return "chain", self.chain(executable)

    def _deferred_plain(self, executable: DeferredExecutable) -> tuple[Any, ...]:
        self._deferred.add(executable.name)
        return executable.name, tuple(executable.reads), self._fallback(executable), tuple(executable.nodes)

    def _fallback(self, executable: DeferredExecutable) -> Serialized | None:
        """The numpy program of nodes, unless there is none or its constants are large."""
        try:
            program = executable.fallback()
        except SardonyxError:
            return None
        constants = program._constants if isinstance(program, Program) else ()
        nbytes = sum(0 if value.const is None else value.const.nbytes for _, value in constants)
        if not isinstance(program, Program) or nbytes > MAX_FALLBACK_NBYTES:
            return None
        first = len(self.arrays)
        try:
            return self.executable(program)
        except NotSerializable:
            del self.arrays[first:], self.sources[first:]
            return None

    def _with_arrays(
        self,
        plain: dict[str, Any],
        arrays: Sequence[Any],
        sources: Sequence[Source | StreamSource | None] | None = None,
    ) -> tuple[dict[str, Any], int, int]:
        """Plain values, and the indices of their arrays."""
        first = len(self.arrays)
        self.arrays += arrays
        self.sources += sources or [None] * len(arrays)
        return plain, first, len(self.arrays)


class ObjectMissing(Exception):
    """The object file of a kernel is no longer in the cache."""


class Specializations(Protocol):
    """The cached specializations of some nodes."""

    @property
    def is_full(self) -> bool:
        """Whether a further one would replace another: there are more than are worth compiling."""
        ...

    def read(self, kind: SpecializationKey) -> Executable | None: ...


class Deserializer:
    """Creates executables from plain values. A run that needs more than was stored raises ``ModelNeeded``."""

    def __init__(
        self,
        arrays: Sequence[Any],
        provider: CpuProvider,
        find: Callable[[str], Specializations] | None,
    ) -> None:
        """``find`` returns cached specializations by the name of their nodes; None if no nodes are specialized in
        runs."""
        self._arrays, self._provider, self._find = arrays, provider, find

    def chain(self, plain: Any) -> Chain:
        inputs, links, gives, constants, first = plain
        made = [Link(self.executable(serialized), takes) for serialized, takes in links]
        return Chain(inputs, made, gives, list(zip(constants, self._arrays[first:], strict=False)))

    def executable(self, serialized: Serialized) -> Executable:
        kind, plain = serialized
        if kind == "chain":
            return self.chain(plain)
        if kind == "deferred":
            return self._deferred(*plain)
        plain, first, end = plain
        arrays = self._arrays[first:end]
        if kind == "table":
            by_shape = plain["specialized"]
            specialized = None if by_shape is None or self._find is None else self._deferred(*by_shape)
            made = tables.deserialize(plain, arrays, self._provider, specialized)
            if made is None:
                raise ObjectMissing
            return made
        program = DeserializedProgram(plain, arrays, self.executable)
        return Single(program) if kind == "single" else program

    def _deferred(
        self, name: str, reads: Sequence[Any], serialized: Serialized | None, nodes: Sequence[str]
    ) -> DeferredExecutable:
        """Nodes that run for keys that are in the cache. Others need the model, which compiles and caches them; if the
        cache is full of them, those that have not been asked for before run on numpy.
        """
        assert self._find is not None
        stored, inputs = self._find(name), KeyInputs(*reads)
        asked: set[SpecializationKey] = set()

        def found(args: Sequence[Any]) -> Executable | None:
            key = inputs.key(args)
            specialized = stored.read(key)
            if specialized is None:
                if serialized is None or key in asked or len(asked) >= MAX_ASKED or not stored.is_full:
                    raise ModelNeeded
                asked.add(key)
            return specialized

        def fallback() -> Executable:
            if serialized is None:
                raise ModelNeeded
            return self.executable(serialized)

        return DeferredExecutable(name, inputs, found, fallback, nodes, self._provider.on_numpy)


def deferred_executables(made: Any) -> Iterator[DeferredExecutable]:
    """All that compiles for contents or shapes that runs bring: deferred parts, and what other parts do not run."""
    for executable in executables(made):
        if isinstance(executable, DeferredExecutable):
            yield executable
        elif isinstance(executable, CpuExecutable) and executable.specialized is not None:
            yield executable.specialized


def compile_packing(made: Any) -> None:
    """Put the kernels that pack the constants of a graph's parts into the object cache."""
    for executable in executables(made):
        if isinstance(executable, CpuExecutable):
            tables.compile_packing(executable)


def tier_ups_of(made: Any) -> list[TierUp]:
    """What replaces the baseline code of a graph's parts."""
    found = (each.tier_up for each in executables(made) if isinstance(each, CpuExecutable))
    return [each for each in found if each is not None]


def executables(made: Any) -> Iterator[Executable]:
    """The executables of a graph's parts, those of bodies that Python calls included."""
    for _, executable in made.compiled:
        if isinstance(executable, Program):
            for body in executable.bodies():
                yield from executables(body) if hasattr(body, "compiled") else ()
        if hasattr(executable, "compiled"):
            yield from executables(executable)
        else:
            yield executable

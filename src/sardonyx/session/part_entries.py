"""Cache entries of what runs compile: specializations of nodes, and versions of a model that append to states.

They lie beside the model's own entry and have its name with a suffix. There are at most as many as a process compiles;
a further one replaces the oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sardonyx import digests, entries
from sardonyx.entries import Entry
from sardonyx.files import SourceFile
from sardonyx.folders import Place, PrivateFolder
from sardonyx.interpret.serialize import NotSerializable
from sardonyx.partition.chain import Chain
from sardonyx.partition.provider import Executable
from sardonyx.providers.cpu.machine import object_cache
from sardonyx.providers.cpu.runtime.deferred import MAX_SPECIALIZATIONS, DeferredExecutable, SpecializationKey
from sardonyx.providers.cpu.runtime.executable import MAX_APPENDING, CpuExecutable, StatesKey
from sardonyx.providers.cpu.runtime.serialize import Found
from sardonyx.providers.serialize import Deserializer, ObjectMissing, Serializer, executables, tier_ups_of
from sardonyx.session import array_file, cache_writer

STATES = "0" * 16
"""In names of entries, what versions for states have in the place of the digest of specialized nodes."""
START_NBYTES = 64
"""Arrays are compared only if this many first bytes are equal."""


class Deserialized(NamedTuple):
    """An entry's contents."""

    digest: bytes
    stored: dict[str, Any]
    """Plain values."""
    chain: Chain
    defaults: Sequence[Any]
    """The arrays that belong to no part."""


def deserialized(
    folder: PrivateFolder,
    name: str,
    provider: Any,
    find: Callable[[str], SpecializationEntries] | None,
    kind: Any = None,
    files_of: Callable[[dict[str, Any]], Sequence[SourceFile] | None] = lambda _: (),
) -> Deserialized | None:
    """The contents of an entry of this ``kind``. ``files_of`` opens the model's files, or returns None if the entry is
    not for what the model is now.
    """

    def use(entry: Entry) -> Deserialized | None:
        stored = array_file.plain_values(entry)
        if stored.get("kind") != kind:
            return None
        files = files_of(stored)
        if files is None:
            return None
        arrays = array_file.arrays_of(entry, stored, provider.threads, files)
        own = len(arrays) - len(stored["defaults"])
        try:
            chain = Deserializer(arrays[:own], provider, find).chain(stored["chain"])
        except (ObjectMissing, ImportError):
            return None
        return Deserialized(entry.digest, stored, chain, arrays[own:])

    with object_cache.kept_in(Place(folder.path, True)):
        return entries.read(folder, name, use)


class _Names:
    """The names of similar entries, of which the oldest are deleted when there are too many."""

    def __init__(self, folder: PrivateFolder, stem: str, most: int) -> None:
        self._folder, self._stem, self._most = folder, stem, most
        self._found: dict[str, None] | None = None
        """Those in the folder, the oldest first; None until they are asked for."""

    def of(self, kind: object) -> str:
        return f"{self._stem}-{digests.hexdigest(repr(kind).encode())[:16]}.start"

    def make_room(self, name: str) -> None:
        """Delete the oldest entries, so that there are not too many with a new one."""
        names = self._listed()
        names.pop(name, None)
        while len(names) >= self._most:
            oldest = next(iter(names))
            del names[oldest]
            self._folder.remove(oldest)
        names[name] = None

    @property
    def is_full(self) -> bool:
        return len(self._listed()) >= self._most

    def _listed(self) -> dict[str, None]:
        if self._found is None:
            found = [(info.st_mtime_ns, each) for each, info in self._folder.files() if each.startswith(self._stem)]
            self._found = dict.fromkeys(each for _, each in sorted(found))
        return self._found


class SpecializationEntries:
    """Cache entries of the specializations of some nodes."""

    def __init__(self, folder: PrivateFolder, stem: str, provider: Any) -> None:
        self._folder, self._provider = folder, provider
        self._names = _Names(folder, stem, MAX_SPECIALIZATIONS)

    def read(self, kind: SpecializationKey) -> Executable | None:
        name = self._names.of(kind)
        cache_writer.wait(name)
        found = deserialized(self._folder, name, self._provider, None, tuple(kind))
        return None if found is None else found.chain

    def write(self, kind: SpecializationKey, executable: Executable) -> None:
        """Write an entry in the background, once its code is optimized."""
        tier_ups = tier_ups_of(executable)
        for tier_up in tier_ups:
            tier_up.begin(outlives_program=True)
        write = partial(self._write, kind, executable)
        cache_writer.submit(self._folder, self._names.of(kind), write, lambda: all(each.is_over for each in tier_ups))

    def _write(self, kind: SpecializationKey, executable: Executable) -> None:
        serializer = Serializer()
        try:
            stored = {"kind": tuple(kind), "defaults": (), "chain": serializer.chain(executable)}
        except NotSerializable:
            return
        if not any(isinstance(e, DeferredExecutable) for e in executables(executable)):
            name = self._names.of(kind)
            self._names.make_room(name)
            array_file.write(self._folder, name, stored, serializer.arrays)

    @property
    def is_full(self) -> bool:
        return self._names.is_full


class ModelEntry:
    """The entry that a model's versions for states belong to, whose constants they use."""

    def __init__(self, name: str, constants: Sequence[Any], digest: bytes | None = None) -> None:
        """``constants`` are those of the whole model's executable; ``digest`` is set when the entry is written."""
        self.name, self.constants, self.digest = name, constants, digest


class StateEntries:
    """Cache entries of the versions of a whole model that append to states in place, by states and capacities.

    An entry holds the constants that the model's entry does not have. Where states cannot be appended to in place, it
    says so.
    """

    def __init__(self, folder: PrivateFolder, stem: str, provider: Any, model: ModelEntry) -> None:
        self._folder, self._provider, self._model = folder, provider, model
        self._names = _Names(folder, f"{stem}-{STATES}", MAX_APPENDING)

    def read(self, key: StatesKey) -> Found | None:
        name = self._names.of(key)
        cache_writer.wait(name)

        def use(entry: Entry) -> Found | None:
            stored = array_file.plain_values(entry)
            if stored["kind"] != key or stored["model"] != self._model.digest:
                return None
            if stored["table"] is None:
                return Found(None)
            arrays = array_file.arrays_of(entry, stored, self._provider.threads, (), self._model.constants)
            try:
                made: Any = Deserializer(arrays, self._provider, None).executable(stored["table"])
            except (ObjectMissing, ImportError):
                return None
            return Found(made)

        return entries.read(self._folder, name, use)

    def write(self, key: StatesKey, executable: CpuExecutable | None) -> None:
        """Write an entry in the background, once its code is optimized and the model's entry is written."""
        tier_up = None if executable is None else executable.tier_up
        if tier_up is not None:
            tier_up.begin(outlives_program=True)

        def is_ready() -> bool:
            return (tier_up is None or tier_up.is_over) and not cache_writer.is_pending(self._model.name)

        write = partial(self._write, key, executable)
        cache_writer.submit(self._folder, self._names.of(key), write, is_ready)

    def _write(self, key: StatesKey, executable: CpuExecutable | None) -> None:
        cache_writer.wait(self._model.name)
        if self._model.digest is None:
            return
        serializer, name = Serializer(), self._names.of(key)
        table = None if executable is None else serializer.executable(executable)
        stored = {"kind": key, "model": self._model.digest, "table": table}
        own = [i for i, source in enumerate(serializer.sources) if source is None]
        shared = _equal({i: serializer.arrays[i] for i in own}, self._model.constants)
        self._names.make_room(name)
        array_file.write(self._folder, name, stored, serializer.arrays, serializer.sources, shared)


def _equal(arrays: Mapping[int, Any], others: Iterable[Any]) -> dict[int, int]:
    """The positions of arrays, and of equal ones among the others."""
    candidates: dict[object, list[tuple[int, Any]]] = {}
    for i, other in enumerate(others):
        candidates.setdefault(_kind(other), []).append((i, other))
    found = {}
    for at, array in arrays.items():
        same = (i for i, other in candidates.get(_kind(array), ()) if other is array or _bytes(other) == _bytes(array))
        position = next(same, None)
        if position is not None:
            found[at] = position
    return found


def _kind(array: Any) -> tuple[object, ...]:
    """What equal arrays have in common, quickly."""
    return array.dtype, array.shape, bytes(_bytes(array)[:START_NBYTES])


def _bytes(array: Any) -> memoryview:
    return array_file.flat(array)

"""The compiled-model cache: engines of model files, in the folder that ``SARDONYX_CACHE`` names.

An entry holds all that a run needs: the step table, packed constants, and the descriptions of inputs and outputs. A
start reads one file; the model is loaded, lowered and explained only on demand. The file's name is a digest of
everything that its contents depend on: the model's file by size, time and path, options, chip, versions, and our own
sources. A model may have many parts: step tables, numpy functions with their attributes, and control flow whose bodies
Python calls. Executables that are specialized in a run have entries of their own. For models with large weights,
entries store how the weights are packed and where they lie in the model's file.

Not cached are models with external data, with custom operators, and with random numbers, whose streams belong to the
process.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import dtypes, entries, folders, forks, knobs
from sardonyx.entries import Entry
from sardonyx.files import SourceFile, identity_of
from sardonyx.folders import PrivateFolder
from sardonyx.interpret.context import Held
from sardonyx.interpret.serialize import ModelNeeded, NotSerializable
from sardonyx.ir.graph import Graph, Model, Value
from sardonyx.ir.types import MapType, SequenceType, TensorType, ValueType
from sardonyx.partition.chain import Chain
from sardonyx.partition.provider import Executable, Memory, RunContext, RunsPlanned
from sardonyx.providers.cpu import CpuProvider
from sardonyx.providers.cpu.runtime.deferred import MAX_SPECIALIZATIONS, DeferredExecutable, SpecializationKey
from sardonyx.providers.cpu.runtime.serialize import settings
from sardonyx.providers.serialize import Deserializer, ObjectMissing, Serializer, deferred_executables, executables
from sardonyx.session import array_file
from sardonyx.session.engine import BuildOptions, Engine
from sardonyx.session.metadata import ModelMetadata

if TYPE_CHECKING:
    from sardonyx.partition.parts import Parts
    from sardonyx.session.explain import Explanation


MAX_MODEL_RUNS = 8
"""After this many runs that needed the model, all runs without a plan use the model."""


class CachedEngine(Engine):
    """An engine from the cache; everything that runs do not need is built from the model on demand."""

    def __init__(
        self,
        stored: dict[str, Any],
        chain: Chain,
        defaults: Sequence[Any],
        built: _Model,
        phases: dict[str, float],
    ) -> None:
        """``defaults`` are the elements of the overridable initializers that ``stored`` names."""
        self._built, self._needed = built, 0
        self.source = built.file
        self.phases = phases
        self.inputs, self.outputs = ([_value(*row) for row in stored[side]] for side in ("inputs", "outputs"))
        self.overridable = [_value(*row) for row in stored["overridable"]]
        self._defaults = dict(zip(stored["defaults"], defaults, strict=True))
        self.names = tuple(stored["names"])
        self._positions = {name: i for i, name in enumerate(stored["output_names"])}
        self._sparse_outputs = frozenset()
        self._weights_nbytes = stored["weights_nbytes"]
        self._metadata = ModelMetadata(*stored["metadata"])
        whole: Executable = chain.links[0].executable if stored["is_whole"] else chain
        self._whole = whole
        self.planned = whole if isinstance(whole, RunsPlanned) else None  # type: ignore[assignment]
        self._stored_run = chain.planned_run if self.planned is None else self.planned.run_planned
        self.planned_run = None if self._stored_run is None else self._run_planned

    def run(self, feeds: dict[str, Any], wanted: Sequence[str], context: RunContext) -> list[Any]:
        if self._needed < MAX_MODEL_RUNS:
            try:
                return super().run(feeds, wanted, context)
            except ModelNeeded:
                self._needed += 1
        built = self._built()
        context.places = context.places if built.planned is not None else {}
        return built.run(feeds, wanted, context)

    def _run_planned(self, args: Sequence[Any], places: Mapping[int, Any] | None = None) -> Sequence[Any] | None:
        run_planned: Any = self._stored_run
        results: Sequence[Any] | None = run_planned(args, places) if places else run_planned(args)
        built = self._built.engine
        if results is not None or built is None or built.planned_run is None:
            return results
        return built.planned_run(args)

    def held(self, states: Iterable[tuple[str, str, int, Any]]) -> tuple[Held, ...]:
        return self._built().held(states)

    def memory(self, shapes: Mapping[str, Sequence[int]]) -> Memory:
        try:
            return super().memory(shapes)
        except ModelNeeded:
            return self._built().memory(shapes)

    def _default(self, i: int) -> Any:
        return self._defaults.get(i)

    @property
    def model(self) -> Model:  # type: ignore[override]
        return self._built().model

    @property
    def parts(self) -> Parts:  # type: ignore[override]
        return self._built().parts

    @property
    def metadata(self) -> ModelMetadata:
        return self._metadata

    def explain(self) -> Explanation:
        return self._built().explain()


class CompiledEntry:
    """The cache entry of one model and one set of options."""

    def __init__(self, folder: PrivateFolder, stem: str, provider: Any, info: os.stat_result) -> None:
        """``info`` describes the model's file from which ``stem`` was computed."""
        self._folder, self._stem, self._provider, self._info = folder, stem, provider, info

    def read(self, source: str | os.PathLike[str], options: BuildOptions) -> Engine | None:
        """The cached engine, or None."""
        began = time.perf_counter()
        name = f"{self._stem}.start"
        if not self._folder.has(name):
            return None
        try:
            built = _Model(source, options, self)
        except OSError:
            return None
        if built.file.identity != identity_of(self._info):
            return None

        def kind_of(late: str, kind: SpecializationKey) -> Executable | None:
            return self._kinds(late).read(kind)

        found = _deserialized(self._folder, name, self._provider, kind_of, model=built.file)
        if found is None:
            return None
        stored, chain, defaults = found
        return CachedEngine(stored, chain, defaults, built, {"start": time.perf_counter() - began})

    def write(self, engine: Engine) -> None:
        """Cache an engine, if its parts can be serialized."""
        graph, parts, serializer = engine.model.graph, engine.parts, Serializer(identity_of(self._info))
        is_of_file = engine.is_in_one_file and engine.source.data.identity == identity_of(self._info)
        if not is_of_file or engine.model.sparse_outputs or not parts.compiled or not _is_pure(graph):
            return
        defaults = [i for i, v in enumerate(graph.inputs) if v.const is not None]
        try:
            stored = {
                "inputs": [_plain_value(v) for v in engine.inputs],
                "outputs": [_plain_value(v) for v in engine.outputs],
                "overridable": [_plain_value(v) for v in engine.overridable],
                "defaults": defaults,
                "names": engine.names,
                "output_names": tuple(graph.output_names),
                "weights_nbytes": engine._weights_nbytes,
                "metadata": astuple(engine.metadata),
                "is_whole": parts.whole is not None,
                "chain": serializer.chain(parts),
            }
        except NotSerializable:
            return
        arrays = [*serializer.arrays, *(graph.inputs[i].numpy() for i in defaults)]
        array_file.write(self._folder, f"{self._stem}.start", stored, arrays, serializer.sources)
        self.attach(engine)

    def attach(self, engine: Engine) -> None:
        """Make an engine cache the specializations that it compiles in runs."""
        found = list(deferred_executables(engine.parts))
        names = [late.name for late in found]
        for late in found:
            late.keep = self._kinds(late.name).write if names.count(late.name) == 1 else None

    def _kinds(self, name: str) -> SpecializationEntries:
        return SpecializationEntries(self._folder, f"{self._stem}-{name[:16]}", self._provider)


class SpecializationEntries:
    """Cache entries of specializations. There are as many as a process may compile; newer ones replace older ones."""

    def __init__(self, folder: PrivateFolder, stem: str, provider: Any) -> None:
        self._folder, self._stem, self._provider = folder, stem, provider

    def read(self, kind: SpecializationKey) -> Executable | None:
        found = _deserialized(self._folder, self._name(kind), self._provider, None, tuple(kind))
        return None if found is None else found[1]

    def write(self, kind: SpecializationKey, executable: Executable) -> None:
        serializer = Serializer()
        try:
            stored = {"kind": tuple(kind), "defaults": (), "chain": serializer.chain(executable)}
        except NotSerializable:
            return
        if not any(isinstance(e, DeferredExecutable) for e in executables(executable)):
            array_file.write(self._folder, self._name(kind), stored, serializer.arrays)

    def _name(self, kind: SpecializationKey) -> str:
        number = int.from_bytes(hashlib.sha256(repr(kind).encode()).digest()[:8], "little")
        return f"{self._stem}-{number % MAX_SPECIALIZATIONS}.start"


def _deserialized(
    folder: PrivateFolder,
    name: str,
    provider: Any,
    find: Callable[[str, SpecializationKey], Executable | None] | None,
    kind: Any = None,
    model: SourceFile | None = None,
) -> tuple[dict[str, Any], Chain, Sequence[Any]] | None:
    """The plain values of an entry, its chain, and the further arrays."""

    def deserialized(entry: Entry) -> tuple[dict[str, Any], Chain, Sequence[Any]] | None:
        stored, arrays = array_file.arrays_of(entry, provider.threads, model)
        if stored.get("kind") != kind:
            return None
        own = len(arrays) - len(stored["defaults"])
        try:
            return stored, Deserializer(arrays[:own], provider, find).chain(stored["chain"]), arrays[own:]
        except (ObjectMissing, ImportError):
            return None

    return entries.read(folder, name, deserialized)


def engine_of(source: Any, options: BuildOptions) -> Engine:
    """The engine of a model: from the cache, or built and cached."""
    start = find(source, options)
    made = None if start is None else start.read(source, options)
    if made is None:
        made = _built(source, options)
        if start is not None:
            start.write(made)
    return made


_building = forks.rlock()
"""Held for seconds, while the engine of a cached model is built because a run needs it."""


class _Model:
    """A model whose engine is built on demand. Its file is held open, so it may be deleted meanwhile."""

    def __init__(self, source: str | os.PathLike[str], options: BuildOptions, start: CompiledEntry) -> None:
        self._source, self._options, self._start = source, options, start
        self.file = SourceFile.open(os.fsdecode(source))
        self.engine: Engine | None = None

    def __call__(self) -> Engine:
        with _building:
            if self.engine is None:
                self.file.check()
                try:
                    engine = _built(self._where(), self._options)
                finally:
                    self.file.check()
                self._start.attach(engine)
                self.engine = engine
            return self.engine

    def _where(self) -> Any:
        """The model's path if it still names the cached file, else the open file."""
        try:
            is_there = os.path.samestat(os.stat(self._source), self.file.info)
        except OSError:
            is_there = False
        return self._source if is_there else self.file


def _is_pure(graph: Graph) -> bool:
    """Whether no result of a graph depends on earlier runs."""
    from sardonyx.ops import registry

    found = {(node.domain, node.op_type) for node in graph.all_nodes()}
    return all(op is None or op.pure for op in (registry.find(*name) for name in found))


def _built(source: Any, options: BuildOptions) -> Engine:
    from sardonyx.session.build import build  # imports onnx and the compiler

    return build(source, options)


def find(source: Any, options: BuildOptions) -> CompiledEntry | None:
    """The cache entry of a model file; None if it cannot be cached."""
    if not isinstance(source, (str, os.PathLike)) or options.limits is not None or knobs.VERIFY.get():
        return None
    if options.save_path or options.initializers or options.external_files or len(options.providers) != 1:
        return None
    (provider,) = options.providers
    if type(provider) is not CpuProvider:
        return None
    where = folders.configured()
    if where is None:
        return None
    try:
        info = os.stat(source)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    fixed = sorted(options.free_dims.items()), sorted(options.free_dims_by_denotation.items())
    rewrites = options.level, sorted(options.disabled_passes), fixed, options.separate_dims
    asked = *rewrites, options.external_folder, settings(provider)
    file = os.path.realpath(source), *identity_of(info)
    here = sys.version, np.__version__, knobs.CHECK_ADDRESSES.get(), _sources()
    digest = hashlib.sha256(repr((file, asked, here)).encode()).hexdigest()
    return CompiledEntry(where, digest, provider, info)


@cache
def _sources() -> str:
    """Changes with every source file of ours and every version of a dependency."""
    package = os.path.dirname(os.path.dirname(__file__))
    return repr([*sorted(_files(package)), *((m, _place(m)) for m in ("onnx", "ml_dtypes", "llvmlite"))])


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                info = entry.stat()
                yield entry.path, info.st_size, info.st_mtime_ns


def _place(module: str) -> tuple[str | None, int]:
    """A package's path and installation time, without importing it."""
    from importlib.util import find_spec

    found = find_spec(module)
    origin = None if found is None else found.origin
    return origin, os.stat(origin).st_mtime_ns if origin else 0


def _plain_value(value: Value) -> tuple[str, Any]:
    return value.name, _plain(value.type)


def _value(name: str, t: Any) -> Value:
    return Value(name, _type(t))


def _plain(t: ValueType | None) -> Any:
    if isinstance(t, TensorType):
        return "tensor", t.dtype.name, t.shape
    if isinstance(t, SequenceType):
        return "sequence", _plain(t.elem)
    if isinstance(t, MapType):
        return "map", t.key.name, _plain(t.value)
    raise NotSerializable(f"values of type {t}")


def _type(plain: Any) -> ValueType:
    kind, *rest = plain
    if kind == "sequence":
        return SequenceType(_type(rest[0]))
    first = dtypes.of_name(rest[0])
    return TensorType(first, rest[1]) if kind == "tensor" else MapType(first, _type(rest[1]))

"""The compiled-model cache: engines of models, in the cache folder (``folders.cache_folder``).

An entry holds all that a run needs: the step table, packed constants, and the descriptions of inputs and outputs. A
start reads one file; the model is loaded, lowered and explained only on demand. The file's name is a digest of what its
contents depend on (``cache_key``). External data files and custom operators are named in the entry and compared when it
is read. A model may have many parts: step tables, numpy functions with their attributes, and control flow whose bodies
Python calls. What runs compile, specializations and versions that append to states, has entries of its own
(``part_entries``). For models with large weights,
entries store how the weights are packed and where they lie in the model's files. Entries are written in the background
(``cache_writer``).

Not cached are models of which a numpy function is neither one of Sardonyx nor a custom operator's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import TYPE_CHECKING, Any

from sardonyx import dtypes, forks
from sardonyx.deferred import import_onnx
from sardonyx.files import SourceFile
from sardonyx.interpret.context import ModelNeeded
from sardonyx.interpret.serialize import NotSerializable
from sardonyx.ir.graph import Graph, Model, Value
from sardonyx.ir.types import MapType, SequenceType, TensorType, ValueType
from sardonyx.partition.chain import Chain
from sardonyx.partition.provider import Executable, Memory, RunContext, RunsPlanned
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from sardonyx.providers.cpu.runtime.serialize import DeserializedExecutable
from sardonyx.providers.serialize import Serializer, compile_packing, deferred_executables, tier_ups_of
from sardonyx.session import array_file, cache_writer, log
from sardonyx.session.cache_key import SETTLED_NS, CacheKey, key_of
from sardonyx.session.collecting import resting
from sardonyx.session.engine import BuildOptions, Engine
from sardonyx.session.metadata import ModelMetadata
from sardonyx.session.part_entries import ModelEntry, SpecializationEntries, StateEntries, deserialized

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
        self.source = built.file or built.source
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
        self._stored_run = (chain.planned_run or chain.copied_run) if self.planned is None else self.planned.run_planned

    def run(self, feeds: dict[str, Any], wanted: Sequence[str], context: RunContext) -> list[Any]:
        if self._needed < MAX_MODEL_RUNS:
            try:
                return super().run(feeds, wanted, context)
            except ModelNeeded:
                self._needed += 1
        built = self._built()
        context.places = context.places if built.planned is not None else {}
        return built.run(feeds, wanted, context)

    @property
    def planned_run(self) -> Any:
        return None if self._stored_run is None else self._run_planned

    def _run_planned(self, args: Sequence[Any], places: Mapping[int, Any] | None = None) -> Sequence[Any] | None:
        run_planned: Any = self._stored_run
        if self.planned is None and self._has_conflicts(args):
            return None
        results: Sequence[Any] | None = run_planned(args, places) if places else run_planned(args)
        built = self._built.engine
        if results is not None or built is None or built.planned_run is None:
            return results
        return built.planned_run(args)

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

    def __init__(self, key: CacheKey, options: BuildOptions) -> None:
        self._key, self._options = key, options
        (self._provider,) = options.providers
        self._model: ModelEntry | None = None
        """Of a model that is one part."""

    def read(self, source: Any) -> Engine | None:
        """The cached engine, or None."""
        began = time.perf_counter()
        folder, name = self._key.folder, f"{self._key.digest}.start"
        cache_writer.wait(name)
        if not folder.has(name):
            return None
        try:
            built = _Model(source, self._options, self)
        except OSError:
            return None
        if built.file is not None and built.file.identity != self._key.identity:
            return None

        def files_of(stored: dict[str, Any]) -> list[SourceFile] | None:
            if not _are_defined(stored["customs"]):
                return None
            return _opened_files(built.file, stored["files"], self._options.external_folder)

        found = deserialized(folder, name, self._provider, self._kinds, files_of=files_of)
        if found is None:
            return None
        whole = found.chain.links[0].executable if found.stored["is_whole"] else None
        if isinstance(whole, DeserializedExecutable):
            self._model = ModelEntry(name, whole.constants, found.digest)
            whole.find_appending = self._states(self._model).read
        phases = {"start": time.perf_counter() - began}
        return CachedEngine(found.stored, found.chain, found.defaults, built, phases)

    def write(self, engine: Engine, opened_ns: int) -> None:
        """Cache an engine in the background, if its parts can be serialized. ``opened_ns`` is when the model was first
        read.
        """
        if engine.model.sparse_outputs or not engine.parts.compiled:
            return
        name = f"{self._key.digest}.start"
        if isinstance(engine.parts.whole, CpuExecutable):
            self._model = ModelEntry(name, engine.parts.whole.constants)
        self.attach(engine)
        customs = _customs(engine.model.graph)  # now: the program may define them differently while this is written
        tier_ups = tier_ups_of(engine.parts)
        for tier_up in tier_ups:
            tier_up.begin(outlives_program=True)
        write = partial(self._write, engine, name, opened_ns, customs)
        cache_writer.submit(self._key.folder, name, write, lambda: all(each.is_over for each in tier_ups))

    def _write(self, engine: Engine, name: str, opened_ns: int, customs: Sequence[tuple[str, str, str]]) -> None:
        graph, scanned = engine.model.graph, engine.source
        own = scanned.data.identity if isinstance(scanned.data, SourceFile) else None
        external = sorted(scanned.home.opened.items())
        if own != self._key.identity or any(opened_ns - f.info.st_ctime_ns < SETTLED_NS for _, f in external):
            return
        if own is None and external:
            return
        serializer = Serializer([own or object(), *(file.identity for _, file in external)])
        defaults = [i for i, v in enumerate(graph.inputs) if v.const is not None]
        try:
            stored = {
                "path": scanned.path,
                "files": [(location, file.identity) for location, file in external],
                "customs": customs,
                "inputs": [_plain_value(v) for v in engine.inputs],
                "outputs": [_plain_value(v) for v in engine.outputs],
                "overridable": [_plain_value(v) for v in engine.overridable],
                "defaults": defaults,
                "names": engine.names,
                "output_names": tuple(graph.output_names),
                "weights_nbytes": engine._weights_nbytes,
                "metadata": astuple(engine.metadata),
                "is_whole": engine.parts.whole is not None,
                "chain": serializer.chain(engine.parts),
            }
        except NotSerializable as error:
            log.emit(log.INFO, f"the compiled model is not cached: {error}")
            return
        arrays = [*serializer.arrays, *(graph.inputs[i].numpy() for i in defaults)]
        if array_file.is_large(arrays):
            compile_packing(engine.parts)
        digest = array_file.write(self._key.folder, name, stored, arrays, serializer.sources)
        if self._model is not None:
            self._model.digest = digest

    def attach(self, engine: Engine) -> None:
        """Make an engine cache what it compiles in runs: specializations, and versions for states."""
        if isinstance(engine.parts.whole, CpuExecutable) and self._model is not None:
            engine.parts.whole.keep_appending = self._states(self._model).write
        found = list(deferred_executables(engine.parts))
        names = [executable.name for executable in found]
        for executable in found:
            is_alone = names.count(executable.name) == 1
            executable.keep = self._kinds(executable.name).write if is_alone else None

    def _kinds(self, name: str) -> SpecializationEntries:
        return SpecializationEntries(self._key.folder, f"{self._key.digest}-{name[:16]}", self._provider)

    def _states(self, model: ModelEntry) -> StateEntries:
        return StateEntries(self._key.folder, self._key.digest, self._provider, model)


def _opened_files(
    model: SourceFile | None, external: Sequence[tuple[str, tuple[int, ...]]], folder: str | None
) -> list[SourceFile] | None:
    """The model's file and its external data files; None if one of those is not the file that it was."""
    if model is None:
        return []
    if not external:
        return [model]
    from sardonyx.model.external import Folder

    home, files = Folder(model.path, folder=folder), [model]
    for location, identity in external:
        file = home.open(location, location)
        if not isinstance(file, SourceFile) or file.identity != tuple(identity):
            return None
        files.append(file)
    return files


def _customs(graph: Graph) -> list[tuple[str, str, str]]:
    """The custom operators of a graph, by domain, name and digest."""
    from sardonyx import fingerprint
    from sardonyx.ops import registry

    used = {(node.domain, node.op_type) for node in graph.all_nodes() if node.domain}
    found = [op for name in sorted(used) if (op := registry.find(*name)) is not None and op.custom is not None]
    return [(op.domain, op.name, fingerprint.of(*op.custom.parts)) for op in found if op.custom is not None]


def _are_defined(customs: Sequence[tuple[str, str, str]]) -> bool:
    """Whether custom operators are defined in this process as they were when an entry was written."""
    if not customs:
        return True
    from sardonyx import fingerprint
    from sardonyx.ops import registry

    defined = {(op.domain, op.name): op.custom for op in registry.customs()}
    return all(
        (custom := defined.get((domain, name))) is not None and fingerprint.of(*custom.parts) == digest
        for domain, name, digest in customs
    )


def engine_of(source: Any, options: BuildOptions) -> Engine:
    """The engine of a model: from the cache, or built and cached."""
    key = key_of(source, options)
    if key is None:
        return _built(source, options)
    entry, opened_ns = CompiledEntry(key, options), time.time_ns()
    made = entry.read(source)
    if made is None:
        made = _built(source, options)
        entry.write(made, opened_ns)
    return made


_building = forks.rlock()
"""Held for seconds, while the engine of a cached model is built because a run needs it."""


class _Model:
    """A model whose engine is built on demand. Its file is held open, so it may be deleted meanwhile."""

    def __init__(self, source: Any, options: BuildOptions, entry: CompiledEntry) -> None:
        self._source, self._options, self._entry = source, options, entry
        self.file = None if isinstance(source, bytes) else SourceFile.open(os.fsdecode(source))
        self.engine: Engine | None = None

    def __call__(self) -> Engine:
        with _building:
            if self.engine is None:
                self._check()
                try:
                    engine = _built(self.source, self._options)
                finally:
                    self._check()
                self._entry.attach(engine)
                self.engine = engine
            return self.engine

    def _check(self) -> None:
        if self.file is not None:
            self.file.check()

    @property
    def source(self) -> Any:
        """The model's path if it still names the cached file, else the open file; or the model's bytes."""
        if self.file is None:
            return self._source
        try:
            is_there = os.path.samestat(os.stat(self._source), self.file.info)
        except OSError:
            is_there = False
        return self._source if is_there else self.file


def _built(source: Any, options: BuildOptions) -> Engine:
    start = time.perf_counter()
    with resting():
        import_onnx()
        from sardonyx.session.build import build  # imports the compiler

        return build(source, options, import_s=time.perf_counter() - start)


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

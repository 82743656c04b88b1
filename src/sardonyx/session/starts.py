"""Whole engines of model files, kept between starts in the folder that ``SARDONYX_CACHE`` names.

What is kept is all that runs take: the table of steps, its constants as kernels want them, and what the session tells
of inputs and outputs. A start then reads one file; the model is loaded, lowered and explained only when somebody asks.
The name of a file is a digest of everything that decides what is in it: the model's file by size, time and place,
options, chip, versions, and our own sources. Models that are not one compiled part are not kept, nor are those with
data in other files or with operators of the user's.
"""

from __future__ import annotations

import hashlib
import marshal
import math
import os
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import dtypes, folders, knobs
from sardonyx.ir.graph import Model, Value
from sardonyx.ir.types import TensorType
from sardonyx.partition.provider import RunContext
from sardonyx.session import log
from sardonyx.session.engine import BuildOptions, Engine
from sardonyx.session.metadata import ModelMetadata

if TYPE_CHECKING:
    from sardonyx.partition.parts import Parts
    from sardonyx.session.explain import Explanation

ALIGNMENT = 64
MAX_NBYTES = 256 << 20
"""Bytes of arrays up to which an engine is kept."""
MARK = b"sardonyx start 1"


class KeptEngine(Engine):
    """An engine of which only what runs is here; the rest is built from the model when it is asked for."""

    def __init__(
        self,
        told: dict[str, Any],
        executable: Any,
        defaults: Sequence[Any],
        built: Callable[[], Engine],
        phases: dict[str, float],
    ) -> None:
        """``defaults`` are the elements of the overridable initializers that ``told`` names."""
        self._built = built
        self.phases = phases
        self.inputs, self.outputs = ([_value(row) for row in told[side]] for side in ("inputs", "outputs"))
        self.overridable = [_value(row) for row in told["overridable"]]
        self._defaults = dict(zip(told["defaults"], defaults, strict=True))
        self._names = tuple(told["names"])
        self._positions = {name: i for i, name in enumerate(told["output_names"])}
        self._sparse_outputs = frozenset()
        self._weights_nbytes = told["weights_nbytes"]
        self._metadata = ModelMetadata(*told["metadata"])
        takes, gives = told["takes"], told["gives"]
        is_whole = takes == list(range(len(self._names))) and gives == list(range(len(gives)))
        self.quick = executable if is_whole else None
        self._whole = executable if is_whole else _Wired(executable, takes, gives)
        self.again = self._whole.run_again

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


class _Wired:
    """An executable between the inputs and outputs of a graph that it does not have all of, or in another order."""

    def __init__(self, executable: Any, takes: Sequence[int], gives: Sequence[int]) -> None:
        self._executable, self._takes, self._gives = executable, takes, gives

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        return self._given(self._executable.run([args[i] for i in self._takes], context))

    def run_again(self, args: Sequence[Any]) -> list[Any] | None:
        results = self._executable.run_again([args[i] for i in self._takes])
        return None if results is None else self._given(results)

    def _given(self, results: list[Any]) -> list[Any]:
        return [results[i] for i in self._gives]


class Start:
    """The place of one model and one set of options in the folder."""

    def __init__(self, path: str, provider: Any) -> None:
        self._path, self._provider = path, provider

    def read(self, source: str | os.PathLike[str], options: BuildOptions) -> Engine | None:
        """The engine that was kept, or None."""
        from sardonyx.providers.cpu import constants
        from sardonyx.providers.cpu.kept import revive

        began = time.perf_counter()
        try:
            with open(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                if os.fstat(file.fileno()).st_uid != os.getuid() or file.read(len(MARK)) != MARK:
                    return None
                nbytes = int.from_bytes(file.read(8), "little")
                digest, head = file.read(32), file.read(nbytes)
                if hashlib.sha256(head).digest() != digest:
                    raise ValueError("it is damaged")
                told = marshal.loads(head)
                first = _rounded(file.tell())
                if first + told["nbytes"] != os.fstat(file.fileno()).st_size:
                    raise ValueError("it is not whole")
                arrays = [
                    constants.once((self._path, i), partial(_read, file, first, *row))
                    for i, row in enumerate(told["arrays"])
                ]
            built = _Model(source, options)
            own = len(arrays) - len(told["defaults"])
            made = revive(told["executable"], arrays[:own], self._provider, lambda: built().parts.compiled[0][1])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError, TypeError, KeyError) as error:
            log.logger.warning("the kept start %s is not readable and will be written anew: %s", self._path, error)
            return None
        if made is None:
            return None
        return KeptEngine(told, made, arrays[own:], built, {"start": time.perf_counter() - began})

    def write(self, engine: Engine) -> None:
        """Keep an engine, if it is one compiled part between tensors."""
        from sardonyx.providers.cpu import constants
        from sardonyx.providers.cpu.executable import CpuExecutable
        from sardonyx.providers.cpu.kept import freeze

        graph, compiled = engine.model.graph, engine.parts.compiled
        part, executable = compiled[0] if len(compiled) == 1 else (None, None)
        if part is None or not isinstance(executable, CpuExecutable) or not engine.is_in_one_file:
            return
        inputs, outputs = list(graph.inputs), list(graph.outputs)
        if not set(outputs) <= set(part.outputs) or not set(part.inputs) <= set(inputs) or engine.model.sparse_outputs:
            return
        if not all(isinstance(v.type, TensorType) for v in (*inputs, *engine.outputs)):
            return
        takes = [inputs.index(v) for v in part.inputs]
        defaults = [i for i in takes if inputs[i].const is not None]
        plain, arrays = freeze(executable)
        arrays += [inputs[i].numpy() for i in defaults]
        if sum(a.nbytes for a in arrays) > MAX_NBYTES or any(a.dtype.hasobject for a in arrays):
            return
        told = {
            "inputs": [_told(v) for v in engine.inputs],
            "outputs": [_told(v) for v in engine.outputs],
            "overridable": [_told(v) for v in engine.overridable],
            "takes": takes,
            "gives": [part.outputs.index(v) for v in outputs],
            "defaults": defaults,
            "names": list(engine._names),
            "output_names": list(graph.output_names),
            "weights_nbytes": engine._weights_nbytes,
            "metadata": astuple(engine.metadata),
            "executable": plain,
        }
        try:
            folders.write_whole(self._path, _chunks(told, arrays), private=True)
        except (OSError, ValueError) as error:
            log.logger.warning("the start is not kept: %s", error)
            return
        for i, array in enumerate(arrays):
            constants.share((self._path, i), array)


def engine_of(source: Any, options: BuildOptions) -> Engine:
    """The engine of a model: kept, or built and kept."""
    start = find(source, options)
    made = None if start is None else start.read(source, options)
    if made is None:
        made = _built(source, options)
        if start is not None:
            start.write(made)
    return made


_building = threading.RLock()
"""Held for seconds, while an engine is built that was kept and does not do."""


def _forget() -> None:
    """A forked child begins with a lock that nobody holds."""
    global _building
    _building = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class _Model:
    """A model whose engine is built when it is first asked for; its file is held open, so that it may go meanwhile."""

    def __init__(self, source: str | os.PathLike[str], options: BuildOptions) -> None:
        self._source, self._options = source, options
        self._file = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._file)
        self._engine: Engine | None = None

    def __call__(self) -> Engine:
        with _building:
            if self._engine is None:
                self._engine = _built(self._where(), self._options)
            return self._engine

    def _where(self) -> str | os.PathLike[str]:
        try:
            is_there = os.path.samestat(os.stat(self._source), os.fstat(self._file))
        except OSError:
            is_there = False
        return self._source if is_there else f"/proc/self/fd/{self._file}"


def _built(source: Any, options: BuildOptions) -> Engine:
    from sardonyx.session.build import build  # brings onnx and the compiler

    return build(source, options)


def find(source: Any, options: BuildOptions) -> Start | None:
    """The start of a model file, or None where it is not kept."""
    where = folders.chosen()
    if where is None or not isinstance(source, (str, os.PathLike)) or knobs.VERIFY.get():
        return None
    if options.save_path or options.initializers or options.external_files or len(options.providers) != 1:
        return None
    from sardonyx.providers.cpu import CpuProvider
    from sardonyx.providers.cpu.kept import settings

    (provider,) = options.providers
    if type(provider) is not CpuProvider:
        return None
    try:
        info = os.stat(source)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(info.st_mode):
        return None
    fixed = sorted(options.free_dims.items()), sorted(options.free_dims_by_denotation.items())
    asked = options.level, sorted(options.disabled_passes), fixed, options.external_folder, settings(provider)
    file = os.path.realpath(source), info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino
    here = sys.version, np.__version__, knobs.CHECK_ADDRESSES.get(), _sources()
    digest = hashlib.sha256(repr((file, asked, here)).encode()).hexdigest()
    return Start(os.path.join(where, f"{digest}.start"), provider)


@cache
def _sources() -> str:
    """Changes whenever a file of ours does, or a version of what we stand on."""
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
    """Where a package is and when it was installed, without importing it."""
    from importlib.util import find_spec

    found = find_spec(module)
    origin = None if found is None else found.origin
    return origin, os.stat(origin).st_mtime_ns if origin else 0


def _told(value: Value) -> tuple[str, str, tuple[int | str | None, ...] | None]:
    assert isinstance(value.type, TensorType)
    return value.name, value.type.dtype.name, value.type.shape


def _value(row: tuple[str, str, tuple[int | str | None, ...] | None]) -> Value:
    name, dtype, shape = row
    return Value(name, TensorType(dtypes.of_name(dtype), shape))


def _chunks(told: dict[str, Any], arrays: list[Any]) -> Iterator[bytes | memoryview]:
    """A mark, the length and digest of the plain values, these, and the arrays, each on the border of a cache line."""
    rows, at = [], 0
    for array in arrays:
        rows.append((at, dtypes.of_numpy(array.dtype).name, array.shape))
        at += _rounded(array.nbytes)
    head = marshal.dumps({**told, "arrays": rows, "nbytes": at})
    front = MARK + len(head).to_bytes(8, "little") + hashlib.sha256(head).digest() + head
    yield front.ljust(_rounded(len(front)), b"\0")
    for array in arrays:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        yield bytes(_rounded(array.nbytes) - array.nbytes)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _read(file: Any, first: int, at: int, dtype: str, shape: tuple[int, ...]) -> Any:
    """An array of the file, in memory of its own, as kernels want it."""
    from sardonyx.providers.cpu.memory import allocate

    t = dtypes.of_name(dtype).numpy
    memory = allocate(math.prod(shape) * t.itemsize)
    file.seek(first + at)
    file.readinto(memory.data)
    return memory.view(t).reshape(shape)

"""Serialization of a compiled part: plain values and arrays, from which it runs again without lowering or compiling.

A deserialized part has no nodes. For a profile, states whose version is not cached, the text of an error and shapes
outside the model's dimensions it raises ``ModelNeeded``, and the session loads the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from sardonyx import dtypes
from sardonyx.interpret.context import ModelNeeded, RunContext
from sardonyx.partition.provider import Memory
from sardonyx.plan.sizes import Binding, SizesDiffer, deserialized
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.prepack import Source, StreamSource
from sardonyx.providers.cpu.runtime.executable import CpuExecutable, StatesKey
from sardonyx.providers.cpu.runtime.shape_sizes import named
from sardonyx.providers.cpu.runtime.trim import Trim

if TYPE_CHECKING:
    from sardonyx.lower.groups import Storage
    from sardonyx.providers.cpu.provider import CpuProvider
    from sardonyx.providers.cpu.runtime.deferred import DeferredExecutable

Array = np.ndarray[Any, Any]

ARRAYS = (
    "words", "rows", "sized_at", "sized_by", "placed_at", "placed_by", "nbytes", "flops", "traffic", "meetings",
    "executions", "program",
)  # fmt: skip
PLAIN = (
    "intervals", "lives", "scratch", "bounded", "conditional", "first_input", "given_count", "base_count", "has_loops",
    "is_bounded", "room",
)  # fmt: skip


def settings(provider: CpuProvider) -> str:
    """Everything but the part itself that decides its code."""
    policy = sorted(provider.policy.forced), sorted(provider.policy.forbidden)
    return repr((isa.current(), provider.precision, provider.threads, policy))


def serialize(executable: CpuExecutable) -> tuple[dict[str, Any], list[Array]]:
    """Plain values, and arrays: those of the step table, then its constants."""
    executable.settle()
    table = executable.table
    plain: dict[str, Any] = {name: getattr(table, name) for name in PLAIN}
    plain["lives"] = [tuple(life) for life in table.lives]
    plain["steps"], plain["kernels"] = [step.is_control for step in table.steps], table.kernels
    linker.native("runtime.executor", "worker")
    plain["natives"] = dict(linker.natives)
    plain["binding"], plain["trim"] = table.binding.frozen(), table.trim and table.trim.frozen()
    plain["evaluate"], plain["measure"] = (cast(FunctionType, f).__code__ for f in (table.evaluate, table.measure))
    plain["inputs"] = [dtypes.of_numpy(t).name for t in table.inputs]
    plain["outputs"] = [dtypes.of_numpy(t).name for t in table.outputs]
    return plain, [*(getattr(table, name) for name in ARRAYS), *executable.constants]


def sources(executable: CpuExecutable, files: Mapping[object, int]) -> list[Source | StreamSource | None]:
    """For each serialized array, what it is made from at a later start; None if the array itself is stored.

    Large constants are made from a tensor in a file of the model. The state of a random stream is never stored.
    """
    return [*[None] * len(ARRAYS), *(_source(s, files) for s in executable.table.constants)]


def compile_packing(executable: CpuExecutable) -> None:
    """Put the optimized code of the kernels that pack constants into the object cache, for ``sources``."""
    from sardonyx.providers.cpu.program.steps import Packed

    for storage in executable.table.constants:
        if isinstance(storage, Packed) and storage.packing is not None:
            linker.address(storage.packing.spec, storage.packing.isa)


def _source(storage: Storage, files: Mapping[object, int]) -> Source | StreamSource | None:
    from sardonyx.providers.cpu.program.steps import Packed

    if isinstance(storage, Packed):
        return None if storage.packing is None else Source.of(storage.packing.tensor, files, storage.packing)
    if storage.stream is not None:
        from sardonyx.ops import random

        return StreamSource(None if storage.stream is random.shared else storage.stream.seed)
    assert storage.tensor is not None
    return Source.of(storage.tensor, files)


def deserialize(
    plain: dict[str, Any],
    arrays: Sequence[Array],
    provider: CpuProvider,
    specialized: DeferredExecutable | None,
) -> DeserializedExecutable | None:
    """The executable; None if the object file of one of its kernels is no longer in the cache.

    ``specialized`` finds what earlier processes compiled for other shapes.
    """
    linker.natives |= plain["natives"]
    table = SimpleNamespace(**{name: plain[name] for name in PLAIN})
    table.__dict__.update(zip(ARRAYS, arrays, strict=False))
    table.rows, table.code = table.rows.copy(), []
    for row, (name, function) in zip(table.rows, plain["kernels"], strict=True):
        at = linker.cached(name, function)
        if at is None:
            return None
        row[0] = at
        table.code.append(at)
    table.steps = [SimpleNamespace(is_control=is_control) for is_control in plain["steps"]]
    table.binding = Binding.deserialized(plain["binding"])
    table.evaluate = deserialized(plain["evaluate"])
    table.trim = Trim.deserialized(plain["trim"]) if plain["trim"] else None
    table.inputs, table.outputs = (
        [dtypes.of_name(name).numpy for name in plain[side]] for side in ("inputs", "outputs")
    )
    table.measure = deserialized(plain["measure"], **table.binding.scope, **named(table.outputs))
    return DeserializedExecutable(cast(Any, table), list(arrays[len(ARRAYS) :]), provider, specialized)


class Found(NamedTuple):
    """A cached answer: the version of a part that appends to some states, or that it has none."""

    executable: CpuExecutable | None


class DeserializedExecutable(CpuExecutable):
    """Runs a step table without the part's nodes."""

    def __init__(
        self, table: Any, constants: list[Array], provider: CpuProvider, specialized: DeferredExecutable | None
    ) -> None:
        super().__init__(
            cast(Any, None), table, constants, {}, provider.settings, provider.threads, provider.max_memory,
            arenas=provider.arenas, by_shape=None if specialized is None else lambda: specialized, is_guarded=True,
        )  # fmt: skip
        self.find_appending: Callable[[StatesKey], Found | None] | None = None
        """Reads the version of the part that appends to states from the cache; None if it is not there."""
        self._not_found: set[StatesKey] = set()

    def run(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        if context.record is not None:
            raise ModelNeeded
        return super().run(args, context)

    def _version_for_states(self, key: StatesKey) -> CpuExecutable | None:
        """The cached version. The model compiles one that is not found, and runs it from then on."""
        found = None if self.find_appending is None or key in self._not_found else self.find_appending(key)
        if found is None:
            self._not_found.add(key)
            raise ModelNeeded
        return found.executable

    def _error(self, code: int, step: int, value: int) -> Exception:
        """The model, once loaded, runs again and raises the error with the node's name."""
        return SizesDiffer("a kernel reported an error")

    def _without_plan(self, args: Sequence[Any], context: RunContext) -> list[Any]:
        raise ModelNeeded

    def memory(self, shapes: Sequence[tuple[int, ...]]) -> Memory:
        try:
            return super().memory(shapes)
        except SizesDiffer:
            raise ModelNeeded from None

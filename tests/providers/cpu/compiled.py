"""Graphs in text, compiled and run without a session on any chip, with any number of simulated threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from sardonyx.ir import dims
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.build import Lowered
from sardonyx.lower.groups import Storage
from sardonyx.lower.interpret import bind
from sardonyx.providers.cpu.machine.isa import Isa, named
from sardonyx.providers.cpu.pipeline import steps_for
from sardonyx.providers.cpu.program.analysis import Target
from sardonyx.providers.cpu.program.constants import content
from sardonyx.providers.cpu.program.variants import ANY_KERNEL, KernelPolicy
from tests.lower.agree import OPSETS, lowered, parse
from tests.providers.cpu.running import Array, Memory


class _Arrays(Memory):
    def _allocate(self, storage: Storage) -> None:
        super()._allocate(storage)
        if storage.kind == "constant":
            self._flat[storage.number] = content(storage).reshape(-1)

    def bind(self, storage: Storage, array: Array) -> None:
        self._flat[storage.number] = np.ascontiguousarray(array).reshape(-1)


NHWC_VARIANTS = ("conv.stem", "conv.dot_product", "conv.winograd_nhwc", "conv.nhwc", "conv.depthwise_nhwc")


class Compiled:
    """A graph as steps for one chip."""

    policy: KernelPolicy = ANY_KERNEL
    """Of all that a test compiles: what ``forcing`` and ``forbidding`` set."""

    def __init__(
        self,
        body: str,
        inputs: str,
        outputs: str,
        cpu: str | None = None,
        *,
        isa: Isa | None = None,
        opsets: str = OPSETS,
        precision: str = "highest",
        constants: Mapping[str, Array] | None = None,
    ) -> None:
        """For a chip by name, the host's by default, or for an instruction set. ``constants`` are given now."""
        self.isa = isa or named(cpu)
        graph = parse(body, inputs, outputs, opsets)
        for value in graph.inputs:
            if value.name in (constants or {}):
                value.const = Tensor.of((constants or {})[value.name])
        self.lowered: Lowered = lowered(graph)
        self.steps = steps_for(self.lowered.groups, Target(self.isa, precision, self.policy))

    def run(self, args: Sequence[Array], *, threads: int = 1, checked: bool = False) -> list[Array]:
        sizes: Mapping[str, int] = bind(self.lowered, [a.shape for a in args])
        memory = _Arrays(sizes)
        for view, array in zip(self.lowered.inputs, args, strict=True):
            memory.bind(view.storage, array)
        for view in self.lowered.outputs:
            memory._allocate(view.storage)
        memory.run(self.steps, threads=threads, isa=self.isa, checked=checked)
        results = [memory.array(view).copy() for view in self.lowered.outputs]
        for i, found in self.lowered.counted.items():
            shape = [dims.evaluate(d, {**sizes, found.name: int(memory.array(found.count))}) for d in found.shape]
            results[i] = results[i][: math.prod(shape)].reshape(shape)
        return results


def forcing(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let these kernel variants take every group that they support."""
    monkeypatch.setattr(Compiled, "policy", KernelPolicy(forced=frozenset(names)))


def forbidding(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(Compiled, "policy", KernelPolicy(forbidden=frozenset(names)))

"""Groups run by numpy on concrete sizes: the reference for the kernels of every provider."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ir import dims
from sardonyx.lower.build import Lowered
from sardonyx.lower.groups import View
from sardonyx.lower.interpret.memory import MEANINGS, Array, Memory, enforce
from sardonyx.lower.lowering import Counted

for _family in iter_modules(__path__, f"{__name__}."):
    import_module(_family.name)  # registers the meanings of its groups


ROOM_ROWS = 1000
"""The most trips of Loops that nothing bounds before the run."""


def run(lowered: Lowered, args: Sequence[Array]) -> list[Array]:
    """The outputs of a part for its inputs."""
    if lowered.room is not None:
        args = [*args, np.empty(ROOM_ROWS, np.uint8)]
    sizes = bind(lowered, [a.shape for a in args])
    memory = Memory(sizes)
    for view, array in zip(lowered.inputs, args, strict=True):
        memory.arrays[view.storage] = np.ascontiguousarray(array).reshape(-1)
    with np.errstate(all="ignore"):
        for group in lowered.groups:
            MEANINGS[type(group)](memory, group)
    return [_result(memory, view, lowered.counted.get(i)) for i, view in enumerate(lowered.outputs)]


def _result(memory: Memory, view: View, counted: Counted | None) -> Array:
    if counted is None:
        return np.array(memory.at(view))
    found = {**memory.sizes, counted.name: int(memory.at(counted.count))}
    shape = [dims.evaluate(d, found) for d in counted.shape]
    return np.array(memory.at(view)[: math.prod(shape)].reshape(shape))  # type: ignore[arg-type]


def bind(lowered: Lowered, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The named sizes for these input shapes; raises if a condition on them does not hold."""
    sizes = {name: shapes[i][axis] // times for name, (i, axis, times) in lowered.sizes.items()}
    for view, shape in zip(lowered.inputs, shapes, strict=True):
        wanted = tuple(dims.evaluate(d, sizes) for d in view.shape)
        if wanted != shape:
            raise InvalidArgument("an input has the wrong shape", expected=wanted, got=shape)
    for check in lowered.checks:
        enforce(check, sizes)
    return sizes

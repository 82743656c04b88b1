"""Convolutions that overwrite the residual they add, where nothing reads it later.

A residual block reads as much as it writes. Where residual and result are packed images of one layout, the result
takes the residual's memory: its lines are in L1 when they are written, and less memory passes through the caches. That
is safe: a thread reads each line right before it writes it, no other thread touches it, and padding, which other
threads may zero meanwhile, is zero in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import replace

CONVOLUTION = "conv_amx"
"""The kernel (``kernels/conv/bf16_split.py``) that adds a residual to what it packs."""


def in_place(steps: Sequence[Step]) -> list[Step]:
    """The steps, with one storage for residual and result where no later step reads the residual and no earlier one
    accesses the result. Steps with loops or branches among them are unchanged.
    """
    if any(step.is_control or step.only is not None for step in steps):
        return list(steps)
    first, last = dict[Storage, int](), dict[Storage, int]()
    for i, step in enumerate(steps):
        for storage in _storages(step):
            first.setdefault(storage, i)
            last[storage] = i
    taken: dict[Storage, Storage] = {}
    made: list[Step] = []
    for i, step in enumerate(steps):
        for result, residual in _pairs(step):
            if first[result] == i == last[residual]:
                taken[result] = taken.get(residual, residual)
                break
        args = {name: _moved(given, taken) for name, given in step.args.items()}
        made.append(replace(step, args=args) if args != step.args else step)
    return made


def _storages(step: Step) -> list[Storage]:
    return [given.storage for given in step.args.values() if isinstance(given, Ref)]


def _pairs(step: Step) -> list[tuple[Storage, Storage]]:
    """Pairs of packed results and residuals of equal layout, where the residual is read only as such."""
    if step.spec.name != CONVOLUTION:
        return []
    from sardonyx.providers.cpu.kernels.conv.image_epilogue import PACKED  # as late as the passes over convolutions

    epilogue: Epilogue = dict(step.spec.statics)["epilogue"]
    storages, images = _storages(step), {n: step.args[n] for n, x in epilogue.names if x.columns == PACKED}
    refs = {name: given for name, given in images.items() if isinstance(given, Ref)}
    return [
        (y.storage, x.storage)
        for result, y in refs.items() if result in step.writes
        for residual, x in refs.items() if residual not in step.writes
        if _layout(step, result, y) == _layout(step, residual, x) and storages.count(x.storage) == 1
    ]  # fmt: skip


def _layout(step: Step, name: str, ref: Ref) -> tuple[Any, ...]:
    """Everything that determines where an operand's pixels are in its storage."""
    numbers = {key.removeprefix(name): v for key, v in step.args.items() if key.startswith(f"{name}_")}
    return ref.storage.kind, ref.storage.dtype, ref.storage.elements, ref.offset, numbers


def _moved(given: Any, taken: dict[Storage, Storage]) -> Any:
    if isinstance(given, Ref) and given.storage in taken:
        return replace(given, storage=taken[given.storage])
    return given

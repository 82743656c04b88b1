"""Images of narrow floats that lie in memory as f32, where vectors multiply nothing narrower.

Convolutions pixel by pixel multiply one number of a pixel with vectors of weights: it would be widened again for each
of these and each tap. So between convolutions, and what slides over their images or computes with these element by
element, images are f32, and so are weights. That is what sums were; they are rounded where they are stored for somebody
else. Tiles take narrow numbers as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.ir import dims
from sardonyx.ir.scalar import trace
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.groups import Apply, Convolution, Expression, Finished, Group, Loop, Pool, Resample, Storage, View
from sardonyx.lower.rules.pointwise import as_type
from sardonyx.providers.cpu.constants import identity
from sardonyx.providers.cpu.kernels.frame import LEAST_LANES
from sardonyx.providers.cpu.steps import Target
from sardonyx.providers.cpu.values import bf16, f16, f32


def widened(groups: Sequence[Group], target: Target) -> list[Group]:
    """The groups, with images of narrow floats in f32."""
    if target.isa.amx or target.isa.lanes < LEAST_LANES:
        return list(groups)
    narrow = {id(g) for g in groups if isinstance(g, Convolution) and _is_narrow(g)}
    if not narrow:
        return list(groups)
    wide = {s: Storage(s.kind, f32, s.elements, s.value) for s in _images(groups, narrow)}

    def change(view: View) -> View:
        return replace(view, storage=wide[view.storage]) if view.storage in wide else view

    made: list[Group] = []
    for group in groups:
        changed = group.with_views(change)
        if changed is not group:
            changed = _retyped(changed)
        if isinstance(changed, Convolution) and id(group) in narrow:
            made += _convolution(changed)
        else:
            made.append(changed)
    return made


def _is_narrow(group: Convolution) -> bool:
    w = group.w
    is_constant = w.storage.tensor is not None and all(isinstance(d, int) for d in (*w.shape, w.offset))
    return is_constant and views.is_dense(w) and w.dtype is group.x.dtype and w.dtype in (f16, bf16)


def _images(groups: Sequence[Group], narrow: set[int]) -> list[Storage]:
    """What narrow convolutions read or write, and pooling between them, if nobody else minds."""
    found: dict[Storage, None] = {}
    barred: set[Storage] = set()
    for group in groups:
        seen = [v.storage for v in (*group.reads, *group.writes)]
        if id(group) in narrow or isinstance(group, Pool):
            found |= dict.fromkeys(s for s in seen if s.kind == "temporary" and s.dtype in (f16, bf16))
        elif not isinstance(group, (Loop, Resample)):
            barred.update(seen)
    alike = [pair for g in groups if isinstance(g, (Loop, Resample)) for pair in _alike(g)]
    count = -1
    while count != len(barred):
        count = len(barred)
        for pair in alike:
            if any(s in barred or s not in found for s in pair):
                barred.update(pair)
    return [s for s in found if s not in barred]


def _alike(group: Loop | Resample) -> Iterator[tuple[Storage, Storage]]:
    """Two storages of one type: bits are moved between them as they are, or one result is stored in both."""
    expression = group.expression if isinstance(group, Loop) else group.epilogue
    operands = group.inputs if isinstance(group, Loop) else (group.x, *group.extra)
    stored = list(zip(expression.results, group.outputs, strict=True))
    for i, (result, out) in enumerate(stored):
        if result < len(operands):
            yield operands[result].storage, out.storage
        yield from ((out.storage, other.storage) for same, other in stored[:i] if same == result)


def _retyped(group: Group) -> Group:
    """With the types of operands, and of what a loop stores, as these lie."""
    if isinstance(group, Finished):
        operands = group.epilogue.operands[0], *(v.dtype for v in group.extra)
        return replace(group, epilogue=replace(group.epilogue, operands=operands))
    if not isinstance(group, Loop):
        return group
    found, first = group.expression, len(group.inputs)
    stored = {r - first: v.dtype for r, v in zip(found.results, group.outputs, strict=True) if r >= first}
    steps = tuple(replace(step, dtype=stored.get(i, step.dtype)) for i, step in enumerate(found.steps))
    return replace(group, expression=replace(found, operands=tuple(v.dtype for v in group.inputs), steps=steps))


def _convolution(group: Convolution) -> list[Group]:
    """Of f32 weights, and of an image that is copied if it is still narrow."""
    group = replace(group, w=_weights(group.w))
    if group.x.dtype is f32:
        return [group]
    elements = dims.known(dims.product(group.x.shape))
    assert elements is not None
    copy = views.dense(Storage("temporary", f32, elements, group.x.storage.value), group.x.shape)
    program = trace(as_type, (True,), source=group.x.dtype, to=f32)
    converted = Expression((group.x.dtype,), (Apply(program, (0,), f32),), (1,))
    return [Loop(group.nodes, group.x.shape, 0, (group.x,), converted, (copy,)), replace(group, x=copy)]


def _weights(w: View) -> View:
    tensor, shape = w.storage.tensor, tuple(int(d) for d in w.shape)
    assert tensor is not None and isinstance(w.offset, int)
    first, count = w.offset, int(np.prod(shape))

    def fetch() -> Any:
        return np.ascontiguousarray(tensor.peek()).reshape(-1)[first:][:count].astype(np.float32).reshape(shape)

    made = Tensor(f32, shape, fetch, lies=fetch, origin=("wide", identity(tensor), first, shape))
    return views.dense(Storage("constant", f32, count, w.storage.value, made), shape)

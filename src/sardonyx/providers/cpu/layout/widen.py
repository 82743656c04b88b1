"""Images of narrow floats that lie in memory as f32, where vectors multiply nothing narrower.

Convolutions pixel by pixel multiply one number of a pixel with vectors of weights: it would be widened again for each
of these and each tap. So between convolutions, and what slides over their images or computes with these element by
element, images are f32, and so are weights. Tiles take narrow numbers as they are.

Sums that only convolutions and pooling read are not rounded, as nothing is between operators that are one group. All
others are, before they are stored: who compares an image with its own maximum, or with a copy, finds the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.scalar import trace
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.groups import (
    Apply,
    Convolution,
    EpilogueGroup,
    Expression,
    Group,
    Loop,
    Pool,
    Resample,
    Storage,
    View,
)
from sardonyx.lower.rules.pointwise import as_type
from sardonyx.providers.cpu.kernels.common.window import MIN_NHWC_LANES
from sardonyx.providers.cpu.kernels.image.pool_nhwc import MAX
from sardonyx.providers.cpu.language.values import bf16, f16, f32
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.steps import Target

LEAST_PRODUCTS = 16
"""Of each number of an image that somebody else has made, from which on a copy of it in f32 pays."""


def widened(groups: Sequence[Group], target: Target) -> list[Group]:
    """The groups, with images of narrow floats in f32."""
    if target.isa.amx or target.isa.lanes < MIN_NHWC_LANES:
        return list(groups)
    narrow = {id(g) for g in groups if isinstance(g, Convolution) and _is_narrow(g)}
    if not narrow:
        return list(groups)
    wide = {s: Storage(s.kind, f32, s.elements, s.value) for s in _images(groups, narrow)}
    narrowed, compared = {made: s.dtype for s, made in wide.items()}, _compared(groups)
    rounded = {made: s.dtype for s, made in wide.items() if s in compared}

    def change(view: View) -> View:
        return replace(view, storage=wide[view.storage]) if view.storage in wide else view

    made: list[Group] = []
    copies: dict[View, View] = {}
    for group in groups:
        changed = group.with_views(change)
        if changed is not group:
            changed = _retyped(changed, narrowed, rounded)
        if isinstance(changed, Convolution) and id(group) in narrow:
            made += _convolution(changed, copies)
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
    alike = [pair for g in groups if isinstance(g, (Loop, Resample)) for pair in _copied(g)]
    count = -1
    while count != len(barred):
        count = len(barred)
        for pair in alike:
            if any(s in barred or s not in found for s in pair):
                barred.update(pair)
    return [s for s in found if s not in barred]


def _compared(groups: Sequence[Group]) -> set[Storage]:
    """What others than convolutions and pooling read, and what is stored in several places."""
    found = {v.storage for g in groups if not isinstance(g, (Convolution, Pool)) for v in g.reads}
    for group in groups:
        if isinstance(group, EpilogueGroup):
            stored = list(zip(group.epilogue.results, group.outputs, strict=True))
            found.update(
                a.storage for i, (x, a) in enumerate(stored) for j, (y, _) in enumerate(stored) if x == y and i != j
            )
    return found


def _copied(group: Loop | Resample) -> Iterator[tuple[Storage, Storage]]:
    """Two storages between which bits are moved as they are."""
    expression = group.expression if isinstance(group, Loop) else group.epilogue
    operands = group.inputs if isinstance(group, Loop) else (group.x, *group.extra)
    for result, out in zip(expression.results, group.outputs, strict=True):
        if result < len(operands):
            yield operands[result].storage, out.storage


def _retyped(group: Group, narrowed: Mapping[Storage, DType], rounded: Mapping[Storage, DType]) -> Group:
    """With operands in the types in which they lie, and results that are rounded before they are stored as f32: all of
    a loop's, which may be a Cast, and of others those that somebody may compare.
    """
    if isinstance(group, Loop):
        found = replace(group.expression, operands=tuple(v.dtype for v in group.inputs))
        return replace(group, expression=_rounding(found, group.outputs, narrowed, len(group.inputs)))
    if isinstance(group, EpilogueGroup):
        operands = group.epilogue.operands[0], *(v.dtype for v in group.extra)
        is_exact = isinstance(group, Pool) and group.kind == MAX and group.x.storage in rounded
        found = replace(group.epilogue, operands=operands)
        return replace(group, epilogue=_rounding(found, group.outputs, rounded, int(is_exact)))
    return group


def _rounding(
    expression: Expression, outputs: Sequence[View], rounded: Mapping[Storage, DType], exact: int
) -> Expression:
    """Results that are among the first ``exact`` values are as narrow as they should be."""
    steps, results = list(expression.steps), list(expression.results)
    for i, (result, out) in enumerate(zip(expression.results, outputs, strict=True)):
        narrow = rounded.get(out.storage)
        if narrow is not None and result >= exact:
            steps.append(Apply(trace(as_type, (True,), source=narrow, to=f32), (result,), f32))
            results[i] = len(expression.operands) + len(steps) - 1
    return replace(expression, steps=tuple(steps), results=tuple(results))


def _convolution(group: Convolution, copies: dict[View, View]) -> list[Group]:
    """Of f32 weights, and of a copy of its image if that is still narrow; as it is, if that does not pay, or if nobody
    can say how large it is. ``copies`` are those that were made before.
    """
    x, w = group.x, group.w
    if x.dtype is f32:
        return [replace(group, w=_weights(w))]
    known, elements = copies.get(x), dims.known(dims.product(x.shape))
    filters, _, *taps = (int(d) for d in w.shape)
    if elements is None or filters // group.groups * int(np.prod(taps)) < LEAST_PRODUCTS:
        return [group]
    copy = known or views.dense(Storage("temporary", f32, elements, x.storage.value), x.shape)
    copies[x] = copy
    made = replace(group, x=copy, w=_weights(w))
    converted = Expression((x.dtype,), (Apply(trace(as_type, (True,), source=x.dtype, to=f32), (0,), f32),), (1,))
    return [made] if known else [Loop(group.nodes, x.shape, 0, (x,), converted, (copy,)), made]


def _weights(w: View) -> View:
    tensor, shape = w.storage.tensor, tuple(int(d) for d in w.shape)
    assert tensor is not None and isinstance(w.offset, int)
    first, count = w.offset, int(np.prod(shape))

    def fetch() -> Any:
        return np.ascontiguousarray(tensor.peek()).reshape(-1)[first:][:count].astype(np.float32).reshape(shape)

    made = Tensor(f32, shape, fetch, lies=fetch, origin=("wide", identity(tensor), first, shape))
    return views.dense(Storage("constant", f32, count, w.storage.value, made), shape)

"""Stores f16 and bf16 images as f32 between convolutions, on chips whose vectors multiply nothing narrower than f32.

NHWC convolutions multiply one element of a pixel by vectors of weights; a narrow element would be converted again for
each vector and each tap. So the images that convolutions, pooling and pointwise loops exchange are f32, and so are the
weights. AMX tiles multiply bf16 themselves, so nothing is widened there.

Images that only convolutions and pooling read keep the precision of f32 sums, as values inside a fused group do. All
others are rounded to their own type before they are stored as f32: an image that is compared with its own maximum, or
with a copy of itself, must compare equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.records import replace

MIN_PRODUCTS = 16
"""Products of each element of a narrow image from which on an f32 copy of that image pays."""


def widened(groups: Sequence[Group], analysis: Analysis) -> list[Group]:
    """The groups, with narrow images and weights of convolutions in f32."""
    if analysis.isa.amx or analysis.isa.lanes < MIN_NHWC_LANES:
        return list(groups)
    narrow = {id(g) for g in groups if isinstance(g, Convolution) and _is_narrow(g)}
    if not narrow:
        return list(groups)
    wide = {s: Storage(s.kind, f32, s.elements, s.value) for s in _images(groups, narrow, analysis.shared)}
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


def _images(groups: Sequence[Group], narrow: set[int], shared: Collection[Storage]) -> list[Storage]:
    """The temporaries that narrow convolutions and pooling read or write, if all other groups that access them can read
    or write f32; those that are ``shared`` with groups elsewhere are not. Storages between which bits are copied are
    widened together or not at all.
    """
    found: dict[Storage, None] = {}
    excluded = set(shared)
    for group in groups:
        seen = [v.storage for v in (*group.reads, *group.writes)]
        if id(group) in narrow or isinstance(group, Pool):
            found |= dict.fromkeys(s for s in seen if s.kind == "temporary" and s.dtype in (f16, bf16))
        elif not isinstance(group, (Loop, Resample)):
            excluded.update(seen)
    alike = [pair for g in groups if isinstance(g, (Loop, Resample)) for pair in _copied(g)]
    count = -1
    while count != len(excluded):
        count = len(excluded)
        for pair in alike:
            if any(s in excluded or s not in found for s in pair):
                excluded.update(pair)
    return [s for s in found if s not in excluded]


def _compared(groups: Sequence[Group]) -> set[Storage]:
    """The storages that other groups than convolutions and pooling read, and those that hold the same result twice."""
    found = {v.storage for g in groups if not isinstance(g, (Convolution, Pool)) for v in g.reads}
    for group in groups:
        if isinstance(group, EpilogueGroup):
            stored = list(zip(group.epilogue.results, group.outputs, strict=True))
            found.update(
                a.storage for i, (x, a) in enumerate(stored) for j, (y, _) in enumerate(stored) if x == y and i != j
            )
    return found


def _copied(group: Loop | Resample) -> Iterator[tuple[Storage, Storage]]:
    """Pairs of storages between which elements are copied unchanged."""
    expression = group.expression if isinstance(group, Loop) else group.epilogue
    operands = group.inputs if isinstance(group, Loop) else (group.x, *group.extra)
    for result, out in zip(expression.results, group.outputs, strict=True):
        if result < len(operands):
            yield operands[result].storage, out.storage


def _retyped(group: Group, narrowed: Mapping[Storage, DType], rounded: Mapping[Storage, DType]) -> Group:
    """The group with f32 operands, and with results rounded before they are stored as f32: all results of a loop, which
    may be a Cast, and those results of other groups that may be compared.
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
    """The expression with its results rounded to the types in ``rounded``. The first ``exact`` values are representable
    in them already.
    """
    steps, results = list(expression.steps), list(expression.results)
    for i, (result, out) in enumerate(zip(expression.results, outputs, strict=True)):
        narrow = rounded.get(out.storage)
        if narrow is not None and result >= exact:
            steps.append(Apply(trace(as_type, (True,), source=narrow, to=f32), (result,), f32))
            results[i] = len(expression.operands) + len(steps) - 1
    return replace(expression, steps=tuple(steps), results=tuple(results))


def _convolution(group: Convolution, copies: dict[View, View]) -> list[Group]:
    """The convolution with f32 weights, and an f32 copy of its image if that is still narrow; unchanged if the copy
    does not pay or its size is not expressible. ``copies`` has the copies made so far.
    """
    x, w = group.x, group.w
    if x.dtype is f32:
        return [replace(group, w=_weights(w))]
    known, elements = copies.get(x), dims.known(dims.product(x.shape))
    filters, _, *taps = (int(d) for d in w.shape)
    if elements is None or filters // group.groups * int(np.prod(taps)) < MIN_PRODUCTS:
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

    made = Tensor(f32, shape, fetch, view=fetch, origin=("wide", identity(tensor), first, shape))
    return views.dense(Storage("constant", f32, count, w.storage.value, made), shape)

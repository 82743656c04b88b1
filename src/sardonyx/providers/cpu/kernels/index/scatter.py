"""Elements put where indices say, alone or combined with what is there.

The data are copied first. The axes of the box along which an index moves the place are walked in order, by one thread
for any element of the result: threads share the other axes, and, where those are too few, ranges of the indexed axis,
each thread reading all indices. So duplicates meet in the same order whatever the number of threads.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from sardonyx.dtypes import DType, of_name
from sardonyx.ir import dims
from sardonyx.lower.groups import Expression, Loop, Scatter, View
from sardonyx.providers.cpu.kernels.common.loop_nest import Nest, load, product, store, stride_class
from sardonyx.providers.cpu.kernels.loops import loop
from sardonyx.providers.cpu.kernels.math.reducers import extreme
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i64
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

INDICES, UPDATES, OUT = range(3)


@dataclass(frozen=True)
class Form:
    """What is constant about a scatter: types, the number of axes of each kind, and how rows lie."""

    dtype: DType
    index: DType
    free: int
    """Axes that threads may share."""
    indexed: int
    kinds: tuple[str, str] | None
    """The strides along rows of updates and result; None where each element has an index of its own."""
    reduction: str


def steps(group: Scatter, target: Target) -> list[Step]:
    box, views = group.updates.shape, (group.indices, group.updates, group.places)
    still = [s == 0 for s in group.places.strides]
    free, indexed = (
        Nest.of(
            [n for n, s in zip(box, still, strict=True) if s == kind],
            [_axes(v, still, kind) for v in views],
        )
        for kind in (False, True)
    )
    outer = list(free.ordered(OUT).axes)
    row = outer.pop() if outer and outer[-1].strides[INDICES] == 0 else None
    axes = [*outer, *indexed.axes, *([] if row is None else [row])]
    dtype = group.out.dtype if group.reduction != "none" else of_name(f"u{group.out.dtype.itemsize * 8}")
    kinds = None if row is None else (stride_class(row.strides[UPDATES]), stride_class(row.strides[OUT]))
    form = Form(dtype, group.indices.dtype, len(outer), len(indexed.axes), kinds, group.reduction)
    args: dict[str, Any] = {f"m{v}": Ref.of(x) for v, x in enumerate(views)}
    args |= {f"n{i}": a.extent for i, a in enumerate(axes)}
    args |= {f"s{v}_{i}": a.strides[v] for v in range(3) for i, a in enumerate(axes)}
    args |= {"size": group.size, "pitch": group.pitch}
    moved = dims.known(dims.mul(3 * group.out.dtype.itemsize, product(box))) or 0
    kept = Expression((group.data.dtype,), (), (0,))
    copy = Loop(group.nodes, group.out.shape, 0, (group.data,), kept, (group.out,))
    put_all = Step(put(form=form), args, frozenset((f"m{OUT}",)), group.nodes, nbytes=moved)
    return [*loop.steps(copy, target), put_all]


def _axes(view: View, still: list[bool], kind: bool) -> View:
    """A view of those axes along which the place does, or does not, stand still."""
    own = [i for i, s in enumerate(still) if s == kind]
    return replace(view, shape=tuple(view.shape[i] for i in own), strides=tuple(view.strides[i] for i in own))


def _count(form: Form) -> int:
    return form.free + form.indexed + (form.kinds is not None)


def _params(form: Form) -> Params:
    types = (form.index, form.dtype, form.dtype)
    return {
        **{f"m{v}": (t,) for v, t in enumerate(types)},
        **{f"n{i}": i64 for i in range(_count(form))},
        **{f"s{v}_{i}": i64 for v in range(3) for i in range(_count(form))},
        "size": i64,
        "pitch": i64,
    }


@kernel(_params)
def put(k: Kernel, *, form: Form, size: Val, pitch: Val, **given: Any) -> None:
    extents = [given[f"n{i}"] for i in range(_count(form))]
    strides = [[given[f"s{v}_{i}"] for v in range(3)] for i in range(_count(form))]
    total = k.const(1)
    for n in extents[: form.free]:
        total = total * n
    ranges = k.select(total >= k.threads, 1, k.threads)
    first, last = k.share_of(total * ranges)
    with k.loop(first, last) as unit, ExitStack() as loops:
        part, rest = unit % ranges, unit // ranges
        low, high = size * part // ranges, size * (part + 1) // ranges
        at = [k.const(0)] * 3
        for i in reversed(range(form.free)):
            divisor = k.max(extents[i], 1)
            at = [a + rest % divisor * s for a, s in zip(at, strides[i], strict=True)]
            rest = rest // divisor
        for i in range(form.free, form.free + form.indexed):
            j = loops.enter_context(k.loop(0, extents[i]))
            at = [a + j * s for a, s in zip(at, strides[i], strict=True)]
        indices, updates, out = (given[f"m{v}"].at(a) for v, a in enumerate(at))
        index = k.check_index(k.cast(indices.load(), i64), size)
        with k.when((index >= low) & (index < high)):
            place = out.at(index * pitch)
            if form.kinds is None:
                place.store(0, _combined(k, form, place.load(), updates.load()))
                return
            lanes = max(k.lanes * 32 // form.dtype.bits, 1)
            for tile in k.tiles(extents[-1], lanes, unroll=4 if form.reduction == "none" else 1):
                _put_tile(k, form, place, updates, tile, strides[-1])


def _put_tile(k: Kernel, form: Form, place: Buf, updates: Buf, tile: Tile, strides: list[Val]) -> None:
    assert form.kinds is not None
    new = load(updates, tile, form.kinds[0], strides[UPDATES])
    if form.reduction != "none":
        old = load(place, tile, form.kinds[1], strides[OUT])
        new = _combined(k, form, old, k.value(new, new.dtype, old.lanes))
    store(place, tile, form.kinds[1], strides[OUT], new)


def _combined(k: Kernel, form: Form, old: Val, new: Val) -> Val:
    if form.reduction == "none":
        return new
    if form.reduction == "add":
        return old + new
    if form.reduction == "mul":
        return old * new
    return extreme(k, old, new, largest=form.reduction == "max")

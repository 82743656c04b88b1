"""Loop nests: the axes that several views are iterated along together, and the loop that iterates them.

Axes come in the graph's order. A ``Nest`` drops axes of one element and merges neighbouring axes that every view
crosses with one common stride. ``ordered`` puts the axis along which a given view is densest last. Extents and strides
are run-time numbers, so one kernel serves every shape; only the *class* of a stride along the vector axis is a
constant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, Expression, View
from sardonyx.providers.cpu.kernels.math import scalar_program
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, i64, register_dtype
from sardonyx.providers.cpu.program.steps import Ref
from sardonyx.records import Record, replace

TYPICAL_SIZE = 64
"""The size assumed for a symbolic dimension when strides are ordered."""


class Axis(Record):
    """An extent, and the stride of each view along it."""

    extent: Known
    strides: tuple[Known, ...]


class Nest(Record):
    """Axes from the outermost to the innermost, as few as the views allow."""

    axes: tuple[Axis, ...]

    @staticmethod
    def of(extents: Sequence[Known], views: Sequence[View], *, skip: int = 0) -> Nest:
        """The axes of the views from axis ``skip`` on; a view of fewer axes has stride 0 along the others."""
        axes = (
            Axis(n, tuple(v.strides[skip + i] if skip + i < len(v.strides) else 0 for v in views))
            for i, n in enumerate(extents)
        )
        return Nest(_simplified(axes))

    def ordered(self, view: int) -> Nest:
        """The axes in the order of one view's strides; equal strides keep their order."""
        return Nest(_simplified(sorted(self.axes, key=lambda axis: -typical(axis.strides[view]))))


def _simplified(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    out: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        merged = _merged(out[-1], axis) if out else None
        if merged is None:
            out.append(axis)
        else:
            out[-1] = merged
    return tuple(out)


def _merged(outer: Axis, inner: Axis) -> Axis | None:
    extent = dims.mul(outer.extent, inner.extent)
    if extent is None:
        return None
    is_even = all(s == dims.mul(t, inner.extent) for s, t in zip(outer.strides, inner.strides, strict=True))
    return Axis(extent, inner.strides) if is_even else None


def typical(d: Known) -> int:
    """The magnitude of a dimension at a typical size; larger sizes are tried where a quotient would be 0."""
    value: object = d
    for power in (1, 2, 3):
        value = dims.evaluate(d, dict.fromkeys(dims.names(d), TYPICAL_SIZE**power))
        if value != 0 or d == 0:
            break
    return abs(value) if isinstance(value, int) else TYPICAL_SIZE


def stride_class(stride: Known) -> str:
    """The class of a stride along the vector axis: ``0``, ``1``, or ``s`` for any other."""
    return str(stride) if isinstance(stride, int) and stride in (0, 1) else "s"


def traffic(views: Sequence[View], axes: Sequence[Axis]) -> Known:
    """Bytes that iterating these axes reads and writes, each element once; 0 where that is not expressible."""
    sizes = (
        dims.mul(view.dtype.itemsize, dims.product(a.extent for a in axes if a.strides[v] != 0))
        for v, view in enumerate(views)
    )
    return dims.known(dims.total(sizes)) or 0


# -- in kernels


class NestArgs(Arguments[M, N]):
    """The parameters of views that are iterated along common axes."""

    is_inline: ClassVar[bool] = True
    views: tuple[M, ...] = field(metadata=named("m"))
    extents: tuple[N, ...] = field(metadata=named("n"))
    strides: tuple[tuple[N, ...], ...] = field(metadata=named("s"))
    """The stride of each view along each axis."""

    @staticmethod
    def declared(types: Sequence[DType], axes: int, *, views: int | None = None) -> NestArgs[Memory, DType]:
        """``views``: those that are iterated, if they are declared as other parameters."""
        count = len(types) if views is None else views
        return NestArgs(tuple(map(Memory, types)), (i64,) * axes, ((i64,) * axes,) * count)

    @staticmethod
    def of(views: Sequence[View], axes: Sequence[Axis]) -> NestArgs[Ref, Known]:
        return replace(NestArgs.over(len(views), axes), views=tuple(map(Ref.of, views)))

    @staticmethod
    def over(views: int, axes: Sequence[Axis]) -> NestArgs[Ref, Known]:
        """Extents and strides alone."""
        strides = tuple(tuple(a.strides[v] for a in axes) for v in range(views))
        return NestArgs((), tuple(a.extent for a in axes), strides)


@contextmanager
def nest_loop(
    k: Kernel, extents: Sequence[Operand], strides: Sequence[Sequence[Operand]]
) -> Iterator[tuple[list[Val], list[Val]]]:
    """Iterate this thread's share of a box in order: gives the indices and the offset of each view.

    ``strides`` has a row for each view. Divisions find the first index only; later ones are incremented.
    """
    sizes = [k.value(n, i64) for n in extents]
    steps = [[k.value(s, i64) for s in row] for row in strides]
    back = [[s * n for s, n in zip(row, sizes, strict=True)] for row in steps]
    total = k.const(1)
    for n in sizes:
        total = total * n
    first, last = k.share_of(total)
    rest, index = first, []
    for n in reversed(sizes):
        divisor = k.max(n, 1)
        index.append(k.var(rest % divisor))
        rest = rest // divisor
    index.reverse()
    moved = []
    for row in steps:
        at = k.const(0)
        for i, s in zip(index, row, strict=True):
            at = at + i * s
        moved.append(k.var(at))

    def advance(axis: int) -> None:
        index[axis] += 1
        for at, row in zip(moved, steps, strict=True):
            at += row[axis]
        if axis > 0:
            with k.when(index[axis].eq(sizes[axis])):
                index[axis].set(0)
                for at, row in zip(moved, back, strict=True):
                    at.set(at - row[axis])
                advance(axis - 1)

    with k.loop(first, last):
        yield [i.get() for i in index], [at.get() for at in moved]
        if sizes:
            advance(len(sizes) - 1)


def load(buf: Buf, tile: Tile, kind: str, stride: Operand) -> Val:
    """The elements of a tile along an axis of this stride class; a scalar for stride 0."""
    if kind == "0":
        return buf.load()
    if kind == "1":
        return buf.load(tile)
    k = buf.k
    if tile.lanes == 1:
        return buf.load(tile.index * stride, mask=tile.mask)
    at = [(tile.index + j) * stride for j in range(tile.lanes)]
    if tile.mask is not None:
        at = [k.select(tile.mask[j], x, at[0]) for j, x in enumerate(at)]
    return k.pack([buf.load(x) for x in at])


def store(buf: Buf, tile: Tile, kind: str, stride: Operand, value: Val, *, is_non_temporal: bool = False) -> None:
    """Write a tile along an axis of this stride class; ``is_non_temporal`` is for whole cache lines."""
    if kind == "1":
        buf.store(tile, value, is_non_temporal=is_non_temporal)
        return
    assert kind == "s", "an output has no stride 0"
    k = buf.k
    v = k.value(value, value.dtype, tile.lanes)
    for j in range(tile.lanes):
        one = v if tile.lanes == 1 else v[j]
        mask = None if tile.mask is None else tile.mask[j]
        buf.store((tile.index + j) * stride, one, mask=mask)


def apply(k: Kernel, expression: Expression, step: Apply, args: Sequence[Val]) -> Val:
    """The value of a pointwise step; scalars are broadcast to the vectors they meet."""
    last = step.program.steps[-1]
    if last.op in ("int", "real"):
        return k.const(last.value, register_dtype(step.dtype))
    lanes = max(a.lanes for a in args)
    types = [expression.dtype_of(a) for a in step.args]
    made = scalar_program.emit(k, step.program, [k.value(a, a.dtype, lanes) for a in args], types)
    return k.cast(made, register_dtype(step.dtype))

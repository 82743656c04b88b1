"""Fused pointwise and reduction passes: from a Loop to the steps that carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, BitCast, Expression, Loop, Reduce, View
from sardonyx.providers.cpu.kernels.common.loop_nest import (
    TYPICAL_SIZE,
    Axis,
    Nest,
    known,
    product,
    stride_class,
    traffic,
    typical,
)
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import Rows
from sardonyx.providers.cpu.kernels.loops import copy, interleave, two_stage_reduction
from sardonyx.providers.cpu.kernels.loops.config import Access, Form
from sardonyx.providers.cpu.kernels.loops.fused_loop import sweep
from sardonyx.providers.cpu.kernels.loops.passes import is_expensive, operations
from sardonyx.providers.cpu.kernels.loops.row import KEPT_GAP
from sardonyx.providers.cpu.kernels.split.bf16 import PackedOperand, with_packed_outputs
from sardonyx.providers.cpu.language.values import bf16
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

PIECE = 4096
"""Elements of a row of a pointwise loop: the grain in which threads share it."""

BLOCK = 64
"""Elements of neighbouring rows that are reduced together, where vectors lie across rows."""

STRIP = 512
"""The same where one pass is enough, and their states fit the nearest cache."""

NARROW, WIDE = 4, 32
"""Elements of an axis that are not worth a vector, and those that are."""

FEW = 16
"""Vectors of a row's elements and of what is kept of them that registers hold from one pass to the next."""

MANY_KEPT = 1 << 20
"""Elements of a row from which on values are recomputed rather than kept."""


def steps(group: Loop, target: Target) -> list[Step]:
    """One step, or two for a long reduction of few rows."""
    loop = copy.as_bits(group)
    moved = interleave.steps(loop, target) or copy.steps(loop, target)
    if moved:
        return moved
    count = product(loop.extents[len(loop.extents) - loop.reduced :])
    if _is_pointwise(loop):
        return [_pointwise(loop, target, count)]
    parts = _passes(loop, target)
    if parts is not None:
        return [step for part in parts for step in steps(part, target)]
    bands = _bands(loop)
    halves = bands or two_stage_reduction.halves(loop)
    if halves is None:
        words = "; ".join(
            target.packed_operands[v.storage].description for v in loop.outputs if v.storage in target.packed_operands
        )
        made = _reduction(_handing(loop, target), target, count)
        return [replace(made, variant=words) if words else made]
    piece = 0 if bands else two_stage_reduction.PIECE
    return [_reduction(halves[0], target, count, piece), _reduction(halves[1], target, count)]


def bits_steps(group: BitCast, target: Target) -> list[Step]:
    return steps(copy.bits_loop(group), target)


def _passes(loop: Loop, target: Target) -> list[Loop] | None:
    is_across = _column(loop) is not None and not any(v.storage in target.packed_operands for v in loop.outputs)
    return two_stage_reduction.passes(loop) if is_across else None


def _bands(loop: Loop) -> tuple[Loop, Loop] | None:
    column = _column(loop)
    return None if column is None else two_stage_reduction.bands(loop, column)


def is_by_row(loop: Loop) -> bool:
    """Whether rows, along the last axis, are worked on one after the other."""
    is_reduced = any(isinstance(s, Reduce) for s in loop.expression.steps) and loop.reduced == 1
    if not is_reduced or _bands(loop) is not None or two_stage_reduction.halves(loop) is not None:
        return False
    outer, swept = _rows(loop)
    return len(swept) == 1 and swept[0].extent == loop.extents[-1] and not _is_across(loop, outer, swept)


def _handing(loop: Loop, target: Target) -> Loop:
    """With the outputs that are packed for their readers, in tiles."""

    def in_tiles(view: View, found: PackedOperand) -> View:
        rows = tuple(known(dims.exact_div(s, loop.extents[-1])) for s in view.strides[:-1])
        tiled = found.tiled
        assert tiled.flags is not None
        return Rows(tiled.tiles, view.shape, (*rows, 0), flags=tiled.flags, terms=found.terms)

    outputs, expression = with_packed_outputs(loop.outputs, loop.expression, target, in_tiles)
    return replace(loop, outputs=outputs, expression=expression)


def _is_pointwise(loop: Loop) -> bool:
    full = all(len(v.strides) == len(loop.extents) for v in loop.outputs)
    return full and not any(isinstance(s, Reduce) for s in loop.expression.steps)


def _pointwise(loop: Loop, target: Target, count: Known) -> Step:
    axes = Nest.of(loop.extents, (*loop.inputs, *loop.outputs)).ordered(len(loop.inputs)).axes
    if not axes:
        axes = (Axis(1, (0,) * len(loop.inputs) + (1,) * len(loop.outputs)),)
    axes = _widened(axes, len(loop.inputs))
    near = _nearest(axes[:-1]) if not loop.expression.steps and len(loop.inputs) == 1 else len(axes) - 2
    if near < len(axes) - 2:
        outer = (*axes[:near], *axes[near + 1 : -2], axes[near])
        return Layout(outer, axes[-2], axes[-1:], PIECE, is_banded=True).step(loop, target, count)
    return Layout(axes[:-1], None, axes[-1:], PIECE).step(loop, target, count)


def _widened(axes: tuple[Axis, ...], inputs: int) -> tuple[Axis, ...]:
    """With a long axis along which all inputs are neighbours as the last, in place of one that fills no vector."""
    if not (isinstance(axes[-1].extent, int) and axes[-1].extent <= NARROW):
        return axes
    for i, axis in reversed(list(enumerate(axes[:-1]))):
        if all(s in (0, 1) for s in axis.strides[:inputs]) and typical(axis.extent) >= WIDE:
            return (*axes[:i], *axes[i + 1 :], axis)
    return axes


def _nearest(axes: Sequence[Axis]) -> int:
    """The axis along which an input's rows lie closest together; of several, the last."""
    return min(range(len(axes)), key=lambda i: (typical(axes[i].strides[0]) or TYPICAL_SIZE**4, -i), default=-1)


def _reduction(loop: Loop, target: Target, count: Known, piece: int = 0) -> Step:
    outer, swept = _rows(loop)
    if not piece and _is_across(loop, outer, swept):
        across = Layout(outer[:-1], outer[-1], swept, 0)
        lanes = across.form(loop).lanes(target.isa.lanes)
        vectors = max(2, min(2 if _is_expensive(loop.expression) else 8, BLOCK // lanes))
        rows = product(a.extent for a in outer)
        strip = BLOCK if isinstance(rows, int) and rows <= two_stage_reduction.FEW_COLUMNS else STRIP
        piece = strip if across.form(loop).is_strip else lanes * vectors
        return replace(across, piece=piece).step(loop, target, count)
    return Layout(outer, None, swept, piece).step(loop, target, count)


def _rows(loop: Loop) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """The kept axes and the reduced ones, each as few as can be and in the order of memory."""
    kept = len(loop.extents) - loop.reduced
    views = (*loop.inputs, *loop.outputs)
    outer = Nest.of(loop.extents[:kept], views).ordered(len(loop.inputs)).axes
    whole = Nest.of(loop.extents[kept:], views, skip=kept)
    lead = next((v for v in range(len(loop.inputs)) if any(a.strides[v] != 0 for a in whole.axes)), 0)
    return outer, whole.ordered(lead).axes or (Axis(1, (0,) * len(loop.inputs) + (1,) * len(loop.outputs)),)


def _is_across(loop: Loop, outer: Sequence[Axis], swept: Sequence[Axis]) -> bool:
    """Whether vectors lie along a kept axis."""

    def units(axis: Axis) -> int:
        return sum(stride_class(s) == "1" for s in axis.strides[: len(loop.inputs)])

    return bool(outer) and units(outer[-1]) > units(swept[-1])


def _column(loop: Loop) -> int | None:
    """The kept axis that vectors lie along; None where they lie along rows."""
    if not _is_across(loop, *_rows(loop)):
        return None
    kept = range(len(loop.extents) - loop.reduced)
    return next((i for i in kept if loop.extents[i] != 1 and any(v.strides[i] == 1 for v in loop.inputs)), None)


def _is_expensive(expression: Expression) -> bool:
    return any(isinstance(s, Apply) and is_expensive(s.program) for s in expression.steps)


@dataclass(frozen=True)
class Layout:
    """The axes of a loop as the sweep takes them."""

    outer: tuple[Axis, ...]
    across: Axis | None
    """The axis along which vectors lie, where it is not the last of a row; or, of a copy, the axis of bands."""
    swept: tuple[Axis, ...]
    piece: int
    is_banded: bool = False

    @property
    def is_columnar(self) -> bool:
        return self.across is not None and not self.is_banded

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.outer, *((self.across,) if self.across else ()), *self.swept)

    @property
    def elements(self) -> Known:
        """Of a row."""
        return product(a.extent for a in self.swept)

    def form(self, loop: Loop) -> Form:
        along = self.across if self.across and self.is_columnar else self.swept[-1]
        rows = [len(v.strides) < len(loop.extents) for v in loop.outputs]
        e, n = loop.expression, len(loop.inputs)
        inputs = tuple(
            Access(dtype, stride_class(along.strides[v]), all(a.strides[v] == 0 for a in self.swept))
            for v, dtype in enumerate(e.operands)
        )
        outputs = tuple(
            Access(bf16, "1", False, view.terms)
            if isinstance(view, Rows)
            else Access(e.dtype_of(number), "1" if along.strides[n + v] == 1 else "s", is_row)
            for v, (view, number, is_row) in enumerate(zip(loop.outputs, e.results, rows, strict=True))
        )
        accesses = zip((*loop.inputs, *loop.outputs), (*inputs, *outputs), strict=True)
        # What is moved as it is may be taken for integers.
        assert all(isinstance(v, Rows) or v.dtype.itemsize == x.dtype.itemsize for v, x in accesses), "sizes in memory"
        may_keep = not isinstance(self.elements, int) or self.elements < MANY_KEPT
        if self.is_columnar:
            may_keep = isinstance(self.elements, int) and self.elements < MANY_KEPT // BLOCK
        return Form(
            e, inputs, outputs, len(self.outer), len(self.swept), self.is_columnar, self.is_banded, self.piece, may_keep
        )

    def _vectors(self, form: Form, machine: int) -> int:
        """Of a row, if those are few and whole, and go past the caches."""
        lanes, n = form.lanes(machine), self.elements
        if not isinstance(n, int) or n % lanes or not form.is_late(machine):
            return 0
        held = len(form.schedule.kept) + sum(not x.is_of_row for x in form.inputs)
        return n // lanes if n // lanes * held <= FEW else 0

    def step(self, loop: Loop, target: Target, count: Known) -> Step:
        form = self.form(loop)
        seen = zip(form.outputs, loop.outputs, strict=True)
        form = replace(form, outputs=tuple(replace(y, is_past=target.writes_past(view)) for y, view in seen))
        form = replace(form, vectors=self._vectors(form, target.isa.lanes))
        views, axes = (*loop.inputs, *loop.outputs), self.axes
        args: dict[str, Ref | Known | float] = {f"m{v}": Ref.of(view) for v, view in enumerate(views)}
        args |= {f"n{i}": a.extent for i, a in enumerate(axes)}
        args |= {f"s{v}_{i}": a.strides[v] for v in range(len(views)) for i, a in enumerate(axes)}
        if self.piece:
            strides = axes[form.vector_axis].strides
            args |= {f"p{v}": known(dims.mul(stride, self.piece)) for v, stride in enumerate(strides)}
            for i, access in enumerate(form.outputs):
                if access.is_of_row and not self.is_columnar:
                    args[f"p{len(loop.inputs) + i}"] = 1
        flags = {f"f{v}": Ref(view.flags) for v, view in enumerate(views) if isinstance(view, Rows)}
        width = self.piece if self.is_columnar else 1
        size = known(dims.add(dims.mul(self.elements, width * form.kept_itemsize), KEPT_GAP))
        kept = len(form.schedule.kept) * form.kept_rows(target.isa.lanes)
        work = sum(operations(s.program) if isinstance(s, Apply) else 1 for s in loop.expression.steps)
        return Step(
            sweep(form=form),
            {**args, **flags, "count": count},
            frozenset((*(f"m{v}" for v in range(len(loop.inputs), len(views))), *flags)),
            loop.nodes,
            scratch_nbytes=form.strip_nbytes or known(dims.mul(kept, size)),
            flops=dims.known(dims.mul(work, dims.product(a.extent for a in axes))) or 0,
            nbytes=traffic(views, axes),
            variant="vectors across rows" if self.is_columnar else "in bands" if self.is_banded else "",
        )

"""Fused pointwise and reduction loops: chooses axes, vectorization and chunks of a Loop, and makes its steps."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, BitCast, Expression, Loop, Reduce, View
from sardonyx.providers.cpu.kernels.common.loop_nest import (
    TYPICAL_SIZE,
    Axis,
    Nest,
    NestArgs,
    stride_class,
    traffic,
    typical,
)
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import PackedRows
from sardonyx.providers.cpu.kernels.loops import copy, interleave, split_passes, two_stage_reduction
from sardonyx.providers.cpu.kernels.loops.config import Access, LoopArgs, LoopConfig
from sardonyx.providers.cpu.kernels.loops.fused_loop import fused_loop
from sardonyx.providers.cpu.kernels.loops.passes import is_expensive, operations
from sardonyx.providers.cpu.kernels.loops.row import SAVED_GAP
from sardonyx.providers.cpu.kernels.loops.two_stage_reduction import Stage
from sardonyx.providers.cpu.kernels.split.bf16 import PackedOperand, with_packed_outputs
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.values import bf16
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible, product
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record, replace

CHUNK = 4096
"""Elements of a pointwise loop that are one work item."""

ACROSS_BLOCK = 64
"""Rows that are reduced together if vectors lie across rows."""

ADJACENT_ROWS = 512
"""Rows that are reduced together in a single pass without stores: their accumulators fit L1."""

NARROW, WIDE = 4, 32
"""Extents up to which, and from which on, an axis is too short or long enough for vectors."""

REGISTER_VECTORS = 16
"""Vectors of inputs and saved values of a row that registers can hold."""

MAX_SAVED = 1 << 20
"""Elements of a row up to which values are saved rather than recomputed."""


def steps(group: Loop, analysis: Analysis) -> list[Step]:
    """A loop by whichever kernel takes it: loops that kernels add to their own steps, which no pass has seen."""
    if interleave.supports(group, analysis) is None:
        return interleave.steps(group, analysis)
    return (fused_steps if copy.supports(group, analysis) else copy.steps)(group, analysis)


def fused_steps(group: Loop, analysis: Analysis) -> list[Step]:
    """One step, or several for long reductions of few rows."""
    loop, _ = copy.movable(group, analysis)
    return _steps_of(Stage(loop, product(loop.extents[len(loop.extents) - loop.reduced :]), may_split=True), analysis)


def _steps_of(stage: Stage, analysis: Analysis) -> list[Step]:
    loop = stage.loop
    if _is_pointwise(loop):
        return [_pointwise(loop, analysis, stage.count)]
    stages = _split(loop, stage.count) if stage.may_split else None
    if stages is not None:
        return [step for part in stages for step in _steps_of(part, analysis)]
    words = "; ".join(
        analysis.packed_operands[v.storage].description for v in loop.outputs if v.storage in analysis.packed_operands
    )
    made = _reduction(replace(stage, loop=_with_packed_outputs(loop, analysis)), analysis)
    return [replace(made, variant=words) if words else made]


def bit_cast_steps(group: BitCast, analysis: Analysis) -> list[Step]:
    return steps(copy.bit_cast_loop(group), analysis)


def _split(loop: Loop, count: Known) -> list[Stage] | None:
    """The loops that a reduction is split into; None if it stays one."""
    outer, row_axes = _rows(loop)
    is_across = _is_across(loop, outer, row_axes)
    passes = split_passes.split_passes(loop, count, is_across=is_across)
    if passes is not None:
        return passes
    by_run = two_stage_reduction.with_runs_first(loop)
    runs = None if by_run is None else two_stage_reduction.split_runs(by_run, count)
    if runs is not None:
        return runs
    column = _column(loop) if is_across else None
    if column is None:
        return two_stage_reduction.split_rows(loop, count)
    return two_stage_reduction.split_across_rows(loop, column, row_axes, count)


def is_row_by_row(loop: Loop) -> bool:
    """Whether the loop reduces the last axis, one contiguous row after the other."""
    is_reduced = any(isinstance(s, Reduce) for s in loop.expression.steps) and loop.reduced == 1
    if not is_reduced or _split(loop, loop.extents[-1]) is not None:
        return False
    outer, row_axes = _rows(loop)
    return len(row_axes) == 1 and row_axes[0].extent == loop.extents[-1] and not _is_across(loop, outer, row_axes)


def _with_packed_outputs(loop: Loop, analysis: Analysis) -> Loop:
    """The loop, with those outputs packed that are packed for their consumer."""

    def packed(view: View, found: PackedOperand) -> View:
        rows = tuple(expressible(dims.exact_div(s, loop.extents[-1])) for s in view.strides[:-1])
        tiled = found.tiled
        assert tiled.flags is not None
        return PackedRows(tiled.tiles, view.shape, (*rows, 0), flags=tiled.flags, terms=found.terms)

    outputs, expression = with_packed_outputs(loop.outputs, loop.expression, analysis, packed)
    return replace(loop, outputs=outputs, expression=expression)


def _is_pointwise(loop: Loop) -> bool:
    full = all(len(v.strides) == len(loop.extents) for v in loop.outputs)
    return full and not any(isinstance(s, Reduce) for s in loop.expression.steps)


def _pointwise(loop: Loop, analysis: Analysis, count: Known) -> Step:
    axes = Nest.of(loop.extents, (*loop.inputs, *loop.outputs)).ordered(len(loop.inputs)).axes
    if not axes:
        axes = (Axis(1, (0,) * len(loop.inputs) + (1,) * len(loop.outputs)),)
    axes = _widened(axes, len(loop.inputs))
    closest = _closest(axes[:-1]) if not loop.expression.steps and len(loop.inputs) == 1 else len(axes) - 2
    if closest < len(axes) - 2:
        outer = (*axes[:closest], *axes[closest + 1 : -2], axes[closest])
        return Layout(outer, axes[-2], axes[-1:], CHUNK, is_row_blocked=True).step(loop, analysis, count)
    return Layout(axes[:-1], None, axes[-1:], CHUNK).step(loop, analysis, count)


def _widened(axes: tuple[Axis, ...], inputs: int) -> tuple[Axis, ...]:
    """Moves a long axis along which all inputs are contiguous to the end if the last one is too short for vectors."""
    if not (isinstance(axes[-1].extent, int) and axes[-1].extent <= NARROW):
        return axes
    for i, axis in reversed(list(enumerate(axes[:-1]))):
        if all(s in (0, 1) for s in axis.strides[:inputs]) and typical(axis.extent) >= WIDE:
            return (*axes[:i], *axes[i + 1 :], axis)
    return axes


def _closest(axes: Sequence[Axis]) -> int:
    """The axis along which the rows of input 0 are closest together; of several, the last."""
    return min(range(len(axes)), key=lambda i: (typical(axes[i].strides[0]) or TYPICAL_SIZE**4, -i), default=-1)


def _reduction(stage: Stage, analysis: Analysis) -> Step:
    loop, count = stage.loop, stage.count
    outer, row_axes = _rows(loop)
    if not _is_across(loop, outer, row_axes):
        return Layout(outer, None, row_axes, stage.chunk).step(loop, analysis, count)
    across = Layout(outer[:-1], outer[-1], row_axes, 0, row_chunk=stage.chunk, row_chunk_stride=stage.chunk_stride)
    lanes = across.config(loop).lanes(analysis.isa.lanes)
    vectors = max(2, min(2 if _is_expensive(loop.expression) else 8, ACROSS_BLOCK // lanes))
    rows = product(a.extent for a in outer)
    adjacent = ACROSS_BLOCK if isinstance(rows, int) and rows <= two_stage_reduction.MAX_COLUMNS else ADJACENT_ROWS
    chunk = adjacent if across.config(loop).is_adjacent_rows else lanes * vectors
    return replace(across, chunk=chunk).step(loop, analysis, count)


def _rows(loop: Loop) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """Kept and reduced axes, each simplified and in memory order."""
    kept = len(loop.extents) - loop.reduced
    views = (*loop.inputs, *loop.outputs)
    outer = Nest.of(loop.extents[:kept], views).ordered(len(loop.inputs)).axes
    whole = Nest.of(loop.extents[kept:], views, skip=kept)
    lead = next((v for v in range(len(loop.inputs)) if any(a.strides[v] != 0 for a in whole.axes)), 0)
    return outer, whole.ordered(lead).axes or (Axis(1, (0,) * len(loop.inputs) + (1,) * len(loop.outputs)),)


def _is_across(loop: Loop, outer: Sequence[Axis], row_axes: Sequence[Axis]) -> bool:
    """Whether vectors lie across rows: more inputs are contiguous along the last kept axis than along rows."""

    def units(axis: Axis) -> int:
        return sum(stride_class(s) == "1" for s in axis.strides[: len(loop.inputs)])

    return bool(outer) and units(outer[-1]) > units(row_axes[-1])


def _column(loop: Loop) -> int | None:
    """The kept axis of vectors across rows; None if vectors lie along rows."""
    if not _is_across(loop, *_rows(loop)):
        return None
    kept = range(len(loop.extents) - loop.reduced)
    return next((i for i in kept if loop.extents[i] != 1 and any(v.strides[i] == 1 for v in loop.inputs)), None)


def _is_expensive(expression: Expression) -> bool:
    return any(isinstance(s, Apply) and is_expensive(s.program) for s in expression.steps)


class Layout(Record):
    """The axes of a loop in the roles that ``fused_loop`` gives them."""

    outer: tuple[Axis, ...]
    across: Axis | None
    """The axis of vectors across rows; or, of a copy with ``is_row_blocked``, the axis of row blocks."""
    row_axes: tuple[Axis, ...]
    chunk: int
    is_row_blocked: bool = False
    row_chunk: int = 0
    """With vectors across rows: the elements of a row's outermost axis that one work item reduces; 0: all."""
    row_chunk_stride: Known = 1
    """The stride of outputs from one such chunk to the next."""

    @property
    def is_across_rows(self) -> bool:
        return self.across is not None and not self.is_row_blocked

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.outer, *((self.across,) if self.across else ()), *self.row_axes)

    @property
    def elements(self) -> Known:
        """Elements of a row."""
        return product(a.extent for a in self.row_axes)

    def config(self, loop: Loop) -> LoopConfig:
        along = self.across if self.across and self.is_across_rows else self.row_axes[-1]
        rows = [len(v.strides) < len(loop.extents) for v in loop.outputs]
        e, n = loop.expression, len(loop.inputs)
        inputs = tuple(
            Access(dtype, stride_class(along.strides[v]), all(a.strides[v] == 0 for a in self.row_axes))
            for v, dtype in enumerate(e.operands)
        )
        outputs = tuple(
            Access(bf16, "1", False, view.terms)
            if isinstance(view, PackedRows)
            else Access(e.dtype_of(number), "1" if along.strides[n + v] == 1 else "s", is_row)
            for v, (view, number, is_row) in enumerate(zip(loop.outputs, e.results, rows, strict=True))
        )
        accesses = zip((*loop.inputs, *loop.outputs), (*inputs, *outputs), strict=True)
        # Copies take elements for integers of the same size.
        assert all(isinstance(v, PackedRows) or v.dtype.itemsize == x.dtype.itemsize for v, x in accesses), (
            "sizes in memory"
        )
        may_save = not isinstance(self.elements, int) or self.elements < MAX_SAVED
        if self.is_across_rows:
            may_save = isinstance(self.elements, int) and self.elements < MAX_SAVED // ACROSS_BLOCK
        return LoopConfig(
            e,
            inputs,
            outputs,
            len(self.outer),
            len(self.row_axes),
            self.is_across_rows,
            self.is_row_blocked,
            self.chunk,
            may_save,
            row_chunk=self.row_chunk,
        )

    def _register_vectors(self, config: LoopConfig, f32_lanes: int) -> int:
        """The vectors of a row if it is a few whole ones, with non-temporal stores; else 0."""
        lanes, n = config.lanes(f32_lanes), self.elements
        if not isinstance(n, int) or n % lanes or not config.is_deferred(f32_lanes):
            return 0
        held = len(config.schedule.saved) + sum(not x.is_per_row for x in config.inputs)
        return n // lanes if n // lanes * held <= REGISTER_VECTORS else 0

    def _chunk_strides(self, config: LoopConfig) -> tuple[Known, ...]:
        """The stride of each view from one chunk to the next."""
        along = self.axes[config.vector_axis].strides
        strides = [expressible(dims.mul(stride, self.chunk)) for stride in along]
        for i, access in enumerate(config.outputs):
            if access.is_per_row and not self.is_across_rows:
                strides[len(config.inputs) + i] = 1
        return tuple(strides)

    def _row_chunk_strides(self, inputs: int) -> tuple[Known, ...]:
        """The stride of each view from one chunk of rows to the next, where vectors lie across rows."""
        strides = self.row_axes[0].strides
        read = (expressible(dims.mul(stride, self.row_chunk)) for stride in strides[:inputs])
        return (*read, *(self.row_chunk_stride for _ in strides[inputs:]))

    def step(self, loop: Loop, analysis: Analysis, count: Known) -> Step:
        config = self.config(loop)
        seen = zip(config.outputs, loop.outputs, strict=True)
        config = replace(
            config,
            outputs=tuple(replace(y, is_non_temporal=analysis.target.writes_non_temporal(view)) for y, view in seen),
        )
        config = replace(config, register_vectors=self._register_vectors(config, analysis.isa.lanes))
        views, axes = (*loop.inputs, *loop.outputs), self.axes
        chunks = self._chunk_strides(config) if self.chunk else ()
        flags = tuple(Ref(view.flags) if isinstance(view, PackedRows) else None for view in views)
        row_chunks = self._row_chunk_strides(len(loop.inputs)) if self.row_chunk else ()
        args = LoopArgs[Ref, Known](NestArgs.of(views, axes), chunks, row_chunks, flags, count)
        written = {f"m{v}" for v in range(len(loop.inputs), len(views))}
        width = self.chunk if self.is_across_rows else 1
        size = expressible(dims.add(dims.mul(self.elements, width * config.saved_itemsize), SAVED_GAP))
        saved = len(config.schedule.saved) * config.saved_rows(analysis.isa.lanes)
        work = sum(operations(s.program) if isinstance(s, Apply) else 1 for s in loop.expression.steps)
        return Step(
            fused_loop(config=config),
            flat(args=args),
            frozenset(written | {f"f{v}" for v, of_rows in enumerate(flags) if of_rows is not None}),
            loop.nodes,
            scratch_nbytes=config.state_nbytes or expressible(dims.mul(saved, size)),
            flops=dims.known(dims.mul(work, dims.product(a.extent for a in axes))) or 0,
            nbytes=traffic(views, axes),
            variant="vectors across rows" if self.is_across_rows else "in row blocks" if self.is_row_blocked else "",
        )

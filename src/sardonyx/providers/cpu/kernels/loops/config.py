"""The compile-time configuration of a fused loop: its expression, its passes, and how it accesses each view."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.forks import cached_property
from sardonyx.lower.groups import Expression
from sardonyx.providers.cpu.kernels.common.loop_nest import NestArgs
from sardonyx.providers.cpu.kernels.loops.passes import Pass, Schedule
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Params
from sardonyx.providers.cpu.language.values import i32, i64, register_dtype
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.records import Record


class Access(Record):
    """How the kernel reads or writes a view."""

    dtype: DType
    kind: str
    """The view's stride class along the vector axis (``stride_class``)."""
    is_per_row: bool
    """The view has one element per row."""
    terms: int = 0
    """For an output that is packed for a GEMM (``gemm.packed_epilogue``), the bf16 terms of each number; else 0."""
    is_non_temporal: bool = False
    """An output with non-temporal stores."""


class LoopConfig(Record):
    """The compile-time configuration of ``fused_loop``.

    Axes are, in order: outer axes, at most one axis for vectors across rows or for blocks of rows, row axes.
    """

    expression: Expression
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    outer: int
    """The number of outer axes."""
    row_axes: int
    """The number of axes of a row: reduced axes, or the innermost one of a pointwise loop."""
    is_across_rows: bool
    """Lanes are adjacent rows (along the axis between outer and row axes), not elements of one row."""
    is_row_blocked: bool
    """Rows are visited in blocks along the axis between outer and row axes."""
    chunk: int
    """Elements of the vector axis that one work item covers; 0: all."""
    may_save: bool
    """Expensive values may be saved in scratch memory between passes."""
    register_vectors: int = 0
    """The vectors of a row that stays in registers (``loops.register_row``); 0: it does not."""
    row_chunk: int = 0
    """With vectors across rows: elements of the outermost row axis that one work item covers; 0: all."""

    @property
    def axes(self) -> int:
        return self.outer + (self.is_across_rows or self.is_row_blocked) + self.row_axes

    @property
    def vector_axis(self) -> int:
        return self.outer if self.is_across_rows else self.axes - 1

    @cached_property
    def schedule(self) -> Schedule:
        rows, results = (frozenset(i for i, a in enumerate(x) if a.is_per_row) for x in (self.inputs, self.outputs))
        return Schedule(self.expression, rows, results, self.may_save)

    @property
    def is_adjacent_rows(self) -> bool:
        """Adjacent rows are reduced together in one pass without stores, so that memory is read in its order."""
        passes = self.schedule.passes
        return self.is_across_rows and len(passes) == 1 and not passes[0].stores

    def non_temporal_output(self, p: Pass, f32_lanes: int) -> int | None:
        """The output of a pass with non-temporal stores: the first whose vectors are whole cache lines."""
        outputs = ((i, self.outputs[i]) for i in p.stores if not p.reductions)
        lanes = self.lanes(f32_lanes)
        whole = (
            i for i, y in outputs if y.is_non_temporal and y.kind == "1" and lanes * y.dtype.itemsize == LINE_NBYTES
        )
        return next(whole, None)

    def is_deferred(self, f32_lanes: int) -> bool:
        """The last pass of a row is interleaved with the passes of the next row (``loops.deferred_pass``).

        It needs non-temporal stores of values that depend only on saved values.
        """
        if (
            self.register_vectors
            or self.is_across_rows
            or self.is_row_blocked
            or self.chunk
            or self.row_axes > 1
            or not self.schedule.saved
        ):
            return False
        *_, before, last = self.schedule.passes
        is_alone = len(self.outputs) == 1 and self.non_temporal_output(last, f32_lanes) is not None
        return is_alone and bool(before.saves) and last.values[0] >= len(self.inputs)

    def saved_rows(self, f32_lanes: int) -> int:
        """Rows whose saved values are in scratch memory at a time."""
        return 0 if self.register_vectors else 2 if self.is_deferred(f32_lanes) else 1

    @property
    def saved_itemsize(self) -> int:
        """Bytes of an element of the widest saved value."""
        types = (register_dtype(self.expression.dtype_of(v)) for v in self.schedule.saved)
        return max((t.bits // 8 for t in types), default=0)

    @property
    def state_nbytes(self) -> int:
        """Scratch bytes for the accumulators of adjacent rows."""
        if not self.is_adjacent_rows:
            return 0
        states = (
            2 if self.schedule.reduction(r).kind.startswith("arg") else 1 for r in self.schedule.passes[0].reductions
        )
        return sum(states) * 8 * self.chunk

    def lanes(self, f32_lanes: int) -> int:
        """Lanes of a vector: one register of the widest type that occurs, where one of f32 has ``f32_lanes``."""
        e = self.expression
        types = {*e.operands, *(s.dtype for s in e.steps), *(a.dtype for a in self.outputs)}
        return max(1, f32_lanes * 32 // max(register_dtype(t).bits for t in types))


class LoopArgs(Arguments[M, N]):
    """The parameters of ``fused_loop``."""

    is_inline: ClassVar[bool] = True
    nest: NestArgs[M, N]
    """Strides of a packed output count rows."""
    chunks: tuple[N, ...] = field(metadata=named("p"))
    """The stride of each view between chunks, if there are chunks."""
    row_chunks: tuple[N, ...] = field(metadata=named("q"))
    """The stride of each view between chunks of rows, if there are such."""
    flags: tuple[M | None, ...] = field(metadata=named("f"))
    """For each packed output, a flag for each row; None for other views."""
    count: N
    """The number of reduced elements."""


def params(config: LoopConfig) -> Params:
    views = (*config.inputs, *config.outputs)
    nest = NestArgs.declared([x.dtype for x in views], config.axes)
    chunks, row_chunks = ((i64,) * len(views) if chunk else () for chunk in (config.chunk, config.row_chunk))
    flags = tuple(Memory(i32) if x.terms else None for x in views)
    return {"args": LoopArgs[Memory, DType](nest, chunks, row_chunks, flags, i64)}

"""The kernel for Loop groups: an outer loop over rows, and for each row the passes of the expression.

Vectors lie along the row (its last axis). If the reduced axes are not contiguous in memory but the last kept axis is,
vectors lie across rows instead: a lane is then a row, and every value of the row is a vector.
"""

from __future__ import annotations

from sardonyx.providers.cpu.kernels.common.loop_nest import nest_loop
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import place_of
from sardonyx.providers.cpu.kernels.loops.adjacent_rows import AdjacentRows
from sardonyx.providers.cpu.kernels.loops.config import LoopArgs, LoopConfig, params
from sardonyx.providers.cpu.kernels.loops.deferred_pass import DeferredRow
from sardonyx.providers.cpu.kernels.loops.register_row import RegisterRow
from sardonyx.providers.cpu.kernels.loops.row import Row
from sardonyx.providers.cpu.kernels.split.bf16 import STEP, step_elements
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val

ROW_BLOCK = 16
"""Rows copied together if the order of rows differs between input and output."""


@kernel(params)
def fused_loop(k: Kernel, args: LoopArgs[Buf, Val], *, config: LoopConfig) -> None:
    memory, extents, strides = list(args.nest.views), list(args.nest.extents), [list(s) for s in args.nest.strides]
    rows, steps = extents[: config.outer], [s[: config.outer] for s in strides]
    if config.is_row_blocked:
        rows.insert(-1, (extents[config.outer] + (ROW_BLOCK - 1)) // ROW_BLOCK)
        for step, stride in zip(steps, strides, strict=True):
            step.insert(-1, stride[config.outer] * ROW_BLOCK)
    row_axis = config.axes - config.row_axes
    if config.row_chunk:
        rows = [*rows, (extents[row_axis] + (config.row_chunk - 1)) // config.row_chunk]
        steps = [[*s, chunk] for s, chunk in zip(steps, args.row_chunks, strict=True)]
    if config.chunk:
        rows = [*rows, (extents[config.vector_axis] + (config.chunk - 1)) // config.chunk]
        steps = [[*s, chunk] for s, chunk in zip(steps, args.chunks, strict=True)]
    deferred = DeferredRow(k, config, memory, strides, extents) if config.is_deferred(k.lanes) else None
    with nest_loop(k, rows, steps) as (index, moved):
        size = list(extents)
        if config.row_chunk:
            size[row_axis] = k.min(size[row_axis] - index[config.outer] * config.row_chunk, config.row_chunk)
        if config.chunk:
            size[config.vector_axis] = k.min(size[config.vector_axis] - index[-1] * config.chunk, config.chunk)
        here = [buf.at(at) for buf, at in zip(memory, moved, strict=True)]
        if config.is_row_blocked:
            with k.loop(0, k.min(extents[config.outer] - index[config.outer - 1] * ROW_BLOCK, ROW_BLOCK)) as i:
                there = [buf.at(i * stride[config.outer]) for buf, stride in zip(here, strides, strict=True)]
                Row(k, config, there, strides, size, args.count).run([])
            return
        row = Row(k, config, here, strides, size, args.count)
        for v, access in enumerate((*config.inputs, *config.outputs)):
            flags = args.flags[v]
            if flags is not None:
                place = place_of(moved[v], size[-1] // STEP * step_elements(access.terms))
                row.set_packed_output(v - len(config.inputs), memory[v].at(place), flags.at(moved[v]))
        if config.register_vectors:
            RegisterRow(row).run()
        elif deferred is not None:
            deferred.run(row, moved[-1])
        elif config.is_adjacent_rows:
            AdjacentRows(row).run(size[config.vector_axis])
        elif config.is_across_rows:
            for block in k.blocks(size[config.vector_axis], row.lanes, unroll=config.chunk // row.lanes):
                row.run(block)
        else:
            row.run([])
    if deferred is not None:
        deferred.finish()

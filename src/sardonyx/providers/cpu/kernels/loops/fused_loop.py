"""The kernel behind every Loop: a walk over rows, and over each row the passes of its expression.

Vectors lie along the row (its last axis), or, where the reduced axes are not the ones that lie together in memory,
along the last axis that is kept: then a *row* is as many neighbouring rows as a block of vectors holds, and every value
of the row is a vector.
"""

from __future__ import annotations

from typing import Any

from sardonyx.providers.cpu.kernels.common.loop_nest import walk
from sardonyx.providers.cpu.kernels.gemm.packed_epilogue import place_of
from sardonyx.providers.cpu.kernels.loops.adjacent_rows import RowStrip
from sardonyx.providers.cpu.kernels.loops.config import Form, params
from sardonyx.providers.cpu.kernels.loops.deferred_pass import RowLate
from sardonyx.providers.cpu.kernels.loops.register_row import RowWhole
from sardonyx.providers.cpu.kernels.loops.row import Row
from sardonyx.providers.cpu.kernels.split.bf16 import STEP, step_elements
from sardonyx.providers.cpu.language.dsl import Kernel, kernel

BAND = 16
"""Rows that are copied together where the output's next row is not the input's."""


@kernel(params)
def sweep(k: Kernel, *, form: Form, **given: Any) -> None:
    views = range(len(form.inputs) + len(form.outputs))
    extents = [given[f"n{i}"] for i in range(form.axes)]
    strides = [[given[f"s{v}_{i}"] for i in range(form.axes)] for v in views]
    rows, steps = extents[: form.outer], [s[: form.outer] for s in strides]
    if form.is_banded:
        rows.insert(-1, (extents[form.outer] + (BAND - 1)) // BAND)
        for step, stride in zip(steps, strides, strict=True):
            step.insert(-1, stride[form.outer] * BAND)
    if form.piece:
        rows = [*rows, (extents[form.vector_axis] + (form.piece - 1)) // form.piece]
        steps = [[*s, given[f"p{v}"]] for v, s in enumerate(steps)]
    memory = [given[f"m{v}"] for v in views]
    late = RowLate(k, form, memory, strides, extents) if form.is_late(k.lanes) else None
    with walk(k, rows, steps) as (index, moved):
        size = list(extents)
        if form.piece:
            size[form.vector_axis] = k.min(size[form.vector_axis] - index[-1] * form.piece, form.piece)
        here = [buf.at(at) for buf, at in zip(memory, moved, strict=True)]
        if form.is_banded:
            with k.loop(0, k.min(extents[form.outer] - index[form.outer - 1] * BAND, BAND)) as i:
                there = [buf.at(i * stride[form.outer]) for buf, stride in zip(here, strides, strict=True)]
                Row(k, form, there, strides, size, given["count"]).run([])
            return
        row = Row(k, form, here, strides, size, given["count"])
        for v, access in enumerate((*form.inputs, *form.outputs)):
            if access.terms:
                place = place_of(moved[v], size[-1] // STEP * step_elements(access.terms))
                row.packs_into(v - len(form.inputs), memory[v].at(place), given[f"f{v}"].at(moved[v]))
        if form.vectors:
            RowWhole(row).run()
        elif late is not None:
            late.run(row, moved[-1])
        elif form.is_strip:
            RowStrip(row).run(size[form.vector_axis])
        elif form.is_columnar:
            for block in k.blocks(size[form.vector_axis], row.lanes, unroll=form.piece // row.lanes):
                row.run(block)
        else:
            row.run([])
    if late is not None:
        late.rest()

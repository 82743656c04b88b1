"""Separable resampling of images: input rows are blended into one row, which is then resampled along its axis.

The taps of all outer axes are input rows. They are summed with their weights, vector by vector: into registers if the
innermost axis is not resampled, otherwise into a row that is staged in scratch memory. Along that row an integer factor
(``PolyphaseFilter``) takes a few vectors with constant weights and constant shuffles. A table (``TapTable``) takes
shuffles with run-time lanes if neighbouring outputs read nearby elements, else one load for each element. Where vectors
are long enough, the row stays in registers instead of scratch memory. Unweighted rows are read in place.

Grid: the rows of the result. Each is computed by one thread, in one order.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.dtypes import DType, of_name
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower import views
from sardonyx.lower.groups import Expression, Resample, TapTable, View
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.loop_nest import Axis, nest_loop, traffic
from sardonyx.providers.cpu.kernels.common.matrices import Matrix
from sardonyx.providers.cpu.kernels.image.resize_config import (
    COLUMN_BLOCK,
    MAX_STAGED_ROWS,
    MAX_STAGED_VECTORS,
    RUNTIME_TAPS,
    SLACK_VECTORS,
    ResizeArgs,
    ResizeConfig,
    TapTableArgs,
    TapTableConfig,
    axis_config,
)
from sardonyx.providers.cpu.kernels.image.resize_row import Row
from sardonyx.providers.cpu.kernels.image.resize_shuffle import ShuffleTable, may_shuffle, source_vectors_of
from sardonyx.providers.cpu.language.arguments import Memory, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64, register_dtype
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref, Step
from sardonyx.records import Record, replace

MIN_ROW = 8
"""Elements from which on an axis that is not resampled may be the innermost one."""


class _Layout:
    """A group's views with the result's innermost axis last, and as few other axes as strides allow."""

    def __init__(self, group: Resample) -> None:
        self.along = dict(group.along)
        self.views = [group.x, *group.extra, *group.outputs]
        rank, inner = len(group.box), _innermost(group)
        order = [*(i for i in range(rank) if i != inner), inner]
        self.views = [views.permuted(v, order) for v in self.views]
        self.along = {order.index(i): a for i, a in self.along.items()}
        for axis in reversed(range(rank - 1)):
            if axis in self.along:
                continue
            if self.views[-1].shape[axis] == 1:
                self._change(axis, views.selected)
            elif (
                axis + 1 not in self.along
                and axis + 2 <= self.rank
                and all(views.is_mergeable(v, axis) for v in self.views)
            ):
                self._change(axis, views.merged)
        if self.rank == 1:
            self.along = {i + 1: a for i, a in self.along.items()}
            self.views = [views.inserted(v, 0) for v in self.views]

    @property
    def rank(self) -> int:
        return len(self.views[-1].shape)

    def _change(self, axis: int, change: Callable[[View, int], View]) -> None:
        self.views = [change(v, axis) for v in self.views]
        self.along = {i - (i > axis): a for i, a in self.along.items()}


def _innermost(group: Resample) -> int:
    """The axis that vectors lie along: the result's densest, unless it is short and not resampled (RGB channels)."""
    out = group.outputs[0]
    found = next((i for i, s in enumerate(out.strides) if s == 1 and out.shape[i] != 1), len(out.shape) - 1)
    size = out.shape[found]
    is_short = isinstance(size, int) and size < MIN_ROW and found not in dict(group.along)
    return max(i for i, _ in group.along) if is_short else found


def steps(group: Resample, analysis: Analysis) -> list[Step]:
    layout, lanes = _Layout(group), analysis.isa.lanes
    x, rest = layout.views[0], layout.views[1:]
    extra, outputs = rest[: len(group.extra)], rest[len(group.extra) :]
    box, last = outputs[0].shape, layout.rank - 1
    config, expression = _config(group, layout, box, lanes)
    operands, results = ([Matrix.of(v) for v in seen] for seen in (extra, outputs))
    epilogue, more = Epilogue.over(expression, operands, results, box[last], last - 1)
    if config.is_copy:
        epilogue = replace(epilogue, outputs=tuple(replace(y, dtype=config.x) for y in epilogue.outputs))
    epilogue = epilogue.with_non_temporal_stores(outputs, analysis)
    args = _args(layout, box, more)
    scratch = _scratch_nbytes(layout, config, box, lanes)
    axes = [Axis(d, tuple(v.strides[i] for v in rest)) for i, d in enumerate(box)]
    read = expressible(dims.mul(dims.product(x.shape), x.dtype.bits // 8))
    nbytes = dims.known(dims.add(traffic(rest, axes), read)) or 0
    flops = expressible(dims.mul(2 * max(config.rows, 1), expressible(dims.product(box))))
    spec = resize(config=config, epilogue=epilogue)
    return [Step(spec, flat(args=args), epilogue.writes, group.nodes, scratch, flops, nbytes)]


def _config(
    group: Resample, layout: _Layout, box: tuple[Known, ...], f32_lanes: int
) -> tuple[ResizeConfig, Expression]:
    """The kernel's configuration and its epilogue. Where nothing is computed, elements are unsigned integers."""
    x, last = layout.views[0], layout.rank - 1
    reads = [axis_config(layout.along[i]) if i in layout.along else None for i in range(layout.rank)]
    expression, x_dtype = group.epilogue, group.x.dtype
    is_copy = not group.is_weighted and not expression.steps and x_dtype.bits in (8, 16, 32, 64)
    if is_copy:
        x_dtype = of_name(f"u{x_dtype.itemsize * 8}")
        expression = Expression((x_dtype,), (), expression.results)
    work = register_dtype(expression.operands[0])
    has_unit_stride = x.strides[last] == 1 or x.shape[last] == 1
    vectors = source_vectors_of(reads[last], x.shape[last], box[last], f32_lanes)
    config = ResizeConfig(x_dtype, work, tuple(reads[:last]), reads[last], has_unit_stride, is_copy, vectors)
    return config.with_unrolled_rows(x.shape[last], f32_lanes), expression


def _args(layout: _Layout, box: tuple[Known, ...], epilogue: EpilogueArgs[Ref, Known]) -> ResizeArgs[Ref, Known]:
    x = layout.views[0]
    tables = tuple(_table(layout.along.get(i)) for i in range(len(box)))
    return ResizeArgs(Ref.of(x), box, x.shape, x.strides, tables, epilogue)


def _table(read: object) -> TapTableArgs[Ref, Known] | None:
    if not isinstance(read, TapTable):
        return None
    return TapTableArgs(Ref.of(read.firsts), read.taps, None if read.weights is None else Ref.of(read.weights))


def _scratch_nbytes(layout: _Layout, config: ResizeConfig, box: tuple[Known, ...], f32_lanes: int) -> Known:
    """Staged rows, sums of a column block, and the shuffle table, as far as the configuration uses them."""
    if config.reads_in_place or (config.inner is None and config.rows != RUNTIME_TAPS):
        return 0
    last = layout.rank - 1
    length = layout.views[0].shape[last] if config.inner is not None else COLUMN_BLOCK
    inner = layout.along.get(last)
    halo = inner.taps if isinstance(inner, TapTable) else max(config.halo)
    row = dims.total((length, dims.mul(2, halo), (2 + SLACK_VECTORS) * f32_lanes))
    rows = MAX_STAGED_ROWS if config.is_staged else 1
    scratch = expressible(dims.mul(dims.mul(row, rows), config.work.bits // 8))
    if may_shuffle(config, f32_lanes):
        scratch = expressible(dims.add(scratch, ShuffleTable.scratch_nbytes(config, box[last], f32_lanes)))
    return scratch


def _params(config: ResizeConfig, epilogue: Epilogue) -> Params:
    def table(read: object) -> TapTableArgs[Memory, DType] | None:
        if not isinstance(read, TapTableConfig):
            return None
        return TapTableArgs(Memory(i64), i64, Memory(config.work) if read.is_weighted else None)

    reads = (*config.outer, config.inner)
    each, tables = (i64,) * len(reads), tuple(map(table, reads))
    return {"args": ResizeArgs[Memory, DType](Memory(config.x), each, each, each, tables, epilogue.declared)}


@kernel(_params)
def resize(k: Kernel, args: ResizeArgs[Buf, Val], *, config: ResizeConfig, epilogue: Epilogue) -> None:
    last = len(config.outer)
    strides = [args.strides[i] if read is None else k.const(0) for i, read in enumerate(config.outer)]
    rows = _Rows(k, config, epilogue, args, strides)
    in_registers = config.stays_in_registers(k.lanes)
    if may_shuffle(config, k.lanes):
        table = ShuffleTable(k, config, args, args.sizes[last])
        with k.either(table.are_near) as (near, far):
            with near:
                rows.one_by_one(table)
            with far:
                rows.staged()
    elif config.is_staged and not in_registers:
        rows.staged()
    elif in_registers and config.is_paired and not epilogue.extra:
        rows.in_pairs()
    elif config.repeats:
        rows.repeated()
    else:
        rows.one_by_one()


class _Rows(Record):
    """Loops over the rows of the result, which each thread has a share of."""

    k: Kernel
    config: ResizeConfig
    epilogue: Epilogue
    args: ResizeArgs[Buf, Val]
    strides: list[Val]
    """The strides of the image along the outer axes; 0 along those that are resampled."""

    @property
    def sizes(self) -> tuple[Val, ...]:
        """The sizes of the result."""
        return self.args.sizes

    @property
    def last(self) -> int:
        """The innermost axis."""
        return len(self.config.outer)

    def _row(self, start: Buf, index: list[Val]) -> Row:
        return Row(self.k, self.config, self.args, start, index)

    def _bound(self, batch: list[Val]) -> BoundEpilogue:
        return BoundEpilogue(self.k, self.epilogue, self.args.epilogue, self.sizes[self.last], batch)

    def one_by_one(self, table: ShuffleTable | None = None) -> None:
        """Rows that need no scratch memory, or one row of it."""
        k, last, config, width = self.k, self.last, self.config, self.sizes[self.last]
        blocks = k.const(1) if config.inner is not None else (width + (COLUMN_BLOCK - 1)) // COLUMN_BLOCK
        step = self.args.strides[last] * COLUMN_BLOCK if config.inner is None else k.const(0)
        with nest_loop(k, [*self.sizes[:last], blocks], [[*self.strides, step]]) as (index, (moved,)):
            row = self._row(self.args.x.at(moved), index[:last])
            finish = self._bound(index[: last - 1])
            if table is not None:
                row.emit_by_shuffles(table, finish, index[last - 1], width)
            elif config.is_staged:
                row.emit_in_registers(finish, index[last - 1], width)
            elif config.inner is None:
                left = index[last] * COLUMN_BLOCK
                row.emit_blended(finish, index[last - 1], left, k.min(width - left, COLUMN_BLOCK))
            else:
                row.emit_resampled(row.source_row(), finish, index[last - 1], width)

    def in_pairs(self) -> None:
        """Two output rows at a time that read the same input rows. The first and the last row of an image have no
        partner and are computed twice.
        """
        k, last = self.k, self.last
        pairs = self.args.source_sizes[last - 1] + 1
        with nest_loop(k, [*self.sizes[: last - 1], pairs], [self.strides]) as (index, (moved,)):
            first, second = k.max(index[-1] * 2 - 1, 0), k.min(index[-1] * 2, self.sizes[last - 1] - 1)
            row = self._row(self.args.x.at(moved), [*index[:-1], first])
            row.emit_in_registers(self._bound(index[:-1]), first, self.sizes[last], second)

    def repeated(self) -> None:
        """Each input row is copied to several neighbouring output rows: nearest-neighbour upsampling of NHWC."""
        k, last = self.k, self.last
        length, step = self.args.source_sizes[last - 1], self.args.strides[last - 1]
        copied = replace(self.config, outer=(*self.config.outer[:-1], None))
        with nest_loop(k, self.sizes[: last - 1], [self.strides[: last - 1]]) as (index, (moved,)):
            finish = self._bound(index)
            with k.loop(0, length) as at, k.loop(0, self.config.repeats) as i:
                row = Row(k, copied, self.args, self.args.x.at(moved + at * step), [*index, at])
                row.emit_blended(finish, at * self.config.repeats + i, k.const(0), self.sizes[last])

    def staged(self) -> None:
        """A few rows are staged before the first of them is read.

        A load that straddles two vectors that were just stored cannot be forwarded: it waits for the store buffer to
        drain, including all results stored before.
        """
        k, last, config = self.k, self.last, self.config
        length, halo = self.args.source_sizes[last], Row.halo(k, config, self.args)
        pitch = (length + halo * 2 + SLACK_VECTORS * k.lanes) & -k.lanes
        together = k.min(k.max(k.const(MAX_STAGED_VECTORS * k.lanes) // pitch, 1), MAX_STAGED_ROWS)
        groups = (self.sizes[last - 1] + (together - 1)) // together
        steps = [*self.strides[:-1], self.strides[-1] * together]
        with nest_loop(k, [*self.sizes[: last - 1], groups], [steps]) as (index, (moved,)):
            first, outer = index[-1] * together, index[:-1]
            count = k.min(self.sizes[last - 1] - first, together)
            place = k.scratch(config.work).at(halo)
            with k.loop(0, count) as r:
                row = self._row(self.args.x.at(moved + r * self.strides[-1]), [*outer, first + r])
                row.stage(place.at(r * pitch), halo)
            finish = self._bound(outer)
            with k.loop(0, count) as r:
                row.emit_resampled(place.at(r * pitch), finish, first + r, self.sizes[last])

"""One row of a resize: input rows are blended, and the blended row is resampled along its axis."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from itertools import product

from sardonyx.dtypes import of_name
from sardonyx.lower.groups import PolyphaseFilter
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue
from sardonyx.providers.cpu.kernels.image.resize_config import RUNTIME_TAPS, ResizeArgs, ResizeConfig, TapTableConfig
from sardonyx.providers.cpu.kernels.image.resize_shuffle import ShuffleTable, permuted
from sardonyx.providers.cpu.kernels.math.transpose import interleaved_wide
from sardonyx.providers.cpu.kernels.math.unaligned_rows import Window, shifted, tiles_of, unrolled_row
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, f32, f64, i32, i64

_WeightedRows = list[tuple[Buf, list[Val | None]]]
"""Input rows, each with its weight for every output row that reads it."""


class Row:
    """Emits one row of the result, whose indices along the outer axes are ``index``."""

    def __init__(
        self, k: Kernel, config: ResizeConfig, args: ResizeArgs[Buf, Val], start: Buf, index: list[Val]
    ) -> None:
        self.k, self.config, self.args, self.start, self.index = k, config, args, start, index
        self.last = len(config.outer)
        self.lanes = config.lanes(k.lanes)
        self.stride = args.strides[self.last]

    # -- input rows and their weights

    def _tap(self, axis: int, tap: Val) -> tuple[Val, Val | None]:
        """The offset of an outer axis's tap in the image, and its weight."""
        k, read, at = self.k, self.config.outer[axis], self.index[axis]
        assert read is not None
        if isinstance(read, TapTableConfig):
            table = self.args.table(axis)
            first = table.firsts.load(at)
            place = tap * self.args.sizes[axis] + at
            weight = None if table.weights is None else table.weights.load(place)
        else:
            first, p = at // read.factor, at % read.factor
            if any(read.firsts):
                first = first + k.table(read.firsts, i64).load(p)
            weight = None if read.weights is None else self._constant(read.weights, p * read.taps + tap)
        index = first + tap if weight is not None or isinstance(read, PolyphaseFilter) else first
        index = k.min(k.max(index, 0), self.args.source_sizes[axis] - 1)
        return index * self.args.strides[axis], weight

    def _constant(self, weights: tuple[tuple[float, ...], ...], at: Val) -> Val:
        """A weight from a constant table."""
        kind = "d" if self.config.work is f64 else "f"
        bits = of_name(f"u{self.config.work.bits}")
        numbers = [int.from_bytes(struct.pack(f"<{kind}", w), "little") for row in weights for w in row]
        return self.k.bitcast(self.k.table(numbers, bits).load(at), self.config.work)

    def _rows_of_both(self, other: Val) -> _WeightedRows:
        """The input rows with their weights for this output row and an ``other`` one that reads the same rows."""
        theirs = Row(self.k, self.config, self.args, self.start, [*self.index[:-1], other])._unrolled_rows()
        return [(row, [mine, its]) for (row, mine), (_, its) in zip(self._unrolled_rows(), theirs, strict=True)]

    def _unrolled_rows(self) -> list[tuple[Buf, Val | None]]:
        """All input rows with their weights."""
        k, axes = self.k, [i for i, read in enumerate(self.config.outer) if read is not None]
        taps = [[self._tap(i, k.const(t)) for t in range(self._count(i))] for i in axes]
        return [self._combined(choice) for choice in product(*taps)]

    def _count(self, axis: int) -> int:
        read = self.config.outer[axis]
        assert read is not None
        return read.taps

    def _combined(self, choice: tuple[tuple[Val, Val | None], ...]) -> tuple[Buf, Val | None]:
        row, weight = self.start, None
        for offset, w in choice:
            row = row.at(offset)
            weight = w if weight is None or w is None else weight * w
        return row, weight

    def _looped_rows(self) -> Iterator[tuple[Buf, Val | None]]:
        """The input row and weight of the current iteration of run-time loops over all taps."""
        axes, k = [i for i, read in enumerate(self.config.outer) if read is not None], self.k
        with ExitStack() as loops:
            choice = []
            for i in axes:
                read = self.config.outer[i]
                is_table = isinstance(read, TapTableConfig)
                count = self.args.table(i).taps if is_table else k.const(self._count(i))
                choice.append(self._tap(i, loops.enter_context(k.loop(0, count))))
            yield self._combined(tuple(choice))

    # -- blending input rows

    def _load(self, row: Buf, t: Tile) -> Val:
        k = self.k
        if self.config.has_unit_stride:
            v = row.load(t)
        else:
            at = [(t.index + j) * self.stride for j in range(t.lanes)]
            if t.mask is not None:
                at = [k.select(t.mask[j], a, at[0]) for j, a in enumerate(at)]
            v = k.pack([row.load(a) for a in at])
        return k.cast(v, self.config.work)

    def _sum(self, rows: list[tuple[Buf, Val | None]], t: Tile) -> Val:
        return self._sums([(row, [weight]) for row, weight in rows], t)[0]

    def _sums(self, rows: _WeightedRows, t: Tile) -> list[Val]:
        """Input rows blended by one set of weights or several."""
        totals: list[Val] = []
        for row, weights in rows:
            v = self._load(row, t)
            if not totals:
                totals = [v if w is None else v * w for w in weights]
            else:
                pairs = zip(totals, weights, strict=True)
                totals = [total + v if w is None else self.k.fma(v, w, total) for total, w in pairs]
        return totals

    def _blend(self, to: Buf, left: Val, count: Val) -> None:
        """Store the weighted sum of the input rows, from column ``left`` on, in scratch memory."""
        k = self.k
        if self.config.rows != RUNTIME_TAPS:
            rows = [(row.at(left * self.stride), w) for row, w in self._unrolled_rows()]
            for t in k.tiles(count, self.lanes):
                to.store(t, self._sum(rows, t))
            return
        for t in k.tiles(count, self.lanes):
            to.store(t, k.zeros(self.config.work, self.lanes))
        for row, weight in self._looped_rows():
            at = row.at(left * self.stride)
            for t in k.tiles(count, self.lanes):
                v = self._load(at, t)
                to.store(t, to.load(t) + v if weight is None else k.fma(v, weight, to.load(t)))

    def emit_blended(self, finish: BoundEpilogue, row: Val, left: Val, count: Val) -> None:
        """``count`` outputs from column ``left`` on, where the innermost axis is not resampled.

        The input already begins at that column.
        """
        k = self.k
        if self.config.rows == RUNTIME_TAPS:
            sums = k.scratch(self.config.work)
            self._blend(sums, k.const(0), count)
            for t in k.tiles(count, self.lanes):
                finish.put(row, Tile(left + t.index, t.lanes, t.mask), sums.load(t))
            return
        rows = self._unrolled_rows()
        for t in k.tiles(count, self.lanes):
            finish.put(row, Tile(left + t.index, t.lanes, t.mask), self._sum(rows, t))

    # -- resampling along the innermost axis

    def source_row(self) -> Buf:
        """The only input row, which is read in place."""
        ((source, _),) = self._unrolled_rows()
        return source

    @staticmethod
    def halo(k: Kernel, config: ResizeConfig, args: ResizeArgs[Buf, Val]) -> Val:
        """The halo on either side of a staged row, in whole vectors."""
        taps = isinstance(config.inner, TapTableConfig)
        count = args.table(len(config.outer)).taps if taps else k.const(max(config.halo))
        return (count + (k.lanes - 1)) & -k.lanes

    def stage(self, to: Buf, halo: Val) -> None:
        """Store the blended row at ``to``; its halo repeats the first and the last element."""
        k, size = self.k, self.args.source_sizes[self.last]
        self._blend(to, k.const(0), size)
        first, last = to.load(0), to.load(size - 1)
        with k.loop(0, halo, self.lanes) as i:
            to.store(i - halo, k.splat(first, self.lanes))
            to.store(size + i, k.splat(last, self.lanes))

    def emit_resampled(self, source: Buf, finish: BoundEpilogue, row: Val, count: Val) -> None:
        """Outputs from a row in memory."""
        if isinstance(self.config.inner, PolyphaseFilter):
            for t in self.k.tiles(self.args.source_sizes[self.last], self.lanes):
                self._emit_phases(self.config.inner, self._window(source, t), t, finish, row, count)
        else:
            assert self.config.inner is not None
            self._emit_by_table(self.config.inner, source, finish, row, count)

    def emit_by_shuffles(self, table: ShuffleTable, finish: BoundEpilogue, row: Val, count: Val) -> None:
        """Outputs by a table: source vectors are blended in registers, and their elements permuted."""
        k, lanes, rows, weights = self.k, self.lanes, self._unrolled_rows(), self.args.table(self.last).weights
        assert weights is not None
        size = self.args.source_sizes[self.last]
        masks = [k.mask(size - i * lanes, lanes) for i in range(self.config.source_vectors)]
        for t in k.tiles(count, lanes):
            start = table.start(t.index)
            near = [self._sum(rows, Tile(start + i * lanes, lanes, mask)) for i, mask in enumerate(masks)]
            total = k.zeros(self.config.work, lanes)
            for tap in range(table.taps):
                seen = permuted(k, near, table.lanes_read(tap, t.index))
                total = k.fma(seen, weights.at(count * tap).load(t), total)
            finish.put(row, t, total)

    def _emit_phases(
        self, read: PolyphaseFilter, window: Window, t: Tile, finish: BoundEpilogue, row: Val, count: Val
    ) -> None:
        """The ``factor`` outputs of each input element of a tile. ``window`` gives unaligned vectors around it."""
        k = self.k
        vectors = [self._interleaved(read, window)] if read.factor in (2, 4, 8) else self._shuffled(read, window)
        for j, v in enumerate(vectors):
            at = t.index * read.factor + j * v.lanes
            mask = None if t.mask is None else k.mask(count - at, v.lanes)
            finish.put(row, Tile(at, v.lanes, mask), v)

    def emit_in_registers(self, finish: BoundEpilogue, row: Val, count: Val, other: Val | None = None) -> None:
        """Outputs of this row, and of an ``other`` one that reads the same input rows, without scratch memory."""
        read = self.config.inner
        assert isinstance(read, PolyphaseFilter)
        rows = [(buf, [w]) for buf, w in self._unrolled_rows()] if other is None else self._rows_of_both(other)

        outputs = [row] if other is None else [row, other]

        def emit(i: int, t: Tile, window: Window) -> None:
            self._emit_phases(read, window, t, finish, outputs[i], count)

        if self.config.unrolled_vectors:
            self._unrolled(rows, emit)
        else:
            self._looped(rows, emit)

    def _unrolled(self, rows: _WeightedRows, emit: Callable[[int, Tile, Window], None]) -> None:
        """A row of a few whole vectors, unrolled."""
        first, last = ([lane] * self.lanes for lane in (0, self.lanes - 1))
        tiles, sums = tiles_of(self.k, self.config.unrolled_vectors, self.lanes), partial(self._sums, rows)
        for t, windows in unrolled_row(tiles, sums, lambda v: v.shuffle(first), lambda v: v.shuffle(last)):
            for i, window in enumerate(windows):
                emit(i, t, window)

    def _looped(self, rows: _WeightedRows, emit: Callable[[int, Tile, Window], None]) -> None:
        """A loop along the row. The blended vectors before and at the current tile are loop variables; the one after it
        is computed in each iteration. The first and last element are repeated beyond the ends of the row.
        """
        k, lanes, size = self.k, self.lanes, self.args.source_sizes[self.last]
        whole = size & -lanes

        def advance(at: Val, following: list[Val], mask: Val | None = None) -> None:
            for i, ((before, here), after) in enumerate(zip(state, following, strict=True)):
                three = before.get(), here.get(), after
                emit(i, Tile(at, lanes, mask), shifted(three))
                before.set(three[1])
                here.set(three[2])

        def last_elements() -> list[Val]:
            return [here.get().shuffle([lanes - 1] * lanes) for _, here in state]

        state = [(k.var(v.shuffle([0] * lanes)), k.var(v)) for v in self._end_vector(rows, k.const(0))]
        last_whole = k.max(whole - lanes, 0)
        with k.loop(0, last_whole, lanes) as at:
            advance(at, self._sums(rows, Tile(at + lanes, lanes, None)))
        with k.loop(last_whole, whole, lanes) as at:
            following = [k.var(v) for v in last_elements()]
            with k.when(size > whole):
                for var, v in zip(following, self._end_vector(rows, whole), strict=True):
                    var.set(v)
            advance(at, [var.get() for var in following])
        with k.loop(whole, size, lanes) as at:
            advance(at, last_elements(), k.mask(size - at, lanes))

    def _end_vector(self, rows: _WeightedRows, at: Val) -> list[Val]:
        """Blended vectors at ``at``, in which the row's last element is repeated beyond its end."""
        k, lanes, size = self.k, self.lanes, self.args.source_sizes[self.last]
        mask = k.mask(size - at, lanes)
        found = self._sums(rows, Tile(at, lanes, mask))
        if self.config.work.bits != 32:
            ends = self._sums(rows, Tile(size - 1, 1, None))
            return [k.select(mask, v, k.splat(end, lanes)) for v, end in zip(found, ends, strict=True)]
        last = k.min(k.iota(i32, lanes), k.splat(k.cast(size - 1 - at, i32), lanes))
        return [k.bitcast(permuted(k, [k.bitcast(v, f32)], last), v.dtype) for v in found]

    def _interleaved(self, read: PolyphaseFilter, window: Window) -> Val:
        """The outputs of a tile, for a factor that is a power of two: each phase is a vector, and they are interleaved.

        The largest weights come first: phases mostly have the same one for the same element, and share the product.
        """
        phases: list[Val] = []
        for p, first in enumerate(read.firsts):
            weights = (None,) if read.weights is None else read.weights[p]
            taps = sorted(enumerate(weights), key=lambda tap: -abs(tap[1] or 0))
            phases.append(self._weighted([(window(first + tap), w) for tap, w in taps]))
        return interleaved_wide(phases)

    def _window(self, source: Buf, t: Tile) -> Window:
        """Unaligned vectors of a row in memory."""

        @cache
        def window(first: int) -> Val:
            return source.load(t) if self.config.reads_in_place else source.load(t.index + first, self.lanes)

        return window

    def _weighted(self, terms: list[tuple[Val, float | None]]) -> Val:
        total: Val | None = None
        for v, weight in terms:
            if weight is not None:
                v = v * weight if total is None else self.k.fma(v, weight, total)
            total = v
        assert total is not None
        return total

    def _shuffled(self, read: PolyphaseFilter, window: Window) -> list[Val]:
        """The outputs of a tile, for any factor: the elements of each tap are shuffled from one or two vectors."""
        k, lanes, outputs = self.k, self.lanes, list[Val]()
        for j in range(read.factor):
            places = [divmod(j * lanes + lane, read.factor) for lane in range(lanes)]
            seen = [[q + read.firsts[p] + tap for q, p in places] for tap in range(read.taps)]
            first = 0 if self.config.reads_in_place else min(map(min, seen))
            total: Val | None = None
            for tap, elements in enumerate(seen):
                other = window(first + lanes) if max(elements) - first >= lanes else None
                v = window(first).shuffle([e - first for e in elements], other)
                if read.weights is not None:
                    w = k.pack([k.const(read.weights[p][tap], self.config.work) for _, p in places])
                    v = v * w if total is None else k.fma(v, w, total)
                total = v
            assert total is not None
            outputs.append(total)
        return outputs

    def _emit_by_table(self, read: TapTableConfig, source: Buf, finish: BoundEpilogue, row: Val, count: Val) -> None:
        """Outputs by a table: their elements are loaded one by one, or two neighbouring taps at a time."""
        k, lanes = self.k, self.lanes
        table = self.args.table(self.last)
        firsts, weights = table.firsts, table.weights
        for t in k.tiles(count, lanes):
            places = [t.index + lane for lane in range(lanes)]
            if t.mask is not None:
                places = [k.select(t.mask[lane], place, t.index) for lane, place in enumerate(places)]
            at = [firsts.load(place) for place in places]
            if weights is None:
                if self.config.reads_in_place and not self.config.has_unit_stride:
                    at = [i * self.stride for i in at]
                finish.put(row, t, k.cast(k.pack([source.load(i) for i in at]), self.config.work))
                continue
            total = k.var(k.zeros(self.config.work, lanes))
            for pair in range(0, read.taps, 2):
                total.set(self._add_tap_pair(source, at, weights, t, k.const(pair), count, total.get()))
            if read.taps == RUNTIME_TAPS:
                with k.loop(0, table.taps, 2) as tap:
                    total.set(self._add_tap_pair(source, at, weights, t, tap, count, total.get()))
            finish.put(row, t, total.get())

    def _add_tap_pair(
        self, source: Buf, at: list[Val], weights: Buf, t: Tile, tap: Val, count: Val, total: Val
    ) -> Val:  # fmt: skip
        """Add two neighbouring taps; both are one load for each output."""
        pairs = [source.load(i + tap, lanes=2) for i in at]
        while len(pairs) > 1:
            pairs = [a.shuffle(range(2 * a.lanes), b) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
        for i in range(2):
            seen = pairs[0].shuffle(range(i, 2 * self.lanes, 2))
            total = self.k.fma(seen, weights.at((tap + i) * count).load(t), total)
        return total

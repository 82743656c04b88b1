"""The code of one row of a resampling: rows of the image blended, and what comes of it read along."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache, partial
from itertools import product
from typing import Any

from sardonyx.dtypes import of_name
from sardonyx.lower.groups import PolyphaseFilter
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue
from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.image.resize_config import MANY, ResizeConfig, Tabled
from sardonyx.providers.cpu.kernels.image.resize_shuffle import Picks, picked
from sardonyx.providers.cpu.kernels.math.unaligned_rows import Window, shifted, tiles_of, unrolled_row
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, f32, f64, i32, i64


class Row:
    """A row of the result in the making."""

    def __init__(self, k: Kernel, config: ResizeConfig, memory: dict[str, Any], start: Buf, index: list[Val]) -> None:
        self.k, self.config, self.memory, self.start, self.index = k, config, memory, start, index
        self.last = len(config.outer)
        self.lanes = config.lanes(k.lanes)
        self.stride = number(memory, f"s{self.last}")

    # -- which rows, and how much of each

    def _tap(self, axis: int, tap: Val) -> tuple[Val, Val | None]:
        """Where a tap of an axis lies in the image, and its weight."""
        k, read, at = self.k, self.config.outer[axis], self.index[axis]
        assert read is not None
        if isinstance(read, Tabled):
            first = self.memory[f"i{axis}"].load(at)
            place = tap * number(self.memory, f"n{axis}") + at
            weight = self.memory[f"w{axis}"].load(place) if read.is_weighted else None
        else:
            first, p = at // read.factor, at % read.factor
            if any(read.firsts):
                first = first + k.table(read.firsts, i64).load(p)
            weight = None if read.weights is None else self._constant(read.weights, p * read.taps + tap)
        index = first + tap if weight is not None or isinstance(read, PolyphaseFilter) else first
        index = k.min(k.max(index, 0), number(self.memory, f"in{axis}") - 1)
        return index * number(self.memory, f"s{axis}"), weight

    def _constant(self, weights: tuple[tuple[float, ...], ...], at: Val) -> Val:
        """A weight out of a constant table."""
        kind = "d" if self.config.work is f64 else "f"
        bits = of_name(f"u{self.config.work.bits}")
        numbers = [int.from_bytes(struct.pack(f"<{kind}", w), "little") for row in weights for w in row]
        return self.k.bitcast(self.k.table(numbers, bits).load(at), self.config.work)

    def _for_both(self, other: Val) -> list[tuple[Buf, list[Val | None]]]:
        """The rows with their weights for this row of the result and another, which is made of the same ones."""
        theirs = Row(self.k, self.config, self.memory, self.start, [*self.index[:-1], other])._written_out()
        return [(row, [mine, its]) for (row, mine), (_, its) in zip(self._written_out(), theirs, strict=True)]

    def _written_out(self) -> list[tuple[Buf, Val | None]]:
        """The rows with their weights."""
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

    def _every(self) -> Iterator[tuple[Buf, Val | None]]:
        """Loops over the rows."""
        axes, k = [i for i, read in enumerate(self.config.outer) if read is not None], self.k
        with ExitStack() as loops:
            choice = []
            for i in axes:
                read = self.config.outer[i]
                count = number(self.memory, f"taps{i}") if isinstance(read, Tabled) else k.const(self._count(i))
                choice.append(self._tap(i, loops.enter_context(k.loop(0, count))))
            yield self._combined(tuple(choice))

    # -- rows blended

    def _load(self, row: Buf, t: Tile) -> Val:
        k = self.k
        if self.config.is_unit:
            v = row.load(t)
        else:
            at = [(t.index + j) * self.stride for j in range(t.lanes)]
            if t.mask is not None:
                at = [k.select(t.mask[j], a, at[0]) for j, a in enumerate(at)]
            v = k.pack([row.load(a) for a in at])
        return k.cast(v, self.config.work)

    def _sum(self, rows: list[tuple[Buf, Val | None]], t: Tile) -> Val:
        return self._sums([(row, [weight]) for row, weight in rows], t)[0]

    def _sums(self, rows: list[tuple[Buf, list[Val | None]]], t: Tile) -> list[Val]:
        """Rows of the image blended by one set of weights or several."""
        totals: list[Val] = []
        for row, weights in rows:
            v = self._load(row, t)
            if not totals:
                totals = [v if w is None else v * w for w in weights]
            else:
                pairs = zip(totals, weights, strict=True)
                totals = [total + v if w is None else self.k.fma(v, w, total) for total, w in pairs]
        return totals

    def _blended(self, to: Buf, left: Val, count: Val) -> None:
        """The sum of the rows, from element ``left`` on, in scratch memory."""
        k = self.k
        if self.config.rows != MANY:
            rows = [(row.at(left * self.stride), w) for row, w in self._written_out()]
            for t in k.tiles(count, self.lanes):
                to.store(t, self._sum(rows, t))
            return
        for t in k.tiles(count, self.lanes):
            to.store(t, k.zeros(self.config.work, self.lanes))
        for row, weight in self._every():
            at = row.at(left * self.stride)
            for t in k.tiles(count, self.lanes):
                v = self._load(at, t)
                to.store(t, to.load(t) + v if weight is None else k.fma(v, weight, to.load(t)))

    def put_as_it_is(self, finish: BoundEpilogue, row: Val, left: Val, count: Val) -> None:
        """Where the innermost axis stays: ``left`` is counted by the walk already."""
        k = self.k
        if self.config.rows == MANY:
            sums = k.scratch(self.config.work)
            self._blended(sums, k.const(0), count)
            for t in k.tiles(count, self.lanes):
                finish.put(row, Tile(left + t.index, t.lanes, t.mask), sums.load(t))
            return
        rows = self._written_out()
        for t in k.tiles(count, self.lanes):
            finish.put(row, Tile(left + t.index, t.lanes, t.mask), self._sum(rows, t))

    # -- along a row

    def where_it_lies(self) -> Buf:
        ((source, _),) = self._written_out()
        return source

    @staticmethod
    def halo(k: Kernel, config: ResizeConfig, memory: dict[str, Any]) -> Val:
        """Elements that are repeated on either side of a row in scratch memory: whole vectors."""
        taps = isinstance(config.inner, Tabled)
        count = number(memory, f"taps{len(config.outer)}") if taps else k.const(max(config.halo))
        return (count + (k.lanes - 1)) & -k.lanes

    def make(self, to: Buf, halo: Val) -> None:
        """The row in scratch memory; a vector at least of its first element lies in front, of its last one behind."""
        k, size = self.k, number(self.memory, f"in{self.last}")
        self._blended(to, k.const(0), size)
        first, last = to.load(0), to.load(size - 1)
        with k.loop(0, halo, self.lanes) as i:
            to.store(i - halo, k.splat(first, self.lanes))
            to.store(size + i, k.splat(last, self.lanes))

    def put_along(self, source: Buf, finish: BoundEpilogue, row: Val, count: Val) -> None:
        if isinstance(self.config.inner, PolyphaseFilter):
            self._put_phases(self.config.inner, source, finish, row, number(self.memory, f"in{self.last}"), count)
        else:
            assert self.config.inner is not None
            self._put_table(self.config.inner, source, finish, row, count)

    def stream_table(self, picks: Picks, finish: BoundEpilogue, row: Val, count: Val) -> None:
        """The vectors that one of results is picked out of are made in registers."""
        k, lanes, rows, weights = self.k, self.lanes, self._written_out(), self.memory[f"w{self.last}"]
        size = number(self.memory, f"in{self.last}")
        masks = [k.mask(size - i * lanes, lanes) for i in range(self.config.reach)]
        for t in k.tiles(count, lanes):
            start = picks.start(t.index)
            near = [self._sum(rows, Tile(start + i * lanes, lanes, mask)) for i, mask in enumerate(masks)]
            total = k.zeros(self.config.work, lanes)
            for tap in range(picks.taps):
                seen = picked(k, near, picks.behind(tap, t.index))
                total = k.fma(seen, weights.at(count * tap).load(t), total)
            finish.put(row, t, total)

    def _put_phases(
        self, read: PolyphaseFilter, source: Buf, finish: BoundEpilogue, row: Val, size: Val, count: Val
    ) -> None:
        for t in self.k.tiles(size, self.lanes):
            self._put_parts(read, self._window(source, t), t, finish, row, count)

    def _put_parts(
        self, read: PolyphaseFilter, window: Window, t: Tile, finish: BoundEpilogue, row: Val, count: Val
    ) -> None:
        """What stands for the elements of a tile; ``window`` gives the vectors that begin some elements next to it."""
        k = self.k
        parts = self._interleaved(read, window) if read.factor in (2, 4, 8) else self._picked(read, window)
        for j, v in enumerate(parts):
            at = t.index * read.factor + j * v.lanes
            mask = None if t.mask is None else k.mask(count - at, v.lanes)
            finish.put(row, Tile(at, v.lanes, mask), v)

    def stream(self, finish: BoundEpilogue, row: Val, count: Val, other: Val | None = None) -> None:
        """The vectors before, at and after a tile are in registers; so are those of the ``other`` row, which is
        made of the same ones of the image.
        """
        k, lanes, read, size = self.k, self.lanes, self.config.inner, number(self.memory, f"in{self.last}")
        assert isinstance(read, PolyphaseFilter)
        rows = [(buf, [w]) for buf, w in self._written_out()] if other is None else self._for_both(other)
        if self.config.vectors:
            first, last = ([lane] * lanes for lane in (0, lanes - 1))
            tiles, sums = tiles_of(k, self.config.vectors, lanes), partial(self._sums, rows)
            for t, windows in unrolled_row(tiles, sums, lambda v: v.shuffle(first), lambda v: v.shuffle(last)):
                for to, window in zip((row, other), windows, strict=False):
                    assert to is not None
                    self._put_parts(read, window, t, finish, to, count)
            return
        inside = size & -lanes

        def closed(at: Val) -> list[Val]:
            """Vectors, with the last element of the row in place of those behind it."""
            mask = k.mask(size - at, lanes)
            found = self._sums(rows, Tile(at, lanes, mask))
            if self.config.work.bits != 32:
                ends = self._sums(rows, Tile(size - 1, 1, None))
                return [k.select(mask, v, k.splat(end, lanes)) for v, end in zip(found, ends, strict=True)]
            last = k.min(k.iota(i32, lanes), k.splat(k.cast(size - 1 - at, i32), lanes))
            return [k.bitcast(picked(k, [k.bitcast(v, f32)], last), v.dtype) for v in found]

        def put(at: Val, behind: list[Val], mask: Val | None = None) -> None:
            for to, one, v in zip((row, other), streams, behind, strict=False):
                assert to is not None
                three = one[0].get(), one[1].get(), v
                self._put_parts(read, shifted(three), Tile(at, lanes, mask), finish, to, count)
                one[0].set(three[1])
                one[1].set(three[2])

        def ends() -> list[Val]:
            return [here.get().shuffle([lanes - 1] * lanes) for _, here in streams]

        streams = [(k.var(v.shuffle([0] * lanes)), k.var(v)) for v in closed(k.const(0))]
        last_whole = k.max(inside - lanes, 0)
        with k.loop(0, last_whole, lanes) as at:
            put(at, self._sums(rows, Tile(at + lanes, lanes, None)))
        with k.loop(last_whole, inside, lanes) as at:
            behind = [k.var(v) for v in ends()]
            with k.when(size > inside):
                for var, v in zip(behind, closed(inside), strict=True):
                    var.set(v)
            put(at, [var.get() for var in behind])
        with k.loop(inside, size, lanes) as at:
            put(at, ends(), k.mask(size - at, lanes))

    def _interleaved(self, read: PolyphaseFilter, window: Window) -> list[Val]:
        """Every phase as a vector, and their elements in turns. The largest weights come first: a whole factor's phases
        mostly have the same one for the same element, and the product is then theirs together.
        """
        parts: list[Val] = []
        for p, first in enumerate(read.firsts):
            weights = (None,) if read.weights is None else read.weights[p]
            taps = sorted(enumerate(weights), key=lambda tap: -abs(tap[1] or 0))
            parts.append(self._weighted([(window(first + tap), w) for tap, w in taps]))
        while len(parts) > 1:
            half = len(parts) // 2
            parts = [_in_turns(a, b) for a, b in zip(parts[:half], parts[half:], strict=True)]
        return parts

    def _window(self, source: Buf, t: Tile) -> Window:
        """Vectors of a row in memory."""

        @cache
        def window(first: int) -> Val:
            return source.load(t) if self.config.is_direct else source.load(t.index + first, self.lanes)

        return window

    def _weighted(self, terms: list[tuple[Val, float | None]]) -> Val:
        total: Val | None = None
        for v, weight in terms:
            if weight is not None:
                v = v * weight if total is None else self.k.fma(v, weight, total)
            total = v
        assert total is not None
        return total

    def _picked(self, read: PolyphaseFilter, window: Window) -> list[Val]:
        """Vectors of neighbouring results, whose taps are shuffled out of vectors of the row."""
        k, lanes, parts = self.k, self.lanes, list[Val]()
        for j in range(read.factor):
            places = [divmod(j * lanes + lane, read.factor) for lane in range(lanes)]
            seen = [[q + read.firsts[p] + tap for q, p in places] for tap in range(read.taps)]
            first = 0 if self.config.is_direct else min(map(min, seen))
            total: Val | None = None
            for tap, elements in enumerate(seen):
                other = window(first + lanes) if max(elements) - first >= lanes else None
                v = window(first).shuffle([e - first for e in elements], other)
                if read.weights is not None:
                    w = k.pack([k.const(read.weights[p][tap], self.config.work) for _, p in places])
                    v = v * w if total is None else k.fma(v, w, total)
                total = v
            assert total is not None
            parts.append(total)
        return parts

    def _put_table(self, read: Tabled, source: Buf, finish: BoundEpilogue, row: Val, count: Val) -> None:
        k, lanes = self.k, self.lanes
        firsts, weights = self.memory[f"i{self.last}"], self.memory.get(f"w{self.last}")
        for t in k.tiles(count, lanes):
            places = [t.index + lane for lane in range(lanes)]
            if t.mask is not None:
                places = [k.select(t.mask[lane], place, t.index) for lane, place in enumerate(places)]
            at = [firsts.load(place) for place in places]
            if weights is None:
                if self.config.is_direct and not self.config.is_unit:
                    at = [i * self.stride for i in at]
                finish.put(row, t, k.cast(k.pack([source.load(i) for i in at]), self.config.work))
                continue
            total = k.var(k.zeros(self.config.work, lanes))
            for pair in range(0, read.taps, 2):
                total.set(self._pair(source, at, weights, t, k.const(pair), count, total.get()))
            if read.taps == MANY:
                with k.loop(0, number(self.memory, f"taps{self.last}"), 2) as tap:
                    total.set(self._pair(source, at, weights, t, tap, count, total.get()))
            finish.put(row, t, total.get())

    def _pair(self, source: Buf, at: list[Val], weights: Buf, t: Tile, tap: Val, count: Val, total: Val) -> Val:
        """Two neighbouring taps: one load for each position."""
        pairs = [source.load(i + tap, lanes=2) for i in at]
        while len(pairs) > 1:
            pairs = [a.shuffle(range(2 * a.lanes), b) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
        for i in range(2):
            seen = pairs[0].shuffle(range(i, 2 * self.lanes, 2))
            total = self.k.fma(seen, weights.at((tap + i) * count).load(t), total)
        return total


def _in_turns(a: Val, b: Val) -> Val:
    """The elements of two vectors in turns."""
    return a.shuffle([lane // 2 + (lane % 2) * a.lanes for lane in range(2 * a.lanes)], b)

"""Convolutions on tiles of bf16, from images and weights in terms (``conv.packed_image``, ``split``).

The way through pixels, steps and filters is that of ``conv.implicit_gemm``. A tile of A is 32 numbers of 16 pixels
each, and weights are packed once, like the right operand of a matrix product, with k in the order of steps:

    [filters / 32][step][term][2][16 pairs of numbers][16 filters][2]

Of at most 16 filters in the last panel, only the tile that has them is multiplied. Weights of one or two steps are
loaded once for a column of 32 filters and a group of squares, all others for each square.

**Order of sums.** Step by step, in runs, as in ``gemm.amx``: a run goes on from the sums of the one before, or with
three terms begins at zero and is added to them (``split.deferred_accumulation``).

**Numbers that tiles do not carry** make NaN of the sums that they touch, and so does overflow between terms: a square
with such a sum is made anew in f32 from the numbers behind the terms. One term carries them all; but where the last
tile of a run reads on into other pixels, their infinities and NaN must not count. Flags tell of some images that there
are none; of others each square is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.conv.image_epilogue import MICRO_TILE
from sardonyx.providers.cpu.kernels.conv.implicit_gemm import FETCHED, GROUP, Grid, Kind, Work, convolution_params, walk
from sardonyx.providers.cpu.kernels.conv.packed_image import BLOCK, decode_terms
from sardonyx.providers.cpu.kernels.conv.pipelined_epilogue import PipelinedPixels, Places
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import any_flag_set
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL, TILE, ceil_div, step_elements, whole
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import LINE, SUMS, A, B, Dot, events, from_zero, going_on
from sardonyx.providers.cpu.kernels.split.deferred_accumulation import TermAccumulator, rows_per_step
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Val, bf16, f32, i32, i64

OWN = 2
"""Of one term, columns that a thread does itself. (Nine squares of 512 channels that another takes are 2300 lines from
its cache: 20 us, where one column takes 3.)"""


def _params(
    terms: int, epilogue: Epilogue, pace: int, places: Places | None, held: int, is_single: bool, is_past: bool,
    is_full: bool, has_second: bool, is_flagged: bool,
) -> Params:  # fmt: skip
    images = dict.fromkeys(("x", "w", *(("second",) if has_second else ())), (bf16,))
    flags: Params = {"flags": (i32,), "flags_count": i64} if is_flagged else {}
    return {**images, **flags, **convolution_params(epilogue, has_second=has_second)}


@kernel(_params)
def conv_amx(
    k: Kernel, *, terms: int, epilogue: Epilogue, pace: int, places: Places | None, held: int, is_single: bool,
    is_past: bool, is_full: bool, has_second: bool, is_flagged: bool, **memory: Any,
) -> None:  # fmt: skip
    """``pace``: pixels of the square before that a step finishes; 0 where that is done at once. ``is_past``: pixels,
    which a single tap sees once, leave L1 to the weights. What else is known is asked for where there is a pace:
    ``places``; ``is_single``: there is one run; ``is_full``: channels and filters fill tiles; ``held``: there are so
    few steps of such a run that their weights stay in tiles while the squares of a group pass by, else 0.
    ``is_flagged``: only where a flag is up are sums looked at, and filters alone have to fill tiles.
    ``has_second``: the last steps are of the channels of a second image; then nothing is held.
    """

    def work(
        k: Kernel, tiles: Tiles, memory: Any, distances: Buf, grid: Grid, steps: Val, epilogue: Epilogue, kind: Kind
    ) -> Work:
        accumulator = TermAccumulator(k, grid.sums.at(GROUP * MICRO_TILE), grid.sums) if terms == 3 else None
        table = grid.sums.at((GROUP + kind.spare) * MICRO_TILE).as_type(i64)
        pixels = PipelinedPixels(k, epilogue, memory, grid, table, places, pace, is_full=is_full) if places else None
        odd = any_flag_set(k, memory, ("flags",)) if is_flagged else None
        known = accumulator, pixels, held, is_single, is_past, odd
        return _Bf16Conv(k, tiles, memory, distances, grid, steps, epilogue, kind, *known)

    assert not (held and has_second)
    count, own = B + max(2 * held, 1), OWN if terms == 1 else 0
    walk(k, memory, epilogue, Kind(BLOCK, terms, terms * 2, step_elements(terms) * 2, tiles=count, own=own), work)


@dataclass(frozen=True)
class _Run:
    """Some steps of a column of 32 filters."""

    column: Val
    step: Val
    many: Val
    fetched: Val | None
    """Lines of the next run that each step brings near."""
    halves: int = 2
    """Tiles of 16 filters that are multiplied."""


@dataclass(frozen=True)
class _Bf16Conv(Work):
    """Products of bf16 terms."""

    accumulator: TermAccumulator | None
    """With three terms."""
    pixels: PipelinedPixels | None
    """Where those of a square are finished between the products of the next."""
    held: int
    """Steps whose weights stay in tiles; 0 where they are loaded for each square."""
    is_single: bool
    is_past: bool
    odd: Val | None
    """Whether one of the flags is up, if there are any."""

    @property
    def is_full(self) -> bool:
        return self.pixels is not None and self.pixels.is_full

    @property
    def terms(self) -> int:
        return self.kind.terms

    @property
    def x(self) -> Buf:
        found: Buf = self.memory["x"]
        return found

    @property
    def w(self) -> Buf:
        found: Buf = self.memory["w"]
        return found

    def squares(self, rows: Val, column: Val, step: Val, many: Val, fetched: Val, is_last: Val) -> None:
        if self.pixels is None:
            super().squares(rows, column, step, many, fetched, is_last)
            return
        run = _Run(column, step, many, fetched)
        if self.is_full:
            self._by_runs(rows, run, is_last)
            return
        with self.k.either(self.filters - column * PANEL <= HALF) as (half, whole):
            with half:
                self.pixels.drain()
                self._by_runs(rows, replace(run, fetched=self.k.max(fetched, FETCHED), halves=1), is_last)
            with whole:
                self._by_runs(rows, run, is_last)

    def _by_runs(self, rows: Val, run: _Run, is_last: Val) -> None:
        """With loops of their own, for what is between the products of two squares, these do not hide."""
        assert self.pixels is not None
        last, before = (partial(self._squares, rows, is_last=known) for known in (True, False))
        if self.is_single:
            self._by_fetching(run, last)
            return
        with self.k.either(is_last) as (yes, no):
            with yes:
                self._by_fetching(run, last)
            with no:
                self.pixels.drain()
                self._by_fetching(run, before)

    def _squares(self, rows: Val, run: _Run, *, is_last: bool) -> None:
        """Pixels of the square before are left where this run is the last, and finished between products of 32 filters.

        If it is the first as well, they are read before sums of this square take the place of theirs.
        """
        k, pixels = self.k, self.pixels
        assert pixels is not None
        for t in range(2 * self.held):
            self.tiles.load(B + t, self.w.at(run.column * self.steps * step_elements(1) + t * TILE))
        with k.loop(0, rows) as r:
            slot = k.const(0) if self.is_single else r * MICRO_TILE
            sums, is_first = (self._sums(slot), PANEL * 4), run.step.eq(0)
            with from_zero(self.tiles, *sums) if self.is_single else going_on(self.tiles, *sums, is_first):
                pipelined = self._held_steps(r, run) if self.held else self._steps(r, run, is_last=is_last)
                if is_last:
                    pixels.drain(pipelined)
            if is_last:
                self.f32_fallback(r, run.column, self.grid.sums.at(slot))
                pixels.start(r, slot, run.column)

    def _steps(self, r: Val, run: _Run, *, is_last: bool) -> Val:
        """The products of a square; and how many steps have finished pixels of the one before."""
        k, pixels, pipelined = self.k, self.pixels, self.k.const(0)
        assert pixels is not None
        if is_last and run.halves == 2:
            pipelined = pixels.pipelined_steps(run.many)
            with k.when(pipelined > 0):
                self._loop(r, run, end=pipelined, among=pixels.step_actions())
        self._loop(r, run, begin=pipelined)
        return pipelined

    def _held_steps(self, r: Val, run: _Run) -> Val:
        """The same with weights that are in tiles: all steps have, or none where pixels are too few."""
        k, pixels = self.k, self.pixels
        assert pixels is not None
        if run.fetched is not None:
            many = run.fetched * self.held
            ahead = self.w.at(((run.column + 1) * self.steps) * step_elements(1) + r * many * LINE)
            with k.loop(0, many) as i:
                ahead.prefetch(i * LINE, locality=2)
        is_woven = pixels.pipelined_steps(k.const(self.held)).eq(self.held)
        with k.either(is_woven) as (yes, no):
            with yes:
                self._multiply_held(r, pixels.step_actions())
            with no:
                self._multiply_held(r, lambda _: [])
        return k.select(is_woven, k.const(self.held), 0)

    def _multiply_held(self, r: Val, among: Callable[[Val], list[Callable[[], None]]]) -> None:
        k, pixels = self.k, self.x.at(self.grid.entry(r)[0])
        stride = number(self.memory, "stride_x") * number(self.memory, "x_x") * 2
        for s in range(self.held):
            others = among(k.const(s))
            self.tiles.load(A, pixels.at(self.distances.load(s)), stride)
            for half in SUMS:
                self.tiles.dot_bf16(half, A, B + 2 * s + half)
                for other in others[len(others) * half // 2 : len(others) * (half + 1) // 2]:
                    other()

    def square(self, r: Val, column: Val, step: Val, many: Val, fetched: Val) -> None:
        k, slot, is_first = self.k, self.slot(r), step.eq(0)
        run = _Run(column, step, many, fetched)
        if self.accumulator is None:
            with going_on(self.tiles, self._sums(slot), PANEL * 4, is_first):
                self._multiply(r, run)
            return
        to = k.select(is_first, slot, GROUP * MICRO_TILE)
        with from_zero(self.tiles, self._sums(to), PANEL * 4):
            self._multiply(r, run)
        with k.when(~is_first):
            self.accumulator.start(slot)

    def _sums(self, slot: Val) -> list[Buf]:
        return [self.grid.sums.at(slot + t * HALF) for t in SUMS]

    def _multiply(self, r: Val, run: _Run) -> None:
        with self.k.either(self.filters - run.column * PANEL <= HALF) as (half, whole):
            for branch, halves in ((half, 1), (whole, 2)):
                with branch:
                    among = self._among(run.many)
                    self._by_fetching(replace(run, halves=halves), partial(self._loop, r, among=among))

    def _by_fetching(self, run: _Run, products: Callable[[_Run], None]) -> None:
        """With a loop that fetches, and one that does not; there is but one where much else is in it."""
        assert run.fetched is not None
        if self.terms > 1 or self.epilogue.is_expensive:
            products(replace(run, fetched=self.k.max(run.fetched, FETCHED)))
            return
        with self.k.either(run.fetched.eq(0)) as (none, some):
            for branch, fetched in ((none, None), (some, run.fetched)):
                with branch:
                    products(replace(run, fetched=fetched))

    def _loop(
        self, r: Val, run: _Run, *, begin: Operand = 0, end: Val | None = None,
        among: Callable[[Val], list[Callable[[], None]]] = lambda _: [],
    ) -> None:  # fmt: skip
        """Steps ``begin`` to ``end`` of a run; ``among`` gives what each does between its products."""
        k, size, many, fetched = self.k, step_elements(self.terms), run.many, run.fetched
        pixels_of, term = self._pixels_of(r), number(self.memory, "x_term")
        weights = self.w.at((run.column * self.steps + run.step) * size)
        ahead, to_fetch, each = weights.at(many * size), k.var(0), k.const(0)
        if fetched is not None:
            each = fetched * (self.terms * LINE)
            to_fetch.set((r * many + begin) * each)
        with k.loop(begin, many if end is None else end) as s:
            (here, stride), lines = pixels_of(run.step + s), list[Buf]()
            if fetched is not None:
                wanted = ahead.at(to_fetch.get())
                with k.loop(FETCHED * self.terms, fetched * self.terms) as i:
                    wanted.prefetch(i * LINE, locality=2)
                lines = [wanted.at(i * LINE) for i in range(FETCHED * self.terms)]
            written, others = list(events(self.terms, 1, run.halves)), among(s)
            share = -(-len(lines) // sum(isinstance(event, Dot) for event in written))
            for at, event in enumerate(written):
                if isinstance(event, Dot):
                    self.tiles.dot_bf16(event.sums, A, B)
                    for line in lines[:share]:
                        line.prefetch(locality=2)
                    lines = lines[share:]
                elif event.tile == B:
                    self.tiles.load(B, weights.at(s * size + event.offset))
                else:
                    self.tiles.load(A, here.at(term * (event.offset // (2 * TILE))), stride, is_past=self.is_past)
                for other in others[len(others) * at // len(written) : len(others) * (at + 1) // len(written)]:
                    other()
            to_fetch += each

    def _pixels_of(self, r: Val) -> Callable[[Val], tuple[Buf, Val]]:
        """Gives where the first pixel of a square lies that a step sees, and how many bytes from it the next does."""
        k, own = self.k, self.x.at(self.grid.entry(r)[0])
        stride = number(self.memory, "stride_x") * number(self.memory, "x_x") * 2
        if "second" not in self.memory:
            return lambda step: (own.at(self.distances.load(step)), stride)
        other, of_other = self.memory["second"].at(self.grid.second(r)), number(self.memory, "second_x") * 2
        first = self.steps - number(self.memory, "second_blocks")

        def found(step: Val) -> tuple[Buf, Val]:
            is_own = step < first
            return k.choose(is_own, own, other).at(self.distances.load(step)), k.select(is_own, stride, of_other)

        return found

    def _among(self, many: Val) -> Callable[[Val], list[Callable[[], None]]]:
        """What each of ``many`` steps does with the sums of the run before."""
        if self.accumulator is None:
            return lambda _: []
        some = partial(self.accumulator.advance, rows_per_step(self.k, many))
        return lambda _: [some]

    def settle(self) -> None:
        if self.accumulator is not None:
            self.accumulator.drain()

    def locate(self, rows: Val) -> None:
        if self.pixels is not None:
            self.pixels.drain()
            self.pixels.locate(rows)

    def close(self) -> None:
        if self.pixels is not None:
            self.pixels.drain()

    def f32_fallback(self, r: Val, column: Val, slot: Buf) -> None:
        if self.terms > 1:
            self._f32_fallback(r, column, slot)
        elif self.odd is not None:
            with self.k.when(self.odd, likely=False):
                self._f32_fallback(r, column, slot)
        elif not self.is_full:
            with self.k.when((self.wide % BLOCK).ne(0)):
                self._f32_fallback(r, column, slot)

    def _f32_fallback(self, r: Val, column: Val, slot: Buf) -> None:
        k = self.k
        odd = [k.var(k.zeros(f32, HALF)) for _ in SUMS]
        with k.loop(0, self.grid.high) as i:
            for half, total in zip(SUMS, odd, strict=True):
                total.set(k.fma(slot.load(i * PANEL + half * HALF, HALF), 0.0, total))
        with k.when((odd[0].get() + odd[1].get()).ne(0.0).any(), likely=False):
            start, *_, many = self.grid.entry(r)
            with k.loop(0, many) as i:
                pixel = self.x.at(start + i * number(self.memory, "stride_x") * number(self.memory, "x_x"))
                self._exact(pixel, column, slot.at(i * PANEL))

    def _exact(self, pixel: Buf, column: Val, to: Buf) -> None:
        """The sums of one pixel of the result and 32 filters, in f32."""
        k, size, term = self.k, step_elements(self.terms), number(self.memory, "x_term")
        with k.loop(0, 2) as half:
            total = k.var(k.zeros(f32, HALF))
            with k.loop(0, self.steps) as s:
                here, first = pixel.at(self.distances.load(s)), s % ceil_div(self.wide, BLOCK) * BLOCK
                weights = self.w.at((column * self.steps + s) * size + half * TILE)
                with k.loop(0, k.min(self.wide - first, BLOCK)) as c:
                    v = k.splat(decode_terms(k, here.at(c), term, self.terms, 1), HALF)
                    total.set(k.fma(v, whole(k, weights, self.terms, c), total))
            to.store(half * HALF, total)

"""Convolutions on tiles of bf16, from images and weights in parts (``image_tiles``, ``split``).

The way through pixels, steps and filters is that of ``conv_tiles``. A tile of A is 32 numbers of 16 pixels each, and
weights are packed once, like the right operand of a matrix product, with k in the order of steps:

    [filters / 32][step][part][2][16 pairs of numbers][16 filters][2]

Of at most 16 filters in the last panel, only the tile that has them is multiplied.

**Order of sums.** Step by step, in runs, as in ``gemm_amx``: a run goes on from the sums of the one before, or with
three parts begins at zero and is added to them (``tile_behind``).

**Numbers that tiles do not carry** make NaN of the sums that they touch, and so does overflow between parts: a square
with such a sum is made anew in f32 from the numbers behind the parts. One part carries them all; but where the last
tile of a run reads on into other pixels, their infinities and NaN must not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sardonyx.providers.cpu.amx import Tiles
from sardonyx.providers.cpu.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.kernels.conv_tiles import FETCHED, GROUP, Grid, Kind, Work, convolution_params, walk
from sardonyx.providers.cpu.kernels.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.image_behind import PixelsBehind
from sardonyx.providers.cpu.kernels.image_epilogue import SQUARE
from sardonyx.providers.cpu.kernels.image_tiles import BLOCK, whole_of
from sardonyx.providers.cpu.kernels.matrices import number
from sardonyx.providers.cpu.kernels.split import HALF, PANEL, TILE, count_of, step_elements, whole
from sardonyx.providers.cpu.kernels.tile_behind import Added, each_step
from sardonyx.providers.cpu.kernels.tile_loop import LINE, SUMS, A, B, Dot, events, from_zero, going_on
from sardonyx.providers.cpu.values import Buf, Val, bf16, f32, i64


def _params(parts: int, epilogue: Epilogue, is_between: bool) -> Params:
    return {"x": (bf16,), "w": (bf16,), **convolution_params(epilogue)}


@kernel(_params)
def conv_amx(k: Kernel, *, parts: int, epilogue: Epilogue, is_between: bool, **memory: Any) -> None:
    def work(
        k: Kernel, tiles: Tiles, memory: Any, distances: Buf, grid: Grid, steps: Val, epilogue: Epilogue, kind: Kind
    ) -> Work:
        behind = Added(k, grid.sums.at(GROUP * SQUARE), grid.sums) if parts == 3 else None
        table = grid.sums.at((GROUP + kind.spare) * SQUARE).as_type(i64)
        pixels = PixelsBehind(k, epilogue, memory, grid, table, parts) if is_between else None
        return _PartsWork(k, tiles, memory, distances, grid, steps, epilogue, kind, behind, pixels)

    walk(k, memory, epilogue, Kind(BLOCK, parts, parts * 2, step_elements(parts) * 2), work)


@dataclass(frozen=True)
class _PartsWork(Work):
    """Products of bf16 parts."""

    behind: Added | None
    """With three parts."""
    pixels: PixelsBehind | None
    """Where those of a square are finished between the products of the next."""

    @property
    def parts(self) -> int:
        return self.kind.parts

    @property
    def x(self) -> Buf:
        found: Buf = self.memory["x"]
        return found

    @property
    def w(self) -> Buf:
        found: Buf = self.memory["w"]
        return found

    def square(self, r: Val, column: Val, step: Val, many: Val, fetched: Val) -> None:
        k, sums, is_first = self.k, self.grid.sums, step.eq(0)
        slot, spare = sums.at(self.slot(r)), sums.at(GROUP * SQUARE)
        if self.behind is None:
            with going_on(self.tiles, [slot.at(t * HALF) for t in SUMS], PANEL * 4, is_first):
                self._multiply(r, column, step, many, fetched)
            return
        to = k.choose(is_first, slot, spare)
        with from_zero(self.tiles, [to.at(t * HALF) for t in SUMS], PANEL * 4):
            self._multiply(r, column, step, many, fetched)
        with k.when(~is_first):
            self.behind.take(self.slot(r))

    def _multiply(self, r: Val, column: Val, step: Val, many: Val, fetched: Val) -> None:
        with self.k.either(self.filters - column * PANEL <= HALF) as (half, whole):
            with half:
                self._products(r, column, step, many, fetched, 1)
            with whole:
                if self.parts > 1:
                    self._products(r, column, step, many, fetched, 2)
                else:
                    with self.k.either(self.taps.eq(1)) as (one, several):
                        for branch, is_past in ((one, True), (several, False)):
                            with branch:
                                self._products(r, column, step, many, fetched, 2, is_past)

    def _products(
        self, r: Val, column: Val, step: Val, many: Val, fetched: Val, halves: int, is_past: bool = False
    ) -> None:
        """``is_past``: pixels, which a single tap sees once, leave L1 to the weights."""
        if self.parts > 1 or self.pixels is not None:  # there is one loop, which fetches: what is in it is long
            self._loop(r, column, step, many, self.k.max(fetched, FETCHED), halves, is_past)
            return
        with self.k.either(fetched.eq(0)) as (none, some):
            with none:
                self._loop(r, column, step, many, None, halves, is_past)
            with some:
                self._loop(r, column, step, many, fetched, halves, is_past)

    def _loop(self, r: Val, column: Val, step: Val, many: Val, fetched: Val | None, halves: int, is_past: bool) -> None:
        k, size = self.k, step_elements(self.parts)
        pixels, part = self.x.at(self.grid.entry(r)[0]), number(self.memory, "x_part")
        stride = number(self.memory, "stride_x") * number(self.memory, "x_x") * 2
        weights = self.w.at((column * self.steps + step) * size)
        among = self._among(many, column, halves)
        with k.loop(0, many) as s:
            here, lines = pixels.at(self.distances.load(step + s)), list[Buf]()
            if fetched is not None:
                ahead = weights.at(many * size + (r * many + s) * (fetched * (self.parts * LINE)))
                with k.loop(FETCHED * self.parts, fetched * self.parts) as i:
                    ahead.prefetch(i * LINE, locality=2)
                lines = [ahead.at(i * LINE) for i in range(FETCHED * self.parts)]
            written = list(events(self.parts, 1, halves))
            share = -(-len(lines) // sum(isinstance(event, Dot) for event in written))
            for event in written:
                if isinstance(event, Dot):
                    self.tiles.dot_bf16(event.sums, A, B)
                    for line in lines[:share]:
                        line.prefetch(locality=2)
                    lines = lines[share:]
                elif event.tile == B:
                    self.tiles.load(B, weights.at(s * size + event.offset))
                else:
                    self.tiles.load(A, here.at(part * (event.offset // (2 * TILE))), stride, is_past=is_past)
            among()

    def _among(self, many: Val, column: Val, halves: int) -> Callable[[], None]:
        """What each of ``many`` steps does beside its products."""
        if self.behind is not None:
            return partial(self.behind.some, each_step(self.k, many))
        if self.pixels is not None and halves == 2:
            return partial(self.pixels.some, each_step(self.k, many), column)
        return lambda: None

    def settle(self) -> None:
        if self.behind is not None:
            self.behind.rest()

    def locate(self, rows: Val) -> None:
        if self.pixels is not None:
            self.pixels.locate(rows)

    def follow(self, r: Val, rows: Val, column: Val) -> None:
        if self.pixels is None:
            super().follow(r, rows, column)
            return
        self.pixels.rest(column)
        with self.k.when(r < rows):
            self.mend(r, column, self.grid.sums.at(self.slot(r)))
            self.pixels.take(r, self.slot(r))

    def mend(self, r: Val, column: Val, slot: Buf) -> None:
        if self.parts > 1:
            self._mend(r, column, slot)
        else:
            with self.k.when((self.wide % BLOCK).ne(0)):
                self._mend(r, column, slot)

    def _mend(self, r: Val, column: Val, slot: Buf) -> None:
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
        k, size, part = self.k, step_elements(self.parts), number(self.memory, "x_part")
        with k.loop(0, 2) as half:
            total = k.var(k.zeros(f32, HALF))
            with k.loop(0, self.steps) as s:
                here, first = pixel.at(self.distances.load(s)), s % count_of(self.wide, BLOCK) * BLOCK
                weights = self.w.at((column * self.steps + s) * size + half * TILE)
                with k.loop(0, k.min(self.wide - first, BLOCK)) as c:
                    v = k.splat(whole_of(k, here.at(c), part, self.parts, 1), HALF)
                    total.set(k.fma(v, whole(k, weights, self.parts, c), total))
            to.store(half * HALF, total)

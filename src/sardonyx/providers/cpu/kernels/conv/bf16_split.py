"""Convolutions on AMX from bf16 terms of image and weights (``conv.packed_image``, ``split.bf16``), or from bytes.

The loops over pixels, steps and filters are those of ``conv.implicit_gemm``. A tile of A is 32 numbers of 16 pixels, or
64 bytes of each. Weights are packed once, as the B of a matrix product, with k in the order of steps:

    bf16 terms    [filters / 32][step][term][2][16 pairs of numbers][16 filters][2]
    bytes         [filters / 32][step][2][16 quads of numbers][16 filters][4]

A step of bytes has as many bytes as one of a single term, and is carried out in the same way, with exact sums in i32.

If the last panel has at most 16 filters, only one of its two tiles is multiplied. Weights of one or two steps stay in
tile registers while the micro-tiles of a group pass; others are loaded for each micro-tile.

**Order of sums.** Step by step, in K-blocks, as in ``gemm.amx``: a K-block continues the sums of the one before or,
with three terms, starts at zero and is added to them (``split.deferred_accumulation``).

**f32 fallback.** Images in several terms are lifted by a power of two, and the epilogue divides by it. A number out of
the representable range makes every sum that contains it NaN, and a sum that overflows is not finite: a micro-tile with
such a sum is recomputed in f32, not lifted, from the numbers that the terms encode, decoded a K-block at a time
(``gemm.f32_fallback``).
One term represents every bf16 number. But in the compact layout the last tile of a span reads on into other pixels,
whose infinities and NaN must not count. If the image has flags, micro-tiles are checked only where a flag is set;
otherwise all of them are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import ClassVar

from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.conv.image_epilogue import MICRO_TILE
from sardonyx.providers.cpu.kernels.conv.implicit_gemm import (
    FETCHED,
    GROUP,
    PixelTiles,
    TileConv,
    TileConvArgs,
    TileFormat,
    convolve,
)
from sardonyx.providers.cpu.kernels.conv.packed_image import BLOCK, ImageFormat, decode_pixel, lift_of_terms
from sardonyx.providers.cpu.kernels.conv.pipelined_epilogue import PipelinedPixels, Places
from sardonyx.providers.cpu.kernels.gemm.f32_fallback import DEPTH, any_flag_set, decoded_rows, multiply_rows
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL, TILE, load_pair, step_elements
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import (
    LINE,
    SUMS,
    A,
    B,
    Dot,
    continued_sums,
    events,
    zeroed_sums,
)
from sardonyx.providers.cpu.kernels.split.deferred_accumulation import TermAccumulator, rows_per_step
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Val, Var, bf16, f32, i8, i32, i64, u8
from sardonyx.records import Record, replace

WEIGHTS = {bf16: bf16, i8: i8, u8: i8}
"""The type of weights, by that of images."""
OWN = 2
"""With one term: work items of a thread that are never stolen: another thread would have to fetch their pixels."""


class RowFlagsArgs(Arguments[M, N]):
    """The parameters of an image's flags: one for each row, which is up where a number is not finite."""

    memory: M = field(metadata=named("{}"))
    count: N


class TileProductArgs(Arguments[M, N]):
    """The parameters of ``conv_amx``."""

    is_inline: ClassVar[bool] = True
    x: M
    w: M
    second: M | None
    """A second image, of which a pointwise convolution is added."""
    flags: RowFlagsArgs[M, N] | None
    conv: TileConvArgs[M, N]


def _params(
    fmt: ImageFormat, epilogue: Epilogue, pace: int, places: Places | None, resident: int, is_single: bool,
    is_non_temporal: bool, is_full: bool, has_second: bool, is_flagged: bool,
) -> Params:  # fmt: skip
    second, flags = Memory(bf16) if has_second else None, RowFlagsArgs(Memory(i32), i64) if is_flagged else None
    conv = TileConvArgs.declared(epilogue, has_second=has_second)
    return {"args": TileProductArgs(Memory(fmt.dtype), Memory(WEIGHTS[fmt.dtype]), second, flags, conv)}


@kernel(_params)
def conv_amx(
    k: Kernel, args: TileProductArgs[Buf, Val], *, fmt: ImageFormat, epilogue: Epilogue, pace: int,
    places: Places | None, resident: int, is_single: bool, is_non_temporal: bool, is_full: bool, has_second: bool,
    is_flagged: bool,
) -> None:  # fmt: skip
    """``fmt`` is the format of the image. ``pace``: pixels of the previous micro-tile that a step finishes; 0: the
    epilogue is not pipelined. ``is_non_temporal``: pixels, which a single tap reads once, bypass L1. ``is_flagged``:
    flags of the image tell whether sums need the f32 fallback. ``has_second``: the last steps read the channels of a
    second image.

    With a pace only: ``places``; ``is_single``: there is one K-block; ``is_full``: channels and filters fill tiles
    (filters alone where ``is_flagged``, and of bytes); ``resident``: the steps, if there are so few that their weights
    stay in tile registers while the micro-tiles of a group pass, else 0.
    """

    def work(
        k: Kernel,
        tiles: Tiles,
        conv: TileConvArgs[Buf, Val],
        distances: Buf,
        grid: PixelTiles,
        steps: Val,
        epilogue: Epilogue,
        tile_format: TileFormat,
    ) -> TileConv:
        accumulator = TermAccumulator(k, grid.sums.at(GROUP * MICRO_TILE), grid.sums) if fmt.terms == 3 else None
        table = grid.sums.at((GROUP + tile_format.spare) * MICRO_TILE).as_type(i64)
        pixels = PipelinedPixels(k, epilogue, conv, grid, table, places, pace, is_full=is_full) if places else None
        odd = any_flag_set(k, [(args.flags.memory, args.flags.count)]) if args.flags else None
        known = args, accumulator, pixels, resident, is_single, is_non_temporal, odd, k.var(-1)
        return _TileProducts(k, tiles, conv, distances, grid, steps, epilogue, tile_format, *known)

    assert not (resident and has_second)
    count, own, sums = B + max(2 * resident, 1), OWN if fmt.terms == 1 else 0, i32 if fmt.is_quantized else f32
    tile_format = TileFormat(
        fmt.block, fmt.terms, fmt.nbytes, step_elements(fmt.terms) * 2, tiles=count, own=own, sums=sums
    )
    convolve(k, args.conv, epilogue, tile_format, work)


class _KBlock(Record):
    """A K-block of one column of 32 filters."""

    column: Val
    step: Val
    """The first step."""
    count: Val
    """Steps of this K-block."""
    fetched: Val | None
    """Lines of the next K-block of weights that each step prefetches."""
    halves: int = 2
    """Tiles of 16 filters that are multiplied."""


class _TileProducts(TileConv):
    """Products of bf16 terms, or of bytes."""

    operands: TileProductArgs[Buf, Val]
    accumulator: TermAccumulator | None
    """Adds the sums of K-blocks; None with one or two terms."""
    pixels: PipelinedPixels | None
    """The pipelined epilogue, if there is one."""
    resident: int
    """Steps whose weights stay in tile registers; 0: weights are loaded for each micro-tile."""
    is_single: bool
    is_non_temporal: bool
    odd: Val | None
    """Whether a flag of the image is set; False without flags."""
    held: Var
    """The column and step of the K-block of weights that is in scratch memory in f32; -1: none."""

    @property
    def is_full(self) -> bool:
        return self.pixels is not None and self.pixels.is_full

    @property
    def terms(self) -> int:
        return self.fmt.terms

    @property
    def _pixel_nbytes(self) -> Val:
        """The stride of neighbouring pixels of a tile, in bytes."""
        return self.args.taps.stride.x * self.args.strides.x * self.operands.x.dtype.itemsize

    def micro_tiles(self, rows: Val, column: Val, step: Val, count: Val, fetched: Val, is_last: Val) -> None:
        if self.pixels is None:
            super().micro_tiles(rows, column, step, count, fetched, is_last)
            return
        k_block = _KBlock(column, step, count, fetched)
        if self.is_full:
            self._by_last_k_block(rows, k_block, is_last)
            return
        with self.k.either(self.filters - column * PANEL <= HALF) as (half, whole):
            with half:
                self.pixels.drain()
                self._by_last_k_block(rows, replace(k_block, fetched=self.k.max(fetched, FETCHED), halves=1), is_last)
            with whole:
                self._by_last_k_block(rows, k_block, is_last)

    def _by_last_k_block(self, rows: Val, k_block: _KBlock, is_last: Val) -> None:
        """Multiply a K-block in one of two loops: only that of the last K-block finishes pixels between the products.

        A branch between the products of two micro-tiles would cost time.
        """
        assert self.pixels is not None
        last, before = (partial(self._micro_tiles, rows, is_last=known) for known in (True, False))
        if self.is_single:
            self._by_fetching(k_block, last)
            return
        with self.k.either(is_last) as (yes, no):
            with yes:
                self._by_fetching(k_block, last)
            with no:
                self.pixels.drain()
                self._by_fetching(k_block, before)

    def _micro_tiles(self, rows: Val, k_block: _KBlock, *, is_last: bool) -> None:
        """Multiply a K-block for the micro-tiles of a group, with a pipelined epilogue.

        In the last K-block, pixels of the previous micro-tile are finished between the products. If there is a single
        K-block, both micro-tiles keep their sums in one place: the old sums are read before the new ones are stored.
        """
        k, pixels = self.k, self.pixels
        assert pixels is not None
        for t in range(2 * self.resident):
            self.tiles.load(B + t, self._weights.at(k_block.column * self.steps * step_elements(1) + t * TILE))
        with k.loop(0, rows) as r:
            slot = k.const(0) if self.is_single else r * MICRO_TILE
            sums, is_first = (self._sums(slot), PANEL * 4), k_block.step.eq(0)
            with zeroed_sums(self.tiles, *sums) if self.is_single else continued_sums(self.tiles, *sums, is_first):
                pipelined = (
                    self._resident_steps(r, k_block) if self.resident else self._steps(r, k_block, is_last=is_last)
                )
                if is_last:
                    pixels.drain(pipelined)
            if is_last:
                self.f32_fallback(r, k_block.column, self.grid.sums.at(slot))
                pixels.start(r, slot, k_block.column)

    def _steps(self, r: Val, k_block: _KBlock, *, is_last: bool) -> Val:
        """The products of a micro-tile; returns how many steps have finished pixels of the previous one."""
        k, pixels, pipelined = self.k, self.pixels, self.k.const(0)
        assert pixels is not None
        if is_last and k_block.halves == 2:
            pipelined = pixels.pipelined_steps(k_block.count)
            with k.when(pipelined > 0):
                self._loop(r, k_block, end=pipelined, among=pixels.step_actions())
        self._loop(r, k_block, begin=pipelined)
        return pipelined

    def _resident_steps(self, r: Val, k_block: _KBlock) -> Val:
        """The products of a micro-tile with weights that stay in tile registers.

        Returns how many steps have finished pixels of the previous micro-tile: all, or none if it has too few pixels.
        """
        k, pixels = self.k, self.pixels
        assert pixels is not None
        if k_block.fetched is not None:
            count = k_block.fetched * self.resident
            ahead = self._weights.at(((k_block.column + 1) * self.steps) * step_elements(1) + r * count * LINE)
            with k.loop(0, count) as i:
                ahead.prefetch(i * LINE, locality=2)
        is_interleaved = pixels.pipelined_steps(k.const(self.resident)).eq(self.resident)
        with k.either(is_interleaved) as (yes, no):
            with yes:
                self._multiply_resident(r, pixels.step_actions())
            with no:
                self._multiply_resident(r, lambda _: [])
        return k.select(is_interleaved, k.const(self.resident), 0)

    def _multiply_resident(self, r: Val, among: Callable[[Val], list[Callable[[], None]]]) -> None:
        k, pixels = self.k, self.operands.x.at(self.grid.entry(r)[0])
        stride = self._pixel_nbytes
        for s in range(self.resident):
            others = among(k.const(s))
            self.tiles.load(A, pixels.at(self.distances.load(s)), stride)
            for half in SUMS:
                self._dot(half, B + 2 * s + half)
                for other in others[len(others) * half // 2 : len(others) * (half + 1) // 2]:
                    other()

    def micro_tile(self, r: Val, column: Val, step: Val, count: Val, fetched: Val) -> None:
        k, slot, is_first = self.k, self.slot(r), step.eq(0)
        k_block = _KBlock(column, step, count, fetched)
        if self.accumulator is None:
            with continued_sums(self.tiles, self._sums(slot), PANEL * 4, is_first):
                self._multiply(r, k_block)
            return
        to = k.select(is_first, slot, GROUP * MICRO_TILE)
        with zeroed_sums(self.tiles, self._sums(to), PANEL * 4):
            self._multiply(r, k_block)
        with k.when(~is_first):
            self.accumulator.start(slot)

    @property
    def _weights(self) -> Buf:
        """The weights, in units of two bytes."""
        return self.operands.w.as_type(bf16)

    def _dot(self, sums: int, b: int) -> None:
        """Add the product of the tiles A and ``b``."""
        dtype = self.operands.x.dtype
        if dtype is bf16:
            self.tiles.dot_bf16(sums, A, b)
        else:
            self.tiles.dot_bytes(sums, A, b, dtype, WEIGHTS[dtype])

    def _sums(self, slot: Val) -> list[Buf]:
        return [self.grid.sums.at(slot + t * HALF) for t in SUMS]

    def _multiply(self, r: Val, k_block: _KBlock) -> None:
        with self.k.either(self.filters - k_block.column * PANEL <= HALF) as (half, whole):
            for branch, halves in ((half, 1), (whole, 2)):
                with branch:
                    among = self._among(k_block.count)
                    self._by_fetching(replace(k_block, halves=halves), partial(self._loop, r, among=among))

    def _by_fetching(self, k_block: _KBlock, products: Callable[[_KBlock], None]) -> None:
        """Emit ``products`` with and without prefetching the next K-block; only with it if the loop is long."""
        assert k_block.fetched is not None
        if self.terms > 1 or self.epilogue.is_expensive:
            products(replace(k_block, fetched=self.k.max(k_block.fetched, FETCHED)))
            return
        with self.k.either(k_block.fetched.eq(0)) as (none, some):
            for branch, fetched in ((none, None), (some, k_block.fetched)):
                with branch:
                    products(replace(k_block, fetched=fetched))

    def _loop(
        self, r: Val, k_block: _KBlock, *, begin: Operand = 0, end: Val | None = None,
        among: Callable[[Val], list[Callable[[], None]]] = lambda _: [],
    ) -> None:  # fmt: skip
        """Steps ``begin`` to ``end`` of a K-block; ``among`` returns what a step does between its products."""
        k, size, count, fetched = self.k, step_elements(self.terms), k_block.count, k_block.fetched
        pixels_of, term = self._pixels_of(r), self.args.strides.term
        weights = self._weights.at((k_block.column * self.steps + k_block.step) * size)
        ahead, to_fetch, each = weights.at(count * size), k.var(0), k.const(0)
        if fetched is not None:
            each = fetched * (self.terms * LINE)
            to_fetch.set((r * count + begin) * each)
        with k.loop(begin, count if end is None else end) as s:
            (here, stride), lines = pixels_of(k_block.step + s), list[Buf]()
            if fetched is not None:
                wanted = ahead.at(to_fetch.get())
                with k.loop(FETCHED * self.terms, fetched * self.terms) as i:
                    wanted.prefetch(i * LINE, locality=2)
                lines = [wanted.at(i * LINE) for i in range(FETCHED * self.terms)]
            written, others = list(events(self.terms, 1, k_block.halves)), among(s)
            share = -(-len(lines) // sum(isinstance(event, Dot) for event in written))
            for at, event in enumerate(written):
                if isinstance(event, Dot):
                    self._dot(event.sums, B)
                    for line in lines[:share]:
                        line.prefetch(locality=2)
                    lines = lines[share:]
                elif event.tile == B:
                    self.tiles.load(B, weights.at(s * size + event.offset))
                else:
                    self.tiles.load(
                        A, here.at(term * (event.offset // (2 * TILE))), stride, is_non_temporal=self.is_non_temporal
                    )
                for other in others[len(others) * at // len(written) : len(others) * (at + 1) // len(written)]:
                    other()
            to_fetch += each

    def _pixels_of(self, r: Val) -> Callable[[Val], tuple[Buf, Val]]:
        """Returns, for a step, the first pixel of the micro-tile and the bytes from one pixel to the next."""
        k, own = self.k, self.operands.x.at(self.grid.entry(r)[0])
        stride, image, second = self._pixel_nbytes, self.operands.second, self.args.second
        if image is None or second is None:
            return lambda step: (own.at(self.distances.load(step)), stride)
        other, of_other = image.at(self.grid.second(r)), second.x * 2
        first = self.steps - second.blocks

        def found(step: Val) -> tuple[Buf, Val]:
            is_own = step < first
            return k.choose(is_own, own, other).at(self.distances.load(step)), k.select(is_own, stride, of_other)

        return found

    def _among(self, count: Val) -> Callable[[Val], list[Callable[[], None]]]:
        """What each of ``count`` steps does between its products.

        With three terms, a step adds some rows of the previous K-block's sums to the totals.
        """
        if self.accumulator is None:
            return lambda _: []
        some = partial(self.accumulator.advance, rows_per_step(self.k, count))
        return lambda _: [some]

    def complete_sums(self) -> None:
        if self.accumulator is not None:
            self.accumulator.drain()

    def locate(self, rows: Val) -> None:
        if self.pixels is not None:
            self.pixels.drain()
            self.pixels.locate(rows)

    def close(self) -> None:
        if self.pixels is not None:
            self.pixels.drain()

    def f32_fallback(self, r: Val, column: Val, slot: Buf) -> Val | None:
        if self.operands.x.dtype is not bf16:
            return None
        if self.terms > 1:
            return self._f32_fallback(r, column, slot)
        if self.odd is not None:
            with self.k.when(self.odd, likely=False):
                self._f32_fallback(r, column, slot)
        elif not self.is_full:
            with self.k.when((self.args.wide % BLOCK).ne(0)):
                self._f32_fallback(r, column, slot)
        return None

    def _f32_fallback(self, r: Val, column: Val, slot: Buf) -> Val:
        """Recompute sums that are not finite in f32; returns the factor of the sums of the micro-tile."""
        k, factor = self.k, self.k.var(self.k.const(1 / lift_of_terms(self.terms), f32))
        odd = [k.var(k.zeros(f32, HALF)) for _ in SUMS]
        with k.loop(0, self.grid.high) as i:
            for half, total in zip(SUMS, odd, strict=True):
                total.set(k.fma(slot.load(i * PANEL + half * HALF, HALF), 0.0, total))
        with k.when((odd[0].get() + odd[1].get()).ne(0.0).any(), likely=False):
            factor.set(1.0)
            high, most = self.grid.entry(r)[-1], DEPTH // BLOCK
            with k.loop(0, self.steps, most) as step:
                self._recompute(r, high, column, step, k.min(self.steps - step, most), slot)
        return factor.get()

    def _recompute(self, r: Val, high: Val, column: Val, step: Val, count: Val, sums: Buf) -> None:
        """Recompute a K-block of the sums of ``high`` pixels and 32 filters in f32, from the decoded terms."""
        k, size, which = self.k, step_elements(self.terms), column * self.steps + step
        columns = k.scratch(f32)
        pixels, pixels_of = columns.at(DEPTH * PANEL), self._pixels_of(r)
        with k.when(self.held.get().ne(which)):
            self.held.set(which)
            weights = self._weights.at(which * size)
            with k.loop(0, count) as s, k.loop(0, BLOCK // 2) as pair:
                for half in range(2):
                    words = weights.at(s * size + half * TILE)
                    for odd, numbers in enumerate(load_pair(k, words, self.terms, pair)):
                        columns.store((s * BLOCK + pair * 2 + odd) * PANEL + half * HALF, numbers)
        with k.loop(0, count) as s:
            here, stride = pixels_of(step + s)
            wide = self._wide_of(step + s)
            with k.loop(0, high) as i:
                pixel = here.at(i * (stride // 2))
                for half in range(2):
                    there = k.mask(wide - half * HALF, HALF)
                    v = decode_pixel(k, pixel.at(half * HALF), self.args.strides.term, self.terms, HALF)
                    pixels.store(i * DEPTH + s * BLOCK + half * HALF, k.select(there, v, 0.0))
        multiply_rows(k, high, decoded_rows(k, pixels), columns, count * BLOCK, sums, step.eq(0))

    def _wide_of(self, step: Val) -> Val:
        """How many numbers of a step belong to its taps; in the compact layout, numbers of other pixels follow."""
        k, each = self.k, ceil_div(self.args.wide, BLOCK)
        own = self.args.wide - step % each * BLOCK
        second = self.args.second
        return own if second is None else k.select(step < self.steps - second.blocks, own, BLOCK)

"""Convolutions on tiles: an implicit matrix product of pixels in bf16 parts (``image_tiles``) and weights.

A tile of A is 32 numbers of 16 pixels each, loaded from where they lie: nothing is copied for a tap. In an image of
blocks these are the channels of one block as one tap sees them; where pixels lie close together, 32 numbers out of the
run that a row of taps sees. Weights are packed once, like the right operand of a matrix product, with k in that order:

    [filters / 32][step][part][2][16 pairs of numbers][16 filters][2]

A *step* is one such tile. Its pixels are ``distances[step]`` elements from those of the first, a table in scratch
memory: kernel, stride, dilation, padding and layout are numbers of the run, and one kernel serves every geometry. Of at
most 16 filters in the last panel, only the tile that has them is multiplied.

**Pixels.** Where windows move by one along every axis, the pixels of an image are one line, which runs over the ends of
rows through the padding between them: what is computed there is dropped, and maps of 7 or 14 pixels a row still fill
tiles. With strides every row is a line. A line is cut into tiles of equal height, at most 16, which the tile unit is
told, so that it does no more; a tile and 32 filters are a *square* of sums (``tile_loop`` tells why not more).

**Order of sums.** Step by step, in runs, as in ``gemm_amx``: a run goes on from the sums of the one before, or with
three parts begins at zero and is added to them.

**Caches.** A run of weights takes 24 KiB and stays in L1 while the squares of a group pass by. Taps of a block follow
each other, so its pixels come from L2 once for those of a run: with one part and 3 x 3 taps about 12 bytes a cycle. The
next run of weights is fetched into L2 meanwhile.

**What follows** a square is written behind the products of the next, which are few instructions and many cycles: the
chip does both at once. Results go out pixel by pixel or, where images lie plane by plane, turned in registers first;
and, if the next layer is a convolution on tiles, as that one wants to read them, split and padded (``image_epilogue``).

**Numbers that tiles do not carry** make NaN of the sums that they touch, and so does overflow between parts: a square
with such a sum is made anew in f32 from the numbers behind the parts. One part carries them all; but where the last
tile of a run reads on into other pixels, their infinities and NaN must not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sardonyx.providers.cpu.amx import Tiles
from sardonyx.providers.cpu.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.kernels.epilogue import Epilogue
from sardonyx.providers.cpu.kernels.image_epilogue import PLANES, SQUARE, ImageFinish, has_next, next_params
from sardonyx.providers.cpu.kernels.image_tiles import BLOCK, whole_of, zero_frame
from sardonyx.providers.cpu.kernels.matrices import number
from sardonyx.providers.cpu.kernels.split import HALF, PANEL, TILE, count_of, step_elements, whole
from sardonyx.providers.cpu.kernels.tile_loop import LINE, SUMS, TILES, A, B, Dot, events
from sardonyx.providers.cpu.values import Buf, Tile, Val, bf16, f32, i64

GROUP = 16
"""Squares of a group, at most."""
LINES = 2 * HALF
"""Of the weights of a step, for each part."""
FETCHED = 4
"""Lines of the next run of weights, for each part, that a step of one square fetches into L2, at least: the squares of
a group fetch all of them."""
ENTRY = 8
"""Words that are kept about a tile: where its pixels begin, image, z, y, x, and how many there are."""

_TAPS = tuple(f"{what}_{axis}" for what in ("kernel", "dilation", "stride", "out") for axis in "zyx")
_NUMBERS = (
    "x_b", "x_block", "x_z", "x_y", "x_x", "x_part", "batch", "blocks", "filters", "lines", "length", "wide",
    "pitch_z", "pitch_y", "run",
)  # fmt: skip


def convolution_params(epilogue: Epilogue) -> Params:
    """All but images and weights."""
    return {**dict.fromkeys((*_NUMBERS, *_TAPS), i64), **next_params(epilogue)}


def _params(parts: int, epilogue: Epilogue) -> Params:
    return {"x": (bf16,), "w": (bf16,), **convolution_params(epilogue)}


@kernel(_params)
def conv_amx(k: Kernel, *, parts: int, epilogue: Epilogue, **memory: Any) -> None:
    walk(k, memory, epilogue, Kind(BLOCK, parts, parts * 2, step_elements(parts) * 2), _PartsWork)


@dataclass(frozen=True)
class Kind:
    """What images and weights are made of."""

    block: int
    """Numbers of a tile's row."""
    parts: int
    """Of bf16, in which results are handed on."""
    number_nbytes: int
    step_nbytes: int
    """Of weights, for 32 filters."""
    spare: int = 1
    """Squares of scratch memory for the sums of a run."""


def walk(k: Kernel, memory: Any, epilogue: Epilogue, kind: Kind, work_of: Callable[..., Work]) -> None:
    """A convolution, square by square, as ``Work`` does them."""
    batch, blocks, filters, lines, length, wide, run = (
        number(memory, name) for name in ("batch", "blocks", "filters", "lines", "length", "wide", "run")
    )
    taps = number(memory, "kernel_z") * number(memory, "kernel_y") * number(memory, "kernel_x")
    steps = k.opaque(blocks * taps * count_of(wide, kind.block))
    per_line = k.opaque(count_of(length, HALF))
    high = k.opaque(count_of(length, k.max(per_line, 1)))
    each = k.opaque(lines * per_line)
    count = batch * each
    columns = count_of(filters, PANEL)
    if has_next(epilogue):
        zero_frame(k, memory["image"], memory, "image", batch)
    # Two runs of squares for each thread, if there are as many; groups of one size, and as many for each thread. Pixels
    # are shared out, as they are in the layers before and after, unless to read all weights costs more.
    fair = count * columns // (k.threads * 2)
    groups = count_of(count, k.max(k.min(fair, GROUP), 1))
    channels = blocks * count_of(wide, kind.block) * kind.block
    pixels_nbytes = batch * lines * length * (channels * kind.number_nbytes + filters * 4)
    is_split = (count >= k.threads * 2) & (columns * steps * kind.step_nbytes <= pixels_nbytes)
    groups = k.max(groups, k.select(is_split, k.threads, 1))
    groups = k.opaque(k.select(groups < k.threads, groups, count_of(groups, k.threads) * k.threads))
    group = k.opaque(count_of(count, k.max(groups, 1)))
    tiles = Tiles(k)
    tiles.configure(high, short=(*SUMS, A), count=TILES)
    distances = k.scratch(i64)
    grid = Grid(k, memory, distances.at(count_of(steps, 8) * 8), lines, length, per_line, high, each)
    _measure(k, memory, distances, blocks, wide, kind.block)
    work = work_of(k, tiles, memory, distances, grid, steps, epilogue, kind)
    known = k.var(-1)
    with k.share(groups * columns) as at:
        column, top = at % columns, at // columns * group
        rows = k.min(group, count - top)
        with k.when(known.ne(top)):
            grid.locate(top, rows)
            known.set(top)
        fetched = k.max(count_of(k.const(LINES), k.max(rows, 1)), FETCHED)
        with k.loop(0, steps, run) as step:
            many = k.min(run, steps - step)
            is_last = step + run >= steps
            with k.loop(0, rows + k.cast(is_last, i64)) as r:
                with k.when(is_last & (r + 1 < rows)):
                    work.fetch(r + 1, column)
                with k.when(r < rows):
                    work.square(r, column, step, many, fetched)
                with k.when(is_last & (r > 0)):
                    work.end(r - 1, column)
    tiles.release()


def _measure(k: Kernel, memory: Any, to: Buf, blocks: Val, wide: Val, block_size: int) -> None:
    """How far the pixels of each step are from those of the first."""

    def n(name: str) -> Val:
        return number(memory, name)

    at = k.var(0)
    with k.loop(0, blocks) as block, k.loop(0, n("kernel_z")) as z, k.loop(0, n("kernel_y")) as y:
        row = block * n("x_block") + z * n("dilation_z") * n("x_z") + y * n("dilation_y") * n("x_y")
        with k.loop(0, n("kernel_x")) as tap, k.loop(0, wide, block_size) as first:
            to.store(at.get(), row + tap * n("dilation_x") * n("x_x") + first)
            at += 1


@dataclass(frozen=True)
class Grid:
    """The tiles of a group: where they lie and which pixels they are."""

    k: Kernel
    memory: Any
    table: Buf
    lines: Val
    length: Val
    per_line: Val
    high: Val
    each: Val

    def locate(self, top: Val, rows: Val) -> None:
        """Fill in the tiles from ``top`` on."""
        k = self.k
        pitch_z, pitch_y = number(self.memory, "pitch_z"), number(self.memory, "pitch_y")
        with k.loop(0, rows) as i:
            tile = top + i
            image, rest = tile // self.each, tile % self.each
            first = rest % self.per_line * self.high
            many = k.min(self.high, self.length - first)
            place = rest // self.per_line * self.length + first
            z, rest = place // pitch_z, place % pitch_z
            y, x = rest // pitch_y, rest % pitch_y
            start = image * number(self.memory, "x_b")
            for axis, index in zip("zyx", (z, y, x), strict=True):
                start = start + index * number(self.memory, f"stride_{axis}") * number(self.memory, f"x_{axis}")
            entry = self.table.at(i * ENTRY)
            for word, value in enumerate((start, image, z, y, x, many)):
                entry.store(word, value)

    def entry(self, tile: Val) -> list[Val]:
        return [self.table.load(tile * ENTRY + i) for i in range(6)]

    @property
    def sums(self) -> Buf:
        """A square for each tile of a group, the spare ones of a run, and one for each operand that is turned."""
        return self.table.at(GROUP * ENTRY).as_type(f32)


def scratch_nbytes(steps: int, epilogue: Epilogue, spare: int = 1) -> int:
    turned = sum(x.columns == PLANES for _, x in epilogue.names)
    return -(-steps // 8) * 64 + GROUP * ENTRY * 8 + (GROUP + spare + turned) * SQUARE * 4


@dataclass(frozen=True)
class Work:
    """What is done with squares."""

    k: Kernel
    tiles: Tiles
    memory: Any
    distances: Buf
    grid: Grid
    steps: Val
    epilogue: Epilogue
    kind: Kind

    @property
    def filters(self) -> Val:
        return number(self.memory, "filters")

    @property
    def wide(self) -> Val:
        return number(self.memory, "wide")

    def square(self, r: Val, column: Val, step: Val, many: Val, fetched: Val) -> None:
        """Add a run of ``many`` steps to the sums of square ``r`` of the group; ``fetched`` lines a step come near."""
        raise NotImplementedError

    def mend(self, r: Val, column: Val, slot: Buf) -> None:
        """Make sums anew that tiles did not make right."""
        raise NotImplementedError

    def fetch(self, r: Val, column: Val) -> None:
        """Bring near what square ``r`` of the group will read and write, as far as it is in one row."""
        _, *place, x, many = self.grid.entry(r)
        finish = self._finishing(place)
        with self.k.loop(0, many) as i:
            finish.fetch(x + i, column * PANEL, PANEL)

    def end(self, r: Val, column: Val) -> None:
        """Finish square ``r`` of the group: row by row of the image, and in each the pixels that exist."""
        k = self.k
        slot = self.grid.sums.at(r * SQUARE)
        self.mend(r, column, slot)
        pitch = number(self.memory, "pitch_y")
        out_y, out_x = number(self.memory, "out_y"), number(self.memory, "out_x")
        high = k.opaque(number(self.memory, "pitch_z") // k.max(pitch, 1))
        _, image, *first, many = self.grid.entry(r)
        done, (z, y, x) = k.var(0), (k.var(index) for index in first)
        with k.loop_while(lambda: done.get() < many):
            run = k.min(many - done.get(), pitch - x.get())
            kept = k.select(y.get() < out_y, k.max(k.min(run, out_x - x.get()), 0), 0)
            self._finish(slot.at(done.get() * PANEL), [image, z.get(), y.get()], x.get(), kept, column)
            is_end = (y.get() + 1).eq(high)
            for var, value in (
                (done, done.get() + run), (x, 0), (z, z.get() + k.cast(is_end, i64)),
                (y, k.select(is_end, 0, y.get() + 1)),
            ):  # fmt: skip
                var.set(value)

    def _finish(self, sums: Buf, place: list[Val], x: Val, many: Val, column: Val) -> None:
        """``many`` pixels from pixel ``x`` of a row on, and 32 filters."""
        k, first = self.k, column * PANEL
        left, finish = self.filters - first, self._finishing(place)
        room = number(self.memory, "image_room") if has_next(self.epilogue) else self.filters
        finish.turn_in(x, many, first)
        with k.loop(0, k.min(room - first, PANEL), HALF) as half:
            mask = k.mask(left - half, HALF)
            with k.loop(0, many) as i:
                finish.here = i * PANEL + half
                finish.put(x + i, Tile(first + half, HALF, mask), sums.load(finish.here, HALF))
        finish.turn_out(x, many, first)

    def _finishing(self, place: list[Val]) -> ImageFinish:
        """What follows the sums of pixels of one row."""
        turned = self.grid.sums.at((GROUP + self.kind.spare) * SQUARE)
        return ImageFinish(self.k, self.epilogue, self.memory, self.filters, place, turned, self.kind.parts)


@dataclass(frozen=True)
class _PartsWork(Work):
    """Products of bf16 parts."""

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
        k, tiles, sums = self.k, self.tiles, self.grid.sums
        slot, spare = sums.at(r * SQUARE), sums.at(GROUP * SQUARE)
        is_first = step.eq(0)
        if self.parts == 3:
            for t in SUMS:
                tiles.zero(t)
            self._multiply(r, column, step, many, fetched)
            to = k.choose(is_first, slot, spare)
            for t in SUMS:
                tiles.store(t, to.at(t * HALF), PANEL * 4)
            with k.when(~is_first), k.loop(0, SQUARE, 4 * HALF) as i:
                for v in range(0, 4 * HALF, HALF):
                    slot.store(i + v, slot.load(i + v, HALF) + spare.load(i + v, HALF))
            return
        with k.either(is_first) as (first, later):
            with first:
                for t in SUMS:
                    tiles.zero(t)
            with later:
                for t in SUMS:
                    tiles.load(t, slot.at(t * HALF), PANEL * 4)
        self._multiply(r, column, step, many, fetched)
        for t in SUMS:
            tiles.store(t, slot.at(t * HALF), PANEL * 4)

    def _multiply(self, r: Val, column: Val, step: Val, many: Val, fetched: Val) -> None:
        with self.k.either(self.filters - column * PANEL <= HALF) as (half, whole):
            for branch, halves in ((half, 1), (whole, 2)):
                with branch:
                    self._products(r, column, step, many, fetched, halves)

    def _products(self, r: Val, column: Val, step: Val, many: Val, fetched: Val, halves: int) -> None:
        k, size = self.k, step_elements(self.parts)
        pixels, part = self.x.at(self.grid.entry(r)[0]), number(self.memory, "x_part")
        stride = number(self.memory, "stride_x") * number(self.memory, "x_x") * 2
        weights = self.w.at((column * self.steps + step) * size)
        share = fetched * (self.parts * LINE)
        following = weights.at(many * size + r * many * share)
        with k.loop(0, many) as s:
            here, ahead = pixels.at(self.distances.load(step + s)), following.at(s * share)
            with k.loop(FETCHED * self.parts, fetched * self.parts) as i:
                ahead.prefetch(i * LINE, locality=2)
            lines = list(range(0, FETCHED * self.parts * LINE, LINE))
            for event in events(self.parts, 1, halves):
                if isinstance(event, Dot):
                    self.tiles.dot_bf16(event.sums, A, B)
                    for line in lines[:2]:
                        ahead.prefetch(line, locality=2)
                    lines = lines[2:]
                elif event.tile == B:
                    self.tiles.load(B, weights.at(s * size + event.offset))
                else:
                    self.tiles.load(A, here.at(part * (event.offset // (2 * TILE))), stride)

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

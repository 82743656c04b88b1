"""3 x 3 convolutions of images that lie pixel by pixel with fewer multiplications: Winograd's F(2 x 2, 3 x 3).

The sums are those of ``conv.winograd_nchw``. Here the lanes are channels while V is made, and filters from then on: 16
matrix products, whose rows are the fours of a block and whose columns the filters of a panel, and k the channels. The
innermost loop is that of ``gemm``. A block's V fills a part of L2, and panel by panel its products are made, kind by
kind, and what follows. The grid of work is (batch, block, chunk of panels).

**Order of sums** and **infinities, NaN, and numbers whose sums are too large**: as in ``conv.winograd_nchw``. Here
outputs of a few neighbouring fours are made anew where one of them is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sardonyx.ir import dims
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.image_block import LINE, ceil_div, fma
from sardonyx.providers.cpu.kernels.common.matrices import number
from sardonyx.providers.cpu.kernels.common.window import WindowGeometry, geometry_params, sizes
from sardonyx.providers.cpu.kernels.conv import winograd_nchw
from sardonyx.providers.cpu.kernels.conv.nhwc import Lines
from sardonyx.providers.cpu.kernels.conv.winograd_nchw import RUN, SUMS, differences_of, ends_of, weights_of
from sardonyx.providers.cpu.kernels.gemm.vector import CHAINS, MicroTileShape, accumulate, micro_kernel, prefetch_pace
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

LEAST = 16
"""Channels and filters from which fewer products outweigh the sums around them."""
FEWEST, MOST = 56, 96
"""Fours of a block: fewer would read the weights too often, of more the products' sums are not near."""
LEAST_FOURS = 32
"""Of all images: below, the weights, of which there are 16 in place of 9, are what takes the time."""
PIECE = 8
"""Fours whose outputs are made, and finished, at once."""
CHUNKS = 2
"""Parts of work for each thread, at least; panels are shared out, too, where blocks are few."""


def supports(group: Convolution, target: Target) -> bool:
    """Whether a convolution of an image that ``has_nhwc_views`` is carried out here."""
    geometry = WindowGeometry.of(group, collapse=False)
    is_deep = all(isinstance(d, int) and d >= LEAST for d in group.w.shape[:2])
    return is_deep and winograd_nchw.supports_transform(group, geometry, target) and _pays(group, geometry)


def _pays(group: Convolution, geometry: WindowGeometry) -> bool:
    """Whether images of this size have as many fours, and few outputs in these that do not exist."""
    size = group.box[0], *geometry.size[1:]
    if not all(isinstance(d, int) for d in size):
        return True
    batch, high, wide = (int(d) for d in size)
    fours = -(-high // 2) * -(-wide // 2)
    return batch * fours >= LEAST_FOURS and 9 * high * wide >= winograd_nchw.GAIN * SUMS * fours


def steps(group: Convolution, target: Target) -> list[Step]:
    isa, geometry, lines = target.isa, WindowGeometry.of(group, collapse=False), Lines.of(group)
    assert lines is not None
    filters, channels = (int(d) for d in group.w.shape[:2])
    shape = MicroTileShape.fitted(isa, f32, filters)
    extra, outputs = ([lines.matrix(v, filters) for v in seen] for seen in (group.extra, group.outputs))
    epilogue, more = Epilogue.over(group.epilogue, extra, outputs, filters, 3)
    weights = winograd_nchw.packed(group, shape.columns(isa, f32))
    args = {
        **geometry.args(), "u": Ref(weights), "channels": channels, "filters": filters, "lines": lines.count,
        "most": _most(channels, shape, isa), "distance": _distance(channels), **more,
    }  # fmt: skip
    flops = dims.known(dims.product((2 * 9, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(geometry.nbytes, dims.mul(weights.elements, 4))) or 0
    spec = conv_winograd_nhwc(shape=shape, epilogue=epilogue)
    variant = f"{SUMS} products for four outputs, {shape.rows} fours x {shape.vectors} vectors of f32, channels last"
    scratch = _scratch_nbytes(channels, shape, isa)
    return [Step(spec, args, epilogue.writes, group.nodes, scratch, flops, nbytes, variant)]


# -- scratch memory: sums of products, outputs of a piece, V


def _distance(channels: int) -> int:
    """From four to four of V: an odd number of lines."""
    return (-(-channels // LINE) | 1) * LINE


def _rows(shape: MicroTileShape, fours: int = MOST) -> int:
    """In whole tiles."""
    return -(-fours // shape.rows) * shape.rows


def _most(channels: int, shape: MicroTileShape, isa: Isa) -> int:
    """Fours of a block: as many as let V fill half of L2, within limits."""
    room = isa.l2_nbytes // 2 // (SUMS * _distance(channels) * 4)
    return _rows(shape, max(min(room, MOST), FEWEST))


def _scratch_nbytes(channels: int, shape: MicroTileShape, isa: Isa) -> int:
    seen = SUMS * _most(channels, shape, isa) * _distance(channels)
    return ((SUMS * _rows(shape) + 4 * PIECE) * shape.columns(isa, f32) + seen) * 4


def _params(shape: MicroTileShape, epilogue: Epilogue) -> Params:
    numbers = ("channels", "filters", "most", "distance", "lines")
    return {**geometry_params(f32), "u": (f32,), **dict.fromkeys(numbers, i64), **epilogue.params}


@kernel(_params)
def conv_winograd_nhwc(
    k: Kernel, x: Buf, u: Buf, batch: Val, channels: Val, filters: Val, most: Val, distance: Val,
    lines: Val, *, shape: MicroTileShape, epilogue: Epilogue, **memory: Any,
) -> None:  # fmt: skip
    (_, out_y, out_x), nr = sizes(memory, "out"), shape.vectors * k.lanes
    high, wide = ceil_div(out_y, 2), k.opaque(ceil_div(out_x, 2))
    fours, panels = k.opaque(high * wide), k.opaque(ceil_div(filters, nr))
    tiles, wanted = k.opaque(ceil_div(fours, shape.rows)), k.threads * CHUNKS
    parts = k.max(ceil_div(fours, most), ceil_div(wanted, k.max(batch * panels, 1)))
    even = ceil_div(parts, k.threads) * k.threads
    parts = k.opaque(k.max(k.min(k.select(parts * batch >= k.threads, even, parts), tiles), 1))
    count = k.opaque(batch * parts)
    chunks = k.opaque(k.max(k.min(ceil_div(wanted, k.max(count, 1)), panels), 1))
    known = k.var(-1)
    with k.share(count * chunks) as at:
        chunk, which = at % chunks, at // chunks
        image, part = which // parts, which % parts
        begin, end = part * tiles // parts * shape.rows, k.min((part + 1) * tiles // parts * shape.rows, fours)
        source = x.at(image * number(memory, "x_b"))
        block = _Block(k, memory, shape, source, channels, wide, begin, end - begin, distance, most)
        with k.when(known.ne(which)):
            block.transform()
            known.set(which)
        with k.loop(chunk * panels // chunks, (chunk + 1) * panels // chunks) as panel:
            columns, weights = k.min(filters - panel * nr, nr), u.at(panel * channels * nr)
            block.multiply(weights, panels * channels * nr)
            for top, left, many in block.pieces():
                with k.when(block.outputs(top, left, many), likely=False):
                    block.mend(weights, panels * channels * nr, top, left, many)
                with k.loop(0, k.min(out_y - top * 2, 2)) as y:
                    line, first = top * 2 + y, left * 2
                    is_one = lines.eq(1)
                    finish = BoundEpilogue(k, epilogue, memory, filters, [image, k.const(0), k.select(is_one, 0, line)])
                    row = first + k.select(is_one, line * out_x, 0)
                    made = k.min(many * 2, out_x - first)
                    finish.tile(block.out.at(y * (2 * PIECE * nr)), nr, row, made, panel * nr, columns, width=nr)


@dataclass(frozen=True)
class _Block:
    """Some fours of an image, one after the other, row by row."""

    k: Kernel
    memory: dict[str, Any]
    shape: MicroTileShape
    x: Buf
    channels: Val
    wide: Val
    """Fours of a row."""
    begin: Val
    count: Val
    distance: Val
    """Elements from four to four of V."""
    most: Val
    """Fours from kind to kind of V."""

    @property
    def lanes(self) -> int:
        return self.k.lanes

    @property
    def nr(self) -> int:
        return self.shape.vectors * self.lanes

    @property
    def kind(self) -> int:
        """Elements from kind to kind of the products' sums."""
        return _rows(self.shape) * self.nr

    @property
    def sums(self) -> Buf:
        """Of products, as [16][four][filter]."""
        return self.k.scratch(f32)

    @property
    def out(self) -> Buf:
        """Of a piece, as [2][pixel][filter]."""
        return self.sums.at(SUMS * self.kind)

    @property
    def seen(self) -> Buf:
        """V, as [16][four][channel]."""
        return self.out.at(4 * PIECE * self.nr)

    def transform(self) -> None:
        """V of all channels."""
        k, lanes = self.k, self.lanes
        (_, in_y, in_x), (_, pad_y, pad_x) = sizes(self.memory, "in"), sizes(self.memory, "pad")
        down, right = number(self.memory, "x_y"), number(self.memory, "x_x")
        with k.loop(0, self.count) as f:
            four, to = self.begin + f, self.seen.at(f * self.distance)
            y, x = four // self.wide * 2 - pad_y, four % self.wide * 2 - pad_x
            corner = self.x.at(y * down + x * right)
            is_inside = (y >= 0) & (x >= 0) & (y + 4 <= in_y) & (x + 4 <= in_x)
            with k.either(is_inside) as (inside, beside):
                with inside:
                    for t in k.tiles(self.channels, lanes):
                        pixels = [[corner.at(i * down + j * right).load(t) for j in range(4)] for i in range(4)]
                        self._store(pixels, to.at(t.index))
                with beside, k.loop(0, self.channels, lanes) as c:
                    rows = [(y + i >= 0) & (y + i < in_y) for i in range(4)]
                    columns = [(x + j >= 0) & (x + j < in_x) for j in range(4)]
                    left = [[k.select(a & b, self.channels - c, 0) for b in columns] for a in rows]
                    pixels = [
                        [corner.at(i * down + j * right).load(c, lanes, k.mask(left[i][j], lanes)) for j in range(4)]
                        for i in range(4)
                    ]
                    self._store(pixels, to.at(c))

    def _store(self, pixels: list[list[Val]], to: Buf) -> None:
        across = [differences_of(row) for row in pixels]
        for j, column in enumerate(zip(*across, strict=True)):
            for i, value in enumerate(differences_of(column)):
                to.store((i * 4 + j) * self.most * self.distance, value)

    def multiply(self, weights: Buf, kind: Val) -> None:
        """The sums of all kinds of products, whose weights are ``kind`` elements apart."""
        k, rows, nr = self.k, self.shape.rows, self.nr
        tiles = ceil_div(self.count, rows)
        pace, heights = prefetch_pace(k, tiles, nr), (-(-CHAINS // self.shape.vectors), rows)
        with k.loop(0, SUMS) as i, k.loop(0, self.channels, RUN) as c:
            many = k.min(self.channels - c, RUN)
            these = i * kind + c * nr
            is_last = c + many >= self.channels
            following = k.select(is_last, k.min(i + 1, SUMS - 1) * kind, these + many * nr)
            with k.loop(0, tiles) as tile:
                first = tile * rows
                seen = self.seen.at((i * self.most + first) * self.distance + c)
                into, left = self.sums.at(i * self.kind + first * nr), k.min(self.count - first, rows)
                ahead = weights.at(following + tile * many * pace)
                for low, height in zip((0, *heights), heights, strict=False):
                    with k.when((left > low) & (left <= height)):
                        a = [seen.at(r * self.distance) for r in range(height)]
                        found = micro_kernel(k, a, weights.at(these), many, f32, self.shape, ahead, pace)
                        accumulate(k, found, into, c > 0)

    def pieces(self) -> Iterator[tuple[Val, Val, Val]]:
        """The code that follows, for each: its row of fours, the first of these, and how many."""
        k, end = self.k, self.begin + self.count
        with k.loop(self.begin // self.wide, ceil_div(end, self.wide)) as y:
            start, stop = k.max(self.begin - y * self.wide, 0), k.min(end - y * self.wide, self.wide)
            with k.loop(start, stop, PIECE) as x:
                yield y, x, k.min(stop - x, PIECE)

    def outputs(self, y: Val, x: Val, many: Val) -> Val:
        """Outputs of a piece; gives whether one of them is not finite."""
        k, lanes, nr = self.k, self.lanes, self.nr
        odd, place = k.var(k.zeros(f32, lanes)), y * self.wide + x - self.begin
        with k.loop(0, many) as i, k.loop(0, nr, lanes) as j:
            here = self.sums.at((place + i) * nr + j)
            sums = [[here.load((down * 4 + right) * self.kind, lanes) for right in range(4)] for down in range(4)]
            ends = [ends_of(column) for column in zip(*sums, strict=True)]
            for down, row in enumerate(zip(*ends, strict=True)):
                left, right = ends_of(row)
                odd.set(odd.get() + (left + right) * 0.0)
                for at, value in enumerate((left, right)):
                    self.out.store((down * 2 * PIECE + i * 2 + at) * nr + j, value)
        return odd.get().ne(0.0).any()

    def mend(self, weights: Buf, kind: Val, y: Val, x: Val, many: Val) -> None:
        """The outputs of a piece once more, one by one."""
        k, lanes, memory = self.k, self.lanes, self.memory
        (_, in_y, in_x), (_, pad_y, pad_x) = sizes(memory, "in"), sizes(memory, "pad")
        with k.loop(0, 2) as down, k.loop(0, many * 2) as i, k.loop(0, self.nr, lanes) as j:
            total = k.var(k.zeros(f32, lanes))
            with k.loop(0, self.channels) as c:
                own = weights.at(c * self.nr + j)
                sums = [[own.load(kind * (a * 4 + b), lanes) for b in range(4)] for a in range(4)]
                across = [weights_of(row) for row in sums]
                for tap_x, column in enumerate(zip(*across, strict=True)):
                    for tap_y, w in enumerate(weights_of(column)):
                        at_y, at_x = y * 2 + down + tap_y - pad_y, x * 2 + i + tap_x - pad_x
                        with k.when((at_y >= 0) & (at_y < in_y) & (at_x >= 0) & (at_x < in_x)):
                            place = at_y * number(memory, "x_y") + at_x * number(memory, "x_x") + c
                            total.set(fma(k, k.splat(self.x.load(place), lanes), w, total.get()))
            self.out.store((down * 2 * PIECE + i) * self.nr + j, total.get())

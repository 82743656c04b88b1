"""Winograd convolution F(2x2, 3x3) of NCHW images.

A 2x2 tile of outputs reads a 4x4 tile of a channel. Its transform V, 16 numbers, times the transformed weights U gives
the outputs with 16 multiplications in place of 36.

    V = Bt d B     1  0 -1  0      U = G w Gt    1   0   0      y = At (sum of U V over channels) A    1  1  1  0
              Bt = 0  1  1  0               G = 1/2 1/2 1/2                                       At = 0  1 -1 -1
                   0 -1  1  0                   1/2-1/2 1/2
                   0  1  0 -1                    0   0   1

Neighbouring tiles of a row are the lanes. A block is as many tiles as let V of all channels fill half of L2. Its V is
computed first; then, for some filters after the other, 16 matrix products, whose sums stay in cache, the output
transform and the epilogue. The grid is (batch, block, chunk of filters), as in ``conv.direct``.

**Order of sums.** Channel by channel in K-blocks of ``K_BLOCK``, each from zero, added in order: independent of blocks
and threads. The error is about 1.5 times that of ``conv.direct``. Every element that takes part in an output is one
that its window reads, so large numbers elsewhere in the image do not matter.

**f32 fallback.** Infinities, NaN and numbers whose transforms overflow make an output that is not finite. The outputs
of that block and tile of filters are then recomputed directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.image_block import LINE, odd_lines
from sardonyx.providers.cpu.kernels.common.window import WindowArgs, WindowGeometry, refusal
from sardonyx.providers.cpu.kernels.conv.filter_tile import Accumulators, FilterTile, filter_chunks
from sardonyx.providers.cpu.kernels.gemm.vector import accumulate
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.memory.allocator import allocate
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step, Unrepresentable
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record

Array = np.ndarray[Any, Any]

ROWS, WIDTHS = 8, (3, 1)
"""Filters and vectors of Winograd tiles of a micro-tile; single vectors take the tail of a block."""
TILES = 4
"""Filter tiles that multiply one element of V while it is in L1."""
ELEMENTS = 16
"""Elements of a transformed tile."""
K_BLOCK = 64
"""Channels of a K-block."""
MAX_VECTORS = 24
"""Vectors of a block, at most: the sums of ``ROWS`` filters take 48 KiB with four lanes."""
MIN_CHANNELS = 8
"""Channels and filters from which on fewer products outweigh the transforms."""
MIN_GAIN = 1.3
"""By what factor products must be fewer, wasted outputs counted."""
MAX_WEIGHT = float(np.finfo(np.float32).max) * 4 / 9
"""Magnitude of weights up to which their transform is finite: it sums a quarter of all nine."""


def supports(group: Convolution, analysis: Analysis) -> Refusal | None:
    if group.x.strides[-1] != 1 and group.x.shape[-1] != 1:
        return Refusal("elements of an image row are not adjacent")
    return transform_refusal(group, analysis)


def pays(group: Convolution, analysis: Analysis) -> Refusal | None:
    size = WindowGeometry.of(group, collapse=False).size[1:]
    return None if _gain(size, analysis.isa) >= MIN_GAIN else Refusal("too many outputs of the tiles would be wasted")


def transform_refusal(group: Convolution, analysis: Analysis) -> Refusal | None:
    """Why window, types or weights do not allow the Winograd transform, in either layout."""
    w, isa, window = group.w, analysis.isa, group.window
    if (1, *window.kernel)[-3:] != (1, 3, 3) or {*window.strides, *window.dilations, group.groups} != {1}:
        return Refusal("the window is not 3 x 3 of stride 1")
    if w.storage.tensor is None or not all(isinstance(d, int) for d in (*w.shape, w.offset, *window.pads)):
        return Refusal("weights or padding are not constant")
    if overflow_key(w.storage.tensor) in analysis.unrepresentable:
        return Refusal("the transform of a weight is not finite")
    if group.x.dtype is not f32 or w.dtype is not f32:
        return Refusal("of other types than f32")
    if isa.registers < 32 or isa.amx:
        return Refusal("tiles are quicker" if isa.amx else f"too few registers on {isa.name}")
    geometry = WindowGeometry.of(group, collapse=False)
    if geometry.x.shape[2] != 1 or geometry.size[0] != 1 or any(int(p) < 0 for p in window.pads):
        return Refusal("the image has depth, or a padding is negative")
    is_deep = all(int(d) >= MIN_CHANNELS for d in w.shape[:2])
    return refusal(group) if is_deep else Refusal("too few channels or filters")


def _gain(size: tuple[Known, ...], isa: Isa) -> float:
    """The factor by which there are fewer multiplications; those of unused lanes count."""
    if not all(isinstance(d, int) for d in size):
        return MIN_GAIN
    high, wide = (int(d) for d in size)
    unit = 2 * isa.lanes
    made = -(-high // 2) * 2 * -(-wide // unit) * unit
    return 9 / (ELEMENTS / 4) * high * wide / max(made, 1)


def steps(group: Convolution, analysis: Analysis) -> list[Step]:
    isa, geometry = analysis.isa, WindowGeometry.of(group, collapse=False)
    filters, channels = (int(d) for d in group.w.shape[:2])
    epilogue, operands = geometry.epilogue(group)
    weights = packed(group, ROWS)
    room = isa.l2_nbytes // 2 // 4
    args = WinogradNchwArgs[Ref, Known](geometry.operand, Ref(weights), channels, filters, room, operands)
    flops = dims.known(dims.product((2 * 9, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(geometry.nbytes, dims.mul(weights.elements, 4))) or 0
    spec = conv_winograd_nchw(epilogue=epilogue)
    variant = f"Winograd F(2x2, 3x3), {ROWS} filters x {WIDTHS[0]} vectors of f32, NCHW"
    scratch = _scratch_nbytes(channels, isa)
    return [Step(spec, flat(args=args), epilogue.writes, group.nodes, scratch, flops, nbytes, variant)]


def overflow_key(tensor: Tensor) -> object:
    """The key of weights whose transform is not finite."""
    return ("winograd", identity(tensor))


def packed(group: Convolution, rows: int) -> Packed:
    """The transformed weights U as [16][filters / rows][channel][rows]; ``Unrepresentable`` if they are not finite."""
    w, tensor = group.w, group.w.storage.tensor
    assert tensor is not None
    filters, channels = (int(d) for d in w.shape[:2])
    tiles = -(-filters // rows)
    elements = ELEMENTS * tiles * channels * rows

    def make() -> Array:
        content = np.ascontiguousarray(tensor.peek()).reshape(-1)[int(w.offset) :][: filters * channels * 9]
        if not np.abs(content).max() <= MAX_WEIGHT:
            raise Unrepresentable(overflow_key(tensor))
        g = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
        made = np.einsum("iy,fcyx,jx->ijcf", g, content.reshape(filters, channels, 3, 3).astype(np.float64), g)
        out = allocate(elements * 4).view(np.float32).reshape(ELEMENTS, tiles, channels, rows)
        padded = np.zeros((ELEMENTS, channels, tiles * rows))
        padded[:, :, :filters] = made.reshape(ELEMENTS, channels, filters)
        out[:] = padded.reshape(ELEMENTS, channels, tiles, rows).transpose(0, 2, 1, 3)
        return out.reshape(-1)

    key = (overflow_key(tensor), w.offset, tuple(w.shape), rows)
    return Packed("constant", f32, elements, w.storage.value, key=key, make=make)


# -- scratch memory: padded rows of a channel, sums of products, outputs, V


def _line_elements(lanes: int) -> int:
    """Elements of a channel's padded rows, for a block that is one row, or one vector wide."""
    longest = 4 * (2 * MAX_VECTORS * lanes + 2 * LINE)
    return -(-max(longest, (2 * MAX_VECTORS + 2) * (2 * lanes + 2 * LINE)) // LINE) * LINE


def _distance(lanes: int) -> int:
    """Elements from filter to filter of the sums: an odd number of lines."""
    return (-(-(MAX_VECTORS + 1) * lanes // LINE) | 1) * LINE


def _scratch_nbytes(channels: int, isa: Isa) -> Known:
    lanes = isa.lanes
    seen = max(isa.l2_nbytes // 2 // 4, ELEMENTS * channels * lanes) + ELEMENTS * channels * (2 * LINE + lanes)
    sums = TILES * ELEMENTS * ROWS * _distance(lanes)
    return (_line_elements(lanes) + sums + ROWS * 4 * MAX_VECTORS * lanes + seen) * 4


class WinogradNchwArgs(Arguments[M, N]):
    """The parameters of ``conv_winograd_nchw``."""

    is_inline: ClassVar[bool] = True
    window: WindowArgs[M, N]
    u: M
    channels: N
    filters: N
    room: N
    """Elements of V that fill half of L2."""
    epilogue: EpilogueArgs[M, N]


def _params(epilogue: Epilogue) -> Params:
    window = WindowArgs.declared(f32)
    return {"args": WinogradNchwArgs[Memory, DType](window, Memory(f32), i64, i64, i64, epilogue.declared)}


@kernel(_params)
def conv_winograd_nchw(k: Kernel, args: WinogradNchwArgs[Buf, Val], *, epilogue: Epilogue) -> None:
    window, u, channels, filters = args.window, args.u, args.channels, args.filters
    (_, out_y, out_x), lanes, batch = window.out, k.lanes, window.batch
    high, wide = ceil_div(out_y, 2), ceil_div(out_x, 2)
    most = k.max(k.min(args.room // k.max(ELEMENTS * channels * lanes, 1), MAX_VECTORS), 1)
    parts = k.opaque(k.max(ceil_div(wide, most * lanes), 1))
    columns = k.opaque(k.select(parts.eq(1), wide, ceil_div(ceil_div(wide, parts), lanes) * lanes))
    bands = k.opaque(k.max(ceil_div(high, k.max(most // k.max(ceil_div(columns, lanes), 1), 1)), 1))
    rows = k.opaque(ceil_div(high, bands))
    tiles, count = ceil_div(filters, ROWS), k.opaque(batch * bands * parts)
    chunks = filter_chunks(k, count, tiles)
    distance, known = k.opaque(odd_lines(rows * columns + lanes)), k.var(-1)
    with k.share(count * chunks) as at:
        chunk, which = at % chunks, at // chunks
        image, place = which // (bands * parts), which % (bands * parts)
        top, left = place // parts * rows, place % parts * columns
        here_y, here_x = k.max(k.min(rows, high - top), 0), k.max(k.min(columns, wide - left), 0)
        source = window.x.at(image * window.strides.b)
        block = _Block(k, window, source, channels, top, here_y, left, here_x, distance)
        with k.when(known.ne(which)):
            block.transform()
            known.set(which)
        end = (chunk + 1) * tiles // chunks
        with k.loop(chunk * tiles // chunks, end, TILES) as begin:
            tile_count = k.min(end - begin, TILES)
            with k.loop(0, ELEMENTS) as kind, k.loop(0, tile_count) as i:
                block.multiply(kind, u.at((kind * tiles + begin + i) * channels * ROWS), block.sums(i))
            with k.loop(0, tile_count) as i:
                first = (begin + i) * ROWS
                here = k.min(filters - first, ROWS)
                is_not_finite = block.outputs(block.sums(i), here)
                with k.when(is_not_finite, likely=False):
                    block.f32_fallback(u.at((begin + i) * channels * ROWS), tiles * channels * ROWS, here)
                with k.loop(0, k.min(here_y * 2, out_y - top * 2)) as y:
                    finish = BoundEpilogue(k, epilogue, args.epilogue, out_x, [image, k.const(0), top * 2 + y])
                    made = k.min(here_x * 2, out_x - left * 2)
                    finish.tile(block.out.at(y * block.length), block.pitch, first, here, left * 2, made)


class _Block(Record):
    """Some rows of Winograd tiles, without gaps between rows: vectors reach into the next row."""

    k: Kernel
    window: WindowArgs[Buf, Val]
    x: Buf
    """The image."""
    channels: Val
    top: Val
    rows: Val
    left: Val
    columns: Val
    distance: Val
    """Elements from channel to channel of V."""

    @property
    def lanes(self) -> int:
        return self.k.lanes

    @property
    def length(self) -> Val:
        """Length of a row of outputs, in whole vectors."""
        return ceil_div(self.columns, self.lanes) * (2 * self.lanes)

    @property
    def pitch(self) -> int:
        """Elements from filter to filter of the outputs."""
        return 4 * MAX_VECTORS * self.lanes

    @property
    def line(self) -> Buf:
        return self.k.scratch(f32)

    def sums(self, tile: Val | int) -> Buf:
        """The sums of products of a tile of filters."""
        return self.line.at(_line_elements(self.lanes)).at(tile * (ELEMENTS * ROWS * _distance(self.lanes)))

    @property
    def out(self) -> Buf:
        return self.sums(TILES)

    @property
    def seen(self) -> Buf:
        """V as [16][channel][tiles]."""
        return self.out.at(ROWS * self.pitch)

    def transform(self) -> None:
        """Compute V of all channels."""
        k, lanes = self.k, self.lanes
        pitch = k.opaque(ceil_div(self.length + 2, LINE) * LINE)
        halves = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
        with k.loop(0, self.channels) as c:
            image, to = self.x.at(c * self.window.strides.c), self.seen.at(c * self.distance)
            with k.loop(0, self.rows * 2 + 2) as line:
                self._copy(image, line, self.line.at(line * pitch))
            with k.loop(0, self.rows) as y, k.loop(0, self.columns, lanes) as v:
                across = []
                for i in range(4):
                    row = self.line.at((y * 2 + i) * pitch + v * 2)
                    pairs = [row.load(start, 2 * lanes) for start in (0, 2)]
                    across.append(input_transform([pair.shuffle(half) for pair in pairs for half in halves]))
                here = to.at(y * self.columns + v)
                for i, column in enumerate(zip(*across, strict=True)):
                    for down, value in enumerate(input_transform(column)):
                        here.store((down * 4 + i) * self.channels * self.distance, value)

    def _copy(self, image: Buf, line: Val, to: Buf) -> None:
        """Copy a row of the block's input, with zeros in the padding."""
        k, lanes, length = self.k, self.lanes, self.length + 2
        (_, in_y, in_x), (_, pad_y, pad_x) = self.window.size, self.window.pad
        y, first = self.top * 2 + line - pad_y, self.left * 2 - pad_x
        low = k.min(k.max(-first, 0), length)
        high = k.select((y >= 0) & (y < in_y), k.max(k.min(in_x - first, length), low), low)
        row = image.at(y * self.window.strides.y + first)
        with k.loop(0, low) as i:
            to.store(i, 0.0)
        for t in k.tiles(high - low, lanes):
            to.at(low).store(t, row.at(low).load(t))
        for t in k.tiles(length - high, lanes):
            to.at(high).store(t, k.zeros(f32, t.lanes))

    def multiply(self, kind: Val, weights: Buf, to: Buf) -> None:
        """The sums over all channels for one element of the transformed tiles."""
        k, vectors = self.k, ceil_div(self.rows * self.columns, self.lanes)
        with k.loop(0, k.max(self.channels, 1), K_BLOCK) as first:
            depth, start = k.min(self.channels - first, K_BLOCK), k.const(0)
            seen = self.seen.at((kind * self.channels + first) * self.distance)
            for width in WIDTHS:
                stop = start + (vectors - start) // width * width
                with k.loop(start, stop, width) as v:
                    into = to.at(kind * (ROWS * _distance(self.lanes)) + v * self.lanes)
                    self._multiply_vectors(
                        seen.at(v * self.lanes), weights.at(first * ROWS), depth, width, into, first > 0
                    )
                start = stop

    def _multiply_vectors(self, seen: Buf, weights: Buf, depth: Val, width: int, into: Buf, is_later: Val) -> None:
        sums = Accumulators(self.k, f32, FilterTile(ROWS, width))
        sums.add(seen, self.distance, weights, depth)
        accumulate(self.k, sums.total, into, is_later, _distance(self.lanes))

    def outputs(self, of: Buf, filters: Val) -> Val:
        """Transform the sums at ``of`` into outputs; returns whether an output is not finite.

        Lanes beyond a row belong to the next row, and beyond the last row they hold anything: they are masked.
        """
        k, lanes, distance = self.k, self.lanes, _distance(self.lanes)
        interleaved, not_finite = [i // 2 + i % 2 * lanes for i in range(2 * lanes)], k.var(k.zeros(f32, lanes))
        with k.loop(0, filters) as r, k.loop(0, self.rows) as y, k.loop(0, self.columns, lanes) as v:
            here = of.at(r * distance + y * self.columns + v)
            sums = [[here.load((down * 4 + i) * (ROWS * distance), lanes) for i in range(4)] for down in range(4)]
            ends = [output_transform(column) for column in zip(*sums, strict=True)]
            is_there = k.mask(self.columns - v, lanes)
            for j, row in enumerate(zip(*ends, strict=True)):
                left, right = output_transform(row)
                not_finite.set(not_finite.get() + k.select(is_there, (left + right) * 0.0, 0.0))
                self.out.store(r * self.pitch + (y * 2 + j) * self.length + v * 2, left.shuffle(interleaved, right))
        return not_finite.get().ne(0.0).any()

    def f32_fallback(self, u: Buf, kind: Val, filters: Val) -> None:
        """Recompute all outputs of some filters directly. The 16 elements of U are ``kind`` apart in memory."""
        k, strides = self.k, self.window.strides
        (_, in_y, in_x), (_, pad_y, pad_x) = self.window.size, self.window.pad
        with k.loop(0, filters) as r, k.loop(0, self.rows * 2) as y, k.loop(0, self.columns * 2) as x:
            total = k.var(k.zeros(f32))
            with k.loop(0, self.channels) as c:
                own, image = u.at(c * ROWS + r), self.x.at(c * strides.c)
                sums = [[own.load(kind * (down * 4 + i)) for i in range(4)] for down in range(4)]
                across = [inverse_weight_transform(row) for row in sums]
                for tap_x, column in enumerate(zip(*across, strict=True)):
                    for tap_y, w in enumerate(inverse_weight_transform(column)):
                        at_y, at_x = self.top * 2 + y + tap_y - pad_y, self.left * 2 + x + tap_x - pad_x
                        with k.when((at_y >= 0) & (at_y < in_y) & (at_x >= 0) & (at_x < in_x)):
                            value = image.load(at_y * strides.y + at_x)
                            total.set(k.multiply_add(value, w, total.get()))
            self.out.store(r * self.pitch + y * self.length + x, total.get())


def input_transform(d: Sequence[Val]) -> list[Val]:
    """Bt d."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def output_transform(m: Sequence[Val]) -> list[Val]:
    """At m."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def inverse_weight_transform(sums: Sequence[Val]) -> list[Val]:
    """The three weights w of which ``sums`` is G w."""
    return [sums[0], sums[1] - sums[2], sums[3]]

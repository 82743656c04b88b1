"""3 x 3 convolutions of images in planes with fewer multiplications: Winograd's F(2 x 2, 3 x 3).

Four outputs, two in each of two rows, see 4 x 4 elements of a channel. Of these, 16 sums of four are made, times 16
sums of the weights, and from those products the four outputs: 16 multiplications and not 36.

    V = Bt d B     1  0 -1  0      U = G w Gt    1   0   0      y = At (sum of U V over channels) A    1  1  1  0
              Bt = 0  1  1  0               G = 1/2 1/2 1/2                                       At = 0  1 -1 -1
                   0 -1  1  0                   1/2-1/2 1/2
                   0  1  0 -1                    0   0   1

The lanes are neighbouring fours of a row. A block of them, as many as let V of all channels fill half of L2, is worked
on at a time: its V; then, for some filters after the other, 16 matrix products, the sums of which stay near; and what
follows. The grid of work is (batch, block, chunk of filters), as in ``conv``.

**Order of sums.** Channel by channel in runs of ``RUN``, each from zero, the runs added in order: the same for every
block and thread count. (Sums of 64 channels are 1.6e-7 off by runs of 32, 2.2e-7 by one of 64, and those of ``conv``,
576 terms by 128, 1.5e-7. Every element that takes part in an output is one that it sees: what is far larger elsewhere
does not matter.)

**Infinities, NaN, and numbers whose sums are too large** make an output that is not finite, and the block's outputs of
these filters are then made anew, one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.constants import give_back, identity
from sardonyx.providers.cpu.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.isa import Isa
from sardonyx.providers.cpu.kernels.epilogue import Epilogue, Finish
from sardonyx.providers.cpu.kernels.frame import Frame, frame_params, sizes
from sardonyx.providers.cpu.kernels.matrices import number, of_known
from sardonyx.providers.cpu.kernels.strip import LINE, ceil_div, fma, odd_lines
from sardonyx.providers.cpu.memory import allocate
from sardonyx.providers.cpu.steps import Packed, Ref, Step, Target
from sardonyx.providers.cpu.values import Buf, Val, f32, i64

Array = np.ndarray[Any, Any]

ROWS, WIDTHS = 8, (3, 1)
"""Filters, and vectors of fours, of a register tile; narrow ones take what is left of a block."""
SUMS = 16
"""Of each kind: products in place of four outputs."""
RUN = 32
"""Channels of a run."""
MOST = 24
"""Vectors of a block, at most: the sums of ``ROWS`` filters take 48 KiB with four lanes."""
GRID, CHUNK = 64, 4
"""Parts of work that are wanted, and tiles of filters that are worth a V of their own."""
LEAST = 12
"""Channels and filters from which fewer products outweigh the sums around them."""
GAIN = 1.3
"""Times fewer products that there must be, outputs that do not exist counted."""


def is_for(group: Convolution, target: Target) -> bool:
    """Whether a convolution by multiply-adds of planes is carried out here."""
    frame, w = Frame.of(group, is_joined=False), group.w
    window, isa = frame.window, target.isa
    if window.kernel != (1, 3, 3) or {*window.strides, *window.dilations, group.groups} != {1} or not frame.is_unit:
        return False
    if w.storage.tensor is None or not all(isinstance(d, int) for d in (*w.shape, w.offset, *window.pads)):
        return False
    is_plain = group.x.dtype is f32 and w.dtype is f32 and isa.registers >= 32 and not isa.amx
    is_known = frame.x.shape[2] == frame.size[0] == 1 and all(int(p) >= 0 for p in window.pads)
    is_deep = all(int(d) >= LEAST for d in w.shape[:2])
    return is_plain and is_known and is_deep and _gain(frame.size[1:], isa) >= GAIN


def _gain(size: tuple[Known, ...], isa: Isa) -> float:
    """How many times fewer products there are."""
    if not all(isinstance(d, int) for d in size):
        return GAIN
    high, wide = (int(d) for d in size)
    unit = 2 * isa.lanes
    made = -(-high // 2) * 2 * -(-wide // unit) * unit
    return 9 / (SUMS / 4) * high * wide / max(made, 1)


def steps(group: Convolution, target: Target) -> list[Step]:
    isa, frame = target.isa, Frame.of(group, is_joined=False)
    filters, channels = (int(d) for d in group.w.shape[:2])
    epilogue, more = frame.epilogue(group)
    weights = _packed(group)
    args = {
        **frame.args(), "u": Ref(weights), "channels": channels, "filters": filters,
        "room": isa.l2_nbytes // 2 // 4, **more,
    }  # fmt: skip
    flops = dims.known(dims.product((2 * 9, channels, *group.box))) or 0
    nbytes = dims.known(dims.add(frame.nbytes, dims.mul(weights.elements, 4))) or 0
    spec = convolve_winograd(epilogue=epilogue)
    variant = f"{SUMS} products for four outputs, {ROWS} filters x {WIDTHS[0]} vectors of f32"
    scratch = _scratch_nbytes(channels, isa)
    return [Step(spec, args, epilogue.writes, group.nodes, scratch, flops, nbytes, variant)]


def _packed(group: Convolution) -> Packed:
    """The weights' sums, as [16][filters / ROWS][channel][ROWS]."""
    w, tensor = group.w, group.w.storage.tensor
    assert tensor is not None
    filters, channels = (int(d) for d in w.shape[:2])
    tiles = -(-filters // ROWS)
    elements = SUMS * tiles * channels * ROWS

    def make() -> Array:
        content = np.ascontiguousarray(tensor.peek()).reshape(-1)[int(w.offset) :][: filters * channels * 9]
        g = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
        made = np.einsum("iy,fcyx,jx->ijcf", g, content.reshape(filters, channels, 3, 3).astype(np.float64), g)
        out = allocate(elements * 4).view(np.float32).reshape(SUMS, tiles, channels, ROWS)
        padded = np.zeros((SUMS, channels, tiles * ROWS))
        padded[:, :, :filters] = made.reshape(SUMS, channels, filters)
        out[:] = padded.reshape(SUMS, channels, tiles, ROWS).transpose(0, 2, 1, 3)
        give_back(content)
        return out.reshape(-1)

    key = ("winograd", identity(tensor), w.offset, tuple(w.shape))
    return Packed("constant", f32, elements, w.storage.value, key=key, make=make)


# -- scratch memory: rows of a channel with padding, V, sums of products, outputs


def _distance(vectors: int, lanes: int) -> int:
    return (-(-vectors * lanes // LINE) | 1) * LINE


def _rows_elements(lanes: int) -> int:
    """Of a block that is one row of vectors, or one vector wide."""
    longest = (2 * MOST * lanes + 2 * LINE) * 4
    return max(longest, (2 * MOST + 2) * (2 * lanes + 2 * LINE)) // LINE * LINE + LINE


def _scratch_nbytes(channels: int, isa: Isa) -> Known:
    lanes, distance = isa.lanes, _distance(MOST, isa.lanes)
    outputs = 4 * MOST * lanes * ROWS
    room = max(isa.l2_nbytes // 2 // 4, SUMS * channels * lanes)
    seen = room + SUMS * channels * 2 * LINE
    return of_known((_rows_elements(lanes) + SUMS * ROWS * distance + outputs + seen) * 4 + 8 * 64)


def _params(epilogue: Epilogue) -> Params:
    return {**frame_params(f32), "u": (f32,), **dict.fromkeys(("channels", "filters", "room"), i64), **epilogue.params}


@kernel(_params)
def convolve_winograd(
    k: Kernel, x: Buf, u: Buf, batch: Val, channels: Val, filters: Val, room: Val, *, epilogue: Epilogue, **memory: Any
) -> None:
    (_, out_y, out_x), lanes = sizes(memory, "out"), k.lanes
    high, wide = ceil_div(out_y, 2), ceil_div(out_x, 2 * lanes)
    most = k.max(k.min(room // k.max(SUMS * channels * lanes, 1), MOST), 1)
    parts = k.opaque(k.max(ceil_div(wide, most), 1))
    columns = k.opaque(ceil_div(wide, parts))
    bands = k.opaque(k.max(ceil_div(high, k.max(most // k.max(columns, 1), 1)), 1))
    rows = k.opaque(ceil_div(high, bands))
    tiles, count = ceil_div(filters, ROWS), k.opaque(batch * bands * parts)
    chunks = k.opaque(k.max(k.min(ceil_div(k.const(GRID), k.max(count, 1)), tiles // CHUNK), 1))
    known = k.var(-1)
    with k.share(count * chunks) as at:
        chunk, which = at % chunks, at // chunks
        image, place = which // (bands * parts), which % (bands * parts)
        top, left = place // parts * rows, place % parts * columns
        block = _Block(
            k, memory, x.at(image * number(memory, "x_b")), channels, top, k.min(rows, high - top), left,
            k.min(columns, wide - left), k.opaque(odd_lines(rows * columns * lanes)),
        )  # fmt: skip
        with k.when(known.ne(which)):
            block.transform()
            known.set(which)
        with k.loop(chunk * tiles // chunks, (chunk + 1) * tiles // chunks) as tile:
            with k.loop(0, SUMS) as kind:
                block.multiply(kind, u.at((kind * tiles + tile) * channels * ROWS))
            first = tile * ROWS
            here = k.min(filters - first, ROWS)
            is_odd = block.outputs(here)
            with k.when(is_odd, likely=False):
                block.mend(u.at(tile * channels * ROWS), tiles * channels * ROWS, here)
            with k.loop(0, k.min(block.rows * 2, out_y - top * 2)) as y:
                finish = Finish(k, epilogue, memory, out_x, [image, k.const(0), top * 2 + y])
                start, length = left * (2 * lanes), block.columns * (2 * lanes)
                finish.tile(block.out.at(y * length), block.pitch, first, here, start, k.min(length, out_x - start))


@dataclass(frozen=True)
class _Block:
    """Some rows of vectors of fours."""

    k: Kernel
    memory: dict[str, Any]
    x: Buf
    channels: Val
    top: Val
    rows: Val
    left: Val
    columns: Val
    distance: Val
    """Elements from channel to channel of V, and from filter to filter of sums."""

    @property
    def lanes(self) -> int:
        return self.k.lanes

    @property
    def line(self) -> Buf:
        return self.k.scratch(f32)

    @property
    def sums(self) -> Buf:
        return self.k.scratch(f32, _rows_elements(self.lanes) * 4)

    @property
    def out(self) -> Buf:
        return self.sums.at(SUMS * ROWS * _distance(MOST, self.lanes))

    @property
    def pitch(self) -> int:
        """From filter to filter of outputs."""
        return 4 * MOST * self.lanes

    @property
    def seen(self) -> Buf:
        """V."""
        return self.out.at(ROWS * self.pitch)

    @property
    def vectors(self) -> Val:
        return self.rows * self.columns

    def transform(self) -> None:
        """V of all channels."""
        k, lanes = self.k, self.lanes
        pitch = k.opaque(ceil_div(self.columns * (2 * lanes) + 2, LINE) * LINE)
        even, odd = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
        with k.loop(0, self.channels) as c:
            image = self.x.at(c * number(self.memory, "x_c"))
            with k.loop(0, self.rows * 2 + 2) as y:
                self._copy(image, y, self.line.at(y * pitch), self.columns * (2 * lanes) + 2)
            to = self.seen.at(c * self.distance)
            with k.loop(0, self.rows) as y, k.loop(0, self.columns) as v:
                across = []
                for j in range(4):
                    row = self.line.at((y * 2 + j) * pitch + v * (2 * lanes))
                    one, two = row.load(0, 2 * lanes), row.load(2, 2 * lanes)
                    across.append(
                        _differences([one.shuffle(even), one.shuffle(odd), two.shuffle(even), two.shuffle(odd)])
                    )
                for i in range(4):
                    for j, value in enumerate(_differences([row[i] for row in across])):
                        place = (j * 4 + i) * self.channels * self.distance + (y * self.columns + v) * lanes
                        to.store(place, value)

    def _copy(self, image: Buf, j: Val, to: Buf, length: Val) -> None:
        """Row ``j`` of what the block sees, with zeros where there is no image."""
        k, lanes = self.k, self.lanes
        (_, in_y, in_x), (_, pad_y, pad_x) = sizes(self.memory, "in"), sizes(self.memory, "pad")
        y, first = self.top * 2 + j - pad_y, self.left * (2 * lanes) - pad_x
        is_there = (y >= 0) & (y < in_y)
        low = k.min(k.max(-first, 0), length)
        high = k.select(is_there, k.max(k.min(in_x - first, length), low), low)
        row = image.at(y * number(self.memory, "x_y") + first)
        with k.loop(0, low) as i:
            to.store(i, 0.0)
        for t in k.tiles(high - low, lanes):
            to.at(low).store(t, row.at(low).load(t))
        for t in k.tiles(length - high, lanes):
            to.at(high).store(t, k.zeros(f32, t.lanes))

    def multiply(self, kind: Val, weights: Buf) -> None:
        """The sums of one kind of products over all channels."""
        k, vectors = self.k, self.vectors
        with k.loop(0, k.max(self.channels, 1), RUN) as first:
            many, start = k.min(self.channels - first, RUN), k.const(0)
            for width in WIDTHS:
                stop = start + (vectors - start) // width * width
                with k.loop(start, stop, width) as v:
                    self._run(kind, weights.at(first * ROWS), first, many, v, width)
                start = stop

    def _run(self, kind: Val, weights: Buf, first: Val, many: Val, v: Val, width: int) -> None:
        k, lanes, distance = self.k, self.lanes, _distance(MOST, self.lanes)
        total = [[k.var(k.zeros(f32, lanes)) for _ in range(width)] for _ in range(ROWS)]
        seen = self.seen.at((kind * self.channels + first) * self.distance + v * lanes)
        with k.loop(0, many) as c:
            here = seen.at(c * self.distance)
            vectors = [here.load(j * lanes, lanes) for j in range(width)]
            for row, w in zip(total, self._singles(weights.at(c * ROWS)), strict=True):
                for sums, value in zip(row, vectors, strict=True):
                    sums.set(fma(k, w, value, sums.get()))
        into = self.sums.at(kind * (ROWS * distance) + v * lanes)
        places = [(into.at(r * distance + j * lanes), t) for r, row in enumerate(total) for j, t in enumerate(row)]
        with k.when(first > 0):
            for at, sums in places:
                sums.set(at.load(0, lanes) + sums.get())
        for at, sums in places:
            at.store(0, sums)

    def _singles(self, w: Buf) -> list[Val]:
        """The weights of a channel, each in all lanes."""
        k, lanes = self.k, self.lanes
        if k.isa.name == "neon":
            vectors = [w.load(i, lanes) for i in range(0, ROWS, lanes)]
            return [v.shuffle([i] * lanes) for v in vectors for i in range(lanes)]
        return [k.splat(w.load(r), lanes) for r in range(ROWS)]

    def outputs(self, filters: Val) -> Val:
        """Outputs of the products' sums; gives whether one of them is not finite."""
        k, lanes, distance = self.k, self.lanes, _distance(MOST, self.lanes)
        woven = [i // 2 + i % 2 * lanes for i in range(2 * lanes)]
        length, odd = self.columns * (2 * lanes), k.var(k.zeros(f32, lanes))
        with k.loop(0, filters) as r, k.loop(0, self.rows) as y, k.loop(0, self.columns) as v:
            here = self.sums.at(r * distance + (y * self.columns + v) * lanes)
            sums = [[here.load((j * 4 + i) * (ROWS * distance), lanes) for i in range(4)] for j in range(4)]
            down = [_ends([sums[j][i] for j in range(4)]) for i in range(4)]
            for j in range(2):
                left, right = _ends([column[j] for column in down])
                odd.set(odd.get() + (left + right) * 0.0)
                self.out.store(r * self.pitch + (y * 2 + j) * length + v * (2 * lanes), left.shuffle(woven, right))
        return odd.get().ne(0.0).any()

    def mend(self, u: Buf, kind: Val, filters: Val) -> None:
        """All outputs of some filters once more, one by one; ``kind`` elements lie between sums of the same weights."""
        k, lanes = self.k, self.lanes
        (_, in_y, in_x), (_, pad_y, pad_x) = sizes(self.memory, "in"), sizes(self.memory, "pad")
        length = self.columns * (2 * lanes)
        with k.loop(0, filters) as r, k.loop(0, self.rows * 2) as y, k.loop(0, length) as x:
            total = k.var(k.zeros(f32))
            with k.loop(0, self.channels) as c:
                own = u.at(c * ROWS + r)
                sums = [[own.load(kind * (j * 4 + i)) for i in range(4)] for j in range(4)]
                weights = [_weights(line) for line in zip(*[_weights(row) for row in sums], strict=True)]
                image = self.x.at(c * number(self.memory, "x_c"))
                for tap_x, column in enumerate(weights):
                    for tap_y, w in enumerate(column):
                        at_y = self.top * 2 + y + tap_y - pad_y
                        at_x = self.left * (2 * lanes) + x + tap_x - pad_x
                        is_there = (at_y >= 0) & (at_y < in_y) & (at_x >= 0) & (at_x < in_x)
                        with k.when(is_there):
                            value = image.load(at_y * number(self.memory, "x_y") + at_x)
                            total.set(fma(k, value, w, total.get()))
            self.out.store(r * self.pitch + y * length + x, total.get())


def _differences(d: Sequence[Val]) -> list[Val]:
    """Bt."""
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _ends(m: Sequence[Val]) -> list[Val]:
    """At."""
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _weights(sums: Sequence[Val]) -> list[Val]:
    """The three weights of which G made four sums."""
    return [sums[0], sums[1] - sums[2], sums[3]]

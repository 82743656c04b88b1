"""Depthwise convolutions: every filter sees one channel.

The grid of work is (batch, plane, block, chunk of filters). A part copies one channel of its block after the other into
a strip in L1 (``strip``), sums the products of all outputs there, and finishes them. With few taps, tiles of ``ROWS``
rows of outputs are summed at a time, from vectors that are loaded once for all of them, with every tap written out.

Rows of outputs begin with a vector in the strip, but follow each other without gap in scratch: where a vector reaches
beyond the end of its row, the next row's first is stored later. The order of a sum follows from the window and, by the
height of a block, from the sizes of the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.isa import Isa
from sardonyx.providers.cpu.kernels.epilogue import Epilogue, Finish
from sardonyx.providers.cpu.kernels.frame import Frame, Taps, frame_params, sizes
from sardonyx.providers.cpu.kernels.gemm import lanes_of
from sardonyx.providers.cpu.kernels.matrices import Matrix, Problem, number, of_known
from sardonyx.providers.cpu.kernels.pack import packed_b
from sardonyx.providers.cpu.kernels.strip import Blocks, Layout, Moving, Strip, ceil_div, fma, layout_params, spread
from sardonyx.providers.cpu.steps import Ref, Step
from sardonyx.providers.cpu.values import Buf, Val, i64, register_dtype

ROWS, TILED = 4, 25
"""Rows of outputs at a time, for windows of up to so many taps."""
UNROLLED = 8
"""Taps of a row up to which their code is written out."""
WIDTHS = (8, 4, 1)
"""Vectors of one row at a time: eight hide the latency of an addition, fewer take the rest."""
GRID, CHUNK = 64, 16
"""Parts of work that are wanted; filters of a part at most."""


@dataclass(frozen=True)
class Form:
    """What is constant."""

    dtype: DType
    """Of the sums."""
    taps: Taps
    is_unit: bool
    """Neighbours of a row are neighbours in memory."""
    is_joined: bool
    """Rows of the result, and of what is read beside it, follow each other without gap."""

    def layout(self, lanes: int) -> Layout:
        return Layout(self.taps, self.dtype, lanes_of(lanes, self.dtype), 1)

    @property
    def is_tiled(self) -> bool:
        return 1 < self.taps.count <= TILED


def steps(group: Convolution, isa: Isa, per_channel: Known) -> list[Step]:
    """``per_channel`` filters see each channel."""
    frame, dtype = Frame.of(group), register_dtype(group.x.dtype)
    form = Form(dtype, frame.taps, frame.is_unit, frame.is_joined)
    epilogue, more = frame.epilogue(group)
    before, weights = _weights(group, form, isa)
    room_nbytes = isa.l1_nbytes // 2
    numbers = {"filters": group.box[1], "per_channel": per_channel, "room": room_nbytes * 8 // dtype.bits}
    flops = of_known(dims.product((2 * frame.taps.count, *group.box)))
    layout = form.layout(isa.lanes)
    scratch = layout.nbytes(1, room_nbytes)
    spec = convolve_depthwise(form=form, x_dtype=group.x.dtype, epilogue=epilogue)
    args = {**frame.args(), **layout.args(), **numbers, "w": weights, **more}
    return [
        *before,
        Step(spec, args, epilogue.writes, group.nodes, scratch, flops, frame.nbytes, "one channel at a time"),
    ]


def _weights(group: Convolution, form: Form, isa: Isa) -> tuple[list[Step], Ref]:
    """The weights in the type of the sums."""
    w, count = group.w, form.taps.count
    if w.dtype is form.dtype:
        return [], Ref.of(w)
    matrix = Matrix(w.storage, w.offset, (), count, 1)
    problem = Problem(group.nodes, (), 0, count, w.shape[0], matrix, matrix, group.epilogue, (), ())
    before, panel = packed_b(problem, form.dtype, count, isa)
    return before, Ref(panel.storage)


def _params(form: Form, x_dtype: DType, epilogue: Epilogue) -> Params:
    numbers = dict.fromkeys(("filters", "per_channel", "room"), i64)
    return {**frame_params(x_dtype), **layout_params(), **numbers, "w": (form.dtype,), **epilogue.params}


@kernel(_params)
def convolve_depthwise(
    k: Kernel, x: Buf, w: Buf, batch: Val, filters: Val, per_channel: Val, room: Val,
    *, form: Form, x_dtype: DType, epilogue: Epilogue, **memory: Any,
) -> None:  # fmt: skip
    memory = {**memory, "is_unit": form.is_unit}
    planes, out_y, out_x = sizes(memory, "out")
    taps, lanes = Moving(k, memory), lanes_of(k.lanes, form.dtype)
    blocks = Blocks(k, taps, memory, room // taps.planes, 1, lanes)
    count = batch * planes * blocks.count
    chunks = k.max(ceil_div(filters, CHUNK), k.min(ceil_div(k.const(GRID), k.max(count, 1)), filters))
    with k.share(count * chunks) as at:
        chunk, rest = at % chunks, at // chunks
        block, rest = rest % blocks.count, rest // blocks.count
        plane, image = rest % planes, rest // planes
        strip = Strip(k, taps, memory, blocks, block, form.dtype, lanes, form.taps.step, is_padded=True)
        strip.tables()
        with k.loop(chunk * filters // chunks, (chunk + 1) * filters // chunks) as c:
            start = image * number(memory, "x_b") + c // per_channel * number(memory, "x_c")
            strip.fill(x.at(start), plane, k.const(1), 0.0)
            channel = _Channel(k, form, strip, w.at(c * form.taps.count))
            if form.is_tiled:
                with k.either(strip.rows >= ROWS) as (yes, no):
                    with yes:
                        channel.tiles()
                    with no:
                        channel.vectors(WIDTHS[1:])
            else:
                channel.vectors(WIDTHS)
            if form.is_joined:
                finish = Finish(k, epilogue, memory, out_y * out_x, [image, plane, k.const(0)])
                place = strip.top * out_x + strip.left
                finish.tile(strip.sums, 0, c, 1, place, strip.rows * strip.columns)
            else:
                with k.loop(0, strip.rows) as y:
                    finish = Finish(k, epilogue, memory, out_x, [image, plane, strip.top + y])
                    finish.tile(strip.sums.at(y * strip.columns), 0, c, 1, strip.left, strip.columns)


@dataclass(frozen=True)
class _Channel:
    """The sums of all outputs of a block for one filter."""

    k: Kernel
    form: Form
    strip: Strip
    w: Buf
    """The filter."""

    def tiles(self) -> None:
        """Tiles of ``ROWS`` rows, the last of which may overlap the one before; each from right to left.

        So a vector that reaches into the next row is stored before that row's first.
        """
        k, strip = self.k, self.strip
        each = strip.row // strip.lanes
        with k.loop(0, strip.rows, ROWS) as i:
            y = k.min(i, strip.rows - ROWS)
            pairs = each // 2
            with k.loop(0, pairs) as j:
                self._tile(y, (each - j * 2 - 2) * strip.lanes, 2)
            with k.when(each - pairs * 2 > 0):
                self._tile(y, k.const(0), 1)

    def _tile(self, y: Val, x: Val, width: int) -> None:
        """Phase by phase and row by row of the strip: each of its vectors meets all outputs that see it."""
        k, strip, taps = self.k, self.strip, self.form.taps
        lanes, high, wide = strip.lanes, len(taps.phases(1)), len(taps.phases(2))
        found = [[k.zeros(self.form.dtype, lanes)] * width for _ in range(ROWS)]
        weights = list(spread(k, self.w, taps.count, lanes))
        start = strip.elements.at(y * strip.pitch + x)
        for tz in range(taps.kernel[0]):
            for phase in range(high):
                rows = [(ty, ahead) for ty, (p, ahead) in enumerate(taps.places(1)) if p == phase]
                for row in range(ROWS + taps.reach(1)):
                    uses = [(ty, row - ahead) for ty, ahead in rows if 0 <= row - ahead < ROWS]
                    for tx, (p, ahead) in enumerate(taps.places(2) if uses else ()):
                        at = start.at(strip.plane * ((tz * high + phase) * wide + p) + strip.pitch * row)
                        seen = [at.load(ahead + j * lanes, lanes) for j in range(width)]
                        for ty, out in uses:
                            weight = weights[(tz * taps.kernel[1] + ty) * taps.kernel[2] + tx]
                            found[out] = [fma(k, weight, v, sums) for sums, v in zip(found[out], seen, strict=True)]
        to = strip.sums.at(y * strip.columns + x)
        for out, vectors in enumerate(found):
            for j, v in enumerate(vectors):
                to.at(strip.columns * out).store(j * lanes, v)

    def vectors(self, widths: tuple[int, ...]) -> None:
        """Vectors of outputs in order, with a loop over the taps."""
        k, strip, done = self.k, self.strip, self.k.const(0)
        for width in widths:
            stop = done + (strip.vectors - done) // width * width
            with k.loop(done, stop, width) as v:
                for j, sums in enumerate(self._sums(v, width)):
                    strip.sums.store(strip.packed_place(v + j), sums)
            done = stop

    def _sums(self, v: Val, width: int) -> list[Val]:
        k, strip = self.k, self.strip
        lanes = strip.lanes
        found = [k.var(k.zeros(self.form.dtype, lanes)) for _ in range(width)]
        starts = [strip.elements.at(strip.place(v + j)) for j in range(width)]
        wide = self.form.taps.kernel[2]
        inner = wide if wide <= UNROLLED else 1
        with k.loop(0, strip.taps.count, inner) as i:
            here = strip.runs.load(i)
            for t, (phase, ahead) in enumerate(self.form.taps.places(2)[:inner]):
                away, weight = here + (strip.plane * phase + ahead), k.splat(self.w.load(i + t), lanes)
                for sums, at in zip(found, starts, strict=True):
                    sums.set(fma(k, weight, at.load(away, lanes), sums.get()))
        return [sums.get() for sums in found]

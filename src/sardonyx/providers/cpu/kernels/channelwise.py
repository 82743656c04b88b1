"""Windows over one channel at a time: the largest, the sum, the mean, or the sum of products with weights.

The grid of work is (batch, plane, block, chunk of channels). A part copies one channel of its block after the other into
a strip in L1 (``strip``), combines the taps of all outputs, and finishes them. Rows of outputs begin with a vector in the
strip, but follow each other without gap in scratch: vectors are stored in order, so that what one computes beyond the
end of its row is overwritten by the next. Taps are combined in order; means are sums divided by how many elements
count, the product of a number for each axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution, Pool
from sardonyx.providers.cpu.dsl import Kernel, Params, Val, Var, kernel
from sardonyx.providers.cpu.isa import Isa
from sardonyx.providers.cpu.kernels.epilogue import Epilogue, Finish
from sardonyx.providers.cpu.kernels.frame import AXES, Frame, Taps, frame_params, sizes
from sardonyx.providers.cpu.kernels.gemm import lanes_of
from sardonyx.providers.cpu.kernels.matrices import number
from sardonyx.providers.cpu.kernels.reducers import extreme, lowest
from sardonyx.providers.cpu.kernels.strip import Blocks, Layout, Strip, ceil_div, fma
from sardonyx.providers.cpu.steps import Ref, Step
from sardonyx.providers.cpu.values import Buf, i64, register_dtype

MAX, MEAN, PRODUCTS = "max", "mean", "products"
WIDTHS = (8, 4, 2, 1)
"""Vectors of outputs at a time: eight hide the latency of an addition, fewer take the rest."""
ROWS, TILED = 4, 25
"""Rows of outputs at a time, for products of up to so many taps, whose code is written out."""
GRID, CHUNK = 64, 16
"""Parts of work that are wanted; channels of a part at most."""


@dataclass(frozen=True)
class Form:
    """What is constant."""

    kind: str
    dtype: DType
    """Of the results, in registers."""
    taps: Taps
    is_unit: bool
    """Neighbours of a row are neighbours in memory."""
    is_joined: bool
    """Rows of the result, and of what is read beside it, follow each other without gap."""

    def layout(self, lanes: int) -> Layout:
        return Layout(self.taps, self.dtype, lanes_of(lanes, self.dtype), 1)

    @property
    def is_tiled(self) -> bool:
        """Several rows of outputs are made at a time, from vectors that are loaded once for all of them."""
        return self.kind == PRODUCTS and 1 < self.taps.count <= TILED


def step(
    group: Convolution | Pool, isa: Isa, kind: str, extra: dict[str, Ref | Known | float], per_image: Known = 1
) -> Step:
    """``extra`` are the weights of products, or the pads that means count; ``per_image`` results are made of a channel."""
    frame = Frame.of(group)
    dtype = register_dtype(group.x.dtype)
    form = Form(kind, dtype, frame.taps, frame.is_unit, frame.is_joined)
    epilogue, more = frame.epilogue(group)
    room_nbytes = isa.l1_nbytes // 2
    numbers = {"channels": group.box[1], "per_image": per_image, "room": room_nbytes * 8 // dtype.bits}
    flops = dims.known(dims.product((frame.taps.count * (1 + (kind == PRODUCTS)), *group.box))) or 0
    scratch = form.layout(isa.lanes).nbytes(1, room_nbytes)
    spec = slide(form=form, x_dtype=group.x.dtype, epilogue=epilogue)
    args = {**frame.args(), **numbers, **extra, **more}
    return Step(spec, args, epilogue.writes, group.nodes, scratch, flops, frame.nbytes, "one channel at a time")


def _params(form: Form, x_dtype: DType, epilogue: Epilogue) -> Params:
    numbers = ["channels", "per_image", "room"]
    if form.kind == MEAN:
        numbers += [f"{what}_{a}" for a in AXES for what in ("before", "after")]
    weights: Params = {"w": (form.dtype,)} if form.kind == PRODUCTS else {}
    return {**frame_params(x_dtype), **dict.fromkeys(numbers, i64), **weights, **epilogue.params}


@kernel(_params)
def slide(
    k: Kernel, x: Buf, batch: Val, channels: Val, per_image: Val, room: Val,
    *, form: Form, x_dtype: DType, epilogue: Epilogue, **memory: Any,
) -> None:  # fmt: skip
    """``before`` and ``after`` are the parts of the padding that means count."""
    memory = {**memory, "is_unit": form.is_unit}
    planes, out_y, out_x = sizes(memory, "out")
    layout = form.layout(k.lanes)
    blocks = Blocks(k, layout, memory, room // form.taps.planes)
    count = batch * planes * blocks.count
    chunks = k.max(ceil_div(channels, CHUNK), k.min(ceil_div(k.const(GRID), k.max(count, 1)), channels))
    with k.share(count * chunks) as at:
        chunk, rest = at % chunks, at // chunks
        block, rest = rest % blocks.count, rest // blocks.count
        plane, image = rest % planes, rest // planes
        strip = Strip(k, layout, memory, blocks, block, is_padded=True)
        strip.tables()
        with k.loop(chunk * channels // chunks, (chunk + 1) * channels // chunks) as c:
            start = image * number(memory, "x_b") + c // per_image * number(memory, "x_c")
            strip.fill(x.at(start), plane, k.const(1), lowest(form.dtype) if form.kind == MAX else 0.0)
            channel = _Channel(k, form, strip, memory, c)
            if form.is_tiled:
                with k.either(strip.rows >= ROWS) as (yes, no):
                    with yes:
                        channel.tiles()
                    with no:
                        channel.combine((4, 1))
            else:
                channel.combine(WIDTHS)
            if form.kind == MEAN:
                _divide(k, form, memory, strip, plane)
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
    """The taps of all outputs of a block in one channel."""

    k: Kernel
    form: Form
    strip: Strip
    memory: dict[str, Any]
    channel: Val

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
        lanes = strip.lanes
        found = [[k.zeros(self.form.dtype, lanes)] * width for _ in range(ROWS)]
        weights = self._weights()
        wide = len(taps.phases(2))
        start = strip.elements.at(y * strip.pitch + x)
        for tz in range(taps.kernel[0]):
            for phase in range(len(taps.phases(1))):
                rows = [(ty, ahead) for ty, (p, ahead) in enumerate(taps.places(1)) if p == phase]
                for row in range(ROWS + taps.reach(1)):
                    uses = [(ty, row - ahead) for ty, ahead in rows if 0 <= row - ahead < ROWS]
                    for tx in range(taps.kernel[2]) if uses else ():
                        p, ahead = taps.places(2)[tx]
                        plane = (tz * len(taps.phases(1)) + phase) * wide + p
                        at = start.at(strip.plane * plane + strip.pitch * row)
                        seen = [at.load(ahead + j * lanes, lanes) for j in range(width)]
                        for ty, out in uses:
                            weight = weights[(tz * taps.kernel[1] + ty) * taps.kernel[2] + tx]
                            found[out] = [fma(k, weight, v, total) for total, v in zip(found[out], seen, strict=True)]
        to = strip.sums.at(y * strip.columns + x)
        for out, row_sums in enumerate(found):
            for j, total in enumerate(row_sums):
                to.at(strip.columns * out).store(j * lanes, total)

    def _weights(self) -> list[Val]:
        """The channel's weights, each in all lanes."""
        k, lanes, count = self.k, self.strip.lanes, self.form.taps.count
        w = self.memory["w"].at(self.channel * count)
        whole = count // lanes * lanes if k.isa.name == "neon" else 0
        vectors = [w.load(i, lanes) for i in range(0, whole, lanes)]
        spread = [v.shuffle([i] * lanes) for v in vectors for i in range(lanes)]
        return [*spread, *(k.splat(w.load(i), lanes) for i in range(whole, count))]

    def combine(self, widths: tuple[int, ...]) -> None:
        k, strip, done = self.k, self.strip, self.k.const(0)
        for width in widths:
            stop = done + (strip.vectors - done) // width * width
            with k.loop(done, stop, width) as v:
                found = self._vectors(v, width)
                for j, total in enumerate(found):
                    strip.sums.store(strip.packed_place(v + j), total)
            done = stop

    def _vectors(self, v: Val, width: int) -> list[Var]:
        k, form, strip = self.k, self.form, self.strip
        layout, lanes = strip.layout, strip.lanes
        neutral = lowest(form.dtype) if form.kind == MAX else 0
        found = [k.var(k.const(neutral, form.dtype, lanes)) for _ in range(width)]
        starts = [strip.elements.at(strip.place(v + j)) for j in range(width)]
        apart = [strip.tap(t) for t in range(layout.inner)]
        with k.loop(0, layout.runs) as i:
            here = k.const(0) if layout.runs == 1 else strip.runs.load(i)
            for t, away in enumerate(apart):
                seen = [at.at(here).load(away, lanes) for at in starts]
                self._tap(found, seen, i * layout.inner + t)
        return found

    def _tap(self, found: list[Var], seen: list[Val], tap: Val) -> None:
        k, kind = self.k, self.form.kind
        weight = None
        if kind == PRODUCTS:
            weight = k.splat(self.memory["w"].load(self.channel * self.form.taps.count + tap), self.strip.lanes)
        for total, x in zip(found, seen, strict=True):
            if kind == MAX:
                total.set(extreme(k, total.get(), x, largest=True))
            elif weight is None:
                total.set(total + x)
            else:
                total.set(fma(k, weight, x, total.get()))


def _divide(k: Kernel, form: Form, memory: dict[str, Any], strip: Strip, z: Val) -> None:
    """Sums by how many elements count in each."""
    deep = _count(k, form, memory, 0, z)
    with k.loop(0, strip.rows) as y:
        across = deep * _count(k, form, memory, 1, strip.top + y)
        sums = strip.sums.at(y * strip.columns)
        with k.loop(0, strip.columns) as i:
            count = across * _count(k, form, memory, 2, strip.left + i)
            sums.store(i, sums.load(i) / k.cast(count, form.dtype))


def _count(k: Kernel, form: Form, memory: dict[str, Any], axis: int, place: Val) -> Val:
    """How many taps of the output at ``place`` count along an axis."""
    name, taps = AXES[axis], form.taps
    size, pad, before, after = (number(memory, f"{what}_{name}") for what in ("in", "pad", "before", "after"))
    first = place * taps.strides[axis] - pad

    def below(limit: Val) -> Val:
        """Taps before an index."""
        reach = k.max(limit - first, 0) + (taps.dilations[axis] - 1)
        return k.min(reach // taps.dilations[axis], taps.kernel[axis])

    return below(size + after) - below(-before)

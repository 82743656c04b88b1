"""Pooling over windows: the largest, or the mean, axis by axis.

The rows of an image that a row of outputs sees are combined, element by element, into one row in scratch memory; runs
of that row are then combined along it, outputs along the lanes, and finished in registers. So a window of h rows and w
columns costs h + w combinations. The padding beside the image lies around the row in scratch. Long rows are cut into
blocks. Narrow windows do without that row (``image.pool_rows``). Means are sums, across and then along, times the
share of an element: one by how many count, the product of a number for each axis.

The grid of work is (batch, channel, plane, band of rows): each output is made in one place, in one order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.errors import NotImplemented
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, Pool
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue
from sardonyx.providers.cpu.kernels.common.image_block import ceil_div
from sardonyx.providers.cpu.kernels.common.matrices import number, of_known
from sardonyx.providers.cpu.kernels.common.window import AXES, Taps, WindowGeometry, geometry_params, sizes
from sardonyx.providers.cpu.kernels.gemm.vector import lanes_of
from sardonyx.providers.cpu.kernels.image import pool_nhwc
from sardonyx.providers.cpu.kernels.image.pool_nhwc import MAX, MEAN
from sardonyx.providers.cpu.kernels.image.pool_rows import Stream, is_narrow
from sardonyx.providers.cpu.kernels.math.reducers import extreme, lowest
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Tile, Val, i64, register_dtype
from sardonyx.providers.cpu.program.steps import Ref, Step, Target

ROW = 4096
"""Elements of a row that are combined at a time: 16 KiB of f32."""
LINE = 16
"""The image begins at a multiple of so many elements in the combined row."""
TOGETHER, WRITTEN = 8, 16
"""Rows that are combined in one pass; taps along a row up to which their code is written out."""
AHEAD = 1024
"""Elements between what is read of an image and what is asked for: rows are too short for the chip to see to it."""
BAND = 16
"""Rows of outputs in a part of the work."""
VECTORS = 16
"""Of a row, up to which they are written out."""


@dataclass(frozen=True)
class PoolConfig:
    """What is constant about a pooling."""

    kind: str
    dtype: DType
    """Of the results, in registers."""
    taps: Taps
    is_unit: bool
    """Neighbours of a row are neighbours in memory."""
    is_far: bool = False
    """The image is larger than the cache that is a core's own."""
    vectors: int = 0
    """Of a row of the image and of outputs, all whole, that are written out (``image.pool_rows``); 0: there are
    loops."""
    front: int = 0
    """Padding in front of a row of those."""

    def written(self, geometry: WindowGeometry, lanes: int) -> PoolConfig:
        """For windows that give rows as long as those of the image."""
        size, front, taps = geometry.x.shape[2:], geometry.window.pads[-1], self.taps
        width = size[-1]
        if (
            not self.is_streamed(lanes)
            or taps.strides[2] != 1
            or width != geometry.size[2]
            or not isinstance(front, int)
        ):
            return self
        if not isinstance(width, int) or not all(isinstance(n, int) and n > 0 for n in size):
            return self
        is_near = 0 <= front <= lanes and taps.reach(2) - front <= lanes
        is_short = width % lanes == 0 and width <= VECTORS * lanes
        return replace(self, vectors=width // lanes, front=front) if is_near and is_short else self

    def is_streamed(self, lanes: int) -> bool:
        """Whether rows do without scratch memory."""
        return self.is_unit and self.dtype.is_float and is_narrow(self.taps, lanes)

    @property
    def columns(self) -> int:
        """Outputs of a block."""
        return max(ROW // self.taps.strides[2], 1)

    def pitch(self, lanes: int) -> int:
        """Elements of a row in scratch, with those that a vector reads beyond its last output."""
        reach = (self.taps.kernel[2] - 1) * self.taps.dilations[2]
        return (-(-((self.columns + lanes) * self.taps.strides[2] + reach + lanes) // LINE) + 1) * LINE

    def scratch_nbytes(self, lanes: int) -> int:
        """The combined row, how many of its columns count in each output, and the share of an element in that."""
        return 3 * self.pitch(lanes) * self.dtype.bits // 8


def steps(group: Pool, target: Target) -> list[Step]:
    if not all(isinstance(step, Apply) for step in group.epilogue.steps):
        raise NotImplemented("a reduction follows a pooling", where=", ".join(node.op_type for node in group.nodes))
    counted: dict[str, Ref | Known | float] = {}
    if group.kind == MEAN:
        lead = (0,) * (3 - len(group.window.pads))
        before, after = ((0,) * 3,) * 2 if group.ends is None else (lead + group.window.pads, lead + group.ends)
        counted |= {f"before_{a}": d for a, d in zip(AXES, before, strict=True)}
        counted |= {f"after_{a}": d for a, d in zip(AXES, after, strict=True)}
    by_pixel = pool_nhwc.steps(group, counted, target)
    if by_pixel is not None:
        return by_pixel
    geometry, dtype = WindowGeometry.of(group), register_dtype(group.x.dtype)
    lanes = lanes_of(target.isa.lanes, dtype)
    config = PoolConfig(
        group.kind, dtype, geometry.taps, geometry.has_unit_stride, target.exceeds_cache(group.x)
    ).written(geometry, lanes)
    epilogue, more = geometry.epilogue(group)
    epilogue = epilogue.with_non_temporal_stores(group.outputs, target)
    args = {**geometry.args(), "channels": group.box[1], **counted, **more}
    flops = of_known(dims.product((sum(geometry.taps.kernel), *group.box)))
    scratch = config.scratch_nbytes(lanes)
    spec = pool_nchw(config=config, x_dtype=group.x.dtype, epilogue=epilogue)
    return [Step(spec, args, epilogue.writes, group.nodes, scratch, flops, geometry.nbytes)]


def _params(config: PoolConfig, x_dtype: DType, epilogue: Epilogue) -> Params:
    return {**geometry_params(x_dtype), "channels": i64, **pool_nhwc.counted_params(config.kind), **epilogue.params}


@kernel(_params)
def pool_nchw(
    k: Kernel,
    x: Buf,
    batch: Val,
    channels: Val,
    *,
    config: PoolConfig,
    x_dtype: DType,
    epilogue: Epilogue,
    **memory: Any,
) -> None:
    """``before`` and ``after`` are the parts of the padding that means count."""
    planes, out_y, out_x = sizes(memory, "out")
    bands, blocks = ceil_div(out_y, BAND), ceil_div(out_x, config.columns)
    row = _Row(k, config, memory)
    with k.loop(0, blocks) as block:
        left = block * config.columns
        columns = k.min(out_x - left, config.columns)
        row.begin(left, columns)
        with k.loop(*k.share_of(batch * channels * planes * bands)) as at:
            band, rest = at % bands, at // bands
            plane, rest = rest % planes, rest // planes
            channel, image = rest % channels, rest // channels
            start = x.at(image * number(memory, "x_b") + channel * number(memory, "x_c"))
            first, stop = band * BAND, k.min(out_y, (band + 1) * BAND)

            def make(y: Val, rows: int = 1) -> None:
                """A row of outputs, or two neighbours that see no padding above or below."""
                finishes = [BoundEpilogue(k, epilogue, memory, out_x, [image, plane, y + i]) for i in range(rows)]
                if config.kind == MEAN:
                    row.share(plane, y, columns)

                def put(i: int, t: Tile, v: Val) -> None:
                    if config.kind == MEAN:
                        v = v * row.shares.load(t.index, row.lanes)
                    finishes[i].put(channel, Tile(left + t.index, t.lanes, t.mask), v)

                if row.is_streamed:
                    row.stream(start, plane, y, columns, put, rows)
                else:
                    row.across(start, plane, y)
                    for t in k.tiles(columns, row.lanes):
                        put(0, t, row.along(t))

            low, high = row.inside(plane, first, stop) if row.is_paired else (stop, stop)
            with k.loop(0, 2 if row.is_paired else 1) as side:
                is_above = side.eq(0)
                with k.loop(k.select(is_above, first, high), k.select(is_above, low, stop)) as y:
                    make(y)
                if row.is_paired:
                    with k.loop(low, k.select(is_above, high, low), 2) as y:
                        make(y, 2)


class _Row:
    """A row of outputs in the making, in blocks."""

    def __init__(self, k: Kernel, config: PoolConfig, memory: dict[str, Any]) -> None:
        self.k, self.config, self.memory, self.taps = k, config, memory, config.taps
        self.lanes = lanes_of(k.lanes, config.dtype)
        self.neutral = lowest(config.dtype) if config.kind == MAX else 0
        nbytes = config.pitch(self.lanes) * config.dtype.bits // 8
        self.counted, self.shares = k.scratch(config.dtype, nbytes), k.scratch(config.dtype, 2 * nbytes)
        self.rows = k.var(-1)
        """How many rows count in the outputs that ``shares`` are of."""
        self.is_streamed = config.is_streamed(self.lanes)

    def begin(self, left: Val, columns: Val) -> None:
        """Find where the image lies in a block's row, and fill in the padding beside it and how many columns count."""
        k, taps = self.k, self.taps
        depth, height, width = sizes(self.memory, "in")
        *_, pad = sizes(self.memory, "pad")
        self.first = left * taps.strides[2] - pad
        length = (columns - 1) * taps.strides[2] + ((taps.kernel[2] - 1) * taps.dilations[2] + 1)
        self.low = k.min(k.max(-self.first, 0), length)
        self.width = k.select((depth > 0) & (height > 0), width, 0)
        self.high = k.max(k.select(self.width > 0, k.min(width - self.first, length), 0), self.low)
        if not self.is_streamed:
            self.combined = k.scratch(self.config.dtype).at(-self.low & (LINE - 1))
            for start, stop in ((k.const(0), self.low), (self.high, length)):
                with k.loop(start, stop) as i:
                    self.combined.store(i, self.neutral)
        if self.config.kind == MEAN:
            with k.loop(0, columns) as i:
                self.counted.store(i, k.cast(self._count(2, left + i), self.config.dtype))
            self.rows.set(-1)

    @property
    def is_paired(self) -> bool:
        """Whether rows in the middle of the image are made two at a time: they see most of it together."""
        taps = self.taps
        return self.is_streamed and taps.kernel[0] == taps.strides[1] == taps.dilations[1] == 1 < taps.kernel[1]

    def inside(self, plane: Val, first: Val, stop: Val) -> tuple[Val, Val]:
        """Of some rows of outputs, those in the middle of the image, that see no padding above or below: an even
        number.
        """
        k, (depth, height, _), (pad_z, pad, _) = self.k, sizes(self.memory, "in"), sizes(self.memory, "pad")
        z = plane * self.taps.strides[0] - pad_z
        low = k.min(k.max(first, pad), stop)
        last = k.select((z >= 0) & (z < depth), height + pad - (self.taps.kernel[1] - 1), 0)
        return low, low + ((k.max(k.min(stop, last), low) - low) & -2)

    def stream(
        self, image: Buf, plane: Val, y: Val, columns: Val, put: Callable[[int, Tile, Val], None], count: int
    ) -> None:
        """A row of outputs, or two, without a detour through memory."""
        taps, is_pair = self.taps, count > 1
        rows = [] if is_pair else self._rows(image, plane, y)
        lines = self._between(image, plane, y) if is_pair else [row for row, _ in rows]
        new = lines[-min(taps.strides[1] * count, taps.kernel[1]) :] if self.config.is_far else []

        def combined(at: Val, mask: Val | None) -> list[Val]:
            for line in new if mask is None else ():
                line.prefetch(at + AHEAD, locality=2)
            seen = [line.load(at, self.lanes, mask) for line in lines]
            if not is_pair:
                return [self._combined(rows, seen)]
            both = reduce(self._combine, seen[1:-1])
            return [self._combine(both, seen[0]), self._combine(both, seen[-1])]

        stream = Stream(self.k, self.taps, self.lanes, self.width, self.neutral, self._combine)
        if self.config.vectors:
            stream.write(combined, self.config.vectors, self.config.front, put)
        else:
            stream.run(combined, self.first, columns, put)

    def across(self, image: Buf, plane: Val, y: Val) -> None:
        """Combine the rows of the image that a row of outputs sees."""
        stride = number(self.memory, "x_x")
        rows = self._rows(image.at((self.first + self.low) * stride), plane, y)
        for i in range(0, len(rows), TOGETHER):
            self._combine_rows(rows[i : i + TOGETHER], stride, is_first=i == 0)

    def _between(self, start: Buf, plane: Val, y: Val) -> list[Buf]:
        """The rows of the image that two neighbouring rows of outputs see, which are all there."""
        pad_z, pad_y, _ = sizes(self.memory, "pad")
        stride_z, stride_y = (number(self.memory, f"x_{a}") for a in AXES[:2])
        place = (plane * self.taps.strides[0] - pad_z) * stride_z + (y - pad_y) * stride_y
        return [start.at(place + i * stride_y) for i in range(self.taps.kernel[1] + 1)]

    def _rows(self, start: Buf, plane: Val, y: Val) -> list[tuple[Buf, Val]]:
        """The rows of the image that a row of outputs sees, and whether they are there; one that is padding is the
        image's first."""
        k, taps = self.k, self.taps
        depth, height, _ = sizes(self.memory, "in")
        pad_z, pad_y, _ = sizes(self.memory, "pad")
        stride_z, stride_y = (number(self.memory, f"x_{a}") for a in AXES[:2])
        rows: list[tuple[Buf, Val]] = []
        for tz in range(taps.kernel[0]):
            z = plane * taps.strides[0] + (tz * taps.dilations[0]) - pad_z
            for ty in range(taps.kernel[1]):
                at = y * taps.strides[1] + (ty * taps.dilations[1]) - pad_y
                is_there = (z >= 0) & (z < depth) & (at >= 0) & (at < height)
                place = k.select(is_there, z * stride_z + at * stride_y, 0)
                rows.append((start.at(place), is_there))
        return self._only_there(rows) if self.config.kind == MAX else rows

    def _only_there(self, rows: list[tuple[Buf, Val]]) -> list[tuple[Buf, Val]]:
        """Rows of which one may be another's double, which does not change what is largest, but none is padding.

        If all are, the first says so.
        """
        k = self.k
        there, is_any = rows[0]
        for row, is_there in rows[1:]:
            there, is_any = k.choose(is_any, there, row), is_any | is_there
        return [(k.choose(is_there, row, there), is_any) for row, is_there in rows]

    def _combine_rows(self, rows: list[tuple[Buf, Val]], stride: Val, *, is_first: bool) -> None:
        k, to, count = self.k, self.combined.at(self.low), self.high - self.low

        def combined(i: Val, lanes: int) -> Val:
            at = i if self.config.is_unit else i * stride
            found = self._combined(rows, [row.load(at, lanes) for row, _ in rows])
            return found if is_first else self._combine(to.load(i, lanes), found)

        done = k.const(0)
        for lanes in (2 * self.lanes, self.lanes, 1) if self.config.is_unit else (1,):
            stop = done + (count - done) // lanes * lanes
            with k.loop(done, stop, lanes) as i:
                to.store(i, combined(i, lanes))
            done = stop

    def _combined(self, rows: list[tuple[Buf, Val]], seen: list[Val]) -> Val:
        """What was read of rows as one; what was read of padding is not used."""
        k, missing = self.k, self.k.const(self.neutral, self.config.dtype, seen[0].lanes)
        if self.config.kind == MAX:
            return k.select(rows[0][1], reduce(self._combine, seen), missing)
        there = (k.select(is_there, v, missing) for v, (_, is_there) in zip(seen, rows, strict=True))
        return reduce(self._combine, there)

    def along(self, t: Tile) -> Val:
        """Combine runs of the row; outputs that do not exist are made of what happens to lie there."""
        k, taps = self.k, self.taps
        count, step = taps.kernel[2], taps.strides[2]
        here = self.combined.at(t.index * step)
        if count <= WRITTEN:
            return reduce(self._combine, [self._every(here.at(tap * taps.dilations[2])) for tap in range(count)])
        found = k.var(self._every(here))
        with k.loop(1, count) as tap:
            found.set(self._combine(found.get(), self._every(here.at(tap * taps.dilations[2]))))
        return found.get()

    def _every(self, at: Buf) -> Val:
        """A vector of elements that lie a stride apart."""
        k, lanes, step = self.k, self.lanes, self.taps.strides[2]
        if step == 1:
            return at.load(0, lanes)
        if step == 2:
            return at.load(0, lanes).shuffle(range(0, 2 * lanes, 2), at.load(lanes, lanes))
        return at.gather(k.iota(i64, lanes) * step)

    def _combine(self, a: Val, b: Val) -> Val:
        return extreme(self.k, a, b, largest=True) if self.config.kind == MAX else a + b

    def share(self, plane: Val, y: Val, columns: Val) -> None:
        """Find the share of an element in each output of a row, if it is another than in the row before.

        A product with it takes a tenth of the time of a division, and loses at most one unit in the last place.
        """
        k = self.k
        rows = self._count(0, plane) * self._count(1, y)
        with k.when(rows.ne(self.rows.get())):
            self.rows.set(rows)
            for t in k.tiles(columns, self.lanes):
                self.shares.store(t, 1.0 / (self.counted.load(t) * k.cast(rows, self.config.dtype)))

    def _count(self, axis: int, place: Val) -> Val:
        """How many taps of the output at ``place`` count along an axis."""
        k, name, taps = self.k, AXES[axis], self.taps
        size, pad, before, after = (number(self.memory, f"{w}_{name}") for w in ("in", "pad", "before", "after"))
        first = place * taps.strides[axis] - pad

        def below(limit: Val) -> Val:
            """Taps before an index."""
            reach = k.max(limit - first, 0) + (taps.dilations[axis] - 1)
            return k.min(reach // taps.dilations[axis], taps.kernel[axis])

        return below(size + after) - below(-before)

"""Recurrent products of integers: states quantized before each stage, times packed bytes.

The weights are panels of ``quantized.pack``: the sums of the columns, then quads of successive elements of a column.
Each thread quantizes the source of a stage for itself, for all sequences: that is a small part of the products' work,
and takes no barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.quantized.byte_dot import dot, partner_dtype
from sardonyx.providers.cpu.kernels.quantized.pack import QUAD
from sardonyx.providers.cpu.kernels.recurrent.parameters import Int8Args, RecurrenceTile
from sardonyx.providers.cpu.language.amx import COUNT, LANES, NBYTES, ROW_NBYTES, ROWS, Tiles
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, f32, i8, i32, u8
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.records import Record

TILES_NBYTES = COUNT * NBYTES
LEVELS = 255.0
FEW = 2
"""Up to so many rows, vector products take less time than tiles."""
SHARED_CYCLES, NBYTES_PER_CYCLE, CYCLES_PER_UNIT = 6000, 40, 10
"""Cycles of a stage from which on sharing it is worth a barrier; what reading the weights from L2 and evaluating the
gates of a unit take of them."""


def heights_of(shape: RecurrenceTile, isa: Isa) -> tuple[int, ...]:
    """Row counts with their own code by vectors; what exceeds them is multiplied by tiles."""
    most = FEW if isa.amx else shape.rows
    return tuple(sorted({n for n in (1, 2, 4, most) if n <= most}))


def shared_rows(nbytes: int, units: Known, stages: int) -> int:
    """Sequences from which on threads share the panels of a step, whose stages read ``nbytes`` of weights."""
    assert isinstance(units, int)
    left = SHARED_CYCLES * stages - nbytes // NBYTES_PER_CYCLE
    return max(1, -(-left // (max(units, 1) * CYCLES_PER_UNIT)))


def scratch_nbytes(rows: Known, depth: Known, isa: Isa) -> Known:
    """For the bytes of all sequences, their sums, and those of tiles."""
    whole = dims.mul(dims.ceildiv(rows, ROWS), ROWS)
    return expressible(dims.add(dims.mul(whole, dims.add(depth, 4)), TILES_NBYTES if isa.amx else 0))


class QuantizedSource:
    """The vectors that a stage multiplies, as bytes with one scale and zero point."""

    def __init__(self, k: Kernel, args: Int8Args[Buf, Val], *, rows: Val, units: Val) -> None:
        self.k, self.args, self.rows, self.units = k, args, rows, units
        self.dtype = partner_dtype(k.isa)
        self.offset = 0 if self.dtype is u8 else 128
        """What is subtracted from u8 to obtain the type of bytes that the chip multiplies with i8."""
        self.scale, self.zero = k.var(k.zeros(f32)), k.var(k.zeros(i32))
        whole = (rows + (ROWS - 1)) // ROWS * ROWS
        self.bytes, self.sums = k.scratch(self.dtype), k.scratch(i32, whole * args.depth)
        self.tiles = _Tiles(k, rows, k.scratch(i32, whole * (args.depth + 4))) if k.isa.amx else None

    def quantize(self, source: Callable[[Val], Buf], counts: Callable[[Val], Val | None]) -> None:
        """Quantize the vector of every sequence; one that does not count is taken as 0."""
        k, lanes = self.k, self.k.lanes
        least, most = (k.var(k.zeros(f32, lanes)) for _ in range(2))
        with k.loop(0, self.rows) as row:
            x, is_counted = source(row), counts(row)
            for t in k.tiles(self.units, lanes):
                v = _or_zero(x.load(t), is_counted)
                least.set(k.min(v, least.get()))
                most.set(k.max(v, most.get()))
        low, high = least.get().min(), most.get().max()
        scale = k.select(high.ne(low), (high - low) / LEVELS, 1.0)
        zero = k.rint(k.max(0.0, k.min(LEVELS, 0.0 - low / scale)))
        self.scale.set(scale)
        self.zero.set(k.to_i32(zero) - self.offset)
        total = k.var(k.zeros(i32, lanes))
        with k.loop(0, self.rows) as row:
            x, is_counted, to = source(row), counts(row), self.bytes.at(row * self.args.depth)
            total.set(k.zeros(i32, lanes))
            for t in k.tiles(self.units, lanes):
                level = k.rint(_or_zero(x.load(t), is_counted) / scale) + zero
                q = k.to_i32(k.max(0.0, k.min(LEVELS, level))) - self.offset
                to.store(t, k.cast(q, self.dtype))
                if self.args.zero is not None:
                    total.set(total.get() + t.keep(q - self.zero.get(), 0))
            if self.args.zero is not None:
                self.sums.store(row, total.get().sum())

    def release(self) -> None:
        """After the last product."""
        if self.tiles is not None:
            self.tiles.tiles.release()

    def row(self, row: Val) -> Buf:
        return self.bytes.at(row * self.args.depth)


def _or_zero(v: Val, condition: Val | None) -> Val:
    return v if condition is None else v.k.select(condition, v, 0.0)


class Panel(Record):
    """Some vectors of units of a panel, for every gate: where their header begins, and how they are made real."""

    weights: Sequence[Buf]
    scales: Sequence[Buf]
    zeros: Sequence[Buf | None]
    units: Sequence[Tile]
    width: int
    """Units of the whole panel."""
    to: Callable[[Operand, int, int], Buf]
    """The place of the results of a row, a gate and a vector."""

    @property
    def places(self) -> list[tuple[int, int]]:
        return [(g, v) for g in range(len(self.weights)) for v in range(len(self.units))]

    def correction(self, source: QuantizedSource, g: int, v: int) -> Val:
        """What the zero point of the states adds to the sums: the column sums in the header times it."""
        lanes = self.units[v].lanes
        return self.weights[g].as_type(i32).load(v * lanes, lanes) * (0 - source.zero.get())

    def finish(self, source: QuantizedSource, total: Val, row: Val, i: Operand, g: int, v: int) -> None:
        """Store the sums of row ``row``, the i-th of a tile, as reals."""
        zero = self.zeros[g]
        if zero is not None:
            total = total - zero.load(self.units[v]) * source.sums.load(row)
        real = source.k.cast(total, f32) * (self.scales[g].load(self.units[v]) * source.scale.get())
        self.to(i, g, v).store(0, real)


def vector_products(source: QuantizedSource, rows: Sequence[Val], panel: Panel, chains: int) -> None:
    """The products of some rows with a panel."""
    k, depth, signs = source.k, source.args.depth, (source.dtype, i8)
    elements = [source.row(row) for row in rows]
    starts = [
        [panel.correction(source, g, v), *[k.zeros(i32, panel.units[v].lanes)] * (chains - 1)] for g, v in panel.places
    ]
    sums = [[[k.var(start) for start in chain_starts] for chain_starts in starts] for _ in rows]

    def add(j: Val, chain: int) -> None:
        quads = [w.at((j + QUAD) * panel.width) for w in panel.weights]
        columns = []
        for g, v in panel.places:
            lanes = panel.units[v].lanes
            columns.append(k.bitcast(quads[g].load(v * lanes * QUAD, lanes * QUAD), i32))
        for row, x in zip(sums, elements, strict=True):
            quad = k.splat(k.bitcast(x.load(j, QUAD), i32), k.lanes)
            for partial, column in zip(row, columns, strict=True):
                partial[chain].set(dot(k, partial[chain].get(), quad, column, *signs))

    whole = depth - depth % (chains * QUAD)
    with k.loop(0, whole, chains * QUAD) as j:
        for chain in range(chains):
            add(j + chain * QUAD, chain)
    if chains > 1:
        with k.loop(whole, depth, QUAD) as j:
            add(j, 0)
    for i, (row, row_sums) in enumerate(zip(rows, sums, strict=True)):
        for (g, v), partial in zip(panel.places, row_sums, strict=True):
            total = partial[0].get()
            for other in partial[1:]:
                total = total + other.get()
            panel.finish(source, total, row, i, g, v)


class _Tiles:
    """AMX tiles: one of sums for each gate, one of states, two of weights."""

    def __init__(self, k: Kernel, rows: Val, sums: Buf) -> None:
        self.tiles, self.sums = Tiles(k), sums
        self.states, self.weights = COUNT - 3, (COUNT - 2, COUNT - 1)
        self.tiles.configure(k.min(k.max(rows, 1), ROWS), short=tuple(range(self.states + 1)))

    def products(self, source: QuantizedSource, first: Val, rows: Val, panel: Panel) -> None:
        """The products of up to 16 rows with one vector of a panel."""
        k, tiles, depth = source.k, self.tiles, source.args.depth
        gates, x = range(len(panel.weights)), source.row(first)
        for g in gates:
            tiles.zero(g)
        with k.loop(0, depth, ROW_NBYTES) as j:
            tiles.load(self.states, x.at(j), depth)
            for g in gates:
                weights = self.weights[g % 2]
                tiles.load(weights, panel.weights[g].at((j + QUAD) * panel.width), panel.width * QUAD)
                tiles.dot_bytes(g, self.states, weights, source.dtype, i8)
        for g in gates:
            tiles.store(g, self.sums.at(g * (ROWS * LANES)), ROW_NBYTES)
        corrections = [panel.correction(source, g, 0) for g in gates]
        with k.loop(0, rows) as i:
            for g in gates:
                total = self.sums.load((i + g * ROWS) * LANES, LANES) + corrections[g]
                panel.finish(source, total, first + i, i, g, 0)

"""Micro-tiles of the NCHW convolutions: filters by vectors of pixels, broadcast weights times vectors."""

from __future__ import annotations

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.image_block import LINE, broadcast_weights
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem
from sardonyx.providers.cpu.kernels.common.window import Taps
from sardonyx.providers.cpu.kernels.gemm.pack import packed_b
from sardonyx.providers.cpu.kernels.gemm.vector import KC, kc_of
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Step
from sardonyx.records import Record

GRID, CHUNK = 64, 4
"""Work items wanted; tiles of filters that are worth a copy of the pixels they read."""
MAX_SHALLOW_TERMS = 48
"""Terms of a sum up to which it is one K-block, if its epilogue is applied to registers."""


class FilterTile(Record):
    """A micro-tile: ``rows`` filters by ``vectors`` of outputs; tiles of one vector take the tail of a block."""

    rows: int
    vectors: int

    @staticmethod
    def of(isa: Isa, filters: Known) -> FilterTile:
        """Up to 8 filters (4 with 16 registers), or fewer; accumulators take three quarters of the registers."""
        rows, count = (8 if isa.registers >= 32 else 4), filters if isinstance(filters, int) else 64
        while rows > 1 and count <= rows // 2:
            rows //= 2
        return FilterTile(rows, min(isa.registers * 3 // 4 // rows, 12))

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((self.vectors, 1)))


def is_shallow(taps: Taps, channels: Known) -> bool:
    """Whether a sum has so few terms that it is one K-block."""
    return isinstance(channels, int) and channels * taps.count <= MAX_SHALLOW_TERMS


def channels_per_block(taps: Taps, channels: Known) -> int:
    """Channels of a K-block."""
    if not isinstance(channels, int):
        return max(KC // taps.count, 1)
    return max(min(kc_of(taps.count * channels) // taps.count, channels), 1)


def packed_filters(group: Convolution, dtype: DType, rows: int, isa: Isa) -> tuple[list[Step], Matrix]:
    """The weights in panels, one for each tile of filters: [group][filters / rows][channel][taps][rows]."""
    w, filters = group.w, expressible(dims.exact_div(group.w.shape[0], group.groups))
    depth = expressible(dims.product(w.shape[1:]))
    b = Matrix(w.storage, w.offset, (expressible(dims.mul(depth, filters)),), 1, depth)
    if group.groups == 1:
        b = Matrix(w.storage, w.offset, (), 1, depth)
    batch = () if group.groups == 1 else (group.groups,)
    p = Problem(group.nodes, batch, 0, filters, depth, b, b, group.epilogue, (), ())
    return packed_b(p, dtype, rows, isa)


def filter_chunks(k: Kernel, blocks: Val, tiles: Val) -> Val:
    """The number of chunks of filter tiles, more than one where there are too few blocks of pixels to share."""
    return k.opaque(k.max(k.min(ceil_div(k.const(GRID), k.max(blocks, 1)), tiles // CHUNK), 1))


class Accumulators:
    """The accumulators of a micro-tile."""

    def __init__(self, k: Kernel, dtype: DType, shape: FilterTile) -> None:
        self.k, self.rows, self.lanes = k, shape.rows, k.lanes * 32 // max(dtype.bits, 32)
        self.total = [[k.var(k.zeros(dtype, self.lanes)) for _ in range(shape.vectors)] for _ in range(shape.rows)]

    def add(self, pixels: Buf, distance: Val | int, weights: Buf, count: Val, copy: Buf | None = None) -> None:
        """Add the products of ``count`` terms; their pixels are ``distance`` apart, their weights contiguous.

        With ``copy`` the pixels are copied there, and the next tile's line is prefetched.
        """
        k, lanes, width = self.k, self.lanes, len(self.total[0])
        with k.loop(0, count) as term:
            vectors = [pixels.load(term * distance + j * lanes, lanes) for j in range(width)]
            for row, w in zip(
                self.total, broadcast_weights(k, weights.at(term * self.rows), self.rows, lanes), strict=True
            ):
                for sums, value in zip(row, vectors, strict=True):
                    sums.set(k.multiply_add(w, value, sums.get()))
            if copy is not None:
                pixels.prefetch(term * distance + width * lanes + LINE)
                for j, value in enumerate(vectors):
                    copy.store((term * width + j) * lanes, value)

"""Tiles of filters: sums of products of single weights with vectors of pixels, as convolutions of planes take them."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Convolution
from sardonyx.providers.cpu.kernels.common.image_block import LINE, broadcast_weights, ceil_div, fma
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem, of_known
from sardonyx.providers.cpu.kernels.common.window import Taps
from sardonyx.providers.cpu.kernels.gemm.pack import packed_b
from sardonyx.providers.cpu.kernels.gemm.vector import KC, kc_of
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.steps import Step

GRID, CHUNK = 64, 4
"""Parts of work that are wanted; tiles of filters that are worth a copy of the pixels that they see."""
SHALLOW = 48
"""Terms of a sum up to which it is one run, if what follows is done in registers."""


@dataclass(frozen=True)
class FilterTile:
    """The register tile: ``rows`` filters by ``vectors`` of outputs; narrower ones take the rest of a block."""

    rows: int
    vectors: int

    @staticmethod
    def of(isa: Isa, filters: Known) -> FilterTile:
        """As many filters as there are, up to 8 (4 with 16 registers); sums fill three quarters of the registers."""
        rows, count = (8 if isa.registers >= 32 else 4), filters if isinstance(filters, int) else 64
        while rows > 1 and count <= rows // 2:
            rows //= 2
        return FilterTile(rows, min(isa.registers * 3 // 4 // rows, 12))

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((self.vectors, 1)))


def is_shallow(taps: Taps, channels: Known) -> bool:
    """Whether a sum has few terms."""
    return isinstance(channels, int) and channels * taps.count <= SHALLOW


def per_run(taps: Taps, channels: Known) -> int:
    """Channels of a run."""
    if not isinstance(channels, int):
        return max(KC // taps.count, 1)
    return max(min(kc_of(taps.count * channels) // taps.count, channels), 1)


def packed_filters(group: Convolution, dtype: DType, rows: int, isa: Isa) -> tuple[list[Step], Matrix]:
    """The weights in panels, one for each tile of filters: [group][filters / rows][channel][taps][rows]."""
    w, filters = group.w, of_known(dims.exact_div(group.w.shape[0], group.groups))
    depth = of_known(dims.product(w.shape[1:]))
    b = Matrix(w.storage, w.offset, (of_known(dims.mul(depth, filters)),), 1, depth)
    if group.groups == 1:
        b = Matrix(w.storage, w.offset, (), 1, depth)
    batch = () if group.groups == 1 else (group.groups,)
    p = Problem(group.nodes, batch, 0, filters, depth, b, b, group.epilogue, (), ())
    return packed_b(p, dtype, rows, isa)


def chunks_of(k: Kernel, blocks: Val, tiles: Val) -> Val:
    """Chunks of the tiles of filters that make parts of work of blocks of pixels, where those are few."""
    return k.opaque(k.max(k.min(ceil_div(k.const(GRID), k.max(blocks, 1)), tiles // CHUNK), 1))


class Sums:
    """The sums of a register tile."""

    def __init__(self, k: Kernel, dtype: DType, shape: FilterTile) -> None:
        self.k, self.rows, self.lanes = k, shape.rows, k.lanes * 32 // max(dtype.bits, 32)
        self.total = [[k.var(k.zeros(dtype, self.lanes)) for _ in range(shape.vectors)] for _ in range(shape.rows)]

    def add(self, pixels: Buf, distance: Val | int, weights: Buf, count: Val, copy: Buf | None = None) -> None:
        """The products of ``count`` terms, whose pixels lie ``distance`` apart and whose weights follow each other.

        Where they are copied, term by term, the line behind them is fetched: that of the next tile.
        """
        k, lanes, width = self.k, self.lanes, len(self.total[0])
        with k.loop(0, count) as term:
            vectors = [pixels.load(term * distance + j * lanes, lanes) for j in range(width)]
            for row, w in zip(
                self.total, broadcast_weights(k, weights.at(term * self.rows), self.rows, lanes), strict=True
            ):
                for sums, value in zip(row, vectors, strict=True):
                    sums.set(fma(k, w, value, sums.get()))
            if copy is not None:
                pixels.prefetch(term * distance + width * lanes + LINE)
                for j, value in enumerate(vectors):
                    copy.store((term * width + j) * lanes, value)

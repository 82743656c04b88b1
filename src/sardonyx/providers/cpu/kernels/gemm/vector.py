"""Matrix products by vector multiply-adds, from a packed B.

B lies in panels (``gemm.pack``): [n / NR][k][NR], where NR columns are NV vectors. The micro-kernel holds MR rows by
NV vectors of sums in registers and adds, for each k, the products of MR elements of A with NV vectors of B. MR and NV
fill the register file (``MicroTileShape``); a micro-tile at the lower edge has fewer rows.

**Order of sums.** Each element is summed from k = 0 upwards in K-blocks of ``KC`` terms, each from zero, and K-blocks
are added in order. That is the same for every micro-tile, thread count, blocking and machine (one without FMA rounds
the products, too). K-blocks keep the error of long sums near that of short ones.

**Cache blocking.** A K-block of a panel takes KC * NR elements (up to 32 KiB with AVX-512, 8 to 12 KiB with AVX2, 8
KiB with NEON) and is read from L1 by all micro-tiles of a block of rows, while A comes from L2. Blocks are ordered in
row blocks whose A fills half of L2, and within one panel by panel, so that B is read once for each row block. Where B
itself fits into half of L2, a row block is one block. The tasks are (batch, row block, panel, block). A block has up
to ``MC`` rows: its pages of A, one for each row where k is long, and those of B and the sums fit an L1 TLB of 48 to 96
entries. It has fewer where there would be less than ``MIN_TASKS`` tasks, or ``TASKS_PER_THREAD`` for each thread.
During the last K-block the lines that the epilogue reads and writes are prefetched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, MatrixArgs, PanelsArgs
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Val, Var, i64
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES, Isa
from sardonyx.records import Record, replace

KC, MIN_TASKS, TASKS_PER_THREAD = 128, 64, 8
MC, LANE_MC = 64, 48
"""Rows of a block; fewer where elements of A are taken lane by lane, on chips with 48 entries in an L1 TLB."""
MIN_KC = 32
"""Least K-block of a convolution."""
PREFETCH_DISTANCE, LANE_PREFETCH_DISTANCE = 64, 16
"""Prefetch distance along k, into L1, where rows are few and B is read once."""
CHAINS = 8
"""Independent sums that keep two multiply-add units of latency 4 busy."""


class MicroTileShape(Record):
    """The register tile: ``rows`` times ``vectors`` sums."""

    rows: int
    vectors: int
    by_lane: bool
    """Elements of A are loaded as vectors and multiplied lane by lane, as NEON can; otherwise they are broadcast."""

    @staticmethod
    def of(isa: Isa, dtype: DType, n: Known) -> MicroTileShape:
        """As many vectors as the columns fill, and as many rows as the registers hold.

        Sums take rows * vectors registers, B ``vectors``, and A one, or with ``by_lane`` one for each row.
        """
        by_lane = isa.name == "neon"
        most = 4 if by_lane else 2
        vectors = max(1, min(most, -(-n // lanes_of(isa.lanes, dtype)))) if isinstance(n, int) else most
        if by_lane:
            return MicroTileShape({1: 12, 2: 8, 3: 7, 4: 5}[vectors], vectors, True)
        return MicroTileShape(12 if isa.registers >= 32 else 6, vectors, False)

    @staticmethod
    def fitted(isa: Isa, dtype: DType, n: int, most: int = 4, *, is_matrix: bool = False) -> MicroTileShape:
        """As many vectors, up to ``most``, as leave the fewest lanes without a column; among equals the most vectors if
        there are 32 registers, because few rows load least. Matrix products (``is_matrix``) prefer three vectors: eight
        rows divide the usual 128 or 256, six do not, and a K-block takes 24 KiB of L1.
        """
        usual, filled = MicroTileShape.of(isa, dtype, n), -(-n // lanes_of(isa.lanes, dtype))
        if usual.by_lane or filled <= 2:
            return usual
        tall = {3: 8, 4: 6, 2: 12} if is_matrix else {4: 6, 3: 8, 2: 12}
        heights = tall if isa.registers >= 32 else {2: 6, 3: 4}
        vectors = min((v for v in heights if v <= most), key=lambda v: -filled % v)
        return MicroTileShape(heights[vectors], vectors, False)

    @property
    def heights(self) -> tuple[int, ...]:
        """The tile heights that have a loop of their own; others take the next larger one and repeat their last row.

        Below ``CHAINS`` sums the latency of additions is the limit, and fewer rows take as long.
        """
        filled = -(-CHAINS // self.vectors)
        return (1, *(h for h in (filled, 2 * filled) if 1 < h < self.rows - 1), self.rows)

    @property
    def low(self) -> MicroTileShape:
        """This shape with fewer rows, for products of few rows: less code."""
        return replace(self, rows=self.heights[-2])

    @property
    def block(self) -> int:
        """Row tiles of a block."""
        return (LANE_MC if self.by_lane else MC) // self.rows

    def columns(self, isa: Isa, dtype: DType) -> int:
        """NR, the columns of a panel."""
        return self.vectors * lanes_of(isa.lanes, dtype)


def kc_of(terms: int) -> int:
    """K-block of a convolution: half of a sum, between ``MIN_KC`` and ``KC``. Longer K-blocks round more, and short
    sums belong to the first layers of a network, whose errors later layers magnify.
    """
    return min(max(-(-terms // 2), MIN_KC), KC)


def lanes_of(lanes: int, dtype: DType) -> int:
    """Elements of a vector register in which products of this type are summed."""
    return lanes * 32 // max(dtype.bits, 32)


class RowBlocking:
    """The grid of a product: blocks of row tiles by panels of B, ordered in row blocks."""

    def __init__(
        self, k: Kernel, m: Val, panels: Val, count: Val, rows: int, most: int, row_nbytes: Val, panel_nbytes: Val,
        row_block_nbytes: Val,
    ) -> None:  # fmt: skip
        """``count`` products of ``m`` rows of ``row_nbytes`` bytes; a row block takes ``row_block_nbytes``.

        A block has up to ``most`` tiles of ``rows`` rows. If all panels fit into ``row_block_nbytes`` too, a row block
        is one block: a thread then has rows of its own, which the next step finds in its core's cache.
        """
        self.k, self.panels = k, panels
        self.tiles = (m + (rows - 1)) // rows
        wanted = (k.min(k.threads * TASKS_PER_THREAD, MIN_TASKS) + (panels * count - 1)) // k.max(panels * count, 1)
        self.blocks = k.max((self.tiles + (most - 1)) // most, k.min((self.tiles + 1) // 2, wanted))
        block_nbytes = row_nbytes * k.max(m // k.max(self.blocks, 1), 1)
        fitting = k.select(panels * panel_nbytes <= row_block_nbytes, 1, row_block_nbytes // k.max(block_nbytes, 1))
        self.row_block = k.min(k.max(fitting, 1), k.max(self.blocks, 1))
        self.count = count * panels * self.blocks

    @contextmanager
    def share(self) -> Iterator[tuple[Val, Val, Val, Val]]:
        """This thread's blocks: which product, which panel, the first row tile and the one after the last."""
        k, panels, blocks, row_block = self.k, self.panels, self.blocks, self.row_block
        with k.share(self.count) as at:
            index, rest = at // (panels * blocks), at % (panels * blocks)
            first = rest // (row_block * panels) * row_block
            within = rest % (row_block * panels)
            height = k.min(row_block, blocks - first)
            panel, block = within // height, first + within % height
            yield index, panel, block * self.tiles // blocks, (block + 1) * self.tiles // blocks


def scratch_nbytes(shape: MicroTileShape, isa: Isa, dtype: DType, b_dtype: DType) -> int:
    """The sums of a block, and a K-block of a panel that is stored in another type."""
    rows = shape.block * shape.rows + (KC if b_dtype is not dtype else 0)
    return rows * shape.columns(isa, dtype) * dtype.bits // 8


def _params(dtype: DType, b_dtype: DType, epilogue: Epilogue, shape: MicroTileShape) -> Params:
    axes = epilogue.batch_axes
    return {
        "a": MatrixArgs.declared(dtype, axes), "b": PanelsArgs.declared(b_dtype, axes),
        "batch": BatchArgs.declared(axes), **dict.fromkeys(("m", "n", "depth", "row_block_nbytes"), i64),
        "operands": epilogue.declared,
    }  # fmt: skip


@kernel(_params)
def gemm(
    k: Kernel, a: MatrixArgs[Buf, Val], b: PanelsArgs[Buf, Val], batch: BatchArgs[Buf, Val],
    m: Val, n: Val, depth: Val, row_block_nbytes: Val, operands: EpilogueArgs[Buf, Val],
    *, dtype: DType, b_dtype: DType, epilogue: Epilogue, shape: MicroTileShape,
) -> None:  # fmt: skip
    """The products of a batch. ``a`` has unit stride along k and the type of the sums."""
    nr = shape.vectors * lanes_of(k.lanes, dtype)
    panels = (n + (nr - 1)) // nr
    sums = k.scratch(dtype)
    wide = sums.at(shape.block * shape.rows * nr)
    row_nbytes = depth * (dtype.bits // 8)
    batch_size, panel_nbytes = batch.count(k), depth * (nr * b_dtype.bits // 8)
    bands = RowBlocking(k, m, panels, batch_size, shape.rows, shape.block, row_nbytes, panel_nbytes, row_block_nbytes)
    with bands.share() as (index, panel, top, bottom):
        place = batch.indices(index)
        rows_of_a = a.at(place)
        panel_of_b = b.at(place).at(panel * nr * depth)
        pace, finish = prefetch_pace(k, bottom - top, nr), BoundEpilogue(k, epilogue, operands, n, place)
        with k.loop(0, k.max(depth, 1), KC) as start:
            length = k.min(depth - start, KC)
            k_block, following = panel_of_b.at(start * nr), panel_of_b.at((start + length) * nr)
            if b_dtype is not dtype:
                with k.when(m - top * shape.rows > shape.heights[-2]):
                    _widen(k, k_block, wide, length * nr)
            with k.loop(top, bottom) as tile:
                row = tile * shape.rows
                rows = k.min(m - row, shape.rows)
                corner = rows_of_a.at(row * a.row + start)
                if epilogue.prefetchable:
                    with k.when(start + KC >= depth), k.loop(row, row + rows) as line:
                        finish.prefetch(line, panel * nr, nr)
                partial = sums.at((tile - top) * (shape.rows * nr))
                for low, high in zip((0, *shape.heights), shape.heights, strict=False):
                    with k.when((rows > low) & (rows <= high)):
                        given = [corner.at(a.row * k.min(rows - 1, r)) for r in range(high)]
                        if high < shape.rows:
                            found = micro_kernel(k, given, k_block, length, dtype, shape)
                        else:
                            ahead = following.at((tile - top) * length * pace)
                            source = k_block if b_dtype is dtype else wide
                            found = micro_kernel(k, given, source, length, dtype, shape, ahead, pace)
                        accumulate(k, found, partial, start > 0)
        columns = k.min(n - panel * nr, nr)
        with k.loop(top, bottom) as tile:
            row = tile * shape.rows
            rows = k.min(m - row, shape.rows)
            finish.tile(sums.at((tile - top) * (shape.rows * nr)), nr, row, rows, panel * nr, columns)


def prefetch_pace(k: Kernel, tiles: Val, nr: int) -> Val:
    """Elements to prefetch for each k, so that the micro-tiles of a block prefetch the next K-block between them."""
    pace = k.const(nr)
    for count in (2, 4, 8):
        pace = k.select(tiles >= count, nr // count, pace)
    return pace


def micro_kernel(
    k: Kernel, a: list[Buf], b: Buf, length: Val, dtype: DType, shape: MicroTileShape,
    ahead: Buf | None = None, pace: Val | None = None, *, is_near: bool = False,
) -> list[list[Var]]:  # fmt: skip
    """The sums of one K-block: rows of A times a panel of B. Meanwhile ``pace`` elements for each k are prefetched into
    L2 from ``ahead`` on; without ``ahead``, the panel itself is prefetched unless it ``is_near``, in L1.
    """
    lanes = lanes_of(k.lanes, dtype)
    sums = [[k.var(k.zeros(dtype, lanes)) for _ in range(shape.vectors)] for _ in a]

    def step(b: Buf, elements: list[Val]) -> None:
        columns = [b.load(j * lanes, lanes) for j in range(shape.vectors)]
        for row, x in zip(sums, elements, strict=True):
            for total, y in zip(row, columns, strict=True):
                total.set(k.multiply_add(x, y, total))

    nr = shape.vectors * lanes
    whole = k.const(0)

    def fetch(p: Val, further: Val, i: int = 0) -> None:
        """Prefetch for element ``p + i`` along k; ``further`` is the offset from ``ahead``."""
        if ahead is None and not is_near:
            for line in range(0, nr, LINE_NBYTES * 8 // b.dtype.bits):
                b.prefetch(
                    (p + i + (LANE_PREFETCH_DISTANCE if shape.by_lane else PREFETCH_DISTANCE)) * nr + line, locality=3
                )
        elif ahead is not None and i == 0:
            ahead.prefetch(further, locality=2)

    if shape.by_lane:
        whole = length & -lanes
        with k.loop(0, whole, lanes) as p:
            vectors, at = [x.load(p, lanes) for x in a], b.at(p * nr)
            for i in range(lanes):
                fetch(p, p * pace if pace is not None else p, i)
                step(at.at(i * nr), [v.shuffle([i] * lanes) for v in vectors])
    paces: list[Operand] = [nr] if pace is None or shape.by_lane else [nr, pace]
    with k.paced(whole, length, paces) as ((p, place, *further), _):
        if not shape.by_lane:
            fetch(p, further[0] if further else p)
        step(b.at(place), [k.splat(x.load(p), lanes) for x in a])
    return sums


def _widen(k: Kernel, k_block: Buf, to: Buf, elements: Val) -> None:
    """Convert a K-block to the type of the sums, for full micro-tiles; others convert as they load."""
    lanes = lanes_of(k.lanes, to.dtype)
    with k.loop(0, elements, lanes) as i:
        to.store(i, k_block.load(i, lanes))


def accumulate(k: Kernel, found: list[list[Var]], into: Buf, is_later: Val, pitch: Val | int | None = None) -> None:
    """Add the stored sums of earlier K-blocks to those in registers."""
    add_previous(k, found, into, is_later, pitch)
    store_sums(found, into, pitch)


def store_sums(found: list[list[Var]], into: Buf, pitch: Val | int | None = None) -> None:
    """Store the sums of a tile."""
    for at, total in _places(found, pitch):
        into.store(at, total)


def add_previous(k: Kernel, found: list[list[Var]], sums: Buf, is_later: Val, pitch: Val | int | None = None) -> None:
    """Add the stored sums of earlier K-blocks, if there are any, to those of a K-block in registers."""
    with k.when(is_later):
        for at, total in _places(found, pitch):
            total.set(sums.load(at, total.lanes) + total)


def _places(found: list[list[Var]], pitch: Val | int | None) -> Iterator[tuple[Val | int, Var]]:
    """The offset of each vector of sums in memory."""
    for r, row in enumerate(found):
        for j, total in enumerate(row):
            yield r * (len(row) * total.lanes if pitch is None else pitch) + j * total.lanes, total

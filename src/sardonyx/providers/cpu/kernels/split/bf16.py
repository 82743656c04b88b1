"""Operands of AMX bf16 products: f32 numbers split into bf16 terms, packed in tiles.

A number is the sum of its terms; each term is the remainder after the terms before it, rounded to bf16. One term is
bf16 itself, two keep 16 bits of the significand, three all 24. Both operands are packed in panels of 32 lines (rows of
A, columns of B), padded with zeros, in steps of 32 along k:

    A   [batch][m / 32][k / 32][term][2][16 rows][32 k]
    B   [batch][n / 32][k / 32][term][2][16 pairs of k][16 columns][2]      (VNNI order)

A step is what one round of tile products reads: ``terms`` times 2 KiB, contiguous.

**Representable range.** Infinity becomes NaN in a sum of terms, numbers near the float limit overflow, and small ones
have denormal terms, which AMX takes for zero. So each panel has one flag for every ``CHUNK`` steps, which is set where
a number is out of range; the GEMM recomputes such panels in f32 (``gemm.f32_fallback``). A constant with such a number
is not packed at all: ``Unrepresentable`` is raised and another kernel is chosen.

**Small numbers on the left.** In several terms, A is multiplied by ``LIFT`` when it is split, and the sums are divided
by that: no term of any small number is a denormal then, and no product that counts is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, TypeVar

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Expression, Storage, View
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, Matrix, Problem, moved
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, flat, named
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, Var, bf16, f32, i32, i64, u16, u32
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.prepack import Packing
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step
from sardonyx.records import Record, replace

Array = np.ndarray[Any, Any]
_Output = TypeVar("_Output", Matrix, View)

PANEL = STEP = 32
"""Lines of a panel, and numbers of each that a step covers."""
HALF, TILE = 16, 512
"""Lines and elements of one tile."""
CHUNK = 8
"""Steps that are split at a time: the unit of work and of flags."""

SMALLEST, LARGEST = 2.0**-100, 2.0**63
"""Representable numbers are zero or between these magnitudes, where no operand is lifted. Below, third terms would be
denormal. From LARGEST on, a product of lower terms could overflow to the opposite infinity. Products below 2^-102 are
exact to 2^-126 only, since AMX flushes denormals to zero."""
LIFT = 2.0**28
"""The factor of A in several terms. The smallest denormal becomes 2^-121, and products whose sum is one of the smallest
denormals stay above 2^-126."""
LARGEST_LEFT, LARGEST_RIGHT = 2.0**46, 2.0**30
"""Representable numbers of A and B are below these magnitudes if A is lifted: a sum of 2^23 products is a float."""
LIFTED = 2.0**30
"""Where small numbers are lifted to: a product of two sums of such numbers is a float."""
_ABS, _HIGH_HALF, _EXPONENT, _SMALLEST_NORMAL = 0x7FFF_FFFF, 0xFFFF_0000, 0x7F80_0000, 0x0080_0000
_ONE, _LIFTED, _MOST_LIFT = (int(np.float32(x).view(np.uint32)) for x in (1.0, LIFTED, 2.0**126))
_LOW, _RANGE = (int(np.float32(x).view(np.uint32)) for x in (SMALLEST, LARGEST))
_RANGE -= _LOW

ROWS, PAIRS = "rows", "pairs"
"""The order inside a tile: of A, and of B (VNNI pairs)."""


def step_elements(terms: int) -> int:
    """bf16 elements of a panel's step."""
    return terms * 2 * TILE


def k_block_steps(steps: int, most: int) -> int:
    """Steps of a K-block, at most ``most``: as few K-blocks as possible, of equal length, since a short one leaves no
    time for the work between its products.
    """
    return max(-(-steps // max(-(-steps // most), 1)), 1)


# -- the kernel


class LineStrides(Arguments[M, N]):
    """Strides of the source: between lines, along k and of the batch axes."""

    line: N = field(metadata=named("x_line"))
    k: N = field(metadata=named("x_k"))
    batch: tuple[N, ...] = field(metadata=named("x_batch"))

    @staticmethod
    def declared(axes: int) -> LineStrides[Memory, DType]:
        return LineStrides(i64, i64, (i64,) * axes)


def _params(source: DType, terms: int, layout: str, is_direct: bool, axes: int) -> Params:
    return {
        "x": (source,), "y": (bf16,), "flags": (i32,), "strides": LineStrides.declared(axes),
        "lines": i64, "depth": i64, "limit": i64, "batch": BatchArgs.declared(axes),
    }  # fmt: skip


@kernel(_params)
def split_bf16(
    k: Kernel, x: Buf, y: Buf, flags: Buf, strides: LineStrides[Buf, Val], lines: Val, depth: Val,
    limit: Val, batch: BatchArgs[Buf, Val], *, source: DType, terms: int, layout: str, is_direct: bool, axes: int,
) -> None:  # fmt: skip
    """Split x into terms, packed as tiles in y. ``flags`` has one for each panel and ``CHUNK`` elements of K: whether a
    number there is out of range (``limit_of``).

    ``is_direct``: x has stride 1 along k (``layout`` is rows) or from line to line (pairs); otherwise each tile is
    copied to staging memory first.
    """
    panels, steps = ceil_div(lines, PANEL), ceil_div(depth, STEP)
    chunks = ceil_div(steps, CHUNK)
    with k.share(batch.count(k) * panels * chunks) as at:
        panel, chunk = at // chunks, at % chunks
        matrix = moved(x, batch.indices(panel // panels), strides.batch)
        line = panel % panels * PANEL
        worst = k.var(k.zeros(u32, HALF))
        with k.loop(chunk * CHUNK, k.min((chunk + 1) * CHUNK, steps)) as step, k.loop(0, 2) as half:
            tile = _Tile(k, matrix, strides.line, strides.k, is_direct, worst)
            tile.locate(line + half * HALF, lines, step * STEP, depth)
            to = y.at((panel * steps + step) * step_elements(terms) + half * TILE)
            (tile.rows if layout == ROWS else tile.pairs)(to, terms)
        flags.store(at, k.cast(k.cast(worst.get().max(), i64) >= limit, i32))


class _Tile:
    """A block of the source: 16 rows or columns by 32 elements along k."""

    def __init__(self, k: Kernel, x: Buf, x_line: Val, x_k: Val, is_direct: bool, worst: Var) -> None:
        self.k, self.x, self.x_line, self.x_k, self.is_direct, self.worst = k, x, x_line, x_k, is_direct, worst

    def locate(self, line: Val, lines: Val, first: Val, depth: Val) -> None:
        k = self.k
        self.lines, self.deep = k.max(k.min(lines - line, HALF), 0), k.min(depth - first, STEP)
        self.x = self.x.at(line * self.x_line + first * self.x_k)

    def rows(self, y: Buf, terms: int) -> None:
        k = self.k
        if not self.is_direct:
            self._stage(STEP, 1)
        words = y.as_type(u16)
        masks = [k.mask(self.deep - side * HALF, HALF) for side in range(2)]
        with k.loop(0, self.lines) as r:
            row = self.x.at(r * self.x_line)
            sides = [self._split(row.load(i * HALF, HALF, mask), terms) for i, mask in enumerate(masks)]
            for term, (left, right) in enumerate(zip(*sides, strict=True)):
                heads = k.bitcast(left, u16).shuffle(range(1, 4 * HALF, 2), k.bitcast(right, u16))
                words.store(r * STEP + term * 2 * TILE, heads)
        with k.loop(self.lines, HALF) as r:
            for term in range(terms):
                words.store(r * STEP + term * 2 * TILE, k.zeros(u16, STEP))

    def _split(self, v: Val, terms: int) -> list[Val]:
        """The terms of numbers of A."""
        k, lift = self.k, lift_of_left(terms)
        if lift == 1.0:
            return split_terms(k, v, terms, self.worst)
        self.worst.set(k.max(self.worst, k.bitcast(v, u32) & _ABS))
        return split_terms(k, v * lift, terms)

    def pairs(self, y: Buf, terms: int) -> None:
        k = self.k
        if not self.is_direct:
            self._stage(1, HALF)
        words = y.as_type(u32)
        with k.loop(0, HALF) as pair:
            sides = []
            for i in (pair * 2, pair * 2 + 1):
                there = k.mask(k.select(i < self.deep, self.lines, 0), HALF)
                sides.append(split_terms(k, self.x.at(i * self.x_k).load(0, HALF, there), terms, self.worst))
            for term, (even, odd) in enumerate(zip(*sides, strict=True)):
                words.store(pair * HALF + term * TILE, vnni_pairs(even, odd))

    def _stage(self, line_stride: int, k_stride: int) -> None:
        """Copy the tile into contiguous staging memory first, element by element."""
        k, x, local = self.k, self.x, self.k.local(f32, TILE)
        with k.loop(0, self.lines) as i, k.loop(0, self.deep) as j:
            local.store(i * line_stride + j * k_stride, x.load(i * self.x_line + j * self.x_k))
        self.x, self.x_line, self.x_k = local, k.const(line_stride), k.const(k_stride)


def split_terms(k: Kernel, v: Val, terms: int, worst: Var | None = None) -> list[Val]:
    """The bits of f32 numbers whose upper halves are the terms, halves rounded away from zero.

    ``worst`` accumulates what ``is_representable`` checks.
    """
    found = []
    if worst is not None:
        size = k.bitcast(v, u32) & _ABS
        worst.set(k.max(worst, k.select(size.eq(0), 0, size - _LOW)))
    for term in range(terms):
        bits = k.bitcast(v, u32)
        if term < 2:  # a third term is what is left of 24 bits, and fits
            bits = (bits + 0x8000) & _HIGH_HALF
            v = v - k.bitcast(bits, f32)
        found.append(bits)
    return found


def vnni_pairs(even: Val, odd: Val) -> Val:
    """The terms of two successive rows of B (``split_terms``) as a row of a tile: the ``even`` row in the low halves of
    words, the ``odd`` one in the high halves.
    """
    return (even >> 16) | odd


def is_unrepresentable(k: Kernel, v: Val) -> Val:
    """Which numbers are outside the representable range."""
    size = k.bitcast(v, u32) & _ABS
    return (size - _LOW >= _RANGE) & size.ne(0)


def lift_of_left(terms: int) -> float:
    """The factor by which A is multiplied."""
    return 1.0 if terms == 1 else LIFT


def limit_of(layout: str, terms: int) -> int:
    """``limit`` of ``split_bf16`` for an operand of a product."""
    if terms == 1:
        return _RANGE
    return int(np.float32(LARGEST_LEFT).view(np.uint32)) if layout == ROWS else representable_below(LARGEST_RIGHT)


def is_too_large(k: Kernel, v: Val) -> Val:
    """Which numbers of A, which is lifted, are outside the representable range."""
    return (k.bitcast(v, u32) & _ABS) >= limit_of(ROWS, 3)


def representable_below(limit: float) -> int:
    """The bound of ``worst`` (``split_terms``) if all numbers are below a limit."""
    return int(np.float32(limit).view(np.uint32)) - _LOW


def is_representable(worst: Val, limit: int = _RANGE) -> Val:
    """Whether all numbers are representable whose magnitudes ``split_terms`` accumulated in ``worst``."""
    return worst.max() < limit


def lift_of(k: Kernel, largest: Val) -> Val:
    """The power of two that brings the largest of some small numbers, given as bits, to ``LIFTED``; 1 for others."""
    power = k.max(largest & _EXPONENT, _SMALLEST_NORMAL)
    bits = k.min(2 * _ONE - power + (_LIFTED - _ONE), _MOST_LIFT)
    return k.bitcast(k.select(largest.eq(0) | (largest >= _LIFTED), _ONE, bits), f32)


def reciprocal(k: Kernel, power: Val) -> Val:
    """The reciprocal of a power of two that ``lift_of`` returned."""
    return k.bitcast(2 * _ONE - k.bitcast(power, u32), f32)


def load_pair(k: Kernel, y: Buf, terms: int, pair: Val) -> list[Val]:
    """Two successive numbers along k of 16 neighbouring columns, decoded from a tile of B at ``y``.

    ``pair`` numbers the pairs of a step; the tile is the step's first term.
    """
    words = [y.as_type(u32).at(pair * HALF).load(term * TILE, HALF) for term in range(terms)]
    found = []
    for heads in ([word << 16 for word in words], [word & _HIGH_HALF for word in words]):
        value = k.bitcast(heads[-1], f32)
        for bits in reversed(heads[:-1]):  # the smallest first: exact
            value = k.bitcast(bits, f32) + value
        found.append(value)
    return found


# -- what contractions ask for


class FlagsArgs(Arguments[M, N]):
    """The parameters of the flags of an operand."""

    memory: M = field(metadata=named("{}"))
    panel: N
    """Flags of a panel."""
    count: N
    """Flags of all panels."""
    batch: tuple[N, ...]

    @staticmethod
    def declared(axes: int) -> FlagsArgs[Memory, DType]:
        return FlagsArgs(Memory(i32), i64, i64, (i64,) * axes)

    def at(self: FlagsArgs[Buf, Val], indices: Sequence[Val]) -> FlagsArgs[Buf, Val]:
        """The flags of one matrix of the batch."""
        return replace(self, memory=moved(self.memory, indices, self.batch))


class TiledArgs(Arguments[M, N]):
    """The parameters of an operand in tiles, or in another layout of panels."""

    memory: M = field(metadata=named("{}"))
    batch: tuple[N, ...]
    flags: FlagsArgs[M, N] | None

    @staticmethod
    def declared(axes: int, *, has_flags: bool, dtype: DType = bf16) -> TiledArgs[Memory, DType]:
        return TiledArgs(Memory(dtype), (i64,) * axes, FlagsArgs.declared(axes) if has_flags else None)

    def at(self: TiledArgs[Buf, Val], indices: Sequence[Val]) -> TiledArgs[Buf, Val]:
        """The operand of one matrix of the batch."""
        memory = moved(self.memory, indices, self.batch)
        return replace(self, memory=memory, flags=None if self.flags is None else self.flags.at(indices))


class TiledOperand(Record):
    """An operand in tiles, with its flags (none for a constant) and the strides of both along the batch axes."""

    tiles: Storage
    batch: tuple[Known, ...]
    flags: Storage | None
    flags_batch: tuple[Known, ...]
    flags_panel: Known = 0
    """Flags of a panel."""

    @property
    def operand(self) -> TiledArgs[Ref, Known]:
        if self.flags is None:
            return TiledArgs(Ref(self.tiles), self.batch, None)
        flags = FlagsArgs(Ref(self.flags), self.flags_panel, self.flags.elements, self.flags_batch)
        return TiledArgs(Ref(self.tiles), self.batch, flags)


class PackedOperand(Record):
    """A matrix that its producer packs as the A of the products that read it."""

    tiled: TiledOperand
    rows: Known
    columns: Known
    terms: int
    has_unpacked: bool
    """An unpacked copy is stored, too."""

    def serves(self, p: Problem, terms: int | None) -> bool:
        """Whether a product in ``terms`` bf16 terms (None: in none) can read this matrix as its A."""
        return (p.m, p.k, terms) == (self.rows, self.columns, self.terms) and p.a.covers_storage(p.m, p.k)

    @property
    def description(self) -> str:
        """For the variant text of the step that writes it."""
        also = " and also unpacked" if self.has_unpacked else ""
        return f"packed for its reader in {self.terms} bf16 term{'s'[: self.terms - 1]}{also}"


def with_packed_outputs(
    outputs: Sequence[_Output],
    expression: Expression,
    analysis: Analysis,
    in_tiles: Callable[[_Output, PackedOperand], _Output],
) -> tuple[tuple[_Output, ...], Expression]:
    """The outputs and their expression, with the packed form of those that are packed for their consumer, and the
    unpacked form of those that have other readers too.
    """
    made: list[_Output] = []
    results: list[int] = []
    for y, result in zip(outputs, expression.results, strict=True):
        found = analysis.packed_operands.get(y.storage)
        if found is None or found.has_unpacked:
            made.append(y)
            results.append(result)
        if found is not None:
            made.append(in_tiles(y, found))
            results.append(result)
    return tuple(made), replace(expression, results=tuple(results))


def split_a(p: Problem, terms: int, analysis: Analysis) -> tuple[list[Step], TiledOperand]:
    """The step that packs A in tiles, and the tiles. No step if A's producer or another product packs it already."""
    packed = analysis.packed_operands.get(p.a.storage)
    if packed is not None and packed.serves(p, terms):
        return [], packed.tiled
    source = _Source(p.a.storage, p.a.offset, p.a.row, p.a.column, p.m, p.k, p.batch, p.a.batch, ROWS, terms)
    return source.at_run_time(p, analysis)


def split_b(p: Problem, terms: int, analysis: Analysis) -> tuple[list[Step], TiledOperand]:
    """The step that packs B in tiles, and the tiles. No step for a constant, which is packed once."""
    source = _Source(p.b.storage, p.b.offset, p.b.column, p.b.row, p.n, p.k, p.batch, p.b.batch, PAIRS, terms)
    return source.at_run_time(p, analysis) if p.weight is None else ([], source.once(analysis.isa))


class _Source(Record):
    storage: Storage
    offset: Known
    line_stride: Known
    k_stride: Known
    lines: Known
    depth: Known
    sizes: tuple[Known, ...]
    strides: tuple[Known, ...]
    """The sizes of the batch axes; an axis of stride 0 is packed once."""
    layout: str
    terms: int

    @property
    def _own(self) -> list[tuple[Known, Known]]:
        return [(d, s) for d, s in zip(self.sizes, self.strides, strict=True) if s != 0]

    @property
    def _matrix(self) -> tuple[Known, Known]:
        """Elements and flags of one matrix."""
        panels, steps = dims.ceildiv(self.lines, PANEL), dims.ceildiv(self.depth, STEP)
        elements = dims.product((panels, steps, step_elements(self.terms)))
        return expressible(elements), expressible(dims.mul(panels, dims.ceildiv(steps, CHUNK)))

    def _batched(self, each: Known) -> tuple[Known, tuple[Known, ...]]:
        """The elements of all matrices, and the stride of each batch axis."""
        strides: list[Known] = []
        total = each
        for d, s in reversed(list(zip(self.sizes, self.strides, strict=True))):
            strides.insert(0, 0 if s == 0 else total)
            total = total if s == 0 else expressible(dims.mul(total, d))
        return total, tuple(strides)

    def _spec(self) -> Any:
        is_direct = (self.k_stride if self.layout == ROWS else self.line_stride) == 1
        return split_bf16(
            source=self.storage.dtype, terms=self.terms, layout=self.layout, is_direct=is_direct, axes=len(self._own)
        )

    def _numbers(self) -> dict[str, Known]:
        sizes, batch = ([pair[i] for pair in self._own] for i in range(2))
        strides = LineStrides[Ref, Known](self.line_stride, self.k_stride, tuple(batch))
        limit = limit_of(self.layout, self.terms)
        return flat(strides=strides, lines=self.lines, depth=self.depth, limit=limit, batch=BatchArgs(tuple(sizes)))

    def at_run_time(self, p: Problem, analysis: Analysis) -> tuple[list[Step], TiledOperand]:
        key = (self.storage.number, *(getattr(self, f) for f in list(self.__dataclass_fields__)[1:]))
        if key in analysis.splits:
            return [], analysis.splits[key]
        (elements, batch), (flags, flags_batch) = (self._batched(each) for each in self._matrix)
        each = expressible(dims.ceildiv(dims.ceildiv(self.depth, STEP), CHUNK))
        made = TiledOperand(
            Storage("temporary", bf16, elements), batch, Storage("temporary", i32, flags), flags_batch, each
        )
        analysis.splits[key] = made
        assert made.flags is not None
        args: dict[str, Ref | Known | float] = {"x": Ref(self.storage, self.offset), **self._numbers()}
        args.update(y=Ref(made.tiles), flags=Ref(made.flags))
        nbytes = expressible(dims.mul(elements, 2))
        why = f"{'A' if self.layout == ROWS else 'B'} split into {self.terms} bf16 terms"
        return [Step(self._spec(), args, frozenset(("y", "flags")), p.nodes, nbytes=nbytes, variant=why)], made

    def once(self, isa: Isa) -> TiledOperand:
        tensor = self.storage.tensor
        assert tensor is not None
        (elements, batch), (flags, _) = (self._batched(each) for each in self._matrix)

        packing = Packing(
            tensor, int(self.offset), self._spec(), isa, self._numbers(), int(elements), bf16, int(flags),
            refused=identity(tensor),
        )  # fmt: skip
        made = Packed("constant", bf16, elements, self.storage.value, key=packing.key, make=packing, packing=packing)
        return TiledOperand(made, batch, None, ())


def is_weight_representable(array: Array) -> bool:
    """Whether all numbers of a constant are representable."""
    flat = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, flat.size, 1 << 16):  # in cache
        bits = flat[start : start + (1 << 16)].astype(np.float32, copy=False).view(np.uint32) & np.uint32(_ABS)
        if np.any((bits - np.uint32(_LOW) >= _RANGE) & (bits != 0)):
            return False
    return True

"""Weights in blocks: constants of small integers, with a scale for each block of a column, in the layout of kernels.

The operand is a constant of reals that knows what it is computed from (``Tensor.quantized``): w = (q - zero) * scale.
Three arrays take its place in memory, each packed from one tensor, in panels of 32 columns:

    codes    [n / 32][k / SEGMENT][SEGMENT / 8 (or 4)][32 columns][4 bytes]
    scales   [n / 32][block][32 columns]
    zeros    [n / 32][block][32 columns]    (none where all are the same)

A **code** is q as an unsigned number, or signed where the chip multiplies signed bytes. A word of four bytes holds eight
codes of 4 bits (2-bit ones are widened) along k of one column, or four of 8 bits. Byte b holds the code of row
``PLACES[b]`` of a quad in its low half, and that of the next quad in its high half. So one mask leaves a quad of bytes
(``quads``), for dot products; bits 0 to 15 and 16 to 31, shifted alike, hold rows 2i and 2i + 1, for rows of tiles.

A **segment** is what is summed before it is scaled: a block, or a part of one, of at most ``MAX_SEGMENT`` rows. The
last segment is filled up with codes that nothing depends on; rows of A beyond k count as zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.quantized import Quantized
from sardonyx.ir.shape import count
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, Matrix, MatrixArgs, Problem
from sardonyx.providers.cpu.kernels.gemm.pack import packed_b
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i32, i64, i8, u8, u32
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES, Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.prepack import Packing, aligned
from sardonyx.providers.cpu.program.steps import Packed, Ref
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record

Array = np.ndarray[Any, Any]

COLUMNS = 32
"""Columns of a panel."""
QUAD, WORD_NBYTES = 4, 4
PLACES = (0, 2, 1, 3)
"""The row of a quad that each byte of a word holds."""
MAX_SEGMENT, UNIT = 128, 16
"""Rows of a segment, at most, and what they are a multiple of. Sums of 128 products of bytes are exact in f32."""
AHEAD_NBYTES = 2048
"""Prefetch distance within the codes of a thread's panels."""
LEAST_ELEMENTS = 1 << 14
"""Weights with fewer elements are dequantized once: they stay in the caches."""


class BlockFormat(Record):
    """The compile-time part of a weight in blocks."""

    bits: int
    """Of a code: 4 or 8."""
    is_signed: bool
    """Whether 8-bit codes are signed."""
    segment: int
    block: int
    """Segments of a block; 0: one scale for a whole column."""
    scale: DType
    zero: DType | None
    """The type of zero points: of codes, or a float; None where all are ``middle``."""
    middle: int
    """The code that means 0, if there are no zero points."""

    @property
    def codes(self) -> DType:
        """The type of a byte of codes."""
        return i8 if self.is_signed else u8

    @property
    def rows(self) -> int:
        """Rows along k that a word holds."""
        return 32 // self.bits

    @property
    def segment_nbytes(self) -> int:
        """Bytes of the codes of a segment of a panel."""
        return self.segment * COLUMNS * self.bits // 8

    def segments(self, depth: int) -> int:
        return -(-depth // self.segment)

    def code(self, k: Kernel, words: Val, row: int) -> Val:
        """The code of one row of a word, as i32."""
        quad, place = divmod(row, QUAD)
        at = PLACES.index(place) * 8 + quad * 4
        if self.is_signed:
            return (k.bitcast(words, i32) << (24 - at)) >> 24
        return k.bitcast((words >> at) & ((1 << self.bits) - 1), i32)

    def quads(self, words: Val) -> list[Val]:
        """The bytes of the codes in words, quad by quad."""
        return [words & 0x0F0F_0F0F, (words >> 4) & 0x0F0F_0F0F] if self.bits == 4 else [words]

    def block_of(self, segment: Val) -> Val | int:
        """The block of a segment."""
        return segment // self.block if self.block > 1 else segment if self.block else 0


class BlocksArgs(Arguments[M, N]):
    """The parameters of a weight in blocks."""

    codes: M
    scales: M
    zeros: M | None
    blocks: N
    """Blocks of a column."""

    @staticmethod
    def declared(form: BlockFormat) -> BlocksArgs[Memory, DType]:
        return BlocksArgs(Memory(u8), Memory(form.scale), None if form.zero is None else Memory(form.zero), i64)


class BlocksGemmArgs(Arguments[M, N]):
    """The parameters of a product with a weight in blocks."""

    a: MatrixArgs[M, N]
    b: BlocksArgs[M, N]
    batch: BatchArgs[M, N]
    m: N
    n: N
    depth: N
    epilogue: EpilogueArgs[M, N]
    l2_nbytes: N
    """Bytes of A that a row block takes."""

    @staticmethod
    def declared(a_dtype: DType, form: BlockFormat, epilogue: Epilogue) -> BlocksGemmArgs[Memory, DType]:
        axes = epilogue.batch_axes
        return BlocksGemmArgs(
            MatrixArgs.declared(a_dtype, axes), BlocksArgs.declared(form), BatchArgs.declared(axes), i64, i64, i64,
            epilogue.declared, i64,
        )  # fmt: skip


class Weight(Record):
    """A weight in blocks, packed."""

    form: BlockFormat
    codes: Storage
    scales: Storage
    zeros: Storage | None
    blocks: int

    @property
    def operand(self) -> BlocksArgs[Ref, int]:
        zeros = None if self.zeros is None else Ref(self.zeros)
        return BlocksArgs(Ref(self.codes), Ref(self.scales), zeros, self.blocks)

    @property
    def nbytes(self) -> int:
        held = (self.codes, self.scales, *(() if self.zeros is None else (self.zeros,)))
        return sum(s.dtype.nbytes(int(s.elements)) for s in held)

    @property
    def text(self) -> str:
        """For the variant text of steps."""
        form = self.form
        block = f"blocks of {form.block * form.segment}" if form.block else "one scale for a column"
        zeros = "" if form.zero is None else f", zero points of {form.zero}"
        return f"{form.bits}-bit weights, {block}{zeros}"


class PanelReader:
    """Scales and zero points of a panel inside a kernel."""

    def __init__(self, k: Kernel, form: BlockFormat, args: BlocksArgs[Buf, Val], panel: Val, segments: Val) -> None:
        self.k, self.form = k, form
        self.codes = args.codes.at(panel * segments * form.segment_nbytes)
        self._scales = args.scales.at(panel * args.blocks * COLUMNS)
        self._zeros = None if args.zeros is None else args.zeros.at(panel * args.blocks * COLUMNS)

    def words(self, segment: Val, index: Val | int, column: Val | int, lanes: int) -> Val:
        """Words number ``index`` of a segment, of ``lanes`` columns."""
        at = self.codes.at(segment * self.form.segment_nbytes).as_type(u32)
        return at.at(index * COLUMNS).load(column, lanes)

    def scale(self, segment: Val, column: Val | int, lanes: int) -> Val:
        return self._scales.at(self.form.block_of(segment) * COLUMNS).load(column, lanes)

    def zero(self, segment: Val, column: Val | int, lanes: int) -> Val:
        """The zero points as f32."""
        if self._zeros is None:
            return self.k.const(self.form.middle, f32, lanes)
        found = self._zeros.at(self.form.block_of(segment) * COLUMNS).load(column, lanes)
        return self.k.cast(self.k.cast(found, i32), f32) if found.dtype.is_integer else found

    def zero_code(self, segment: Val, column: Val | int, lanes: int) -> Val:
        """The zero points as i32, where they are codes."""
        if self._zeros is None:
            return self.k.const(self.form.middle, i32, lanes)
        found = self._zeros.at(self.form.block_of(segment) * COLUMNS).load(column, lanes)
        return self.k.cast(found, i32)

    def prefetch(self, segment: Val, column: Val, width: int) -> None:
        """Prefetch what ``width`` columns need of a later segment. A scale for each segment takes a fifth of the bytes
        of 4-bit codes in blocks of 32."""
        size, columns = self.form.segment_nbytes, width * WORD_NBYTES
        ahead = max(AHEAD_NBYTES // size, 1)
        codes = self.codes.at((segment + ahead) * size)
        for row in range(0, size, COLUMNS * WORD_NBYTES):
            for line in range(0, columns, LINE_NBYTES):
                codes.prefetch(column * WORD_NBYTES + row + line, locality=3)
        if self.form.block == 1:
            scales = self._scales.at((segment + ahead) * COLUMNS + column)
            for line in range(0, width, LINE_NBYTES * 8 // scales.dtype.bits):
                scales.prefetch(line, locality=3)

    def decode(self, start: Val, length: Val, column: Val, width: int, to: Buf) -> None:
        """Rows in f32, ``width`` neighbouring columns one after the other: ``length`` rows from ``start`` on, a multiple
        of ``UNIT``. Rows up to the next such multiple are written too."""
        k, form, lanes = self.k, self.form, min(self.k.lanes, width)
        stop = start + length
        with k.loop(start // form.segment, (stop + (form.segment - 1)) // form.segment) as s:
            top = s * form.segment
            first, last = k.max(start - top, 0), k.min(stop - top, form.segment)
            for v in range(0, width, lanes):
                scale, zero = (read(s, column + v, lanes) for read in (self.scale, self.zero))
                with k.loop(first // form.rows, (last + (form.rows - 1)) // form.rows) as i:
                    words, rows = self.words(s, i, column + v, lanes), to.at((top - start + i * form.rows) * width + v)
                    for r in range(form.rows):
                        rows.store(r * width, (k.cast(form.code(k, words, r), f32) - zero) * scale)


# -- which constants are weights in blocks


class _Source(Record):
    """Where a quantized constant has the elements of B: row i and column j of each tensor are at
    ``first + i * row + j * column``."""

    known: Quantized
    codes: tuple[int, int, int]
    factors: tuple[int, int, int]
    """Of scales and zero points, with blocks as rows."""
    block: int
    """Rows of a block; 0: one scale for a whole column."""


def refusal(p: Problem, analysis: Analysis) -> Refusal | None:
    """Why B is not a weight in blocks that kernels read as one."""
    found = _source(p)
    return found if isinstance(found, Refusal) else None


def _source(p: Problem) -> _Source | Refusal:
    tensor = p.weight
    known = None if tensor is None else tensor.quantized
    if tensor is None or known is None:
        return Refusal("B is no dequantized constant")
    if any(stride != 0 for stride in p.b.batch):
        return Refusal("B is a batch of dequantized matrices")
    k, n, offset, row, column = (int(size) for size in (p.k, p.n, p.b.offset, p.b.row, p.b.column))  # type: ignore[arg-type]
    if k * n < LEAST_ELEMENTS:
        return Refusal(f"so small a weight is dequantized once: {k} x {n}")
    strides = _dense(tensor.shape)
    where = [offset // s % d for s, d in zip(strides, tensor.shape, strict=True)]
    rows, columns = (_axis(tensor.shape, strides, step) for step in (row, column))
    if rows is None or columns is None or rows == columns:
        return Refusal("rows and columns of B are no axes of the dequantized constant")
    codes = offset, row, column
    if known.scale.size == 1:
        return _Source(known, codes, (0, 0, 0), 0)
    if not known.block:
        if known.axis != columns:
            return Refusal("scales differ along k, without blocks")
        return _Source(known, codes, (where[columns], 0, 1), 0)
    if known.axis != rows:
        return Refusal("blocks lie across the columns")
    steps = _dense(known.scale.shape)
    first = sum(s * (i // known.block if a == rows else i) for a, (i, s) in enumerate(zip(where, steps, strict=True)))
    if where[rows] % known.block:
        return Refusal("B begins inside a block")
    if k > known.block and known.block % UNIT:
        return Refusal(f"blocks of {known.block} rows, no multiple of {UNIT}")
    return _Source(known, codes, (first, steps[rows], steps[columns]), known.block if k > known.block else 0)


def _dense(shape: Sequence[int]) -> list[int]:
    return [count(shape[i + 1 :]) for i in range(len(shape))]


def _axis(shape: Sequence[int], strides: Sequence[int], step: int) -> int | None:
    return next((i for i, (d, s) in enumerate(zip(shape, strides, strict=True)) if s == step and d > 1), None)


# -- packing


def weight(p: Problem, analysis: Analysis) -> Weight:
    """B packed; it must not be refused."""
    source = _source(p)
    assert isinstance(source, _Source)
    known, k, n = source.known, int(p.k), int(p.n)  # type: ignore[arg-type]
    q, isa = known.q, analysis.isa
    bits = max(q.dtype.bits, 4)
    is_signed = bits == 8 and isa.name == "neon"
    offset = _shift(q.dtype, is_signed)
    zero = None if known.zero is None else known.zero
    zero_type = None if zero is None else zero.dtype if zero.dtype.is_float else (i8 if is_signed else u8)
    segment = _segment(source.block, k)
    blocks = -(-k // source.block) if source.block else 1
    form = BlockFormat(
        bits, is_signed, segment, source.block // segment, known.scale.dtype, zero_type, 0 if zero_type else offset
    )
    held = (
        _codes(source, form, k, n, isa), _factors(p, source, known.scale, blocks, isa),
        None if zero is None or zero_type is None else _zeros(source, zero, zero_type, offset, n, blocks),
    )  # fmt: skip
    codes, scales, zeros = (None if s is None else analysis.panels.setdefault(s.key, s) for s in held)
    assert codes is not None and scales is not None
    return Weight(form, codes, scales, zeros, blocks)


def _shift(dtype: DType, is_signed: bool) -> int:
    """What is added to integers of a type to make them codes."""
    least = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    return -128 - least if is_signed else -least


def _segment(block: int, k: int) -> int:
    """The rows of a segment: the largest that divides a block."""
    if not block:
        return min(-(-k // UNIT) * UNIT, MAX_SEGMENT)
    return next(size for size in range(MAX_SEGMENT, 0, -UNIT) if block % size == 0)


def _factors(p: Problem, source: _Source, tensor: Tensor, blocks: int, isa: Isa) -> Packed:
    """Scales in panels."""
    first, row, column = source.factors
    given = Storage("constant", tensor.dtype, tensor.size, p.b.storage.value, tensor)
    made = replace(p, batch=(), k=blocks, b=Matrix(given, first, (), row, column))
    _, found = packed_b(made, tensor.dtype, COLUMNS, isa)
    assert isinstance(found.storage, Packed)
    return found.storage


def _zeros(source: _Source, tensor: Tensor, dtype: DType, offset: int, n: int, blocks: int) -> Packed:
    """Zero points in panels, those of integers as codes."""
    panels = -(-n // COLUMNS)
    elements = panels * blocks * COLUMNS
    first, row, column = source.factors

    def make() -> Array:
        rows, columns = np.ogrid[:blocks, :n]
        given = tensor.numpy().reshape(-1)[first + rows * row + columns * column]
        made, whole = aligned(elements, dtype), np.zeros((blocks, panels * COLUMNS), np.float32)
        whole[:, :n] = given.astype(np.float32) + np.float32(offset)
        made.reshape(panels, blocks, COLUMNS)[...] = whole.reshape(blocks, panels, COLUMNS).swapaxes(0, 1)
        return made

    key = ("zeros", identity(tensor), source.factors, dtype.name, offset, n, blocks)
    return Packed("constant", dtype, elements, key=key, make=make)


def _codes(source: _Source, form: BlockFormat, k: int, n: int, isa: Isa) -> Packed:
    q, (first, row, column) = source.known.q, source.codes
    tensor = _bytes(q)
    spec = pack_codes(form=form, bits=q.dtype.bits, flip=_flip(q.dtype, form), unit=_unit(q.dtype.bits, source.codes))
    numbers = {"first": first, "row": row, "column": column, "depth": k, "columns": n}
    elements = -(-n // COLUMNS) * form.segments(k) * form.segment_nbytes
    packing = Packing(tensor, 0, spec, isa, numbers, elements, u8)
    return Packed("constant", u8, elements, key=packing.key, make=packing, packing=packing)


def _bytes(q: Tensor) -> Tensor:
    """The bytes of integers as ONNX stores them."""
    if q.dtype.bits == 8 or q.packed is not None:
        return q.packed or q
    bits = q.dtype.bits

    def pack() -> Array:
        codes = q.peek().reshape(-1).view(np.uint8) & np.uint8(2**bits - 1)
        parts = np.pad(codes, (0, -codes.size % (8 // bits))).reshape(-1, 8 // bits)
        return np.bitwise_or.reduce(parts << np.arange(0, 8, bits, dtype=np.uint8), axis=1)

    shape = (q.dtype.nbytes(q.size),)
    return Tensor(dtypes.u8, shape, pack, view=pack, origin=("packed", identity(q)))


def _flip(dtype: DType, form: BlockFormat) -> int:
    """What turns the integers of a word into codes, by exclusive or."""
    is_flipped = (dtype.kind == "int") != form.is_signed
    each = (1 << (dtype.bits - 1)) if is_flipped else 0
    return sum(each << at for at in range(0, 32, form.bits))


ALONG_K, ALONG_N, APART = "k", "n", "apart"


def _unit(bits: int, codes: tuple[int, int, int]) -> str:
    """Which of the fast ways to read the integers there is."""
    first, row, column = codes
    whole = 32 // bits
    if bits >= 4 and row == 1 and first % whole == 0 and column % whole == 0:
        return ALONG_K
    return ALONG_N if bits >= 4 and column == 1 and first % (8 // bits) == 0 and row % (8 // bits) == 0 else APART


def _params(form: BlockFormat, bits: int, flip: int, unit: str) -> Params:
    return {"x": (u8,), "y": (u8,), **dict.fromkeys(("first", "row", "column", "depth", "columns"), i64)}


@kernel(_params)
def pack_codes(
    k: Kernel, x: Buf, y: Buf, first: Val, row: Val, column: Val, depth: Val, columns: Val,
    *, form: BlockFormat, bits: int, flip: int, unit: str,
) -> None:  # fmt: skip
    """The codes of x, whose integers are of ``bits`` bits: row i and column j is number first + i * row + j * column."""
    words = (depth + (form.segment - 1)) // form.segment * (form.segment // form.rows)
    half, to = COLUMNS // 2, y.as_type(u32)
    with k.share((columns + (COLUMNS - 1)) // COLUMNS) as panel, k.loop(0, words) as i, k.loop(0, 2) as side:
        left, top = panel * COLUMNS + side * half, i * form.rows
        start = first + top * row + left * column
        existing = k.max(k.min(columns - left, half), 0)
        found = k.var(k.zeros(u32, half))
        with k.when(top < depth):
            if unit == ALONG_K:
                lanes = k.min(k.iota(i64, half), existing - 1)
                with k.when(existing > 0):
                    at = x.at(start // (8 // bits)).as_type(u32)
                    given = at.gather(lanes * (column // (32 // bits)))
                    found.set(_in_places(given, bits))
            elif unit == ALONG_N:
                for r in range(form.rows):
                    there = k.select(top + r < depth, existing, 0)
                    codes = _neighbours(k, x.at((start + r * row) // (8 // bits)), there, bits, half)
                    found.set(found.get() | (codes << _bit(form, r)))
            else:
                local = k.local(u32, half)
                with k.loop(0, existing) as j:
                    word = k.var(k.zeros(u32))
                    for r in range(form.rows):
                        at = (start + r * row + j * column) * bits
                        code = k.cast(x.load(at // 8, mask=top + r < depth), u32) >> k.cast(at % 8, u32)
                        word.set(word.get() | ((code & (2**bits - 1)) << _bit(form, r)))
                    local.store(j, word.get())
                found.set(local.load(0, half))
        to.store((panel * words + i) * COLUMNS + side * half, found.get() ^ flip)


def _bit(form: BlockFormat, row: int) -> int:
    quad, place = divmod(row, QUAD)
    return PLACES.index(place) * 8 + quad * 4


def _in_places(words: Val, bits: int) -> Val:
    """Words of codes in the order of their rows, in the order of ``PLACES``."""
    if bits == 8:
        moved = (words ^ (words >> 8)) & 0x0000_FF00
        return words ^ (moved | (moved << 8))
    moved = (words ^ (words >> 12)) & 0x0000_F0F0
    return words ^ (moved | (moved << 12))


def _neighbours(k: Kernel, x: Buf, existing: Val, bits: int, lanes: int) -> Val:
    """Codes of neighbouring columns, one in each lane."""
    if bits == 8:
        return k.cast(x.load(0, lanes, k.mask(existing, lanes)), u32)
    pairs = x.load(0, lanes // 2, k.mask((existing + 1) // 2, lanes // 2))
    both = k.cast(pairs.shuffle([i // 2 for i in range(lanes)]), u32)
    shifts = k.select(k.iota(u32, lanes) % 2 > 0, k.const(4, u32, lanes), k.zeros(u32, lanes))
    return (both >> shifts) & 15

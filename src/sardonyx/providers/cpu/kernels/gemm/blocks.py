"""Weights in blocks: constants of small integers, with a scale for each block of a column, in the layout of kernels.

The operand is a constant of reals that knows what it is computed from (``Tensor.quantized``): w = (q - zero) * scale.
Three arrays take its place in memory, each packed from one tensor, in panels of 32 columns:

    codes    [n / 32][k / SEGMENT][SEGMENT / 8 (or 4)][32 columns][4 bytes]
    scales   [n / 32][block][32 columns]
    zeros    [n / 32][block][32 columns]    (none where all are the same)

A **code** is q as an unsigned number, or signed where the chip multiplies signed bytes. A word of four bytes holds
eight codes of 4 bits (2-bit ones are widened) along k of one column, or four of 8 bits. Byte b holds the code of row
``PLACES[b]`` of a quad in its low half, and that of the next quad in its high half. So one mask leaves a quad of bytes
(``quads``), for dot products; bits 0 to 15 and 16 to 31, shifted alike, hold rows 2i and 2i + 1, for rows of tiles.

A **segment** is what is summed before it is scaled: a block, or a part of one, of at most ``MAX_SEGMENT`` rows. The
last segment is filled up with codes that nothing depends on; rows of A beyond k count as zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.kernels.common.epilogue import Epilogue, EpilogueArgs
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, MatrixArgs
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, f32, i8, i32, i64, u8, u32
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.records import Record

Array = np.ndarray[Any, Any]

COLUMNS = 32
"""Columns of a panel."""
QUAD, WORD_NBYTES = 4, 4
PLACES = (0, 2, 1, 3)
"""The row of a quad that each byte of a word holds."""
MAX_SEGMENT, UNIT = 128, 16
"""Rows of a segment, at most, and what they are a multiple of. Sums of 128 products of bytes are exact in f32."""
AHEAD_NBYTES = 4096
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

    def bit(self, row: int) -> int:
        """Where the code of a row begins in a word."""
        quad, place = divmod(row, QUAD)
        return PLACES.index(place) * 8 + quad * 4

    def code(self, k: Kernel, words: Val, row: int) -> Val:
        """The code of one row of a word, as i32."""
        at = self.bit(row)
        if self.is_signed:
            return (k.bitcast(words, i32) << (24 - at)) >> 24
        return k.bitcast((words >> at) & ((1 << self.bits) - 1), i32)

    def real_code(self, k: Kernel, words: Val, row: int) -> Val:
        """The code of one row of a word, as f32."""
        if self.bits == 4 and words.lanes == 16 and k.isa.name in ("amx", "avx512") and not k.isa.is_emulated:
            table, at = k.cast(k.iota(i32, 16), f32), k.bitcast(words >> self.bit(row), i32)
            return k.intrinsic("llvm.x86.avx512.permvar.sf.512", [table, at], f32, 16)
        return k.cast(self.code(k, words, row), f32)

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
        """Rows in f32, ``width`` neighbouring columns one after the other: ``length`` rows from ``start`` on, a
        multiple of ``UNIT``. Rows up to the next such multiple are written too."""
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
                        code = form.real_code(k, words, r)
                        found = code if form.zero is None and not form.middle else code - zero
                        rows.store(r * width, found * scale)

"""Matrix tiles: eight registers of 16 rows of 64 bytes, and products of bf16 pairs and of bytes between them.

    zero(t)               t = 0
    load(t, p, stride)    row r of t = the 64 bytes at p + r * stride; if ``is_non_temporal``, L1 keeps nothing new
    store(t, p, stride)   the reverse
    dot_bf16(c, a, b)     c[m, n] += sum over j of a[m, 2j] b[j, 2n] + a[m, 2j+1] b[j, 2n+1]
    dot_bytes(c, a, b)    c[m, n] += sum over j and i < 4 of a[m, 4j+i] b[j, 4n+i], in i32

``dot_bf16`` sums the even and the odd products of a row in f32 accumulators of their own, fused, adds the two, and adds
that to c; denormals count as zero wherever they come or go. Where the chip has no tiles, ordinary vectors do the same,
bit for bit, on tiles that lie on the stack: a kernel written with tiles runs everywhere.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.text import I8
from sardonyx.providers.cpu.language.values import Buf, Operand, Val, f32, i8, i32, i64, u8, u32

COUNT, ROWS, ROW_NBYTES = 8, 16, 64
NBYTES = ROWS * ROW_NBYTES
PAIRS = QUADS = LANES = 16
"""Pairs of bf16, groups of four bytes, or 32-bit elements in a row."""

_CONFIGURATION_WORDS, _ROWS_AT = 8, 48
"""The 64-byte tile configuration, and the offset of the row counts, a byte each."""
_SIGN, _EXPONENT, HIGH_HALF = 0x8000_0000, 0x7F80_0000, 0xFFFF_0000


def _configuration(count: int) -> tuple[int, ...]:
    """Palette 1: 64 bytes a row and 16 rows for each of the first tiles."""
    content = bytearray(_CONFIGURATION_WORDS * 8)
    content[0] = 1
    for t in range(count):
        content[16 + 2 * t], content[_ROWS_AT + t] = ROW_NBYTES, ROWS
    return struct.unpack(f"<{_CONFIGURATION_WORDS}q", content)


class Tiles:
    """The tile registers of one kernel, from ``configure`` to ``release``."""

    def __init__(self, k: Kernel) -> None:
        assert k.isa.amx, f"{k.isa.name} has no tiles"
        self.k = k
        self._stack = k.local(i8, COUNT * NBYTES) if k.isa.is_emulated else None
        self._rows: dict[int, Val] = {}
        self._count = 0
        """Configured tiles: the chip faults on others."""

    def configure(self, rows: Operand = ROWS, short: Sequence[int] = (), count: int = COUNT) -> None:
        """Configure the first ``count`` tiles, ``short`` of them with only ``rows`` rows, and zero them.

        Products of short tiles take less time; loads and stores touch these rows only. The chip faults on a tile
        without rows, so ``rows`` of 0, of an empty operand, counts as 1.
        """
        assert all(t < count for t in short), f"{short} are not among the first {count} tiles"
        high = self.k.max(self.k.value(rows, i64), 1)
        if self.k.checked:
            self.k.refuse(high > ROWS, high)
        self._rows, self._count = dict.fromkeys(short, high), count
        words = self.k.local(i64, _CONFIGURATION_WORDS)
        for i, word in enumerate(_configuration(count)):
            words.store(i, word)
        for t in short:
            words.as_type(u8).store(_ROWS_AT + t, self.k.cast(high, u8))
        self._take(words)

    def _take(self, words: Buf) -> None:
        """Load a tile configuration of 64 bytes."""
        if self._stack is None:
            self.k.call("llvm.x86.ldtilecfg", words.ptr)
        else:
            for t in range(self._count):
                self.zero(t)

    def release(self) -> None:
        if self._stack is None:
            self.k.call("llvm.x86.tilerelease")

    def zero(self, t: int) -> None:
        assert t < self._count
        if self._stack is None:
            self.k.call("llvm.x86.tilezero", I8(t))
        else:
            self._carry_out("tile_zero", _zero, self._tile(t))

    def load(self, t: int, source: Buf, stride_nbytes: Operand = ROW_NBYTES, *, is_non_temporal: bool = False) -> None:
        self._check(t, source, stride_nbytes)
        stride = self.k.value(stride_nbytes, i64)
        if self._stack is None:
            self.k.call(
                "llvm.x86.tileloaddt164" if is_non_temporal else "llvm.x86.tileloadd64", I8(t), source.ptr, stride.ir
            )
        else:
            numbers = stride.pointer(), self._high(t).pointer()
            self._carry_out("tile_load", _load, self._tile(t), source.ptr, *numbers)

    def store(self, t: int, target: Buf, stride_nbytes: Operand = ROW_NBYTES) -> None:
        self._check(t, target, stride_nbytes)
        stride = self.k.value(stride_nbytes, i64)
        if self._stack is None:
            self.k.call("llvm.x86.tilestored64", I8(t), target.ptr, stride.ir)
        else:
            numbers = stride.pointer(), self._high(t).pointer()
            self._carry_out("tile_store", _store, self._tile(t), target.ptr, *numbers)

    def dot_bf16(self, c: int, a: int, b: int) -> None:
        self._match(c, a, b)
        if self._stack is None:
            self.k.call("llvm.x86.tdpbf16ps", I8(c), I8(a), I8(b))
        else:
            self._carry_out("tile_dot_bf16", _dot_bf16, *(self._tile(t) for t in (c, a, b)))

    def dot_bytes(self, c: int, a: int, b: int, a_dtype: DType, b_dtype: DType) -> None:
        """For signed or unsigned bytes, by the types of ``a`` and ``b``."""
        self._match(c, a, b)
        kind = "".join("u" if t is u8 else "s" for t in (a_dtype, b_dtype))
        if self._stack is None:
            self.k.call(f"llvm.x86.tdpb{kind}d", I8(c), I8(a), I8(b))
        else:
            body = partial(_dot_bytes, a_dtype=a_dtype, b_dtype=b_dtype)
            self._carry_out(f"tile_dot_{kind}", body, *(self._tile(t) for t in (c, a, b)))

    def _match(self, c: int, a: int, b: int) -> None:
        """Check the shapes, on which the chip would fault: sums have the rows of ``a``, and ``b`` a row for each group
        of its columns."""
        assert max(c, a, b) < self._count and b not in self._rows, (c, a, b)
        assert (c in self._rows) == (a in self._rows), f"tiles {c} and {a} have different rows"

    # -- what the chip does, in ordinary instructions

    def _tile(self, t: int) -> Any:
        assert self._stack is not None
        return self._stack.at(t * NBYTES).ptr

    def _high(self, t: int) -> Val:
        """The rows of a tile."""
        return self._rows.get(t, self.k.const(ROWS))

    def _carry_out(self, name: str, body: Any, *args: Any) -> None:
        self.k.b.call(self.k.subroutine(name, len(args), body), args)

    def _check(self, t: int, memory: Buf, stride_nbytes: Operand) -> None:
        """Bounds check of a load or store: all rows lie between the first and the last."""
        assert t < self._count
        start, end = memory.start, memory.end
        if not self.k.checked or start is None or end is None:
            return
        rows = memory.as_type(i8)
        for row in (rows, rows.at(self.k.value(stride_nbytes, i64) * (self._high(t) - 1))):
            self.k.check_address(row.ptr, start, end, ROW_NBYTES, 1, None)


def _zero(t: Buf) -> None:
    words, zeros = t.as_type(u32), t.k.zeros(u32, LANES)
    with t.k.loop(0, ROWS) as r:
        words.store(r * LANES, zeros)


def _load(t: Buf, source: Buf, stride: Buf, rows: Buf) -> None:
    with t.k.loop(0, rows.address()) as r:
        t.as_type(u32).store(r * LANES, source.at(r * stride.address()).as_type(u32).load(0, LANES))


def _store(t: Buf, target: Buf, stride: Buf, rows: Buf) -> None:
    with t.k.loop(0, rows.address()) as r:
        target.at(r * stride.address()).as_type(u32).store(0, t.as_type(u32).load(r * LANES, LANES))


def _dot_bf16(c: Buf, a: Buf, b: Buf) -> None:
    k, sums = c.k, c.as_type(f32)
    with k.loop(0, ROWS) as m:
        even, odd = (k.var(k.zeros(f32, LANES)) for _ in range(2))
        with k.loop(0, PAIRS) as j:
            x, y = a.as_type(u32).load(m * PAIRS + j), b.as_type(u32).load(j * LANES, LANES)
            for x_half, y_half, total in ((x << 16, y << 16, even), (x & HIGH_HALF, y & HIGH_HALF, odd)):
                left = k.splat(real(k, x_half), LANES)
                total.set(flushed(k, k.fma(left, real(k, y_half), total.get())))
        at = m * LANES
        pair = flushed(k, even.get() + odd.get())
        sums.store(at, flushed(k, flushed(k, sums.load(at, LANES)) + pair))


def _dot_bytes(c: Buf, a: Buf, b: Buf, *, a_dtype: DType, b_dtype: DType) -> None:
    k, sums = c.k, c.as_type(i32)
    with k.loop(0, ROWS) as m:
        total = k.var(sums.load(m * LANES, LANES))
        with k.loop(0, QUADS) as j:
            quads = b.as_type(b_dtype).load(j * ROW_NBYTES, ROW_NBYTES)
            for i in range(4):
                x = k.cast(a.as_type(a_dtype).load(m * ROW_NBYTES + j * 4 + i), i32)
                total += k.cast(quads.shuffle(range(i, ROW_NBYTES, 4)), i32) * k.splat(x, LANES)
        sums.store(m * LANES, total)


def real(k: Kernel, bits: Val) -> Val:
    """Bits as f32, with denormals flushed to zero."""
    return k.bitcast(k.select((bits & _EXPONENT).eq(0), bits & _SIGN, bits), f32)


def flushed(k: Kernel, v: Val) -> Val:
    return real(k, k.bitcast(v, u32))

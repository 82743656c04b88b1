"""Which constants are weights in blocks (``gemm.blocks``), and how they are packed.

Codes, scales and zero points are packed from one tensor each, codes and scales by kernels, so that a later start reads
them from the file of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.ir.quantized import Quantized
from sardonyx.ir.shape import count
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, Problem
from sardonyx.providers.cpu.kernels.gemm.blocks import (
    COLUMNS,
    MAX_SEGMENT,
    UNIT,
    BlockFormat,
    BlocksArgs,
)
from sardonyx.providers.cpu.kernels.gemm.pack import packed_b
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i8, i64, u8, u32
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.prepack import Packing, aligned
from sardonyx.providers.cpu.program.steps import Packed, Ref
from sardonyx.providers.cpu.program.variants import Refusal
from sardonyx.records import Record, replace

Array = np.ndarray[Any, Any]

LEAST_ELEMENTS = 1 << 14
"""Weights with fewer elements are dequantized once: they stay in the caches."""
LEAST_SCALE, MOST_ZERO = 2.0**-90, 2.0**40
"""Bounds of scales and of zero points: scales of lifted sums (``split.bf16``) are no denormals, and sums are floats."""


class Weight(Record):
    """A weight in blocks, packed."""

    form: BlockFormat
    codes: Storage
    scales: Storage
    zeros: Storage | None
    blocks: int

    @property
    def operand(self) -> BlocksArgs[Ref, Known]:
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
    if isinstance(found, Refusal):
        return found
    known = found.known
    factors = known.scale, *(() if known.zero is None else (known.zero,))
    if not all(np.isfinite(t.peek().astype(np.float32, copy=False)).all() for t in factors if t.dtype.is_float):
        return Refusal("scales or zero points are not finite")
    scale = np.abs(known.scale.peek().astype(np.float32, copy=False))
    if np.any((scale < LEAST_SCALE) & (scale != 0)):
        return Refusal(f"a scale is below {LEAST_SCALE:.0e}")
    zero = known.zero
    if zero is not None and zero.dtype.is_float and np.any(np.abs(zero.peek().astype(np.float32)) > MOST_ZERO):
        return Refusal(f"a zero point is above {MOST_ZERO:.0e}")
    return None


def _source(p: Problem) -> _Source | Refusal:
    tensor = p.weight
    known = None if tensor is None else tensor.quantized
    if tensor is None or known is None:
        return Refusal("B is no dequantized constant")
    if any(stride != 0 for stride in p.b.batch):
        return Refusal("B is a batch of dequantized matrices")
    k, n, offset, row, column = (_known(size) for size in (p.k, p.n, p.b.offset, p.b.row, p.b.column))
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


def _known(size: Known) -> int:
    assert isinstance(size, int)  # the sizes of a constant operand
    return size


def _dense(shape: Sequence[int]) -> list[int]:
    return [count(shape[i + 1 :]) for i in range(len(shape))]


def _axis(shape: Sequence[int], strides: Sequence[int], step: int) -> int | None:
    return next((i for i, (d, s) in enumerate(zip(shape, strides, strict=True)) if s == step and d > 1), None)


# -- packing


def weight(p: Problem, analysis: Analysis) -> Weight:
    """B packed; it must not be refused."""
    source = _source(p)
    assert isinstance(source, _Source)
    known, k, n = source.known, _known(p.k), _known(p.n)
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
        made: Array = np.bitwise_or.reduce(parts << np.arange(0, 8, bits, dtype=np.uint8), axis=1)
        return made

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
    """The codes of x, which has integers of ``bits`` bits: row i, column j is number first + i * row + j * column."""
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
                    rows = x.at(start // (8 // bits)).as_type(u32)
                    given = rows.gather(lanes * (column // (32 // bits)))
                    found.set(_in_places(given, bits))
            elif unit == ALONG_N:
                for r in range(form.rows):
                    there = k.select(top + r < depth, existing, 0)
                    codes = _neighbours(k, x.at((start + r * row) // (8 // bits)), there, bits, half)
                    found.set(found.get() | (codes << form.bit(r)))
            else:
                local = k.local(u32, half)
                with k.loop(0, existing) as j:
                    word = k.var(k.zeros(u32))
                    for r in range(form.rows):
                        at = (start + r * row + j * column) * bits
                        code = k.cast(x.load(at // 8, mask=top + r < depth), u32) >> k.cast(at % 8, u32)
                        word.set(word.get() | ((code & (2**bits - 1)) << form.bit(r)))
                    local.store(j, word.get())
                found.set(local.load(0, half))
        to.store((panel * words + i) * COLUMNS + side * half, found.get() ^ flip)


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

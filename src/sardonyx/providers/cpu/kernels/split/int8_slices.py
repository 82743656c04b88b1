"""Ozaki split: f32 operands as three int8 slices and a scale for each line and K-block.

A number is its scale times s0 + s1 / 256 + s2 / 65536 with signed bytes s. The scale is chosen so that the largest
number of a K-block (up to ``MAX_BLOCK_STEPS`` steps of 64 along k of one row of A or column of B) has s0 = 127.5: each
number is kept to 2^-24 of the largest one of its block. Products of slices are summed exactly in i32. Where the
numbers of a block have similar magnitudes, results are as accurate as those of f32 multiply-adds.

    A   [m / 16][k / 64][slice][16 rows][64 k], then fourth slices [m / 16][k / 64][16 rows][64 k]
    B   [n / 32][k / 64][slice][2][16 fours of k][16 columns][4], then the scales [n / 32][K-block][32]

**Tiny numbers.** Before it is sliced, a K-block is multiplied by the power of two that brings its largest number to
between 1 and 2, so that nothing becomes a denormal on the way; only the scale says how small the numbers were. Scales
of A are kept ``BALANCE`` times too large and those of B as much too small, so that the scale of a block of denormals is
not itself one. A network whose activations fade, down to the smallest denormal, thus has slices in every layer.

**Outliers.** A number much larger than the rest of its block would take precision away from the others. Where the
largest number of a K-block of A exceeds ``FOURTH_RATIO`` times the mean magnitude of the others (zeros excluded), its
16 rows get a fourth slice, which costs one more product; the ``fourth`` flags tell which. Constants with outliers in
their columns, with rows much smaller than the others, or with K-blocks that are half zeros are not sliced
(``Unrepresentable``).

**Representable range.** Infinities, NaN, blocks with an extremely large number, and outliers too large even for four
slices (``MAX_RATIO``) set a flag for their 16 rows and K-block; the GEMM recomputes these in f32. A constant has no
block whose largest number is extremely small, either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import partial, reduce
from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.kernels.common.matrices import Problem
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.math.transpose import bytes_in_lanes
from sardonyx.providers.cpu.kernels.split.bf16 import HALF, PANEL, k_block_steps
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, Var, f32, i8, i32, i64, u8, u32
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.constants import identity
from sardonyx.providers.cpu.program.prepack import Packing
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step, Unrepresentable
from sardonyx.records import Record

Array = np.ndarray[Any, Any]

STEP, SLICES, TILE = 64, 3, 1024
"""Numbers of a line that a step covers, slices of each, and bytes of a tile."""
MAX_BLOCK_STEPS = 4
"""Most steps of a K-block: 32 columns take 24 KiB, half of L1."""
FOURTH_RATIO, MAX_RATIO = 12.0, 4096.0
"""Largest number of a K-block of A over the mean magnitude of the others: most with three slices, and with four.
(Normal numbers have 4.)"""
MAX_CREST = 12.0
"""Most that a number of B may exceed the root mean square of its K-block. (Normal numbers have 4, trained ones up to
10.)"""
MAX_ROW_RATIO = 16.0
"""The factor by which a constant's row may be smaller than the root mean square of its rows."""

_TOP = {i8: 127.49 * 65536, u8: 255.49 * 65536}
"""The largest number of a K-block in units of its last slice, by the type of leading slices."""
_LEAST, _MOST = (int(np.float32(x).view(np.uint32)) for x in (2.0**-60, 2.0**60))
"""Range of the largest number of a K-block, as bits: the square of a constant's must be a float, as must the sum of a
K-block times a scale of A."""
BALANCE = 2.0**32
"""The factor by which scales of A are too large, and those of B too small. That of the smallest denormal is then a
normal number, and so is that of the smallest constant."""
_ABS, _EXPONENT, _SMALLEST_NORMAL = 0x7FFF_FFFF, 0x7F80_0000, 0x0080_0000
_ONE = 0x3F80_0000
_NEGLIGIBLE = 40 << 23
"""Numbers 2^-40 times the largest of their K-block have slices of zero. They are set to zero first: their multiples
would be denormals, which cost hundreds of cycles."""


def block_steps(depth: int) -> int:
    """Steps of a K-block."""
    return k_block_steps(-(-depth // STEP), MAX_BLOCK_STEPS)


def has_no_scale(largest: Val) -> Val:
    """Whether K-blocks with these largest numbers, as bits, cannot be sliced: infinite, NaN or extremely large."""
    return largest >= _MOST


class Scale:
    """Slices the numbers of a K-block, or of one K-block in each lane, given the bits of its largest number."""

    def __init__(self, k: Kernel, largest: Val, first: DType = i8, balance: float = BALANCE) -> None:
        """``first``: the type of leading slices, unsigned if no number is negative."""
        self.k = k
        bits = k.select(largest.eq(0) | has_no_scale(largest), _ONE, largest)
        power = k.max(bits & _EXPONENT, _SMALLEST_NORMAL)
        """The power of two at or below the largest number, as bits."""
        self.lift = k.bitcast(2 * _ONE - power, f32)
        """The reciprocal of that power of two."""
        self.least = k.max(power, _NEGLIGIBLE) - _NEGLIGIBLE
        """Smaller numbers, as bits, have slices of zero, even the fourth one."""
        self.unit = k.bitcast(bits, f32) * self.lift * (1 / _TOP[first])
        self.inverse = 1.0 / self.unit
        self.value = k.select(largest.eq(0), 0.0, self.unit * (65536.0 * balance) * k.bitcast(power, f32))
        """The value of a leading slice of 1, times ``balance``."""

    def words(self, v: Val, *, has_fourth: bool = False) -> Val:
        """The slices of numbers as the bytes of 32-bit words, the last slice in the lowest byte: three slices, or four.

        The quotient is correctly rounded: an error of the inverse would be common to all numbers of a K-block.
        """
        k, lanes = self.k, v.lanes
        given = self.unit, self.inverse, self.lift, self.least
        unit, inverse, lift, least = (x if x.lanes == lanes else k.splat(x, lanes) for x in given)
        v = k.select((k.bitcast(v, u32) & _ABS) >= least, v, 0.0) * lift
        about = v * inverse
        rounded = k.rint(k.fma(k.fma(-about, unit, v), inverse, about))
        last, half = k.to_i32(rounded), 0x8080
        if has_fourth:
            last, half = (last << 8) + k.to_i32(k.rint(k.fma(-rounded, unit, v) * inverse * 256.0)), 0x80_8080
        return (last + half) ^ half  # signed bytes: one of 128 or more carries into the byte above

    def step(self, numbers: Sequence[Val], *, has_fourth: bool = False) -> list[Val]:
        """The slices of 64 numbers, 16 in a vector, as vectors of 64 bytes, the first slice first.

        Bytes are gathered by shuffles, with three stores instead of twelve.
        """
        k = self.k
        rows = [k.bitcast(self.words(v, has_fourth=has_fourth), u8) for v in numbers]
        words = [bytes_in_lanes(k, row, _BY_BYTE) for row in rows]
        a, b, c, d = (k.bitcast(word, u32) for word in words)
        found = []
        for first in (0, 2):  # the lower two bytes, and the upper two
            pairs = [4 * lane + first + i + of for lane in range(4) for i in (0, 1) for of in (0, HALF)]
            left, right = a.shuffle(pairs, b), c.shuffle(pairs, d)
            for i in (0, 2):
                all_four = [4 * lane + i + j + of for of in (0, HALF) for j in (0, 1) for lane in range(4)]
                found.append(k.bitcast(left.shuffle(all_four, right), u8))
        return found[::-1] if has_fourth else found[SLICES - 1 :: -1]


_BY_BYTE = [16 * lane + 4 * i + byte for lane in range(4) for byte in range(4) for i in range(4)]
"""The bytes of four words of a lane of 128 bits: lowest ones, then the next."""


def _keep_largest(k: Kernel, largest: Var, v: Val) -> None:
    """Update the largest magnitude of each lane, as bits."""
    largest.set(k.max(largest.get(), k.bitcast(v, u32) & _ABS))


class Magnitudes:
    """The largest of many magnitudes, and the sum of the others, a vector at a time. Zeros are not counted.

    Lanes are summed separately, and only the lane with the largest magnitude subtracts it: the sums of the others do
    not round at its size.
    """

    def __init__(self, k: Kernel) -> None:
        self.k, self._largest = k, k.var(k.zeros(u32, HALF))
        self._sums, self._counts = (k.var(k.zeros(f32, HALF)) for _ in range(2))

    def add(self, v: Val) -> None:
        _keep_largest(self.k, self._largest, v)
        self._sums.set(self._sums.get() + self.k.abs(v))
        self._counts.set(self._counts.get() + self.k.select(v.ne(0.0), self.k.const(1.0, f32, HALF), 0.0))

    @property
    def top(self) -> Val:
        """The largest, as bits."""
        return self._largest.get().max()

    @property
    def count(self) -> Val:
        """How many numbers are not zero."""
        return self._counts.get().sum()

    @property
    def others(self) -> Val:
        """The sum of the other magnitudes. If several are largest, one of each lane is left out."""
        k, sums, top = self.k, self._sums.get(), self.k.splat(self.top, HALF)
        return k.select(self._largest.get().eq(top), sums - k.bitcast(top, f32), sums).sum()


def peak_to_mean(k: Kernel, top: Val, others: Val, count: Val) -> Val:
    """The ratio of the largest of ``count`` magnitudes to the mean of the others, if there are others."""
    return k.select(others > 0.0, k.bitcast(top, f32) * count / others, 0.0)


# -- the left operand


def _params() -> Params:
    numbers = ("x_row", "m", "depth", "k_block")
    return {"x": (f32,), "y": (i8,), "scales": (f32,), "fourth": (i32,), "flags": (i32,), **dict.fromkeys(numbers, i64)}


@kernel(_params)
def split_int8_slices(
    k: Kernel, x: Buf, y: Buf, scales: Buf, fourth: Buf, flags: Buf, x_row: Val, m: Val, depth: Val, k_block: Val
) -> None:
    """y, scales, fourth and flags = the slices of x, whose stride along k is 1."""
    tiles, steps = ceil_div(m, HALF), ceil_div(depth, STEP)
    k_blocks = ceil_div(steps, k_block)
    largest = k.local(u32, HALF)
    with k.share(tiles * k_blocks) as at:
        tile, first = at // k_blocks, at % k_blocks * k_block
        deep, rows = k.min(k_block * STEP, depth - first * STEP), k.min(m - tile * HALF, HALF)
        corner = x.at(tile * HALF * x_row + first * STEP)
        odd, has_fourth = k.var(k.zeros(i32)), k.var(k.zeros(i32))
        with k.loop(0, rows) as r:
            size, ratio = _measure(k, corner.at(r * x_row), deep)
            largest.store(r, size)
            odd.set(odd.get() | k.cast(has_no_scale(size) | ~(ratio <= MAX_RATIO), i32))
            has_fourth.set(has_fourth.get() | k.cast(ratio > FOURTH_RATIO, i32))
        fourth.store(at, has_fourth)
        flags.store(at, odd)
        with k.either(has_fourth.get().ne(0)) as branches:
            for branch, is_fourth in zip(branches, (True, False), strict=True):
                with branch, k.loop(0, rows) as r:
                    scale = Scale(k, largest.load(r))
                    scales.store(at * HALF + r, scale.value)
                    places = [y.at((tile * steps + first) * (SLICES * TILE) + index * TILE) for index in range(SLICES)]
                    places.append(y.at((tiles * steps * SLICES + tile * steps + first) * TILE))
                    _put_row(k, corner.at(r * x_row), [to.at(r * STEP) for to in places], deep, scale, is_fourth)


def _measure(k: Kernel, row: Buf, deep: Val) -> tuple[Val, Val]:
    """The largest number of a K-block, as bits, and its ratio to the mean magnitude of the others."""
    sizes = Magnitudes(k)
    for t in k.tiles(deep, HALF):
        sizes.add(t.keep(row.load(t), 0.0))
    return sizes.top, peak_to_mean(k, sizes.top, sizes.others, sizes.count)


def _put_row(k: Kernel, row: Buf, places: Sequence[Buf], deep: Val, scale: Scale, has_fourth: bool) -> None:
    """Stores the slices of a K-block of a row, and zeros to the end of its last step."""

    def put(s: Val, masks: Sequence[Val | None]) -> None:
        numbers = [row.load(s * STEP + j * HALF, HALF, mask) for j, mask in enumerate(masks)]
        for index, bits in enumerate(scale.step(numbers, has_fourth=has_fourth)):
            places[index].as_type(u8).store(s * (TILE * (SLICES if index < SLICES else 1)), bits)

    whole_steps = deep // STEP
    with k.loop(0, whole_steps) as s:
        put(s, [None] * (STEP // HALF))
    with k.loop(whole_steps, ceil_div(deep, STEP)) as s:
        put(s, [k.mask(deep - s * STEP - j, HALF) for j in range(0, STEP, HALF)])


# -- the right operand


def _constant_params() -> Params:
    numbers = ("x_k", "x_column", "n", "depth", "k_block")
    return {"x": (f32,), "y": (i8,), "flags": (i32,), **dict.fromkeys(numbers, i64)}


@kernel(_constant_params)
def pack_int8_slices(
    k: Kernel, x: Buf, y: Buf, flags: Buf, x_k: Val, x_column: Val, n: Val, depth: Val, k_block: Val
) -> None:
    """y = the slices and scales of a constant; a flag for each 16 columns and K-block that cannot be sliced."""
    panels, steps = ceil_div(n, PANEL), ceil_div(depth, STEP)
    k_blocks = ceil_div(steps, k_block)
    scales = scales_of(y, panels, steps)
    with k.share(panels * 2 * k_blocks) as at:
        side, first = at // k_blocks, at % k_blocks * k_block
        deep = k.min(k_block * STEP, depth - first * STEP)
        lanes = k.iota(i64, HALF) + side * HALF
        there, at_lane = lanes < n, k.min(lanes, n - 1) * x_column
        lines = x.at(first * STEP * x_k)

        def number(j: Val) -> Val:
            return k.select(there, lines.at(j * x_k).gather(at_lane), 0.0)

        largest, squares, count = k.var(k.zeros(u32, HALF)), k.var(k.zeros(f32, HALF)), k.var(k.zeros(i32, HALF))
        with k.loop(0, deep) as j:
            v = number(j)
            _keep_largest(k, largest, v)
            squares.set(k.fma(v, v, squares.get()))
            count.set(count.get() + k.cast(v.ne(0.0), i32))
        limit = k.sqrt(squares.get() / k.splat(k.cast(deep, f32), HALF)) * MAX_CREST
        is_full = count.get().eq(0) | (count.get() * 2 >= k.splat(k.cast(deep, i32), HALF))
        is_usual = (largest.get() - _LEAST < _MOST - _LEAST) | largest.get().eq(0)
        is_kept = is_usual & (k.bitcast(largest.get(), f32) <= limit) & is_full
        flags.store(at, k.cast((~is_kept).any(), i32))
        scale = Scale(k, largest.get(), balance=1 / BALANCE)
        scales.store((side // 2 * k_blocks + at % k_blocks) * PANEL + side % 2 * HALF, scale.value)
        to = y.at((side // 2 * steps + first) * (SLICES * 2 * TILE) + side % 2 * TILE).as_type(u32)
        with k.loop(0, k.min(k_block, steps - first) * HALF) as four:
            found = [k.var(k.zeros(u32, HALF)) for _ in range(SLICES)]
            with k.loop(0, 4) as i:  # a byte of each slice enters at the top
                j = four * 4 + i
                is_column = k.mask(k.select(j < deep, n - side * HALF, 0), HALF)
                v = k.select(is_column, lines.at(k.min(j, deep - 1) * x_k).gather(at_lane), 0.0)
                words = k.bitcast(scale.words(v), u32)
                for index, slice in enumerate(found):
                    top = words << 8 * (index + 1)
                    slice.set(slice.get() >> 8 | (top if index == SLICES - 1 else top & 0xFF00_0000))
            for index, slice in enumerate(found):
                to.store(((four // HALF * SLICES + index) * 2 * TILE) // 4 + four % HALF * HALF, slice.get())


def scales_of(b: Buf, panels: Val, steps: Val) -> Buf:
    """The scales of a constant, stored after its slices."""
    return b.at(panels * steps * (SLICES * 2 * TILE)).as_type(f32)


def decode_panel(k: Kernel, b: Buf, scales: Buf, count: Val, to: Buf) -> None:
    """Store ``count`` steps of 32 columns in f32, by position; ``scales`` are those of their K-block."""
    each = [scales.load(half * HALF, HALF) * BALANCE for half in range(2)]
    with k.loop(0, count * HALF) as four:
        for half, scale in enumerate(each):
            place = four // HALF * (SLICES * 2 * TILE) + half * TILE + four % HALF * STEP
            words = [b.at(place + index * 2 * TILE).as_type(i32).load(0, HALF) for index in range(SLICES)]
            for i in range(4):
                first, *rest = (k.cast(word << k.const(24 - 8 * i, i32, HALF) >> 24, f32) for word in reversed(words))
                value = reduce(lambda total, s: k.fma(total, 1 / 256, s), rest, first)  # exact
                to.store((four * 4 + i) * PANEL + half * HALF, value * scale)


# -- what contractions ask for


class SlicesArgs(Arguments[M, N]):
    """The parameters of a left operand in slices."""

    memory: M = field(metadata=named("{}"))
    scales: M
    fourth: M
    flags: M

    @staticmethod
    def declared() -> SlicesArgs[Memory, DType]:
        return SlicesArgs(Memory(i8), Memory(f32), Memory(i32), Memory(i32))


class SlicedRows(Record):
    """A left operand in slices."""

    tiles: Storage
    scales: Storage
    fourth: Storage
    flags: Storage
    k_blocks: int

    @property
    def operand(self) -> SlicesArgs[Ref, Known]:
        return SlicesArgs(Ref(self.tiles), Ref(self.scales), Ref(self.fourth), Ref(self.flags))


def sliced_rows(p: Problem, analysis: Analysis) -> tuple[list[Step], SlicedRows]:
    """The step that slices A, and A in slices. No step if another product slices it already."""
    depth = int(p.k)
    key = ("slices", p.a.storage.number, p.a.offset, p.a.row, p.m, depth)
    if key in analysis.splits:
        return [], analysis.splits[key]
    k_block, steps = block_steps(depth), -(-depth // STEP)
    k_blocks, tiles = -(-steps // k_block), dims.ceildiv(p.m, HALF)

    def memory(dtype: Any, *sizes: dims.Dim) -> Storage:
        return Storage("temporary", dtype, expressible(dims.product((tiles, *sizes))))

    found = SlicedRows(
        memory(i8, steps * (SLICES + 1) * TILE), memory(f32, k_blocks * HALF), memory(i32, k_blocks),
        memory(i32, k_blocks), k_blocks,
    )  # fmt: skip
    analysis.splits[key] = found
    args: dict[str, Ref | Known | float] = {
        "x": Ref(p.a.storage, p.a.offset), "x_row": p.a.row, "m": p.m, "depth": depth, "k_block": k_block,
        "y": Ref(found.tiles), "scales": Ref(found.scales), "fourth": Ref(found.fourth), "flags": Ref(found.flags),
    }  # fmt: skip
    nbytes = expressible(dims.product((p.m, depth, 4 + SLICES)))
    writes = frozenset(("y", "scales", "fourth", "flags"))
    return [Step(split_int8_slices(), args, writes, p.nodes, nbytes=nbytes, variant="A in slices")], found


def slices_key(tensor: Any) -> object:
    """The key of a constant that cannot be represented in slices."""
    return ("int8 slices", identity(tensor))


def sliced_constant(p: Problem, isa: Isa) -> Storage:
    """B in slices; ``Unrepresentable`` if its magnitudes differ too much."""
    tensor, b = p.weight, p.b
    assert tensor is not None
    depth, n = int(p.k), int(p.n)
    packing = packing_of(tensor, int(b.offset), int(b.row), int(b.column), depth, n, isa, refused=slices_key(tensor))
    make = partial(make_slices, packing)
    return Packed("constant", i8, packing.elements, b.storage.value, key=packing.key, make=make, packing=packing)


def packed_nbytes(depth: int, n: int, k_block: int) -> int:
    """Bytes of a sliced constant of ``depth`` rows and n columns, with its scales."""
    steps, panels = -(-depth // STEP), -(-n // PANEL)
    return panels * (steps * SLICES * 2 * TILE + -(-steps // k_block) * PANEL * 4)


def packing_of(
    tensor: Tensor, first: int, row: int, column: int, depth: int, n: int, isa: Isa, *, refused: object
) -> Packing:
    """The call of ``pack_int8_slices`` for a constant with these strides, whose first element is ``first``."""
    k_block = block_steps(depth)
    numbers = {"x_k": row, "x_column": column, "n": n, "depth": depth, "k_block": k_block}
    flags = -(-n // PANEL) * 2 * -(-depth // (STEP * k_block))
    return Packing(
        tensor, first, pack_int8_slices(), isa, numbers, packed_nbytes(depth, n, k_block), i8, flags, refused
    )


def make_slices(packing: Packing) -> Array:
    """The packed slices of a constant; ``Unrepresentable`` if its magnitudes differ too much."""
    numbers, content = packing.numbers, np.ascontiguousarray(packing.tensor.peek()).reshape(-1)[packing.first :]
    shape, strides = (numbers["depth"], numbers["n"]), (numbers["x_k"] * 4, numbers["x_column"] * 4)
    if not _has_even_rows(np.lib.stride_tricks.as_strided(content, shape, strides, writeable=False)):
        raise Unrepresentable(packing.refused)
    return packing()


def _has_even_rows(b: Array) -> bool:
    """Whether the rows of a constant have similar magnitudes, or are zero."""
    with np.errstate(all="ignore"):
        squares = np.einsum("kn,kn->k", b, b)
        return bool(np.all((squares == 0) | (squares * MAX_ROW_RATIO**2 >= squares.mean())))

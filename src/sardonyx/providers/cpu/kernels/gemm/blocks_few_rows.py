"""Products of few rows with a weight in blocks (``gemm.blocks``): the weight is read once, and unpacked in registers.

Each thread splits rows of A into int8 slices: all numbers of a segment share a power of two, and a number is
d1 + d2 / 256 + d3 / 65536 + d4 / 2^24 of it, rounded to 31 bits below the largest of the segment. The byte products of
a segment with the codes are exact in i32. The sums of its slices are combined, the zero point times the sum of the
slices is subtracted (before the products, where all zero points are one number), and the scale is applied once.
``COARSE`` segments are summed from zero.

Three slices are as exact as f32 sums where the numbers of a segment are of one size. Segments whose largest number is
``UNEVEN`` times the mean of the others take the fourth, too. Those with infinities, NaN, magnitudes near the ends of
the float range, or a largest number ``SPREAD`` times that mean, are decoded and multiplied in f32.

Lanes are columns. A panel is passed once for several rows, as many as leave their sums in registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.dtypes import DType
from sardonyx.ir.dims import Known
from sardonyx.providers.cpu.kernels.common.epilogue import BoundEpilogue, Epilogue, operands_of
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, Problem
from sardonyx.providers.cpu.kernels.gemm import blocks_pack
from sardonyx.providers.cpu.kernels.gemm.blocks import COLUMNS, PLACES, QUAD, BlockFormat, BlocksGemmArgs, PanelReader
from sardonyx.providers.cpu.kernels.gemm.pack import packed_a
from sardonyx.providers.cpu.kernels.math.integers import ceil_div
from sardonyx.providers.cpu.kernels.math.transpose import bytes_in_lanes
from sardonyx.providers.cpu.kernels.quantized.byte_dot import dot
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, Var, f32, i8, i16, i32, u8, u32
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES, Isa
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref, SizeRange, Step
from sardonyx.providers.cpu.program.variants import Refusal

SLICES = 4
COARSE = 8
"""Segments that are summed from zero: their sums are added to those of the segments before."""
UNEVEN, SPREAD = 4.0, 2.0**12
"""How much larger than the mean of the others, zeros excepted, the power of two below the largest number of a segment
may be for three slices, and the number itself for four, which keep 18 bits of that mean."""
THREE, FOUR, REALS = 0, 1, 2
"""How a segment is multiplied: in three slices, in four, or in f32."""
_ABS, _EXPONENT, _UNIT_EXPONENT = 0x7FFF_FFFF, 0x7F80_0000, 1 << 23
_MARGIN = 0x0001_8000
"""Added to the largest number, as bits: the first slice of a number within 1 / 86 of a power of two would overflow."""
_SMALLEST = (127 - 96) << 23
_LARGEST = 253 << 23
_ROUNDING = 0x0080_8080
"""Makes the lower slices signed: each carries into the next one from 128 on."""
_ONES = 0x0101_0101


def most_rows(p: Problem, analysis: Analysis) -> int:
    """Rows up to which the weight, unpacked once for each few rows, takes less time than if it is decoded for all."""
    isa, known = analysis.isa, None if p.weight is None else p.weight.quantized
    if isa.amx:
        return 8
    if isa.byte_dot:
        return 16
    return 4 if known is not None and known.q.dtype.bits <= 4 and not isa.is_baseline else 1


def pays(p: Problem, analysis: Analysis) -> Refusal | None:
    if not isinstance(p.m, int):
        return Refusal("rows may be many")
    return Refusal(f"{p.m} rows: decoding pays") if p.m > most_rows(p, analysis) else None


def few_rows(p: Problem, analysis: Analysis) -> SizeRange | None:
    """How many rows are few, where only the run tells."""
    return None if isinstance(p.m, int) else SizeRange(p.m, most=most_rows(p, analysis))


def steps(p: Problem, analysis: Analysis) -> list[Step]:
    isa, epilogue, b = analysis.isa, Epilogue.of(p), blocks_pack.weight(p, analysis)
    before, a = packed_a(p, p.a.dtype, isa)
    rows = 1 if p.m == 1 else _most_rows(isa)
    spec = multiply_few_rows(a_dtype=p.a.dtype, form=b.form, epilogue=epilogue, rows=rows)
    args = BlocksGemmArgs[Ref, Known](
        a.operand, b.operand, BatchArgs(p.batch), p.m, p.n, p.k, operands_of(p.extra, p.outputs), 0
    )  # fmt: skip
    scratch = _Scratch.nbytes(b.form, rows, int(p.k))
    why = f"up to {rows} row{'s'[: rows - 1]} at a time in int8 slices: {b.text}"
    return [*before, Step(spec, flat(args=args), epilogue.writes, p.nodes, scratch, p.flops, b.nbytes, why)]


def _vectors(isa: Isa) -> int:
    """Vectors of columns that are summed at a time."""
    return 4 if isa.name == "neon" else 2


def _most_rows(isa: Isa) -> int:
    """Rows whose sums, ``SLICES`` for each vector, fit the registers."""
    return 2 if isa.registers < 32 or isa.name == "neon" else 4


class _Scratch:
    """Scratch memory: the slices of some rows, what is known of their segments, and the sums of a panel.

    Slices are words of four rows along k, in the order of codes: [row][k / 4][slice, or padding][4 bytes].
    """

    def __init__(self, k: Kernel, form: BlockFormat, rows: int, segments: Val) -> None:
        self.row = segments * form.segment
        """Words of a row."""
        self.slices = k.scratch(u32)
        at = self.row * (rows * 4)
        self.totals = k.scratch(i32, at)
        """For each segment and row, minus the sums of the slices: times the zero point, if it is the same for all."""
        at = at + segments * (rows * 16)
        self.units = k.scratch(f32, at)
        """For each segment and row, what the first slice counts."""
        at = at + segments * (rows * 4)
        self.flags = k.scratch(i32, at)
        """For each segment, how its products are computed: as the most exact of its rows needs."""
        self.sums = k.scratch(f32, (at + segments * 4 + (LINE_NBYTES - 1)) & -LINE_NBYTES)

    @staticmethod
    def nbytes(form: BlockFormat, rows: int, depth: int) -> int:
        segments = form.segments(depth)
        return segments * (form.segment * rows * 4 + rows * 20 + 4) + LINE_NBYTES + rows * COLUMNS * 4


def _params(a_dtype: DType, form: BlockFormat, epilogue: Epilogue, rows: int) -> Params:
    return {"args": BlocksGemmArgs.declared(a_dtype, form, epilogue)}


@kernel(_params)
def multiply_few_rows(
    k: Kernel, args: BlocksGemmArgs[Buf, Val], *, a_dtype: DType, form: BlockFormat, epilogue: Epilogue, rows: int
) -> None:
    """A batch of products, ``rows`` rows at a time. Rows of ``a`` are contiguous."""
    m, n = args.m, args.n
    segments, panels = ceil_div(args.depth, form.segment), ceil_div(n, COLUMNS)
    scratch = _Scratch(k, form, rows, segments)
    heights = sorted({1, rows})
    height = k.select(m.eq(1), k.const(1), k.const(rows))
    chunks, held = ceil_div(m, height), k.var(-1)
    with k.share(args.batch.count(k) * chunks * panels) as at:
        chunk, panel = at // panels, at % panels
        place, first = args.batch.indices(chunk // chunks), chunk % chunks * height
        a = args.a.at(place).at(first * args.a.row)
        count = k.min(m - first, height)
        finish = BoundEpilogue(k, epilogue, args.epilogue, n, place)
        for few in heights:
            with k.when(height.eq(few)):
                given = [a.at(k.min(count - 1, r) * args.a.row) for r in range(few)]
                some = _FewRows(k, form, scratch, given, args.depth, segments)
                with k.when(chunk.ne(held.get())):
                    some.cut()
                some.multiply(PanelReader(k, form, args.b, panel, segments))
        held.set(chunk)
        finish.tile(scratch.sums, COLUMNS, first, count, panel * COLUMNS, k.min(n - panel * COLUMNS, COLUMNS))


class _FewRows:
    """Some rows of A, as slices."""

    def __init__(
        self, k: Kernel, form: BlockFormat, scratch: _Scratch, a: list[Buf], depth: Val, segments: Val
    ) -> None:
        self.k, self.form, self.scratch, self.a, self.depth, self.segments = k, form, scratch, a, depth, segments
        self.has_zeros = form.zero is not None
        self.codes = form.codes
        """The sign with which the chip multiplies codes."""
        if k.isa.name == "neon":
            self.codes = i8

    # -- slices

    def cut(self) -> None:
        """Split the rows into slices."""
        k, size = self.k, self.form.segment
        with k.loop(0, self.segments) as s:
            for r, row in enumerate(self.a):
                with k.either((s + 1) * size <= self.depth) as (whole, part):
                    for branch, is_whole in ((whole, True), (part, False)):
                        with branch:
                            self._cut_segment(r, row, s, is_whole)

    def _cut_segment(self, r: int, row: Buf, s: Val, is_whole: bool) -> None:
        k, scratch, size, lanes = self.k, self.scratch, self.form.segment, self.k.lanes

        def load(i: Val) -> Val:
            at = s * size + i
            return row.load(at, lanes, None if is_whole else k.mask(self.depth - at, lanes))

        largest, total, filled = k.var(k.zeros(u32, lanes)), k.var(k.zeros(f32, lanes)), k.var(k.zeros(i32, lanes))
        with k.loop(0, size, lanes) as i:
            bits = k.bitcast(load(i), u32) & _ABS
            largest.set(k.max(largest, bits))
            total.set(total + k.bitcast(bits, f32))
            filled.set(filled.get() + k.select(bits.ne(0), k.const(1, i32, lanes), k.zeros(i32, lanes)))
        most = largest.get().max()
        power = k.min(k.max((most + _MARGIN) & _EXPONENT, _SMALLEST), _LARGEST)
        others, peak = k.cast(filled.get().sum() - 1, f32), k.bitcast(most, f32)
        rest = total.get().sum() - peak
        is_out = (most.ne(0) & (most < _SMALLEST)) | (most > _LARGEST) | (peak * others > rest * SPREAD)
        is_uneven = k.bitcast(power, f32) * others > rest * UNEVEN
        how = k.select(is_out, k.const(REALS, i32), k.cast(is_uneven, i32) * FOUR)
        scratch.flags.store(s, how if r == 0 else k.max(how, scratch.flags.load(s)))
        bits = k.select(is_uneven, k.const(0, u32), k.const(8, u32))
        """Bits of the fourth slice, if it is left out: the third is then rounded to even, since ties are frequent."""
        up = k.splat(k.bitcast((127 + 30 + 127) * _UNIT_EXPONENT - bits * _UNIT_EXPONENT - power, f32), lanes)
        shift = k.splat(k.bitcast(bits, i32), lanes)
        place = s * len(self.a) + r
        scratch.units.store(place, k.bitcast(power - 6 * _UNIT_EXPONENT, f32))
        sums = k.var(k.zeros(i32, lanes))
        to = scratch.slices.at(scratch.row * r + s * size)
        order = [16 * (j // 16) + 4 * PLACES[j % 4] + 3 - j % 16 // 4 for j in range(lanes * 4)]
        ones = k.const(_ONES, i32, lanes)
        with k.loop(0, size, lanes) as i:
            number = k.to_i32(k.rint(load(i) * up)) << shift
            slices = bytes_in_lanes(k, k.bitcast((number + _ROUNDING) ^ _ROUNDING, u8), order)
            words = k.bitcast(slices, i32)
            to.store(i, k.bitcast(words, u32))
            sums.set(dot(k, sums.get(), words, ones, i8, self.codes))
        found = sums.get()
        while found.lanes > QUAD:
            half = found.lanes // 2
            found = found.shuffle(range(half)) + found.shuffle(range(half, found.lanes))
        found = -found
        to_sums = scratch.totals.at(place * QUAD)
        if self.has_zeros:
            to_sums.as_type(f32).store(0, k.cast(found, f32))
        else:
            to_sums.store(0, found * self.form.middle)

    # -- products

    def multiply(self, panel: PanelReader) -> None:
        """The sums of a panel, for all rows."""
        k, lanes, vectors = self.k, self.k.lanes, _vectors(self.k.isa)
        width = lanes * vectors
        with k.loop(0, COLUMNS, width) as left:
            columns = [left + v * lanes for v in range(vectors)]
            totals = [[k.var(k.zeros(f32, lanes)) for _ in columns] for _ in self.a]
            with k.loop(0, self.segments, COARSE) as first:
                parts = [[k.var(k.zeros(f32, lanes)) for _ in columns] for _ in self.a]
                with k.loop(first, k.min(first + COARSE, self.segments)) as s:
                    how = self.scratch.flags.load(s)
                    with k.when(how.eq(THREE)):
                        self._add_slices(panel, s, columns, parts, SLICES - 1)
                    with k.when(how.eq(FOUR)):
                        self._add_slices(panel, s, columns, parts, SLICES)
                    with k.when(how.eq(REALS)):
                        self._add_reals(panel, s, columns, parts)
                for row, part in zip(totals, parts, strict=True):
                    for total, x in zip(row, part, strict=True):
                        total.set(total.get() + x.get())
            for r, row in enumerate(totals):
                for column, total in zip(columns, row, strict=True):
                    self.scratch.sums.store(column + r * COLUMNS, total.get())

    def _add_slices(self, panel: PanelReader, s: Val, columns: list[Val], totals: list[list[Var]], slices: int) -> None:
        k, form, lanes, scratch, rows = self.k, self.form, self.k.lanes, self.scratch, len(self.a)
        known = [scratch.totals.at((s * rows + r) * QUAD) for r in range(rows)]

        def first(r: int, d: int) -> Val:
            return k.zeros(i32, lanes) if self.has_zeros else k.splat(known[r].load(d), lanes)

        sums = [[[k.var(first(r, d)) for d in range(slices)] for _ in columns] for r in range(rows)]
        words = form.segment // form.rows
        unroll = next(u for u in (4, 2, 1) if words % u == 0)

        def step(i: Val | int, which: range) -> None:
            quads = [form.quads(panel.words(s, i, column, lanes)) for column in columns]
            for r in range(rows):
                given = scratch.slices.at(scratch.row * r + s * form.segment).at(i * form.rows)
                for d in which:
                    xs = [k.splat(k.bitcast(given.load(q * QUAD + d), i32), lanes) for q in range(len(quads[0]))]
                    for v, own in enumerate(quads):
                        total = sums[r][v][d]
                        total.set(_dots(k, form, total.get(), xs, [k.bitcast(quad, i32) for quad in own], self.codes))

        last = slices - 1 if rows > 1 and slices == SLICES else 0
        """Slices that are summed before the others, where there are more sums than registers."""
        for which in (range(last), range(last, slices)) if last else (range(slices),):
            if words <= unroll:
                for number in range(words):
                    step(number, which)
            else:
                with k.loop(0, words, unroll) as i:
                    for u in range(unroll):
                        step(i + u, which)
        panel.prefetch(s, columns[0], lanes * len(columns))
        for v, column in enumerate(columns):
            scale = panel.scale(s, column, lanes)
            zero = panel.zero(s, column, lanes) if self.has_zeros else None
            for r in range(rows):
                parts = [k.cast(total.get(), f32) for total in sums[r][v]]
                if zero is not None:
                    below = [k.splat(known[r].as_type(f32).load(d), lanes) for d in range(slices)]
                    parts = [k.multiply_add(zero, x, part) for x, part in zip(below, parts, strict=True)]
                found = parts[-1]
                for part in reversed(parts[:-1]):
                    found = k.multiply_add(found, k.const(2.0**-8, f32, lanes), part)
                unit = k.splat(scratch.units.load(s * rows + r), lanes)
                totals[r][v].set(k.multiply_add(found, scale * unit, totals[r][v]))

    def _add_reals(self, panel: PanelReader, s: Val, columns: list[Val], totals: list[list[Var]]) -> None:
        """The products of a segment in f32."""
        k, form, lanes = self.k, self.form, self.k.lanes
        scales = [panel.scale(s, column, lanes) for column in columns]
        zeros = [panel.zero(s, column, lanes) for column in columns]
        left = self.depth - s * form.segment
        sums = [[k.var(k.zeros(f32, lanes)) for _ in columns] for _ in self.a]
        with k.loop(0, k.min(left + (form.rows - 1), form.segment) // form.rows) as i:
            words = [panel.words(s, i, column, lanes) for column in columns]
            for t in range(form.rows):
                at = i * form.rows + t
                given = [k.splat(a.load(s * form.segment + at, mask=at < left), lanes) for a in self.a]
                for v, word in enumerate(words):
                    w = (form.real_code(k, word, t) - zeros[v]) * scales[v]
                    for x, row in zip(given, sums, strict=True):
                        row[v].set(k.multiply_add(x, w, row[v]))
        for totals_of_row, row in zip(totals, sums, strict=True):
            for total, found in zip(totals_of_row, row, strict=True):
                total.set(total.get() + found.get())


_PAIRS_OF_BYTES = {16: "llvm.x86.avx512.pmaddubs.w.512", 8: "llvm.x86.avx2.pmadd.ub.sw"}
_PAIRS_OF_WORDS = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd"}


def _dots(
    k: Kernel, form: BlockFormat, total: Val, slices: Sequence[Val], quads: Sequence[Val], codes: DType
) -> Val:  # fmt: skip
    """``total`` plus the dot products of quads of slices and of codes.

    x86 chips without VNNI add pairs of byte products in 16 bits: those with codes of 4 bits fit.
    """
    isa, lanes = k.isa, total.lanes
    if form.bits > 4 or isa.byte_dot or isa.is_emulated or isa.name not in ("avx512", "avx2"):
        for x, quad in zip(slices, quads, strict=True):
            total = dot(k, total, x, quad, i8, codes)
        return total
    pairs = [
        k.intrinsic(_PAIRS_OF_BYTES[lanes], [k.bitcast(quad, i8), k.bitcast(x, i8)], i16, 2 * lanes)
        for x, quad in zip(slices, quads, strict=True)
    ]
    ones = k.const(1, i16, 2 * lanes)
    return total + k.intrinsic(_PAIRS_OF_WORDS[lanes], [pairs[0] + pairs[1], ones], i32, lanes)

"""Epilogues: the pointwise expression that a product, convolution or pooling kernel applies to its sums.

``Epilogue`` is a compile-time constant of a kernel: the expression and, for each further operand and each output, its
type and the class of its column stride (1, 0 or any). Row, column and batch strides are run-time numbers, so a residual
and a value per row differ by strides alone. A bias and a scalar are the same in every row; the epilogue knows that
(``is_row_invariant``) and loads them once.

A kernel declares ``epilogue.declared``, binds its operands to one matrix of the batch with ``BoundEpilogue``, and
passes it tiles of sums in scratch memory. These stay in L1, so the expression is emitted only once (twice with the
masked tail of a row), however many registers the kernel accumulates in.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, ClassVar

from sardonyx.dtypes import DType
from sardonyx.forks import cached_property
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Apply, Expression, View
from sardonyx.providers.cpu.kernels.common.matrices import Matrix, MatrixArgs, Problem
from sardonyx.providers.cpu.kernels.math import scalar_program
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Operand, Tile, Val, i32, i64, register_dtype
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES
from sardonyx.providers.cpu.program.analysis import Analysis
from sardonyx.providers.cpu.program.steps import Ref
from sardonyx.records import Record, replace

if TYPE_CHECKING:
    from typing_extensions import Self

UNIT, BROADCAST, STRIDED = "unit", "same", "strided"
PACKED = "panels"
"""A fourth class: an output in the packed layout of the product that reads it (``gemm.packed_epilogue``)."""
MAX_CHEAP_OPS = 8
"""Operations of an epilogue that is emitted for every register of a micro-tile, at most."""
CHEAP_OPS = frozenset(("int", "real", "add", "sub", "mul", "neg", "abs", "maximum", "minimum", "lt", "where", "cast"))
"""The operations that such an epilogue may consist of."""


def is_cheap(expression: Expression) -> bool:
    """Whether an epilogue is short enough to be emitted for every register of a micro-tile."""
    programs = [step.program for step in expression.steps if isinstance(step, Apply)]
    ops = [step.op for program in programs for step in program.steps[program.arity :]]
    return len(ops) <= MAX_CHEAP_OPS and CHEAP_OPS.issuperset(ops)


class Access(Record):
    """How a further operand or an output is accessed: its type, and the class of its stride along a row."""

    dtype: DType
    columns: str
    is_row_invariant: bool = False
    """Every row is the same: a bias or a scalar."""
    is_scalar: bool = False
    """All elements of all matrices of the batch are the same one."""
    is_non_temporal: bool = False
    """An output that is written with non-temporal stores."""

    @staticmethod
    def of_operand(matrix: Matrix, n: Known) -> Access:
        """Of a further operand. A scalar is one in a matrix of one column, too."""
        found = Access.of(matrix, n)
        return replace(found, columns=BROADCAST) if matrix.row == 0 and matrix.column == 0 else found

    @staticmethod
    def of(matrix: Matrix, n: Known) -> Access:
        is_row_invariant = matrix.row == 0
        if matrix.stride_class:
            return Access(matrix.dtype, matrix.stride_class)
        if matrix.column == 1 or n == 1:
            return Access(matrix.dtype, UNIT, is_row_invariant)
        is_scalar = not any((matrix.column, matrix.row, *matrix.batch))
        return Access(matrix.dtype, BROADCAST if matrix.column == 0 else STRIDED, is_row_invariant, is_scalar)


class FlaggedArgs(MatrixArgs[M, N]):
    """The parameters of an output in the packed layout of the product that reads it, with its flags."""

    flags: M
    flags_panel: N

    @staticmethod
    def declared(dtype: DType, batch_axes: int) -> FlaggedArgs[Memory, DType]:
        return FlaggedArgs(Memory(dtype), i64, i64, (i64,) * batch_axes, Memory(i32), i64)


class EpilogueArgs(Arguments[M, N]):
    """The parameters of an epilogue: its further operands and its outputs."""

    is_inline: ClassVar[bool] = True
    x: tuple[MatrixArgs[M, N], ...]
    y: tuple[MatrixArgs[M, N], ...]

    @property
    def views(self) -> tuple[MatrixArgs[M, N], ...]:
        return *self.x, *self.y

    def at(self: EpilogueArgs[Buf, Val], indices: Sequence[Val]) -> EpilogueArgs[Buf, Val]:
        """The operands and outputs of one matrix of the batch."""
        x, y = (tuple(replace(v, memory=v.at(indices)) for v in views) for views in (self.x, self.y))
        return EpilogueArgs(x, y)


def operands_of(extra: Sequence[Matrix], outputs: Sequence[Matrix]) -> EpilogueArgs[Ref, Known]:
    return EpilogueArgs(tuple(x.operand for x in extra), tuple(y.operand for y in outputs))


class Epilogue(Record):
    """An epilogue as a compile-time constant: its expression, and how each further operand and output is accessed."""

    expression: Expression
    extra: tuple[Access, ...]
    outputs: tuple[Access, ...]
    batch_axes: int

    @staticmethod
    def of(p: Problem) -> Epilogue:
        return Epilogue.over(p.expression, p.extra, p.outputs, p.n, len(p.batch))[0]

    @staticmethod
    def over(
        expression: Expression, extra: Sequence[Matrix], outputs: Sequence[Matrix], n: Known, batch_axes: int
    ) -> tuple[Epilogue, EpilogueArgs[Ref, Known]]:
        """The epilogue over matrices of ``n`` columns, and its run-time operands."""
        stored = (replace(Access.of(y, n), is_row_invariant=False) for y in outputs)
        made = Epilogue(expression, tuple(Access.of_operand(x, n) for x in extra), tuple(stored), batch_axes)
        return made, operands_of(extra, outputs)

    @cached_property
    def names(self) -> tuple[tuple[str, Access], ...]:
        extra = [(f"x{i}", x) for i, x in enumerate(self.extra)]
        return (*extra, *((f"y{i}", y) for i, y in enumerate(self.outputs)))

    @property
    def is_expensive(self) -> bool:
        return not is_cheap(self.expression)

    @property
    def declared(self) -> EpilogueArgs[Memory, DType]:
        """The parameters of the operands and outputs."""
        extra, outputs = (tuple(self._declared(x) for x in views) for views in (self.extra, self.outputs))
        return EpilogueArgs(extra, outputs)

    def _declared(self, x: Access) -> MatrixArgs[Memory, DType]:
        form = FlaggedArgs if x.columns == PACKED else MatrixArgs
        return form.declared(x.dtype, self.batch_axes)

    def with_non_temporal_stores(self, views: Sequence[View], analysis: Analysis) -> Epilogue:
        """This epilogue with non-temporal stores of outputs that exceed the caches; ``views`` are the outputs."""
        seen = zip(self.outputs, views, strict=True)
        return replace(
            self,
            outputs=tuple(replace(y, is_non_temporal=analysis.target.writes_non_temporal(view)) for y, view in seen),
        )

    @property
    def writes(self) -> frozenset[str]:
        return frozenset(
            (*(f"y{i}" for i in range(len(self.outputs))), *(f"{name}_flags" for name in self.packed_outputs))
        )

    @property
    def prefetchable(self) -> list[tuple[str, Access]]:
        """The operands and outputs that can be prefetched row by row."""
        return [(name, x) for name, x in self.names if x.columns == UNIT and not x.is_row_invariant]

    @property
    def packed_outputs(self) -> list[str]:
        """The outputs that are packed for the product that reads them."""
        return [name for name, y in self.names if y.columns == PACKED]


class BoundEpilogue:
    """An epilogue inside a kernel, bound to one matrix of the batch.

    ``tile`` and ``rows`` finish sums in memory, ``put`` finishes sums in registers: the expression is applied to them,
    and the results are stored.
    """

    def __init__(
        self,
        k: Kernel,
        epilogue: Epilogue,
        operands: EpilogueArgs[Buf, Val],
        n: Val,
        batch: Sequence[Val] = (),
    ) -> None:
        """``batch`` is the matrix's index along each batch axis."""
        self.k, self.epilogue, self.n = k, epilogue, n
        self.factor: Val | None = None
        """What sums are multiplied by first."""
        names = [name for name, _ in epilogue.names]
        self._operands = dict(zip(names, operands.views, strict=True))
        self._at = {name: x.at(batch) for name, x in self._operands.items()}
        self._single = {
            name: self._operands[name].memory.load_fixed() if x.is_scalar else self._at[name].load()
            for name, x in epilogue.names
            if x.is_row_invariant and x.columns == BROADCAST
        }
        self._held: dict[str, Val] = {}

    def tile(
        self,
        sums: Buf,
        stride: Operand,
        row: Val,
        rows: Operand,
        column: Val,
        columns: Val,
        *,
        width: int | None = None,
        at_once: bool = False,
        unroll: int = 1,
    ) -> None:
        """Finish a tile whose element (i, j) is ``sums[i * stride + j]`` and belongs to (row + i, column + j).

        A tile of ``width`` columns, where that is given, is finished without a loop along the row; with ``at_once`` a
        row is even one long vector, so that narrow output types fill registers. Other tiles unroll ``unroll`` vectors.
        """
        k = self.k
        lanes = k.lanes * 32 // max(sums.dtype.bits, 32)
        if width is None:
            with k.loop(0, rows) as i:
                own = self.of_row(row + i)
                for t in k.tiles(columns, lanes, unroll=unroll):
                    own.put(row + i, Tile(column + t.index, t.lanes, t.mask), sums.at(i * stride).load(t))
            return
        assert width % lanes == 0
        with k.either(columns.eq(width)) as (whole, part):
            with whole:
                step = width if at_once else lanes
                tiles = [Tile(column + j, step, None) for j in range(0, width, step)]
                owns = [self.of_columns(t) for t in tiles]
                with k.loop(0, rows) as i:
                    for j, (t, own) in enumerate(zip(tiles, owns, strict=True)):
                        own.put(row + i, t, sums.load(i * stride + j * step, step))
            with part, k.loop(0, rows) as i, k.loop(0, columns, lanes) as at:
                t = Tile(column + at, lanes, k.mask(columns - at, lanes))
                self.put(row + i, t, sums.load(i * stride + at, lanes))

    def of_row(self, row: Operand) -> BoundEpilogue:
        """A copy for the row ``row`` alone: operands with one value per row are loaded here, once."""
        made, extra = copy(self), self.epilogue.names[: len(self.epilogue.extra)]
        names = [name for name, x in extra if x.columns == BROADCAST and not x.is_row_invariant]
        made._single = {**self._single, **{name: self._row(name, row).load() for name in names}}
        return made

    def of_columns(self, t: Tile) -> Self:
        """A copy for the columns of ``t`` alone: operands that are the same in all rows are loaded here, once."""
        made, extra = copy(self), self.epilogue.names[: len(self.epilogue.extra)]
        flat = [name for name, x in extra if x.is_row_invariant and x.columns == UNIT]
        made._held = {name: self._row(name, 0, is_row_invariant=True).load(t) for name in flat}
        return made

    def rows(self, sums: Buf, stride: Operand, row: Val, rows: Val, t: Tile, *, together: int = 1) -> None:
        """Finish some rows of a tile of columns; their sums are ``stride`` elements apart.

        ``together`` rows are computed at a time, their instructions interleaved: the core does not look far enough
        ahead to work on the next row of a long epilogue.
        """
        own, k = self.of_columns(t), self.k
        whole = rows // together * together
        if together > 1:
            with k.loop(0, whole, together) as i:
                own.put_rows([row + i + n for n in range(together)], t, sums.at(i * stride), stride)
        with k.loop(whole if together > 1 else 0, rows) as i:
            own.put(row + i, t, sums.load(i * stride, t.lanes))

    def put_rows(self, rows: Sequence[Operand], t: Tile, sums: Buf, stride: Operand) -> None:
        """Finish the sums of several rows at the columns of ``t``, as one long vector."""
        k, count = self.k, len(self.epilogue.extra)
        extra, outputs = self.epilogue.names[:count], self.epilogue.names[count:]
        loaded = [_concatenated([sums.load(k.value(stride, i64) * n, t.lanes) for n in range(len(rows))])]
        for name, x in extra:
            if name in self._single:
                loaded.append(k.splat(self._single[name], t.lanes * len(rows)))
            else:
                loaded.append(_concatenated([self._load(name, x, row, t) for row in rows]))
        for (name, y), result in zip(outputs, self._evaluated(loaded), strict=True):
            for n, row in enumerate(rows):
                self._store(name, y, row, t, result.shuffle(range(n * t.lanes, (n + 1) * t.lanes)))

    def put(self, row: Operand, t: Tile, sums: Val) -> None:
        """Finish the sums of ``row`` at the columns of ``t``; its mask excludes columns that do not exist."""
        outputs = self.epilogue.names[len(self.epilogue.extra) :]
        for (name, y), result in zip(outputs, self.results(row, t, sums), strict=True):
            self._store(name, y, row, t, result)

    def results(self, row: Operand, t: Tile, sums: Val) -> list[Val]:
        """The values of the outputs for the sums of ``row`` at the columns of ``t``."""
        names = self.epilogue.names[: len(self.epilogue.extra)]
        return self._evaluated([sums, *(self._load(name, x, row, t) for name, x in names)])

    def _evaluated(self, values: list[Val]) -> list[Val]:
        """The values of the outputs for those of the operands."""
        k, expression = self.k, self.epilogue.expression
        if self.factor is not None:
            values[0] = values[0] * k.splat(self.factor, values[0].lanes)
        for step in expression.steps:
            assert isinstance(step, Apply), "an epilogue works element by element"
            types = [expression.dtype_of(i) for i in step.args]
            values.append(scalar_program.emit(k, step.program, [values[i] for i in step.args], types))
        return [values[result] for result in expression.results]

    def prefetch(self, row: Operand, column: Operand, width: int) -> None:
        """Prefetch what ``width`` columns of a row will read and write. A store that misses the cache blocks all later
        stores, and loads that depend on them.
        """
        for name, x in self.epilogue.prefetchable:
            at, line = self._row(name, row).at(column), max(LINE_NBYTES // x.dtype.itemsize, 1)
            for j in range(0, width, line):  # the last element of each line: a row may begin inside one
                at.prefetch(j + line - 1, write=name.startswith("y"))

    def _row(self, name: str, row: Operand, *, is_row_invariant: bool = False) -> Buf:
        return self._at[name] if is_row_invariant else self._at[name].at(self._operands[name].row * row)

    def _load(self, name: str, x: Access, row: Operand, t: Tile) -> Val:
        if name in self._single:
            return self.k.splat(self._single[name], t.lanes)
        if name in self._held:
            return self._held[name]
        at = self._row(name, row, is_row_invariant=x.is_row_invariant)
        if x.columns == UNIT:
            return at.load(t)
        if x.columns == BROADCAST:
            return self.k.splat(at.load(), t.lanes)
        k, local = self.k, self.k.local(register_dtype(x.dtype), t.lanes)
        with k.loop(0, self._existing(t)) as j:
            local.store(j, at.load((t.index + j) * self._operands[name].col))
        return local.load(0, t.lanes)

    def _store(self, name: str, y: Access, row: Operand, t: Tile, value: Val) -> None:
        at = self._row(name, row)
        if y.columns == UNIT:
            if y.is_non_temporal and t.mask is None and t.lanes * y.dtype.itemsize % LINE_NBYTES == 0:
                with self.k.either(at.at(t.index).line_offset().eq(0)) as (whole, part):
                    with whole:
                        at.store(t, value, is_non_temporal=True)
                    with part:
                        at.store(t, value)
            else:
                at.store(t, value)
            return
        k, local = self.k, self.k.local(value.dtype, t.lanes)
        local.store(0, value)
        with k.loop(0, self._existing(t)) as j:
            at.store((t.index + j) * self._operands[name].col, local.load(j))

    def _existing(self, t: Tile) -> Val:
        return self.k.min(self.n - t.index, t.lanes)


def _concatenated(parts: Sequence[Val]) -> Val:
    """Vectors of equal lanes, a power of two of them, as one."""
    if len(parts) == 1:
        return parts[0]
    low, high = (_concatenated(half) for half in (parts[: len(parts) // 2], parts[len(parts) // 2 :]))
    return low.shuffle(range(2 * low.lanes), high)

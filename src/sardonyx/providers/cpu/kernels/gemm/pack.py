"""Packs the operands of a contraction.

B becomes panels [batch][n / NR][k][NR], padded with zeros. A is read in place, unless it is not contiguous along k or
not of the accumulator's type: then it is copied to [batch][m][k]. Both are blocked strided copies, so a transposed
operand costs no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu.kernels.common.matrices import BatchArgs, Matrix, MatrixArgs, Problem
from sardonyx.providers.cpu.kernels.math.transpose import transposed
from sardonyx.providers.cpu.language.arguments import flat
from sardonyx.providers.cpu.language.dsl import Kernel, Params, Spec, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.machine.isa import Isa
from sardonyx.providers.cpu.program.prepack import Packing, aligned
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Packed, Ref, Step

Array = np.ndarray[Any, Any]

ROWS, COLUMNS, ANY = "rows", "columns", "any"
"""The axis of a matrix along which elements are adjacent in memory."""
ROW_BLOCK = 16
"""Rows of A that are copied at a time."""
NUMPY_NBYTES = 1 << 18
"""Bytes of a constant up to which numpy packs it: a kernel takes longer to compile than it saves."""


def unit_axis(matrix: Matrix) -> str:
    return COLUMNS if matrix.column == 1 else ROWS if matrix.row == 1 else ANY


# -- the right operand


def _pack_params(source: DType, target: DType, unit: str, nr: int, axes: int) -> Params:
    x, batch = MatrixArgs.declared(source, axes), BatchArgs.declared(axes)
    return {"x": x, "y": (target,), "batch": batch, "rows": i64, "columns": i64}


@kernel(_pack_params)
def pack_panels(
    k: Kernel, x: MatrixArgs[Buf, Val], y: Buf, batch: BatchArgs[Buf, Val], rows: Val, columns: Val,
    *, source: DType, target: DType, unit: str, nr: int, axes: int,
) -> None:  # fmt: skip
    """y[batch][columns / nr][rows][nr] = x[batch][rows][columns]."""
    panels = (columns + (nr - 1)) // nr
    with k.share(batch.count(k) * panels) as at:
        column = at % panels * nr
        matrix = x.at(batch.indices(at // panels))
        block = _Block(k, matrix.at(column * x.col), x.row, x.col, y.at(at * rows * nr), k.const(nr), unit)
        existing = k.min(columns - column, nr)
        with k.either(existing.eq(nr)) as (yes, no):
            with yes:
                block.copy(rows, k.const(nr))
            with no:
                block.copy(rows, existing)
                with k.loop(0, rows) as i, k.loop(existing, nr) as j:
                    block.y.store(i * nr + j, 0)


def _copy_params(source: DType, target: DType, unit: str, axes: int) -> Params:
    return _pack_params(source, target, unit, 0, axes)


@kernel(_copy_params)
def pack_rows(
    k: Kernel, x: MatrixArgs[Buf, Val], y: Buf, batch: BatchArgs[Buf, Val], rows: Val, columns: Val,
    *, source: DType, target: DType, unit: str, axes: int,
) -> None:  # fmt: skip
    """y[batch][rows][columns] = x[batch][rows][columns]."""
    blocks = (rows + (ROW_BLOCK - 1)) // ROW_BLOCK
    with k.share(batch.count(k) * blocks) as at:
        index, row = at // blocks, at % blocks * ROW_BLOCK
        matrix = x.at(batch.indices(index))
        to = y.at((index * rows + row) * columns)
        _Block(k, matrix.at(row * x.row), x.row, x.col, to, columns, unit).copy(k.min(rows - row, ROW_BLOCK), columns)


class _Block:
    """A copy of a block of a matrix into rows that lie ``y_row`` elements apart."""

    def __init__(self, k: Kernel, x: Buf, x_row: Val, x_col: Val, y: Buf, y_row: Val, unit: str) -> None:
        self.k, self.x, self.x_row, self.x_col, self.y, self.y_row, self.unit = k, x, x_row, x_col, y, y_row, unit
        self.side = min(k.lanes, 8) * 32 // max(y.dtype.bits, x.dtype.bits, 32)

    def copy(self, rows: Val, columns: Val) -> None:
        k = self.k
        if self.unit == COLUMNS:
            with k.loop(0, rows) as i:
                x, y = self.x.at(i * self.x_row), self.y.at(i * self.y_row)
                for t in k.tiles(columns):
                    y.store(t, x.load(t))
            return
        if self.unit == ANY:
            self._copy_elements(k.const(0), rows, k.const(0), columns)
            return
        high, wide = rows & -self.side, columns & -self.side
        with k.loop(0, high, self.side) as i, k.loop(0, wide, self.side) as j:
            self._transpose(i, j)
        self._copy_elements(k.const(0), high, wide, columns)
        self._copy_elements(high, rows, k.const(0), columns)

    def _copy_elements(self, top: Val, bottom: Val, left: Val, right: Val) -> None:
        with self.k.loop(top, bottom) as i, self.k.loop(left, right) as j:
            self.y.store(i * self.y_row + j, self.x.load(i * self.x_row + j * self.x_col))

    def _transpose(self, i: Val, j: Val) -> None:
        """Transpose ``side`` vectors of ``side`` elements."""
        vectors = transposed([self.x.load((j + c) * self.x_col + i, self.side) for c in range(self.side)])
        for r, v in enumerate(vectors):
            self.y.store((i + r) * self.y_row + j, v)


# -- what contractions ask for


def panels_elements(p: Problem, nr: int) -> Known:
    """Elements of one matrix of B in panels."""
    return expressible(dims.product((nr, p.k, dims.ceildiv(p.n, nr))))


def packed_b(p: Problem, target: DType, nr: int, isa: Isa) -> tuple[list[Step], Matrix]:
    """B in panels of ``nr`` columns, and the steps that pack it in every run: none for a constant, it is prepacked."""

    def spec(axes: int) -> Spec:
        return pack_panels(source=p.b.dtype, target=target, unit=unit_axis(p.b), nr=nr, axes=axes)

    return packed_b_by(p, spec, target, panels_elements(p, nr), nr, isa)


def packed_b_by(
    p: Problem, spec_of: Callable[[int], Spec], target: DType, each: Known, nr: int, isa: Isa
) -> tuple[list[Step], Matrix]:
    """B as packed by the kernel that ``spec_of`` returns for a number of batch axes (such as ``pack_panels``).

    ``each``: packed elements of one matrix; ``nr``: columns of a panel.
    """
    b = p.b
    shared = [d for d, s in zip(p.batch, b.batch, strict=True) if s != 0]
    strides: list[Known] = []
    for i, s in enumerate(b.batch):
        inner = [d for d, t in zip(p.batch[i + 1 :], b.batch[i + 1 :], strict=True) if t != 0]
        strides.append(0 if s == 0 else expressible(dims.product((each, *inner))))
    elements = expressible(dims.product((each, *shared)))
    kept = tuple(s for s in b.batch if s != 0)
    source = Matrix(b.storage, b.offset, kept, b.row, b.column)
    spec = spec_of(len(shared))
    tensor = p.weight
    if tensor is None:
        to = Storage("temporary", target, elements)
        args = flat(x=source.operand, y=Ref(to), batch=BatchArgs(tuple(shared)), rows=p.k, columns=p.n)
        nbytes = expressible(dims.mul(elements, (b.dtype.bits + target.bits) // 8))
        step = Step(
            spec, args, frozenset("y"), p.nodes, nbytes=nbytes, variant="B packed: not a constant of fixed sizes"
        )
        return [step], Matrix(to, 0, tuple(strides), nr, 1)

    def by_numpy() -> Array:
        content, out = np.ascontiguousarray(tensor.peek()).reshape(-1), aligned(int(elements), target)
        start, *steps = (int(s) * content.itemsize for s in (b.offset, *kept, b.row, b.column))
        buffer: Any = content.view(np.uint8)
        *outer, rows, columns = (int(d) for d in (*shared, p.k, p.n))
        x = np.ndarray((*outer, rows, columns), content.dtype, buffer, start, steps)
        numpy_panels(x, out.reshape(*outer, -(-columns // nr), rows, nr))
        return out

    given = flat(x=source.operand, batch=BatchArgs(tuple(shared)), rows=p.k, columns=p.n)
    numbers = {name: number for name, number in given.items() if not isinstance(number, Ref)}
    packing = Packing(tensor, int(b.offset), spec, isa, numbers, int(elements), target)
    if spec.definition is pack_panels and target.nbytes(int(elements)) <= NUMPY_NBYTES and b.dtype is target:
        made = Packed("constant", target, elements, b.storage.value, key=packing.key, make=by_numpy)
    else:
        made = Packed("constant", target, elements, b.storage.value, key=packing.key, make=packing, packing=packing)
    return [], Matrix(made, 0, tuple(strides), nr, 1)


def numpy_panels(x: Array, y: Array) -> None:
    """``pack_panels`` in numpy: [...][rows][columns] to [...][columns / NR][rows][NR], zero beyond the columns."""
    (rows, columns), nr = x.shape[-2:], y.shape[-1]
    whole = columns // nr
    y[..., :whole, :, :] = x[..., : whole * nr].reshape(*x.shape[:-2], rows, whole, nr).swapaxes(-2, -3)
    if columns % nr:
        y[..., whole, :, : columns % nr] = x[..., whole * nr :]


def packed_a(p: Problem, target: DType, isa: Isa) -> tuple[list[Step], Matrix]:
    """A contiguous along k and of the accumulator's type: the operand itself, or a copy and the step that makes it in
    every run: none for a constant.
    """
    a = p.a
    if (a.column == 1 or p.k == 1) and a.dtype is target:
        return [], a
    batch = tuple(d for d, s in zip(p.batch, a.batch, strict=True) if s != 0)
    kept = tuple(s for s in a.batch if s != 0)
    matrix = expressible(dims.mul(p.m, p.k))
    strides: list[Known] = []
    for i, s in enumerate(a.batch):
        inner = [d for d, t in zip(p.batch[i + 1 :], a.batch[i + 1 :], strict=True) if t != 0]
        strides.append(0 if s == 0 else expressible(dims.product((matrix, *inner))))
    elements = expressible(dims.product((matrix, *batch)))
    source = Matrix(a.storage, a.offset, kept, a.row, a.column)
    spec = pack_rows(source=a.dtype, target=target, unit=unit_axis(a), axes=len(batch))
    given = flat(x=source.operand, batch=BatchArgs(batch), rows=p.m, columns=p.k)
    tensor, numbers = a.storage.tensor, {name: n for name, n in given.items() if not isinstance(n, Ref)}
    if tensor is not None and all(isinstance(n, int) for n in (a.offset, elements, *numbers.values())):
        packing = Packing(tensor, int(a.offset), spec, isa, numbers, int(elements), target)
        value = a.storage.value
        to: Storage = Packed("constant", target, elements, value, key=packing.key, make=packing, packing=packing)
        return [], Matrix(to, 0, tuple(strides), p.k, 1)
    to = Storage("temporary", target, elements)
    nbytes = expressible(dims.mul(elements, (a.dtype.bits + target.bits) // 8))
    why = "not neighbours along k" if a.column != 1 else f"{a.dtype} to {target}"
    step = Step(spec, {**given, "y": Ref(to)}, frozenset("y"), p.nodes, nbytes=nbytes, variant=f"A copied: {why}")
    return [step], Matrix(to, 0, tuple(strides), p.k, 1)

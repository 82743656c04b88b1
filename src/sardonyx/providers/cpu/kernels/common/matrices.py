"""A contraction as matrix products: operands in memory, with as few batch axes as their strides allow.

Kernels see one matrix product for each index of the batch axes. Batch axes that every operand crosses with one common
stride are merged. A batch that shares its right operand becomes more rows of a single product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar

from sardonyx.dtypes import DType
from sardonyx.ir import dims
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.tensor import Tensor
from sardonyx.lower.groups import Contraction, Expression, Storage, View
from sardonyx.providers.cpu.language.arguments import Arguments, M, Memory, N, named
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.program.sizes import expressible
from sardonyx.providers.cpu.program.steps import Ref
from sardonyx.records import Record, replace


class MatrixArgs(Arguments[M, N]):
    """The parameters of a batch of matrices of one shape."""

    memory: M = field(metadata=named("{}"))
    row: N
    col: N
    batch: tuple[N, ...]

    @staticmethod
    def declared(dtype: DType, batch_axes: int) -> MatrixArgs[Memory, DType]:
        return MatrixArgs(Memory(dtype), i64, i64, (i64,) * batch_axes)

    def at(self: MatrixArgs[Buf, Val], indices: Sequence[Val]) -> Buf:
        """The first element of one matrix."""
        return moved(self.memory, indices, self.batch)


class PanelsArgs(Arguments[M, N]):
    """The parameters of a batch of matrices whose inner layout is the kernel's own."""

    memory: M = field(metadata=named("{}"))
    batch: tuple[N, ...]

    @staticmethod
    def declared(dtype: DType, batch_axes: int) -> PanelsArgs[Memory, DType]:
        return PanelsArgs(Memory(dtype), (i64,) * batch_axes)

    def at(self: PanelsArgs[Buf, Val], indices: Sequence[Val]) -> Buf:
        """The first element of one matrix."""
        return moved(self.memory, indices, self.batch)


class BatchArgs(Arguments[M, N]):
    """The sizes of the batch axes."""

    sizes: tuple[N, ...] = field(metadata=named("{}"))

    @staticmethod
    def declared(axes: int) -> BatchArgs[Memory, DType]:
        return BatchArgs((i64,) * axes)

    def count(self: BatchArgs[Buf, Val], k: Kernel) -> Val:
        """How many products there are."""
        found = k.const(1)
        for size in self.sizes:
            found = found * size
        return found

    def indices(self: BatchArgs[Buf, Val], flat: Val) -> list[Val]:
        """The index along each batch axis of product number ``flat``."""
        found: list[Val] = []
        for size in reversed(self.sizes[1:]):
            found.insert(0, flat % size)
            flat = flat // size
        return [flat, *found] if self.sizes else []


def moved(memory: Buf, indices: Sequence[Val], strides: Sequence[Val]) -> Buf:
    """The element at these indices."""
    for index, stride in zip(indices, strides, strict=False):
        memory = memory.at(index * stride)
    return memory


class Matrix(Record):
    """A batch of matrices of one shape: the address of element (batch, row, column)."""

    storage: Storage
    offset: Known
    batch: tuple[Known, ...]
    row: Known
    column: Known

    stride_class: ClassVar[str] = ""
    """The stride class (``common.epilogue``) of a layout that strides cannot describe."""

    @property
    def dtype(self) -> DType:
        return self.storage.dtype

    @staticmethod
    def of(view: View) -> Matrix:
        return Matrix(view.storage, view.offset, view.strides[:-2], view.strides[-2], view.strides[-1])

    def covers_storage(self, rows: Known, columns: Known) -> bool:
        """Whether the matrix is its whole storage, in row-major order."""
        is_dense = (self.offset, self.batch, self.column) == (0, (), 1) and (self.row == columns or rows == 1)
        return is_dense and dims.mul(rows, columns) == self.storage.elements

    @property
    def operand(self) -> MatrixArgs[Ref, Known]:
        return MatrixArgs(Ref(self.storage, self.offset), self.row, self.column, self.batch)

    @property
    def panels(self) -> PanelsArgs[Ref, Known]:
        return PanelsArgs(Ref(self.storage, self.offset), self.batch)


class Problem(Record):
    """out[batch, m, n] = epilogue(sum over k of a[batch, m, k] * b[batch, k, n], extra ...)."""

    nodes: tuple[Node, ...]
    batch: tuple[Known, ...]
    m: Known
    n: Known
    k: Known
    a: Matrix
    b: Matrix
    expression: Expression
    extra: tuple[Matrix, ...]
    outputs: tuple[Matrix, ...]

    @property
    def weight(self) -> Tensor | None:
        """B's content, if it is a constant whose shape and strides are known at compile time."""
        own = (d for d, s in zip(self.batch, self.b.batch, strict=True) if s != 0)
        sizes = (self.b.offset, self.b.row, self.b.column, *self.b.batch, self.k, self.n, *own)
        return self.b.storage.tensor if all(isinstance(size, int) for size in sizes) else None

    @property
    def flops(self) -> Known:
        return dims.known(dims.product((2, *self.batch, self.m, self.n, self.k))) or 0


def problem(group: Contraction) -> Problem:
    """The group with as few batch axes as its strides allow."""
    views = (group.a, group.b, *group.extra, *group.outputs)
    batch, m = list(group.batch), group.m
    all_ = [Matrix.of(v) for v in views]
    for i in reversed(range(len(batch))):
        if batch[i] == 1:
            batch, all_ = _drop(batch, all_, i)
    for i in reversed(range(len(batch) - 1)):
        if all(x.batch[i] == dims.mul(x.batch[i + 1], batch[i + 1]) for x in all_):
            inner = expressible(dims.mul(batch[i], batch[i + 1]))
            batch, all_ = _drop(batch, all_, i)
            batch[i] = inner
    while batch and all_[1].batch[-1] == 0 and all(_continues_rows(x, m) for j, x in enumerate(all_) if j != 1):
        rows = expressible(dims.mul(batch[-1], m))
        if m == 1:
            all_ = [x if j == 1 else replace(x, row=x.batch[-1]) for j, x in enumerate(all_)]
        batch, all_ = _drop(batch, all_, len(batch) - 1)
        m = rows
    a, b, *rest = all_
    extra, outputs = tuple(rest[: len(group.extra)]), tuple(rest[len(group.extra) :])
    return Problem(group.nodes, tuple(batch), m, group.n, group.k, a, b, group.epilogue, extra, outputs)


def _drop(batch: list[Known], matrices: Sequence[Matrix], i: int) -> tuple[list[Known], list[Matrix]]:
    def without(xs: Sequence[Known]) -> tuple[Known, ...]:
        return (*xs[:i], *xs[i + 1 :])

    return list(without(batch)), [replace(x, batch=without(x.batch)) for x in matrices]


def _continues_rows(x: Matrix, m: Known) -> bool:
    """Whether the last batch axis has the stride of ``m`` rows: batch and rows are then one axis."""
    return m == 1 or x.batch[-1] == dims.mul(x.row, m)

"""What is constant about a sweep: the expression, its passes, and how views lie along the vector axis."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.dtypes import DType
from sardonyx.forks import cached_property
from sardonyx.lower.groups import Expression
from sardonyx.providers.cpu.kernels.loops.passes import Pass, Schedule
from sardonyx.providers.cpu.language.dsl import Params
from sardonyx.providers.cpu.language.values import i32, i64, register_dtype
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES


@dataclass(frozen=True)
class Access:
    """How a kernel reads or writes a view."""

    dtype: DType
    kind: str
    """The class of its stride along the vector axis."""
    is_of_row: bool
    """It has one element for each row."""
    terms: int = 0
    """Of an output in tiles (``gemm.packed_epilogue``): how many each number has."""
    is_past: bool = False
    """An output that goes past the caches."""


@dataclass(frozen=True)
class Form:
    """What is constant about a sweep."""

    expression: Expression
    inputs: tuple[Access, ...]
    outputs: tuple[Access, ...]
    outer: int
    """Axes that are walked row by row, without the vector axis."""
    swept: int
    """Axes of a row."""
    is_columnar: bool
    """Vectors lie along an axis of their own, between the outer and the swept ones."""
    is_banded: bool
    """Rows are walked in bands along an axis of their own, between the outer and the swept ones."""
    piece: int
    """Elements of the vector axis that are one row, or one block of rows; 0: all."""
    may_keep: bool
    vectors: int = 0
    """Of a row whose values stay in registers (``loops.register_row``); 0: they do not."""

    @property
    def axes(self) -> int:
        return self.outer + (self.is_columnar or self.is_banded) + self.swept

    @property
    def vector_axis(self) -> int:
        return self.outer if self.is_columnar else self.axes - 1

    @cached_property
    def schedule(self) -> Schedule:
        rows, results = (frozenset(i for i, a in enumerate(x) if a.is_of_row) for x in (self.inputs, self.outputs))
        return Schedule(self.expression, rows, results, self.may_keep)

    @property
    def is_strip(self) -> bool:
        """Rows are reduced side by side in one pass that stores nothing: then memory can be read in its own order."""
        passes = self.schedule.passes
        return self.is_columnar and len(passes) == 1 and not passes[0].stores

    def past(self, p: Pass, machine: int) -> int | None:
        """The output of a pass that goes past the caches: one, whose lines vectors fill."""
        outputs = ((i, self.outputs[i]) for i in p.stores if not p.reductions)
        lanes = self.lanes(machine)
        whole = (i for i, y in outputs if y.is_past and y.kind == "1" and lanes * y.dtype.itemsize == LINE_NBYTES)
        return next(whole, None)

    def is_late(self, machine: int) -> bool:
        """Rows are made of what was kept of them, and go past the caches while the next is swept
        (``loops.deferred_pass``)."""
        if self.vectors or self.is_columnar or self.is_banded or self.piece or self.swept > 1 or not self.schedule.kept:
            return False
        *_, before, last = self.schedule.passes
        is_alone = len(self.outputs) == 1 and self.past(last, machine) is not None
        return is_alone and bool(before.keeps) and last.values[0] >= len(self.inputs)

    def kept_rows(self, machine: int) -> int:
        """Rows whose kept values are in memory at a time."""
        return 0 if self.vectors else 2 if self.is_late(machine) else 1

    @property
    def kept_itemsize(self) -> int:
        """Bytes of an element of the widest kept value."""
        types = (register_dtype(self.expression.dtype_of(v)) for v in self.schedule.kept)
        return max((t.bits // 8 for t in types), default=0)

    @property
    def strip_nbytes(self) -> int:
        """Bytes that the states of a strip take."""
        if not self.is_strip:
            return 0
        states = (
            2 if self.schedule.reduction(r).kind.startswith("arg") else 1 for r in self.schedule.passes[0].reductions
        )
        return sum(states) * 8 * self.piece

    def lanes(self, machine: int) -> int:
        """Lanes of a vector: a register of the widest type that occurs."""
        e = self.expression
        types = {*e.operands, *(s.dtype for s in e.steps), *(a.dtype for a in self.outputs)}
        return max(1, machine * 32 // max(register_dtype(t).bits for t in types))


def params(form: Form) -> Params:
    """Memory ``m``, extents ``n``, strides ``s``, steps from piece to piece ``p``; how many elements are reduced.

    Strides of an output in tiles count rows; it has a flag ``f`` for each.
    """
    views = (*form.inputs, *form.outputs)
    return {
        **{f"m{v}": (access.dtype,) for v, access in enumerate(views)},
        **{f"n{i}": i64 for i in range(form.axes)},
        **{f"s{v}_{i}": i64 for v in range(len(views)) for i in range(form.axes)},
        **({f"p{v}": i64 for v in range(len(views))} if form.piece else {}),
        **{f"f{v}": (i32,) for v, access in enumerate(views) if access.terms},
        "count": i64,
    }

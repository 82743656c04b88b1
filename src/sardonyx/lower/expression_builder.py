"""Builds the scalar expression of a loop or an epilogue; equal operands and equal steps are shared."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.scalar import Program
from sardonyx.lower.groups import Apply, Count, Expression, Reduce, View
from sardonyx.records import replace

Handle = int
"""A value of an expression under construction: ``~i`` is operand i, ``j`` the result of step j."""


class ExpressionBuilder:
    """Collects the operands and steps of an expression; ``views`` are its operands in memory."""

    def __init__(self, given: Sequence[DType] = ()) -> None:
        """``given`` are the types of operands that are not in memory, such as the sum of a contraction. They come
        first."""
        self.given = tuple(given)
        self.views: list[View] = []
        self._steps: dict[Apply | Reduce | Count, Handle] = {}

    def operand(self, view: View) -> Handle:
        if view not in self.views:
            self.views.append(view)
        return ~(len(self.given) + self.views.index(view))

    def apply(self, program: Program, *args: Handle, dtype: DType) -> Handle:
        return self._step(Apply(program, args, dtype))

    def reduce(self, kind: str, arg: Handle, dtype: DType, *, is_last: bool = False, is_loose: bool = False) -> Handle:
        return self._step(Reduce(kind, arg, dtype, is_last, is_loose))

    def count(self, dtype: DType) -> Handle:
        return self._step(Count(dtype))

    def inline(self, expression: Expression, operands: Sequence[Handle]) -> list[Handle]:
        """Append the steps of another expression, applied to ``operands``; returns its results."""
        handles = list(operands)
        for step in expression.steps:
            if isinstance(step, Apply):
                handles.append(self.apply(step.program, *(handles[a] for a in step.args), dtype=step.dtype))
            elif isinstance(step, Reduce):
                handles.append(self._step(replace(step, arg=handles[step.arg])))
            else:
                handles.append(self.count(step.dtype))
        return [handles[r] for r in expression.results]

    def expression(self, results: Sequence[Handle]) -> Expression:
        """The expression of these results, operands numbered before steps, without steps that no result needs."""
        steps = list(self._steps)
        needed: set[Handle] = set()
        todo = [r for r in results if r >= 0]
        while todo:
            h = todo.pop()
            if h not in needed:
                needed.add(h)
                todo += [a for a in _args(steps[h]) if a >= 0]
        kept = sorted(needed)
        first = len(self.given) + len(self.views)
        number = {h: first + i for i, h in enumerate(kept)}

        def renumbered(step: Apply | Reduce | Count) -> Apply | Reduce | Count:
            if isinstance(step, Apply):
                return Apply(step.program, tuple(number.get(a, ~a) for a in step.args), step.dtype)
            if isinstance(step, Reduce):
                return replace(step, arg=number.get(step.arg, ~step.arg))
            return step

        operands = (*self.given, *(v.dtype for v in self.views))
        return Expression(
            operands, tuple(renumbered(steps[h]) for h in kept), tuple(number.get(r, ~r) for r in results)
        )

    def _step(self, step: Apply | Reduce | Count) -> Handle:
        return self._steps.setdefault(step, len(self._steps))


def _args(step: Apply | Reduce | Count) -> tuple[Handle, ...]:
    if isinstance(step, Apply):
        return step.args
    return (step.arg,) if isinstance(step, Reduce) else ()


def work_type(*types: DType) -> DType:
    """The type in which floats are computed: f64 if one of them is f64, else f32."""
    return dtypes.f64 if dtypes.f64 in types else dtypes.f32

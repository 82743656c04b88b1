"""The passes over a row: which values of an expression exist per row, which per element, and in which pass.

A value is *per row* if it is constant over the reduced axes. A reduction runs in the *stage* in which its argument can
be computed; its result exists one stage later. Every stage with a reduction or an element store is one pass over the
row. A later pass recomputes what it needs again, unless that is expensive: then the first pass that computes the value
saves it in the thread's scratch memory.

    softmax      0: max(x)    1: e = exp(x - max), saved; sum(e)    2: store e / sum
    layer norm   0: sum(x)    1: sum((x - mean)^2)                  2: store (x - mean) / deviation * scale + bias
"""

from __future__ import annotations

from collections.abc import Iterable

from sardonyx.forks import cached_property
from sardonyx.ir.scalar import Program
from sardonyx.lower.groups import Apply, Count, Expression, Reduce
from sardonyx.records import Record

EXPENSIVE = frozenset((
    "exp", "expm1", "log", "log1p", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "pow",
))  # fmt: skip
"""Operations that cost more than storing a result to L1 and loading it again."""


_INSTRUCTIONS = {"quantize": 9, "dequantize": 3, "saturate": 3}


def is_expensive(program: Program) -> bool:
    return any(step.op in EXPENSIVE for step in program.steps)


def operations(program: Program) -> int:
    """The approximate number of instructions per element."""
    steps = (s.op for s in program.steps if s.op not in ("arg", "int", "real", "copy"))
    return sum(20 if op in EXPENSIVE else _INSTRUCTIONS.get(op, 1) for op in steps)


class Pass(Record):
    """One pass over a row: ``values`` are the element values in the order of computation."""

    stage: int
    values: tuple[int, ...]
    reductions: tuple[int, ...]
    """Value numbers of the Reduce steps that run in this pass."""
    stores: tuple[int, ...]
    """Positions in the expression's results."""
    saves: tuple[int, ...]
    """Values that later passes reload."""
    reloads: tuple[int, ...]
    """Values that an earlier pass saved."""


class Schedule(Record):
    """The passes of an expression. ``row_operands`` are the operands that are constant along a row."""

    expression: Expression
    row_operands: frozenset[int]
    row_results: frozenset[int]
    """Positions of the results that are stored once per row."""
    may_save: bool = True

    @cached_property
    def per_row(self) -> frozenset[int]:
        found = set(self.row_operands)
        for number, step in self._steps():
            if not isinstance(step, Apply) or all(a in found for a in step.args):
                found.add(number)
        return frozenset(found)

    @cached_property
    def stage(self) -> dict[int, int]:
        found = dict.fromkeys(range(len(self.expression.operands)), 0)
        for number, step in self._steps():
            if isinstance(step, Reduce):
                found[number] = found[step.arg] + 1
            else:
                found[number] = max((found[a] for a in self._args(step)), default=0)
        return found

    @cached_property
    def saved(self) -> tuple[int, ...]:
        """All values that are saved, in order."""
        return tuple(v for p in self.passes for v in p.saves)

    @cached_property
    def passes(self) -> tuple[Pass, ...]:
        reductions: dict[int, list[int]] = {}
        for number, step in self._steps():
            if isinstance(step, Reduce):
                reductions.setdefault(self.stage[step.arg], []).append(number)
        stores: dict[int, list[int]] = {}
        for position, number in enumerate(self.expression.results):
            if position not in self.row_results:
                stores.setdefault(self.stage[number], []).append(position)
        stages = sorted({*reductions, *stores})
        ends = [self._ends(reductions.get(s, ()), stores.get(s, ())) for s in stages]
        out: list[Pass] = []
        saved: frozenset[int] = frozenset()
        for i, s in enumerate(stages):
            values = self._needed(ends[i], saved)
            costly = frozenset(v for v in values if v not in saved and self.may_save and self.is_worth_saving(v))
            later = {v for e in ends[i + 1 :] for v in self._needed(e, saved | costly)}
            reloads, saves = (tuple(v for v in values if v in known) for known in (saved, costly & later))
            out.append(Pass(s, values, tuple(reductions.get(s, ())), tuple(stores.get(s, ())), saves, reloads))
            saved |= set(saves)
        return tuple(out)

    def _steps(self) -> Iterable[tuple[int, Apply | Reduce | Count]]:
        return enumerate(self.expression.steps, len(self.expression.operands))

    def step(self, number: int) -> Apply | Reduce | Count | None:
        """The step that computes a value; None for an operand."""
        operands = len(self.expression.operands)
        return None if number < operands else self.expression.steps[number - operands]

    def reduction(self, number: int) -> Reduce:
        step = self.step(number)
        assert isinstance(step, Reduce)
        return step

    @staticmethod
    def _args(step: Apply | Reduce | Count | None) -> tuple[int, ...]:
        return step.args if isinstance(step, Apply) else ()

    def is_worth_saving(self, number: int) -> bool:
        """Whether recomputing a value costs more than saving it."""
        step = self.step(number)
        return isinstance(step, Apply) and is_expensive(step.program)

    def _ends(self, reductions: Iterable[int], stores: Iterable[int]) -> list[int]:
        return [self.reduction(r).arg for r in reductions] + [self.expression.results[p] for p in stores]

    def _needed(self, ends: Iterable[int], saved: frozenset[int]) -> tuple[int, ...]:
        """The element values that ``ends`` depend on, in order; saved values need no operands."""
        found: set[int] = set()
        todo = list(ends)
        while todo:
            v = todo.pop()
            if v in found or v in self.per_row:
                continue
            found.add(v)
            if v not in saved:
                todo += self._args(self.step(v))
        return tuple(sorted(found))

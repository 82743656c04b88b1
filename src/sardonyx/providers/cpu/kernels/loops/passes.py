"""How often a row is swept: which values an expression needs for each row, which for each element, and when.

A value is *of the row* if it is one number for all elements that the reductions of its row run over. A reduction can
begin when its argument can be computed: that is its *stage*; its result exists one stage later. Every stage that has
a reduction or stores elements is one pass over the row. What a later pass needs again is recomputed, unless that is
expensive: then the first pass that computes it keeps it in memory of the thread's own.

    softmax      0: max(x)    1: e = exp(x - max), kept; sum(e)    2: store e / sum
    layer norm   0: sum(x)    1: sum((x - mean)^2)                 2: store (x - mean) / deviation * scale + bias
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sardonyx.forks import cached_property
from sardonyx.ir.scalar import Program
from sardonyx.lower.groups import Apply, Count, Expression, Reduce

EXPENSIVE = frozenset((
    "exp", "expm1", "log", "log1p", "erf", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "pow",
))  # fmt: skip
"""Operations that cost more than writing a result to the nearest cache and reading it back."""


def is_expensive(program: Program) -> bool:
    return any(step.op in EXPENSIVE for step in program.steps)


def operations(program: Program) -> int:
    """About how many instructions an element takes."""
    return sum(20 if s.op in EXPENSIVE else 1 for s in program.steps if s.op not in ("arg", "int", "real", "copy"))


@dataclass(frozen=True)
class Pass:
    """One sweep over a row: element values in the order of computation, and what becomes of them."""

    stage: int
    values: tuple[int, ...]
    reductions: tuple[int, ...]
    """The numbers of the Reduce steps that run in this pass."""
    stores: tuple[int, ...]
    """Positions in the expression's results."""
    keeps: tuple[int, ...]
    recalls: tuple[int, ...]
    """Values that an earlier pass kept."""


@dataclass(frozen=True)
class Schedule:
    """The passes of an expression whose ``row_operands`` are those that do not change along a row."""

    expression: Expression
    row_operands: frozenset[int]
    row_results: frozenset[int]
    """Positions of the results that are stored once for each row."""
    may_keep: bool = True

    @cached_property
    def of_row(self) -> frozenset[int]:
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
    def kept(self) -> tuple[int, ...]:
        """Values that are written in one pass and read in later ones, in order."""
        return tuple(v for p in self.passes for v in p.keeps)

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
        kept: frozenset[int] = frozenset()
        for i, s in enumerate(stages):
            values = self._reached(ends[i], kept)
            costly = frozenset(v for v in values if v not in kept and self.may_keep and self.is_costly(v))
            later = {v for e in ends[i + 1 :] for v in self._reached(e, kept | costly)}
            recalls, keeps = (tuple(v for v in values if v in known) for known in (kept, costly & later))
            out.append(Pass(s, values, tuple(reductions.get(s, ())), tuple(stores.get(s, ())), keeps, recalls))
            kept |= set(keeps)
        return tuple(out)

    def _steps(self) -> Iterable[tuple[int, Apply | Reduce | Count]]:
        return enumerate(self.expression.steps, len(self.expression.operands))

    def step(self, number: int) -> Apply | Reduce | Count | None:
        """The step behind a value; None for an operand."""
        operands = len(self.expression.operands)
        return None if number < operands else self.expression.steps[number - operands]

    def reduction(self, number: int) -> Reduce:
        step = self.step(number)
        assert isinstance(step, Reduce)
        return step

    @staticmethod
    def _args(step: Apply | Reduce | Count | None) -> tuple[int, ...]:
        return step.args if isinstance(step, Apply) else ()

    def is_costly(self, number: int) -> bool:
        """Whether a value is worth keeping."""
        step = self.step(number)
        return isinstance(step, Apply) and is_expensive(step.program)

    def _ends(self, reductions: Iterable[int], stores: Iterable[int]) -> list[int]:
        return [self.reduction(r).arg for r in reductions] + [self.expression.results[p] for p in stores]

    def _reached(self, ends: Iterable[int], kept: frozenset[int]) -> tuple[int, ...]:
        """The element values that ``ends`` need, in order; nothing beneath what was kept."""
        found: set[int] = set()
        todo = list(ends)
        while todo:
            v = todo.pop()
            if v in found or v in self.of_row:
                continue
            found.add(v)
            if v not in kept:
                todo += self._args(self.step(v))
        return tuple(sorted(found))

"""Storages that hold no negative numbers, such as the results of Relu or Exp. NaN counts as not negative."""

from __future__ import annotations

from collections.abc import Container, Sequence

from sardonyx.ir.scalar import Program
from sardonyx.lower.groups import Apply, Count, EpilogueGroup, Expression, Group, Loop, Pool, Reduce, Storage

_ALWAYS = frozenset(("abs", "exp", "sqrt"))
_IF_ALL = frozenset(("add", "mul", "div", "minimum", "copy"))
_IF_ANY = frozenset(("maximum",))
_REDUCTIONS = frozenset(("sum", "max", "min", "prod"))
"""Reductions whose result is not negative if no operand is."""


def never_negative(groups: Sequence[Group]) -> frozenset[Storage]:
    """Storages to which these groups write floats that are not negative, and nothing else."""
    found: set[Storage] = set()
    others: set[Storage] = set()
    for group in groups:
        signs = _of_group(group, found)
        for i, view in enumerate(group.writes):
            is_never_negative = view.dtype.is_float and i < len(signs) and signs[i] and view.storage not in others
            (found.add if is_never_negative else found.discard)(view.storage)
            if not is_never_negative:
                others.add(view.storage)
    return frozenset(found)


def _of_group(group: Group, known: Container[Storage]) -> list[bool]:
    """For each result of a group, whether it is never negative; empty if that is not known for its kind."""
    if isinstance(group, Loop):
        return _of_expression(group.expression, [v.storage in known for v in group.inputs])
    if isinstance(group, EpilogueGroup):
        first = isinstance(group, Pool) and group.x.storage in known
        return _of_expression(group.epilogue, [first, *(v.storage in known for v in group.extra)])
    return []


def _of_expression(expression: Expression, operands: list[bool]) -> list[bool]:
    values = list(operands)
    for step in expression.steps:
        if isinstance(step, Apply):
            values.append(_is_never_negative(step.program, [values[i] for i in step.args]))
        elif isinstance(step, Reduce):
            values.append(step.kind in _REDUCTIONS and values[step.arg])
        else:
            assert isinstance(step, Count)
            values.append(True)
    return [values[i] for i in expression.results]


def _is_never_negative(program: Program, args: list[bool]) -> bool:
    values = list(args)
    for step in program.steps[program.arity :]:
        of = [values[i] for i in step.args]
        values.append(
            (step.op in ("int", "real") and step.value >= 0)
            or step.op in _ALWAYS
            or (step.op in _IF_ALL and all(of))
            or (step.op in _IF_ANY and any(of))
        )
    return values[-1]

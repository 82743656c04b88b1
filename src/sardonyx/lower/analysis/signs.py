"""Which memory holds no negative number: what rectifiers, exponentials and the like write, as far as can be told.

NaN has no sign: what is said of numbers is said of the others.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from sardonyx.ir.scalar import Program
from sardonyx.lower.groups import Apply, Count, EpilogueGroup, Expression, Group, Loop, Pool, Reduce, Storage

_ALWAYS = frozenset(("abs", "exp", "sqrt"))
_IF_ALL = frozenset(("add", "mul", "div", "minimum", "copy"))
_IF_ANY = frozenset(("maximum",))
_KEEPING = frozenset(("sum", "max", "min", "prod"))
"""Reductions of numbers that are not negative to such."""


def never_negative(groups: Sequence[Group]) -> frozenset[Storage]:
    """Memory into which these groups, in order, write floats that are not negative, and nothing else."""
    found: set[Storage] = set()
    others: set[Storage] = set()
    for group in groups:
        signs = _results(group, found)
        for i, view in enumerate(group.writes):
            is_so = view.dtype.is_float and i < len(signs) and signs[i] and view.storage not in others
            (found.add if is_so else found.discard)(view.storage)
            if not is_so:
                others.add(view.storage)
    return frozenset(found)


def _results(group: Group, known: Container[Storage]) -> list[bool]:
    """Of each result of a group, whether it is never negative; none where the group's kind does not tell."""
    if isinstance(group, Loop):
        return _stored(group.expression, [v.storage in known for v in group.inputs])
    if isinstance(group, EpilogueGroup):
        first = isinstance(group, Pool) and group.x.storage in known
        return _stored(group.epilogue, [first, *(v.storage in known for v in group.extra)])
    return []


def _stored(expression: Expression, operands: list[bool]) -> list[bool]:
    values = list(operands)
    for step in expression.steps:
        if isinstance(step, Apply):
            values.append(_is_never_negative(step.program, [values[i] for i in step.args]))
        elif isinstance(step, Reduce):
            values.append(step.kind in _KEEPING and values[step.arg])
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

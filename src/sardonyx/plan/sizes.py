"""Symbolic sizes turned into Python code, so that a new shape costs microseconds.

``Sizes`` collects expressions, gives each a number once, and evaluates all of them in one call of a function whose
source it writes. ``Binding`` finds the sizes of names in the shapes that a caller feeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from sardonyx.ir import dims
from sardonyx.ir.dims import Atom, Expr, Known
from sardonyx.records import Record

Evaluate = Callable[[Sequence[int]], tuple[int, ...]]
"""From the sizes of names to the values of expressions."""


class SizesDiffer(Exception):
    """The shapes fed do not fit the model's dimensions: the message says which."""


class Sizes:
    """A numbered set of expressions, and of the largest of some."""

    def __init__(self) -> None:
        self._numbers: dict[Known | tuple[int, ...], int] = {}

    @property
    def expressions(self) -> list[Known]:
        return [e for e in self._numbers if not isinstance(e, tuple)]

    def number(self, size: Known) -> int:
        """The place of an expression among the results."""
        return self._numbers.setdefault(size, len(self._numbers))

    def largest(self, numbers: Iterable[int]) -> int:
        """The place of the largest of these results and 0."""
        return self._numbers.setdefault(tuple(dict.fromkeys(numbers)), len(self._numbers))

    def compiled(self, names: Sequence[str], conditions: Sequence[Condition] = ()) -> Evaluate:
        """A function from the sizes of names to the values of all expressions; SizesDiffer where a condition fails.

        All of it is lines of one function: a run leaves no cache warm, and then each object asked takes microseconds.
        """
        variables = {name: f"v{i}" for i, name in enumerate(names)}
        lines = [f"{', '.join(variables.values())}, = sizes"] if names else []
        for e, i in self._numbers.items():
            value = f"max(({', '.join(('0', *map(_result, e)))},))" if isinstance(e, tuple) else source(e, variables)
            lines.append(f"{_result(i)} = {value}")
        lines += [f"if {c.broken}: refuse({c.what!r}, {_result(c.size)})" for c in conditions if c.broken]
        lines.append(f"return ({''.join(f'{_result(i)}, ' for i in self._numbers.values())})")
        return revived(_code(_function("evaluate(sizes)", lines)))


def _result(number: int) -> str:
    return f"n{number}"


def _function(head: str, lines: Sequence[str]) -> str:
    return f"def {head}:\n" + "".join(f"  {line}\n" for line in lines)


def _code(text: str) -> CodeType:
    """That of the function which a text defines."""
    (found,) = (c for c in compile(text, "<sizes>", "exec").co_consts if isinstance(c, CodeType))
    return found


def revived(code: CodeType, **names: Any) -> Callable[[Any], tuple[int, ...]]:
    """The function of ``Sizes`` or a ``Binding`` that has this code, which knows these names too."""
    scope = {"div": _div, "mod": _mod, "broadcast": _broadcast, "min": min, "max": max, "refuse": _refuse, **names}
    return FunctionType(code, scope)


class Only(Record):
    """A condition: that a size is in a range."""

    size: Known
    least: int = 0
    most: int | None = None

    @property
    def otherwise(self) -> Only:
        """Where a range from 0 ends."""
        assert self.least == 0 and self.most is not None
        return Only(self.size, self.most + 1)

    def holds(self, size: int) -> bool:
        return size >= self.least and (self.most is None or size <= self.most)


class Condition(NamedTuple):
    """What must hold of numbered sizes."""

    size: int
    allowed: tuple[int, ...]
    least: int | None
    what: str

    def holds(self, numbers: Sequence[int]) -> bool:
        size = numbers[self.size]
        if self.least is not None and size < self.least:
            return False
        for a in self.allowed:
            if size == numbers[a]:
                return True
        return not self.allowed

    @property
    def broken(self) -> str:
        """That it does not hold, as Python; nothing where it always does."""
        size, others = _result(self.size), map(_result, self.allowed)
        not_allowed = " and ".join(f"{size} != {other}" for other in others)
        return " or ".join(filter(None, [not_allowed, "" if self.least is None else f"{size} < {self.least}"]))


def source(size: Known, variables: dict[str, str]) -> str:
    """An expression as Python; KeyError for a name that has no variable."""
    if not isinstance(size, Expr):
        return repr(int(size))
    terms = [
        "*".join([*([str(c)] if c != 1 or not m else []), *(_atom(a, variables) for a in m)])
        for m, c in size.terms.items()
    ]
    return f"({' + '.join(terms)})" if len(terms) > 1 else terms[0]


def _atom(atom: Atom, variables: dict[str, str]) -> str:
    if not atom.fn:
        return variables[atom]
    return f"{atom.fn}({', '.join(source(a, variables) for a in atom.args)})"


def _div(a: int, b: int) -> int:
    if b == 0:
        raise SizesDiffer("a size is divided by zero")
    return a // b


def _mod(a: int, b: int) -> int:
    return a - b * _div(a, b)


def _broadcast(a: int, b: int) -> int:
    if a != b and a != 1 and b != 1:
        raise SizesDiffer(f"sizes {a} and {b} do not broadcast")
    return b if a == 1 else a


def _refuse(what: str, size: int) -> None:
    raise SizesDiffer(f"{what}: {size}")


class Binding:
    """From the shapes of inputs to the sizes of names; every other dimension of an input is checked against them.

    A name is read where it is a dimension itself, or else where a dimension is a multiple of it.
    """

    def __init__(self, shapes: Sequence[tuple[Known, ...] | None]) -> None:
        """``shapes`` are the inputs' as the graph knows them; None for an input whose shape nobody asks."""
        self.shapes = tuple(shapes)
        places = places_of(shapes)
        self.names = tuple(places)
        checked = [
            (i, axis, d)
            for i, shape in enumerate(shapes)
            for axis, d in enumerate(shape or ())
            if places.get(name_of(d) or "") != (i, axis, 1)
        ]
        self._code = _code(_binding(places, checked))
        self.bind = revived(self._code, differ=self._differ)
        """From shapes to the size of each name. SizesDiffer when a dimension is not what the others make it."""

    def frozen(self) -> tuple[Any, ...]:
        """All of it in plain values."""
        told = tuple(None if shape is None else tuple(map(str, shape)) for shape in self.shapes)
        return told, self.names, self._code

    @classmethod
    def revived(cls, frozen: tuple[Any, ...]) -> Binding:
        made = cls.__new__(cls)
        made.shapes, made.names, made._code = frozen
        made.bind = revived(made._code, differ=made._differ)
        return made

    def _differ(self, i: int, axis: int, given: int, expected: int) -> None:
        shape = self.shapes[i]
        assert shape is not None
        raise SizesDiffer(f"axis {axis} of input {i} is {given}, but {shape[axis]} is {expected}")


def _binding(places: dict[str, tuple[int, int, int]], checked: Sequence[tuple[int, int, Known]]) -> str:
    """The function of a ``Binding``: names are read in their places, and dimensions checked."""
    variables = {name: f"v{k}" for k, name in enumerate(places)}
    lines = [f"{variables[name]} = shapes[{i}][{axis}] // {times}" for name, (i, axis, times) in places.items()]
    for i, axis, d in checked:
        given, expected = f"shapes[{i}][{axis}]", source(d, variables)
        lines.append(f"if {given} != {expected}: differ({i}, {axis}, {given}, {expected})")
    lines.append(f"return ({''.join(f'{v}, ' for v in variables.values())})")
    return _function("bind(shapes)", lines)


def name_of(d: Known) -> str | None:
    """The name that a dimension is, if it is one."""
    found = dims.multiple_of(d)
    return found[0] if found is not None and found[1] == 1 else None


def places_of(shapes: Sequence[Sequence[Known] | None]) -> dict[str, tuple[int, int, int]]:
    """Where the size of each name is read: an input, an axis of it, and how many times the name that is."""
    found: dict[str, tuple[int, int, int]] = {}
    for i, shape in enumerate(shapes):
        for axis, d in enumerate(shape or ()):
            name, times = dims.multiple_of(d) or ("", 1)
            if name and (name not in found or found[name][2] > times):
                found[name] = i, axis, times
    return found


def unbound(expressions: Sequence[Known], names: Sequence[str]) -> list[str]:
    """Names in expressions that no input gives a size to."""
    have = set(names)
    return sorted({n for e in expressions for n in dims.names(e)} - have)

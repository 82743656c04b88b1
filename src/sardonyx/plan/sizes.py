"""Symbolic sizes turned into code, so that a new shape costs microseconds.

``Sizes`` collects expressions and takes them apart into rows of one operation each, of which equal ones are there once.
Python functions are made of them, which also say what is wrong with sizes; and programs of numbers, for native code.
``Binding`` finds the sizes of names in the shapes that a caller feeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from types import CodeType, FunctionType
from typing import Any, TypeAlias

from sardonyx.ir import dims
from sardonyx.ir.dims import Atom, Expr, Known
from sardonyx.records import Record

Evaluate = Callable[[Sequence[Any]], Any]
"""From the sizes of names, or from shapes, to values of expressions."""
Results: TypeAlias = "int | str | tuple[Results, ...]"
"""Numbers of values, names that a function knows, and tuples of such."""

LARGEST = (1 << 62) - 1
"""The largest number, and less 0 the smallest, that programs go on with: sums of two have 64 bits."""


class SizesDiffer(Exception):
    """The shapes fed do not fit the model's dimensions: the message says which."""


class Op:
    """What a row does with two values; ``NUMBER`` is its second word."""

    NUMBER, ADD, MUL, DIV, MIN, MAX, OR, BROADCAST, EQUAL, AT_LEAST = range(10)


_PYTHON = {
    Op.ADD: "{} + {}", Op.MUL: "{} * {}", Op.DIV: "div({}, {})", Op.MIN: "min({}, {})", Op.MAX: "max({}, {})",
    Op.OR: "{} | {}", Op.BROADCAST: "broadcast({}, {})", Op.EQUAL: "{} == {}", Op.AT_LEAST: "{} >= {}",
}  # fmt: skip
_FALLIBLE = {_PYTHON[Op.DIV], _PYTHON[Op.BROADCAST]}
_FUNCTIONS = {"div": Op.DIV, "min": Op.MIN, "max": Op.MAX, "broadcast": Op.BROADCAST}
"""Those of ``dims``."""


class Sizes:
    """Expressions and conditions of names, numbered: the first numbers are the names. Conditions are 1 where they
    hold, else 0."""

    def __init__(self, names: Sequence[str]) -> None:
        self.unbound: set[str] = set()
        """Names in expressions that are not among those."""
        self._names = {name: i for i, name in enumerate(names)}
        self._rows: dict[tuple[int, int, int], int] = {}
        """Operations with the numbers of their operands, which come before them; by number."""
        self._expressions: dict[Expr, int] = {}
        self._required: dict[int, tuple[str, int]] = {}

    def number(self, size: Known) -> int:
        """That of an expression."""
        if not isinstance(size, Expr):
            return self._row(Op.NUMBER, 0, int(size))
        found = self._expressions.get(size)
        if found is None:
            terms = [
                # A factor comes last: multiples of one product begin with it.
                self.product([*map(self._atom, m), *([self.number(c)] if c != 1 or not m else [])])
                for m, c in size.terms.items()
            ]
            found = self._expressions[size] = self._chain(Op.ADD, terms)
        return found

    def product(self, numbers: Sequence[int]) -> int:
        return self._chain(Op.MUL, numbers or [self.number(1)])

    def largest(self, sizes: Iterable[Known]) -> int:
        """Of these and 0."""
        return self._chain(Op.MAX, self._candidates(sizes))

    def most(self, numbers: Sequence[int]) -> int:
        """The largest of these, by their numbers; 0 of none."""
        return self._chain(Op.MAX, numbers or [self.number(0)])

    def as_long_as(self, sizes: Iterable[Known]) -> int:
        """A value of as many bits as the largest of these, none of which is negative; in Python no call is needed."""
        return self._chain(Op.OR, self._candidates(sizes))

    def _candidates(self, sizes: Iterable[Known]) -> list[int]:
        """Those of sizes and 0 that may be the largest: of multiples of one expression, one."""
        number, most = 0, dict[Expr, int]()
        for size in sizes:
            if isinstance(size, Expr):
                base, times = multiple(size)
                most[base] = max(most.get(base, 0), times)
            else:
                number = max(number, size)
        multiples = (self.product([self.number(base), self.number(times)]) for base, times in most.items())
        return [self.number(number), *multiples]

    def within(self, only: Only) -> int:
        """Whether a size is in a range."""
        size = self.number(only.size)
        sides = [] if only.most is None else [self._row(Op.AT_LEAST, self.number(only.most), size)]
        return self.all([self._row(Op.AT_LEAST, size, self.number(only.least)), *sides])

    def holds(self, size: Known, allowed: Sequence[Known], least: int | None) -> int:
        """Whether a size is one of those allowed, where there are any, and no less than the least."""
        given = self.number(size)
        found = [self._chain(Op.MAX, [self._row(Op.EQUAL, given, self.number(a)) for a in allowed])] if allowed else []
        if least is not None:
            found.append(self._row(Op.AT_LEAST, given, self.number(least)))
        return self.all(found)

    def all(self, conditions: Sequence[int]) -> int:
        """Whether they hold together."""
        return self._chain(Op.MIN, conditions or [self.number(1)])

    def require(self, condition: int, what: str, size: Known) -> None:
        """Have functions refuse a size where a condition does not hold."""
        if condition != self.number(1):
            self._required.setdefault(condition, (what, self.number(size)))

    def _row(self, op: int, a: int, b: int) -> int:
        return self._rows.setdefault((op, a, b), len(self._names) + len(self._rows))

    def _chain(self, op: int, numbers: Sequence[int]) -> int:
        return reduce(lambda a, b: self._row(op, a, b), numbers)

    def _atom(self, atom: Atom) -> int:
        if atom.fn:
            a, b = map(self.number, atom.args)
            return self._row(_FUNCTIONS[atom.fn], a, b)
        if atom not in self._names:
            self.unbound.add(str(atom))
        return self._names.get(atom, 0)

    def compiled(self, results: Results | None = None, binding: Binding | None = None, **names: Any) -> Evaluate:
        """A function to these results, or to a tuple of all values, from the sizes of names, or from the shapes that
        bind them; SizesDiffer where a condition is broken, or any value has no meaning. ``names`` are those that it
        knows.

        All of it is lines of one function: a run leaves no cache warm, and then each object asked takes microseconds.
        """
        if results is None:
            results = tuple(range(len(self._names) + len(self._rows)))
        told = {i: f"n{i}" for i in self._names.values()}
        told |= {i: str(b) if op == Op.NUMBER else f"n{i}" for (op, _, b), i in self._rows.items()}
        forms = {i: _form(op, told[b]) for (op, _, b), i in self._rows.items() if op != Op.NUMBER}
        fallible = (i for i, form in forms.items() if form in _FALLIBLE)
        required = (i for c, (_, size) in self._required.items() for i in (c, size))
        needed = self._needed([*_flat(results), *fallible, *required]) & forms.keys()
        lines = [f"{', '.join(told[i] for i in self._names.values())}, = given"] if self._names else []
        if binding is not None:
            lines, names = list(binding.lines), names | binding.scope
        rows = ((i, a, b) for (_, a, b), i in self._rows.items() if i in needed)
        lines += [f"{told[i]} = {forms[i].format(told[a], told[b])}" for i, a, b in rows]
        lines += [f"if not {told[c]}: refuse({what!r}, {told[i]})" for c, (what, i) in self._required.items()]
        lines.append(f"return {_told(results, told)}")
        return deserialized(_code(_function("evaluate(given)", lines)), **names)

    def program(self, numbers: Iterable[int]) -> tuple[list[tuple[int, int, int]], dict[int, int]]:
        """Rows that make these values, each the one behind those of the names and of the rows before it; and the
        places of all values that are made."""
        needed = self._needed(numbers)
        places = {i: i for i in self._names.values()}
        rows: list[tuple[int, int, int]] = []
        for (op, a, b), i in self._rows.items():
            if i in needed:
                places[i] = len(self._names) + len(rows)
                is_number = op == Op.NUMBER
                rows.append((op, 0, _bounded(b)) if is_number else (op, places[a], places[b]))
        return rows, places

    def _needed(self, numbers: Iterable[int]) -> set[int]:
        """These, and all that they are made of."""
        needed = set(numbers)
        for (op, a, b), i in reversed(self._rows.items()):
            if i in needed and op != Op.NUMBER:
                needed |= {a, b}
        return needed


def multiple(size: Expr) -> tuple[Expr, int]:
    """An expression that is no multiple of another, and how many times that this one is."""
    times = math.gcd(*size.terms.values())
    base = dims.exact_div(size, times)
    assert isinstance(base, Expr)
    return base, times


def _form(op: int, b: str) -> str:
    """An operation in Python."""
    return "{} // {}" if op == Op.DIV and b.isdecimal() and b != "0" else _PYTHON[op]


def _bounded(number: int) -> int:
    """A number that fits a word; too large a one stays too large."""
    return max(-LARGEST - 1, min(number, LARGEST + 1))


def _flat(results: Results) -> list[int]:
    if isinstance(results, tuple):
        return [i for each in results for i in _flat(each)]
    return [results] if isinstance(results, int) else []


def _told(results: Results, told: dict[int, str]) -> str:
    if isinstance(results, tuple):
        return f"({''.join(f'{_told(each, told)}, ' for each in results)})"
    return told[results] if isinstance(results, int) else results


def _function(head: str, lines: Sequence[str]) -> str:
    return f"def {head}:\n" + "".join(f"  {line}\n" for line in lines)


def _code(text: str) -> CodeType:
    """That of the function which a text defines."""
    (found,) = (c for c in compile(text, "<sizes>", "exec").co_consts if isinstance(c, CodeType))
    return found


def deserialized(code: CodeType, **names: Any) -> Callable[[Any], tuple[int, ...]]:
    """The function of ``Sizes`` that has this code, which knows these names too."""
    scope = {"div": _div, "broadcast": _broadcast, "min": min, "max": max, "refuse": _refuse, **names}
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
        self.lines = _reading(places, checked)
        """What begins a function of ``given`` shapes: the size of name i is ``ni``. SizesDiffer when a dimension is not
        what the others make it."""

    @property
    def scope(self) -> dict[str, Any]:
        """What its lines know."""
        return {"differ": self._differ}

    def frozen(self) -> tuple[Any, ...]:
        """All of it in plain values, but the lines."""
        told = tuple(None if shape is None else tuple(map(str, shape)) for shape in self.shapes)
        return told, self.names

    @classmethod
    def deserialized(cls, frozen: tuple[Any, ...]) -> Binding:
        made = cls.__new__(cls)
        made.shapes, made.names = frozen
        return made

    def _differ(self, i: int, axis: int, given: int, expected: int) -> None:
        shape = self.shapes[i]
        assert shape is not None
        raise SizesDiffer(f"axis {axis} of input {i} is {given}, but {shape[axis]} is {expected}")


def _reading(places: dict[str, tuple[int, int, int]], checked: Sequence[tuple[int, int, Known]]) -> list[str]:
    """Lines that read names in their places, and check dimensions."""
    variables = {name: f"n{k}" for k, name in enumerate(places)}
    lines = [
        f"{variables[name]} = given[{i}][{axis}]{f' // {times}' if times != 1 else ''}"
        for name, (i, axis, times) in places.items()
    ]
    for i, axis, d in checked:
        given, expected = f"given[{i}][{axis}]", source(d, variables)
        lines.append(f"if {given} != {expected}: differ({i}, {axis}, {given}, {expected})")
    return lines


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

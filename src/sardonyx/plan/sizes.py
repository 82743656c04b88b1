"""Symbolic sizes compiled to code, so that a new shape costs microseconds.

``Sizes`` collects expressions and splits them into rows of one operation each, without duplicates. From the rows it
makes Python functions, which also report invalid sizes, and shape programs for native code. ``Binding`` reads the sizes
of symbols from the shapes that a caller feeds.
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
"""From the sizes of symbols, or from shapes, to values of expressions."""
Results: TypeAlias = "int | str | tuple[Results, ...]"
"""Value numbers, names that the function knows, and tuples of these."""

LARGEST = (1 << 62) - 1
"""The largest value in shape programs, and its negation the smallest: the sum of two fits in 64 bits."""


class SizesDiffer(Exception):
    """The shapes fed do not fit the model's dimensions: the message says which."""


class Unplannable(Exception):
    """A size cannot be computed from the inputs' shapes."""


class Op:
    """The operation of a row on two values; the second word of ``NUMBER`` is a literal."""

    NUMBER, ADD, MUL, DIV, MIN, MAX, OR, BROADCAST, EQUAL, AT_LEAST = range(10)


_PYTHON = {
    Op.ADD: "{} + {}", Op.MUL: "{} * {}", Op.DIV: "div({}, {})", Op.MIN: "min({}, {})", Op.MAX: "max({}, {})",
    Op.OR: "{} | {}", Op.BROADCAST: "broadcast({}, {})", Op.EQUAL: "{} == {}", Op.AT_LEAST: "{} >= {}",
}  # fmt: skip
_FALLIBLE = {_PYTHON[Op.DIV], _PYTHON[Op.BROADCAST]}
_FUNCTIONS = {"div": Op.DIV, "min": Op.MIN, "max": Op.MAX, "broadcast": Op.BROADCAST}
"""The functions of ``dims``."""


class Sizes:
    """Numbered expressions and conditions over symbols. The symbols come first; conditions are 1 or 0."""

    def __init__(self, names: Sequence[str]) -> None:
        self.unbound: set[str] = set()
        """Symbols in expressions that are not among the given ones."""
        self._names = {name: i for i, name in enumerate(names)}
        self._rows: dict[tuple[int, int, int], int] = {}
        """Operations with their operands' value numbers, in order: operands come first."""
        self._expressions: dict[Expr, int] = {}
        self._required: dict[int, tuple[str, int]] = {}

    def number(self, size: Known) -> int:
        """The value number of an expression."""
        if not isinstance(size, Expr):
            return self._row(Op.NUMBER, 0, int(size))
        found = self._expressions.get(size)
        if found is None:
            terms = [
                # The constant factor comes last, so that multiples of one product share its rows.
                self.product([*map(self._atom, m), *([self.number(c)] if c != 1 or not m else [])])
                for m, c in size.terms.items()
            ]
            found = self._expressions[size] = self._chain(Op.ADD, terms)
        return found

    def product(self, numbers: Sequence[int]) -> int:
        return self._chain(Op.MUL, numbers or [self.number(1)])

    def largest(self, sizes: Iterable[Known]) -> int:
        """The value number of the maximum of these sizes and 0."""
        return self._chain(Op.MAX, self._candidates(sizes))

    def maximum(self, numbers: Sequence[int]) -> int:
        """The value number of the maximum of these value numbers; 0 if there are none."""
        return self._chain(Op.MAX, numbers or [self.number(0)])

    def bit_or(self, sizes: Iterable[Known]) -> int:
        """A value with as many bits as the largest of these sizes, which are not negative. Unlike max, it needs no call
        in Python.
        """
        return self._chain(Op.OR, self._candidates(sizes))

    def _candidates(self, sizes: Iterable[Known]) -> list[int]:
        """The sizes, and 0, of which one is the largest: for multiples of one expression only the largest multiple."""
        number, most = 0, dict[Expr, int]()
        for size in sizes:
            if isinstance(size, Expr):
                base, times = multiple(size)
                most[base] = max(most.get(base, 0), times)
            else:
                number = max(number, size)
        multiples = (self.product([self.number(base), self.number(times)]) for base, times in most.items())
        return [self.number(number), *multiples]

    def in_range(self, only: SizeRange) -> int:
        """The condition that a size is in a range."""
        size = self.number(only.size)
        sides = [] if only.most is None else [self._row(Op.AT_LEAST, self.number(only.most), size)]
        return self.all([self._row(Op.AT_LEAST, size, self.number(only.least)), *sides])

    def satisfies(self, size: Known, allowed: Sequence[Known], least: int | None) -> int:
        """The condition that a size is one of ``allowed``, if there are any, and at least ``least``."""
        given = self.number(size)
        found = [self._chain(Op.MAX, [self._row(Op.EQUAL, given, self.number(a)) for a in allowed])] if allowed else []
        if least is not None:
            found.append(self._row(Op.AT_LEAST, given, self.number(least)))
        return self.all(found)

    def any_at_least(self, sizes: Iterable[Known], least: int) -> int:
        """The condition that one of these sizes, of which there is at least one, is no less than ``least``."""
        return self._chain(Op.MAX, [self._row(Op.AT_LEAST, self.number(s), self.number(least)) for s in sizes])

    def all(self, conditions: Sequence[int]) -> int:
        """The condition that all of these hold."""
        return self._chain(Op.MIN, conditions or [self.number(1)])

    def require(self, condition: int, what: str, size: Known) -> None:
        """Make compiled functions raise ``SizesDiffer`` for a size if a condition does not hold."""
        if condition != self.number(1):
            self._required.setdefault(condition, (what, self.number(size)))

    def _row(self, op: int, a: int, b: int) -> int:
        return self._rows.setdefault((op, a, b), len(self._names) + len(self._rows))

    def _chain(self, op: int, numbers: Sequence[int]) -> int:
        return reduce(lambda a, b: self._row(op, a, b), numbers)

    def _atom(self, atom: Atom) -> int:
        if atom.fn:
            needed = _needed_argument(atom)
            if needed is not None:
                return self.number(needed)
            a, b = map(self.number, atom.args)
            return self._row(_FUNCTIONS[atom.fn], a, b)
        if atom not in self._names:
            self.unbound.add(str(atom))
        return self._names.get(atom, 0)

    def compiled(self, results: Results | None = None, binding: Binding | None = None, **names: Any) -> Evaluate:
        """A function from the sizes of symbols, or from the shapes that bind them, to ``results`` or a tuple of all
        values.

        It raises SizesDiffer if a condition does not hold or a value is undefined. ``names`` are further names that it
        may refer to. It is straight-line code: after a run the caches are cold, and each object that is touched costs
        microseconds.
        """
        if results is None:
            results = tuple(range(len(self._names) + len(self._rows)))
        spelled = {i: f"n{i}" for i in self._names.values()}
        spelled |= {i: str(b) if op == Op.NUMBER else f"n{i}" for (op, _, b), i in self._rows.items()}
        forms = {i: _python_form(op, spelled[b]) for (op, _, b), i in self._rows.items() if op != Op.NUMBER}
        fallible = (i for i, form in forms.items() if form in _FALLIBLE)
        required = (i for c, (_, size) in self._required.items() for i in (c, size))
        needed = self._needed([*_flat(results), *fallible, *required]) & forms.keys()
        lines = [f"{', '.join(spelled[i] for i in self._names.values())}, = given"] if self._names else []
        if binding is not None:
            lines, names = list(binding.lines), names | binding.scope
        rows = ((i, a, b) for (_, a, b), i in self._rows.items() if i in needed)
        lines += [f"{spelled[i]} = {forms[i].format(spelled[a], spelled[b])}" for i, a, b in rows]
        lines += [f"if not {spelled[c]}: refuse({what!r}, {spelled[i]})" for c, (what, i) in self._required.items()]
        lines.append(f"return {_spell(results, spelled)}")
        return deserialized(_code(_function("evaluate(given)", lines)), **names)

    def program(self, numbers: Iterable[int]) -> tuple[list[tuple[int, int, int]], dict[int, int]]:
        """The rows that compute these values, and the places of all values. A row's place follows those of the symbols
        and of the rows before it.
        """
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
        """These value numbers and everything that they depend on."""
        needed = set(numbers)
        for (op, a, b), i in reversed(self._rows.items()):
            if i in needed and op != Op.NUMBER:
                needed |= {a, b}
        return needed


def _needed_argument(atom: Atom) -> Known | None:
    """The argument that a minimum or maximum equals, because no size is as large as the other; None if both count."""
    for one, other in (atom.args, atom.args[::-1]) if atom.fn in ("min", "max") else ():
        if isinstance(one, int) and (one >= LARGEST if atom.fn == "min" else one <= -LARGEST):
            return other
    return None


def multiple(size: Expr) -> tuple[Expr, int]:
    """A size as a base expression and an integer factor."""
    times = math.gcd(*size.terms.values())
    base = dims.exact_div(size, times)
    assert isinstance(base, Expr)
    return base, times


def _python_form(op: int, b: str) -> str:
    """The Python expression of an operation."""
    return "{} // {}" if op == Op.DIV and b.isdecimal() and b != "0" else _PYTHON[op]


def _bounded(number: int) -> int:
    """A literal that fits in a word; larger ones are clamped to a value that stays out of range."""
    return max(-LARGEST - 1, min(number, LARGEST + 1))


def _flat(results: Results) -> list[int]:
    if isinstance(results, tuple):
        return [i for each in results for i in _flat(each)]
    return [results] if isinstance(results, int) else []


def _spell(results: Results, spelled: dict[int, str]) -> str:
    if isinstance(results, tuple):
        return f"({''.join(f'{_spell(each, spelled)}, ' for each in results)})"
    return spelled[results] if isinstance(results, int) else results


def _function(head: str, lines: Sequence[str]) -> str:
    return f"def {head}:\n" + "".join(f"  {line}\n" for line in lines)


def _code(text: str) -> CodeType:
    """The code of the function that a text defines."""
    (found,) = (c for c in compile(text, "<sizes>", "exec").co_consts if isinstance(c, CodeType))
    return found


def deserialized(code: CodeType, **names: Any) -> Callable[[Any], tuple[int, ...]]:
    """The function of ``Sizes`` that has this code, which refers to these names too."""
    scope = {"div": _div, "broadcast": _broadcast, "min": min, "max": max, "refuse": _refuse, **names}
    return FunctionType(code, scope)


class SizeRange(Record):
    """A condition: a size is in a range."""

    size: Known
    least: int = 0
    most: int | None = None

    @property
    def otherwise(self) -> SizeRange:
        """The complement of a range that starts at 0."""
        assert self.least == 0 and self.most is not None
        return SizeRange(self.size, self.most + 1)


def source(size: Known, variables: dict[str, str]) -> str:
    """An expression as Python; KeyError if a name has no variable."""
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
    """Reads the sizes of symbols from the shapes of inputs, and checks all other dimensions of the inputs.

    A symbol is read where it is a dimension itself, or else where a dimension is a multiple of it.
    """

    def __init__(self, shapes: Sequence[tuple[Known, ...] | None]) -> None:
        """``shapes`` are the inputs' shapes in the graph; None for an input whose shape is not needed."""
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
        """The first lines of a function of ``given`` shapes: ``ni`` is the size of symbol i. SizesDiffer if a dimension
        is not what the others imply.
        """

    @property
    def scope(self) -> dict[str, Any]:
        """The names that these lines refer to."""
        return {"differ": self._differ}

    def frozen(self) -> tuple[Any, ...]:
        """The binding as plain values, without the lines."""
        shapes = tuple(None if shape is None else tuple(map(str, shape)) for shape in self.shapes)
        return shapes, self.names

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
    """Lines that read symbols from the shapes and check dimensions."""
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
    """The symbol that a dimension is; None if it is none."""
    found = dims.multiple_of(d)
    return found[0] if found is not None and found[1] == 1 else None


def places_of(shapes: Sequence[Sequence[Known] | None]) -> dict[str, tuple[int, int, int]]:
    """Where the size of each symbol is read: the input, its axis, and the factor by which that dimension is a
    multiple.
    """
    found: dict[str, tuple[int, int, int]] = {}
    for i, shape in enumerate(shapes):
        for axis, d in enumerate(shape or ()):
            name, times = dims.multiple_of(d) or ("", 1)
            if name and (name not in found or found[name][2] > times):
                found[name] = i, axis, times
    return found

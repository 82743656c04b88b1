"""Arithmetic on symbolic dimensions.

A dimension is an int, or an ``Expr``: a polynomial of names with integer coefficients, where a quotient, remainder,
minimum, maximum or broadcast of such polynomials counts as a name of its own. An ``Expr`` is a str whose text is
canonical, so equal expressions are equal strings, and code that knows only names takes it for one. Names stand for
sizes, which are at least 0. Where nothing is known, a dimension is None, and so is whatever is computed from it.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias

from sardonyx.limits import check_time

MAX_TEXT = 1000
"""Longest text of an expression; longer ones become unknown."""

MAX_DEPTH = 40
"""Deepest nesting of functions in an expression; deeper ones become unknown. It bounds recursion over expressions."""

_EXPRESSION = r"[\w +*/%(),-]+"
_ODD_NUMBER = r"(?<!\w)\d+[^\W\d]"
"""Text for which Python's parser would print a warning."""

FRESH = "?"
"""Prefix of names that the engine made, which no model can contain."""


class Atom(str):
    """A name, or a function of expressions that is not simplified further."""

    __slots__ = ("args", "depth", "fn")
    fn: str
    args: tuple[Known, ...]
    depth: int


Monomial: TypeAlias = "tuple[Atom, ...]"
Terms: TypeAlias = "dict[Monomial, int]"


class Expr(str):
    """A polynomial that is not a constant; ``terms`` maps products of atoms to their coefficients."""

    __slots__ = ("terms",)
    terms: Terms


Known: TypeAlias = "int | Expr"
Dim: TypeAlias = "int | str | None"


def symbol(name: str) -> Expr:
    """The dimension of that name. A name that would parse as an expression is quoted."""
    if re.fullmatch(r"[^\W\d][\w.:]*", name):
        return _apply("", (), name)
    return _apply("", (), "`" + name.replace("\\", r"\\").replace("`", r"\`") + "`")


def fresh(name: str) -> Expr:
    """An unknown dimension, under a name that no model can contain."""
    return _apply("", (), FRESH + name)


@lru_cache(maxsize=4096)
def of(name: str) -> Known | None:
    """Parse the text of a declared dimension: exporters write expressions as well as names."""
    if isinstance(name, Expr):
        return name
    if not any(c.isalpha() for c in name):
        return symbol(name) if name.isdecimal() else None
    if name in ("None", "unk", "unknown"):
        return None
    if len(name) > MAX_TEXT or not re.fullmatch(_EXPRESSION, name) or re.search(_ODD_NUMBER, name):
        return symbol(name)
    try:
        return _read(ast.parse(name, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return symbol(name)


def known(dim: Dim) -> Known | None:
    """A dimension as an operand of arithmetic."""
    return of(dim) if isinstance(dim, str) and not isinstance(dim, Expr) else dim


def _read(tree: ast.expr) -> Known:
    """An expression of names, integers and the functions of this file; ValueError for any other."""
    if isinstance(tree, ast.Name):
        return symbol(tree.id)
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    parts: list[Known] = []
    fn: Callable[..., Dim] | None = None
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        fn, parts = neg, [_read(tree.operand)]
    elif isinstance(tree, ast.BinOp):
        fn, parts = _OPERATORS.get(type(tree.op)), [_read(tree.left), _read(tree.right)]
    elif isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.keywords and len(tree.args) == 2:
        fn, parts = _FUNCTIONS.get(tree.func.id.lower()), [_read(a) for a in tree.args]
    result = known(fn(*parts)) if fn is not None else None
    if result is None:
        raise ValueError("not an expression of dimensions")
    return result


# -- polynomials


def _terms(d: Known) -> Terms:
    return d.terms if isinstance(d, Expr) else ({(): d} if d else {})


def _expr(terms: Terms) -> Known | None:
    check_time()
    terms = {m: c for m, c in terms.items() if c}
    if not terms or (len(terms) == 1 and () in terms):
        return terms.get((), 0)
    order = sorted(terms.items(), key=lambda item: (-len(item[0]), item[0]))
    text = " ".join(
        f"{'-' if c < 0 else '+'} {'*'.join(([str(abs(c))] if abs(c) != 1 or not m else []) + list(m))}"
        for m, c in order
    )
    text = text[2:] if text.startswith("+") else "-" + text[2:]
    if len(text) > MAX_TEXT:
        return None
    self = Expr(text)
    self.terms = terms
    return self


def _apply(fn: str, args: tuple[Known, ...], text: str) -> Expr:
    atom = Atom(text)
    atom.fn, atom.args, atom.depth = fn, args, _depth(args)
    self = Expr(text)
    self.terms = {(atom,): 1}
    return self


def _opaque(fn: str, *args: Known) -> Known | None:
    text = f"{fn}({', '.join(map(str, args))})"
    return _apply(fn, args, text) if len(text) <= MAX_TEXT and _depth(args) <= MAX_DEPTH else None


def _depth(args: tuple[Known, ...]) -> int:
    inner = (atom.depth for arg in args if isinstance(arg, Expr) for m in arg.terms for atom in m)
    return max(inner, default=-1) + 1


@lru_cache(maxsize=8192)
def add(a: Dim, b: Dim) -> Known | None:
    if type(a) is int and type(b) is int:
        return a + b
    x, y = known(a), known(b)
    if x is None or y is None:
        return None
    terms = dict(_terms(x))
    for m, c in _terms(y).items():
        terms[m] = terms.get(m, 0) + c
    return _expr(terms)


@lru_cache(maxsize=8192)
def neg(a: Dim) -> Known | None:
    if type(a) is int:
        return -a
    x = known(a)
    return None if x is None else _expr({m: -c for m, c in _terms(x).items()})


def sub(a: Dim, b: Dim) -> Known | None:
    return a - b if type(a) is int and type(b) is int else add(a, neg(b))


@lru_cache(maxsize=8192)
def mul(a: Dim, b: Dim) -> Known | None:
    if type(a) is int and type(b) is int:
        return a * b
    x, y = known(a), known(b)
    if x == 0 or y == 0:
        return 0
    if x is None or y is None:
        return None
    terms: Terms = {}
    for m, c in _terms(x).items():
        for n, d in _terms(y).items():
            product = tuple(sorted(m + n))
            terms[product] = terms.get(product, 0) + c * d
    return _expr(terms)


def product(dims: Iterable[Dim]) -> Known | None:
    result: Known | None = 1
    for d in dims:
        result = mul(result, d)
    return result


def total(dims: Iterable[Dim]) -> Known | None:
    result: Known | None = 0
    for d in dims:
        result = add(result, d)
    return result


def exact_div(a: Dim, b: Dim) -> Known | None:
    """a / b if b divides a for all values of the names; None otherwise."""
    if type(a) is int and type(b) is int:
        return None if b == 0 or a % b else a // b
    x, y = known(a), known(b)
    if x is None or y is None or y == 0:
        return None
    if isinstance(y, int):
        return None if any(c % y for c in _terms(x).values()) else _expr({m: c // y for m, c in _terms(x).items()})
    rest, divisor = dict(_terms(x)), _terms(y)
    lead = max(divisor, key=_rank)
    quotient: Terms = {}
    while rest:
        m = max(rest, key=_rank)
        factor = _without(m, lead)
        if factor is None or rest[m] % divisor[lead] or len(quotient) > 16:
            return None
        c = quotient[factor] = rest[m] // divisor[lead]
        for n, d in divisor.items():
            key = tuple(sorted(n + factor))
            rest[key] = rest.get(key, 0) - c * d
            if not rest[key]:
                del rest[key]
    return _expr(quotient)


def _rank(m: Monomial) -> tuple[int, Monomial]:
    return len(m), m


def _without(m: Monomial, factor: Monomial) -> Monomial | None:
    left = list(m)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


# -- functions that are not polynomials


@lru_cache(maxsize=8192)
def floordiv(a: Dim, b: Dim) -> Known | None:
    """The floor of a / b; the part of a that b divides is taken out of the quotient."""
    x, y = known(a), known(b)
    if x is None or y is None or y == 0:
        return None
    if isinstance(x, int) and isinstance(y, int):
        return x // y
    whole = exact_div(x, y)
    if whole is not None or not isinstance(y, int):
        return _opaque("div", x, y) if whole is None else whole
    terms = _terms(x)
    out, rest = {m: c // y for m, c in terms.items()}, {m: c % y for m, c in terms.items()}
    left = _expr(rest)
    if left is None:
        return None
    return add(_expr(out), left // y if isinstance(left, int) else _opaque("div", left, y))


def ceildiv(a: Dim, b: int) -> Known | None:
    """The ceiling of a / b, for positive b."""
    return floordiv(add(a, b - 1), b)


def mod(a: Dim, b: Dim) -> Known | None:
    """a - b * floor(a / b)."""
    if isinstance(b, int) and b == 0:
        return None
    return sub(a, mul(b, floordiv(a, b)))


def minimum(a: Dim, b: Dim) -> Known | None:
    return _extreme("min", a, b, min)


def maximum(a: Dim, b: Dim) -> Known | None:
    return _extreme("max", a, b, max)


def _extreme(fn: str, a: Dim, b: Dim, choose: Callable[[int, int], int]) -> Known | None:
    x, y = known(a), known(b)
    if x is None or y is None:
        return None
    if isinstance(x, int) and isinstance(y, int):
        return choose(x, y)
    if at_least(sub(x, y), 0):
        return x if fn == "max" else y
    if at_least(sub(y, x), 0):
        return y if fn == "max" else x
    return _opaque(fn, *sorted((x, y), key=str))


def broadcast(a: Dim, b: Dim) -> Known | None:
    """The dimension of a broadcast result; a dimension of 1 stretches.

    Operands that do not fit are rejected before a run, so broadcasting d with min(n, d), a slice's size, is d, and with
    max(0, d - n) + n, the size of what was cut off and padded again, is max(d, n).
    """
    x, y = known(a), known(b)
    if x == y or y == 1:
        return x
    if x == 1:
        return y
    if isinstance(x, int) and isinstance(y, int):
        return None
    if isinstance(x, int) or isinstance(y, int):
        return x if isinstance(x, int) else y
    if x is None or y is None:
        return None
    if _is_capped(x, y) or _is_capped(y, x):
        return y if _is_capped(x, y) else x
    for d, whole in ((x, y), (y, x)):
        if (least := raised_to(d, whole)) is not None:
            return whole if least == 1 else d
    parts, others = _operands(x), _operands(y)
    if parts <= others or others <= parts:
        return y if parts <= others else x
    return _opaque("broadcast", *sorted((x, y)))


def raised_to(d: Expr, whole: Expr) -> int | None:
    """The positive n with which d is max(whole, n), however it is written; None if there is none."""
    least = d.terms.get((), 0)
    atoms = [m for m in d.terms if m]
    if len(atoms) != 1 or len(atoms[0]) != 1 or d.terms[atoms[0]] != 1 or atoms[0][0].fn != "max":
        return None
    inner = [add(arg, least) for arg in atoms[0][0].args]
    numbers = [arg for arg in inner if type(arg) is int]
    return numbers[0] if whole in inner and numbers and numbers[0] > 0 else None


def _operands(d: Expr) -> frozenset[Known]:
    """What is broadcast to d, through broadcasts of broadcasts."""
    ((m, c), *more) = d.terms.items()
    if more or c != 1 or len(m) != 1 or m[0].fn != "broadcast":
        return frozenset((d,))
    return frozenset().union(*(_operands(arg) if isinstance(arg, Expr) else (arg,) for arg in m[0].args))


def _is_capped(d: Expr, whole: Expr) -> bool:
    """Whether d is min(n, whole) with a number n that is not 0."""
    ((m, c), *more) = d.terms.items()
    if more or c != 1 or len(m) != 1 or m[0].fn != "min":
        return False
    return whole in m[0].args and any(isinstance(arg, int) and arg > 0 for arg in m[0].args)


# -- bounds and comparisons


def at_least(d: Dim, bound: int) -> bool:
    """Whether a dimension is certainly no less than ``bound``."""
    return d >= bound if type(d) is int else _is_at_least(d, bound)


@lru_cache(maxsize=8192)
def _is_at_least(d: Dim, bound: int) -> bool:
    x = known(d)
    if x is None or isinstance(x, int):
        return x is not None and x >= bound
    low = 0
    for m, c in x.terms.items():
        if any(map(_falls, m)):
            if len(m) > 1 or c > 0:
                return False
            continue
        least = [_low(atom) for atom in m]
        if (c < 0 and m) or any(n < 0 for n in least):
            return False
        low += c * math.prod(least)
    return low >= bound


def _falls(atom: Atom) -> bool:
    """Whether it is a quotient of operands with opposite signs: the ceiling of a / b is written -(-a // b)."""
    return atom.fn == "div" and at_least(neg(atom.args[0]), 0) != at_least(neg(atom.args[1]), 0)


def _low(atom: Atom) -> int:
    """A lower bound: 1, 0, or -1 for anything below."""
    if atom.fn in ("max", "min"):
        sides = [1 if at_least(arg, 1) else int(at_least(arg, 0)) - 1 for arg in atom.args]
        return max(sides) if atom.fn == "max" else min(sides)
    if atom.fn == "div":
        signs = (atom.args, [neg(arg) for arg in atom.args])
        return 0 if any(all(at_least(arg, 0) for arg in args) for args in signs) else -1
    return 0


def differ(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are certainly different."""
    gap = sub(a, b)
    return at_least(gap, 1) or at_least(neg(gap), 1)


def names(d: Dim) -> Iterator[str]:
    """The names that a dimension depends on."""
    x = known(d)
    if isinstance(x, Expr):
        for atom in {atom for m in x.terms for atom in m}:
            if not atom.fn:
                yield str(atom)
            for arg in atom.args:
                yield from names(arg)


def is_fresh(d: Dim) -> bool:
    """Whether a dimension depends on names that the engine made."""
    return isinstance(d, str) and FRESH in d and any(name.startswith(FRESH) for name in names(d))


def multiple_of(d: Dim) -> tuple[str, int] | None:
    """The name that a dimension is a positive multiple of; None if there is none."""
    x = known(d)
    if not isinstance(x, Expr) or len(x.terms) != 1:
        return None
    ((m, c),) = x.terms.items()
    return (str(m[0]), c) if len(m) == 1 and not m[0].fn and c > 0 else None


def evaluate(d: Dim, sizes: Mapping[str, Known]) -> Known | None:
    """A dimension with numbers, or other dimensions, substituted for some of its names."""
    x = known(d)
    if not isinstance(x, Expr):
        return x
    return total(mul(c, product(_value(atom, sizes) for atom in m)) for m, c in x.terms.items())


def _value(atom: Atom, sizes: Mapping[str, Known]) -> Known | None:
    if atom.fn:
        return known(_FUNCTIONS[atom.fn](*(evaluate(arg, sizes) for arg in atom.args)))
    return sizes[atom] if atom in sizes else _apply("", (), atom)


_FUNCTIONS: dict[str, Callable[[Dim, Dim], Dim]] = {
    "div": floordiv, "min": minimum, "max": maximum, "mod": mod, "broadcast": broadcast
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], Callable[[Dim, Dim], Dim]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv, ast.Mod: mod
}  # fmt: skip

"""Patterns: the expression to match, written as the code that would build it.

    def pattern(self, op, x, scale, eps):
        return x / op.Sqrt(op.ReduceMean(x * x, axes=[-1], keepdims=1) + eps) * scale

A parameter matches any value, the same one wherever it is named. A number matches a scalar constant. Add, Mul, Min,
Max, And, Or, Xor, Equal and Sum of two match in both orders. A keyword is an attribute, compared with the node's or the
schema's default, or, where the operator takes it as an input in its newest form, a constant input. ``op.either`` gives
alternatives; an expression that is used twice must be one and the same value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np

from sardonyx.ir.graph import Node, Value
from sardonyx.ops.infer import schema_of

COMMUTATIVE = frozenset({"Add", "Mul", "Min", "Max", "And", "Or", "Xor", "Equal", "Sum"})

NUMBER_TOLERANCE = 1e-4
"""Relative; exporters write constants such as sqrt(2/pi) with few digits, or in half precision."""


class Pattern:
    """A matcher of expressions over values."""

    def __add__(self, other: Any) -> Pattern:
        return Apply("Add", (self, pattern_of(other)))

    def __radd__(self, other: Any) -> Pattern:
        return Apply("Add", (pattern_of(other), self))

    def __sub__(self, other: Any) -> Pattern:
        return Apply("Sub", (self, pattern_of(other)))

    def __rsub__(self, other: Any) -> Pattern:
        return Apply("Sub", (pattern_of(other), self))

    def __mul__(self, other: Any) -> Pattern:
        return Apply("Mul", (self, pattern_of(other)))

    def __rmul__(self, other: Any) -> Pattern:
        return Apply("Mul", (pattern_of(other), self))

    def __truediv__(self, other: Any) -> Pattern:
        return Apply("Div", (self, pattern_of(other)))

    def __rtruediv__(self, other: Any) -> Pattern:
        return Apply("Div", (pattern_of(other), self))

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        """All ways in which a value matches, given the bindings so far."""
        raise NotImplementedError


class Var(Pattern):
    """Matches any value, by name."""

    def __init__(self, name: str, *, optional: bool = False) -> None:
        self.name, self.optional = name, optional

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        if self.name in m.values:
            if m.values[self.name] is value:
                yield m
        elif value is not None or self.optional:
            yield m.bind(self.name, value)


class Number(Pattern):
    """Matches a scalar constant near a number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        if value is not None and value.is_const and value.const is not None and value.const.size == 1:
            found = float(value.numpy().astype(np.float64).reshape(()))
            if abs(found - self.number) <= NUMBER_TOLERANCE * max(abs(self.number), 1e-30):
                yield m


class Absent(Pattern):
    """Matches an omitted optional input."""

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        if value is None:
            yield m


class Either(Pattern):
    """Matches the first of several expressions that fits."""

    def __init__(self, *choices: Any) -> None:
        self.choices = tuple(pattern_of(c) for c in choices)

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        for choice in self.choices:
            yield from choice.match(value, m)


class Apply(Pattern):
    """Matches an operator applied to expressions; ``name`` makes the node available to the rewrite."""

    def __init__(
        self,
        op_type: str | tuple[str, ...],
        inputs: tuple[Pattern, ...],
        attrs: dict[str, Any] | None = None,
        *,
        domain: str = "",
        output: int = 0,
        name: str | None = None,
    ) -> None:
        self.op_types = (op_type,) if isinstance(op_type, str) else op_type
        self.inputs, self.attrs, self.domain, self.output, self.name = inputs, attrs or {}, domain, output, name

    def match(self, value: Value | None, m: Match) -> Iterator[Match]:
        node = value.producer if value is not None else None
        if node is None or node.op_type not in self.op_types or node.domain != self.domain:
            return
        assert value is not None
        known = m.nodes.get(self)
        if value.index != self.output or (known is not None and known is not node):
            return
        if known is not None:
            yield m
            return
        inputs = list(node.inputs)
        named, attrs = _split(node, self.attrs)
        if not all(_attr_fits(node, key, want) for key, want in attrs.items()):
            return
        for i, want in named.items():
            if not _const_fits(node, i, want):
                return
        given = inputs[: len(self.inputs)] if named else inputs
        given += [None] * (len(self.inputs) - len(given))
        if len(given) != len(self.inputs):
            return
        began = m.add(self, node)
        yield from self._match_inputs(given, began)
        if len(given) == 2 and node.op_type in COMMUTATIVE:
            yield from self._match_inputs(given[::-1], began)

    def _match_inputs(self, given: list[Value | None], m: Match, i: int = 0) -> Iterator[Match]:
        if i == len(given):
            yield m
            return
        for further in self.inputs[i].match(given[i], m):
            yield from self._match_inputs(given, further, i + 1)


class Match:
    """A match: values by parameter name, nodes by expression. Immutable; extending it makes a new one."""

    def __init__(self, values: dict[str, Value | None], nodes: dict[Apply, Node]) -> None:
        self.values, self.nodes = values, nodes

    def bind(self, name: str, value: Value | None) -> Match:
        return Match({**self.values, name: value}, self.nodes)

    def add(self, pattern: Apply, node: Node) -> Match:
        return Match(self.values, {**self.nodes, pattern: node})

    def node(self, name: str) -> Node:
        """The node that an expression with this name matched."""
        return next(node for pattern, node in self.nodes.items() if pattern.name == name)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


class PatternWriter:
    """The ``op`` argument of pattern methods."""

    def __getattr__(self, op_type: str) -> Callable[..., Apply]:
        if not op_type[0].isupper():
            raise AttributeError(op_type)
        return lambda *inputs, **attrs: self.call("", op_type, *inputs, **attrs)

    def call(
        self,
        domain: str,
        op_type: str | tuple[str, ...],
        *inputs: Any,
        output: int = 0,
        name: str | None = None,
        **attrs: Any,
    ) -> Apply:
        """An operator, or one of several, of any domain."""
        return Apply(op_type, tuple(map(pattern_of, inputs)), attrs, domain=domain, output=output, name=name)

    def either(self, *choices: Any) -> Either:
        return Either(*choices)

    def maybe(self, op_type: str, x: Any, *inputs: Any, **attrs: Any) -> Either:
        """``x``, or an operator applied to it."""
        return Either(self.call("", op_type, x, *inputs, **attrs), x)

    def optional(self, name: str) -> Var:
        """A value that may be absent."""
        return Var(name, optional=True)


def pattern_of(x: Any) -> Pattern:
    if isinstance(x, Pattern):
        return x
    if x is None:
        return Absent()
    return Number(float(x))


def written(fn: Callable[..., Any]) -> tuple[Apply, ...]:
    """The expressions that a pattern method returns for one variable per parameter."""
    names = list(inspect.signature(fn).parameters)[1:]
    roots = fn(PatternWriter(), *(Var(name) for name in names))
    return tuple(_roots(roots if isinstance(roots, tuple) else (roots,)))


def _roots(found: tuple[Any, ...]) -> Iterator[Apply]:
    for root in found:
        if isinstance(root, Either):
            yield from _roots(root.choices)
        else:
            assert isinstance(root, Apply), "a pattern's root is an operator"
            yield root


@cache
def _input_names(op_type: str, domain: str) -> dict[str, int]:
    schema = schema_of(domain, op_type)
    return {} if schema is None else {formal.name: i for i, formal in enumerate(schema.inputs)}


def _split(node: Node, attrs: dict[str, Any]) -> tuple[dict[int, Any], dict[str, Any]]:
    """Required constant inputs by position, and required attributes."""
    names = _input_names(node.op_type, node.domain)
    inputs = {names[key]: want for key, want in attrs.items() if key in names}
    return inputs, {key: want for key, want in attrs.items() if key not in names}


def _attr_fits(node: Node, key: str, want: Any) -> bool:
    got = attribute(node, key)
    if callable(want):
        return bool(want(got))
    if isinstance(want, float) and isinstance(got, float):
        return abs(got - want) <= NUMBER_TOLERANCE * max(abs(want), 1e-30)
    return bool(got == want)


def attribute(node: Node, key: str) -> Any:
    """An attribute, or its schema default; None if there is neither."""
    if key in node.attrs:
        return node.attrs[key]
    return _default(node.op_type, node.domain, key)


@cache
def _default(op_type: str, domain: str, key: str) -> Any:
    from onnx import helper

    schema = schema_of(domain, op_type)
    if schema is None or key not in schema.attributes:
        return None
    proto = schema.attributes[key].default_value
    if not proto.type:
        return None
    value = helper.get_attribute_value(proto)
    return value.decode() if isinstance(value, bytes) else value


def _const_fits(node: Node, i: int, want: Any) -> bool:
    value = node.input(i)
    if want is None or value is None:
        return want is None and value is None
    if not value.is_const:
        return False
    got = value.numpy().reshape(-1).tolist()
    if callable(want):
        return bool(want(got))
    wanted = want if isinstance(want, list) else [want]
    if got == wanted:
        return True
    rank = node.inputs[0].rank if node.inputs[0] is not None else None
    if _is_axis(node, i) and rank:
        return sorted(a % rank for a in got) == sorted(a % rank for a in wanted)
    return False


def _is_axis(node: Node, i: int) -> bool:
    return next((n for n, at in _input_names(node.op_type, node.domain).items() if at == i), "") in ("axes", "axis")

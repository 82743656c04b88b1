"""The signature of a custom operator: inputs and attributes of its nodes, derived from its Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.ir.graph import Node
from sardonyx.ir.types import TensorType
from sardonyx.records import Record

MANY = 1 << 31
_KINDS = {bool: int, int: int, float: float, str: str}
_NAMED = {"bool": int, "int": int, "float": float, "str": str}


class Attribute(Record):
    """An attribute: the kind of its values (None: any), whether it is a list, whether it is required."""

    kind: type | None
    is_list: bool
    is_required: bool

    @staticmethod
    def of(p: inspect.Parameter) -> Attribute:
        required, default = p.default is p.empty, p.default
        if required:
            named = getattr(p.annotation, "__name__", p.annotation)
            return Attribute(_NAMED.get(named) if isinstance(named, str) else None, False, True)
        is_list = isinstance(default, (list, tuple))
        sample = next(iter(default), None) if is_list else default
        return Attribute(_KINDS.get(type(sample)), is_list, False)

    def read(self, value: Any) -> Any:
        """The value converted to this kind; TypeError for other kinds. Integers are valid floats."""
        if self.kind is None:
            return value
        if self.is_list != isinstance(value, (list, tuple)):
            raise TypeError
        items = list(value) if self.is_list else [value]
        if not all(isinstance(i, self.kind) or (self.kind is float and isinstance(i, int)) for i in items):
            raise TypeError
        items = [self.kind(i) for i in items]
        return items if self.is_list else items[0]

    def __str__(self) -> str:
        kind = "any" if self.kind is None else self.kind.__name__
        return f"list of {kind}" if self.is_list else kind


class Signature(Record):
    name: str
    least: int
    most: int
    attributes: dict[str, Attribute]
    types: frozenset[DType] | None

    @staticmethod
    def of(name: str, fn: Callable[..., Any], *, skipped: int, types: frozenset[DType] | None) -> Signature:
        """The signature of a function whose first ``skipped`` parameters are not the node's."""
        parameters = list(inspect.signature(fn).parameters.values())
        placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        wrong = [p.name for p in placed if p.default not in (p.empty, None)]
        wrong += [p.name for p in parameters if p.kind is p.VAR_KEYWORD]
        if len(placed) < skipped or wrong:
            raise InvalidArgument(
                "tensors are positional, attributes keyword-only" if wrong else "the first parameter is the emitter",
                where=name,
                expected="def f(e, x, *, attribute=1.0)" if skipped else "def f(x, *, attribute=1.0)",
                got=f"{getattr(fn, '__name__', fn)}{inspect.signature(fn)}",
            )
        inputs = placed[skipped:]
        attributes = {p.name: Attribute.of(p) for p in parameters if p.kind is p.KEYWORD_ONLY}
        least = sum(p.default is p.empty for p in inputs)
        return Signature(name, least, MANY if variadic else len(inputs), attributes, types)

    def check(self, node: Node, outputs: int | None = None) -> None:
        """Raise InvalidGraph unless a node fits; convert its attributes to their kinds."""
        count = len(node.inputs)
        if not self.least <= count <= self.most or None in node.inputs[: self.least]:
            most = "" if self.most == MANY else f" to {self.most}" if self.most > self.least else ""
            got = f"{count}, of which {node.inputs.count(None)} are left out" if None in node.inputs else count
            raise InvalidGraph(
                "wrong number of inputs",
                where=node.label,
                expected=f"{self.least}{most or ' or more' * (self.most == MANY)}",
                got=got,
            )
        if outputs is not None and len(node.outputs) != outputs:
            raise InvalidGraph("wrong number of outputs", where=node.label, expected=outputs, got=len(node.outputs))
        for name, value in node.attrs.items():
            stated = self.attributes.get(name)
            if stated is None:
                raise InvalidGraph("unknown attribute", where=node.label, expected=sorted(self.attributes), got=name)
            try:
                node.attrs[name] = stated.read(value)
            except TypeError:
                raise InvalidGraph(
                    f"attribute {name!r} is of the wrong kind", where=node.label, expected=stated, got=repr(value)
                ) from None
        missing = [n for n, a in self.attributes.items() if a.is_required and n not in node.attrs]
        if missing:
            raise InvalidGraph(f"required attribute {missing[0]!r} is missing", where=node.label)
        try:
            self.check_types(tuple(v.type if v is not None else None for v in node.inputs))
        except InvalidArgument as error:
            raise InvalidGraph(error.what, where=node.label, expected=error.expected, got=error.got) from None

    def check_types(self, given: tuple[Any, ...]) -> None:
        """Raise InvalidArgument for a tensor of a type that the operator does not accept."""
        for i, t in enumerate(given):
            if self.types is not None and isinstance(t, TensorType) and t.dtype not in self.types:
                wanted = ", ".join(sorted(d.name for d in self.types))
                raise InvalidArgument(f"{self.name} does not take input {i} of this type", expected=wanted, got=t)

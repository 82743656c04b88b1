"""LLVM IR as text: types, values, blocks, functions and modules."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any


class Type:
    """An LLVM type; equal ones are the same object."""

    __slots__ = ("count", "element", "mangled", "text")

    def __init__(self, text: str, mangled: str = "", element: Type | None = None, count: int = 1) -> None:
        self.text, self.mangled, self.element, self.count = text, mangled or text, element, count

    def __call__(self, number: int) -> Value:
        """An integer of this type."""
        return constant(self, number)

    def __repr__(self) -> str:
        return self.text


@cache
def integer(bits: int) -> Type:
    return Type(f"i{bits}")


@cache
def vector_of(element: Type, count: int) -> Type:
    return Type(f"<{count} x {element.text}>", f"v{count}{element.mangled}", element, count)


@cache
def array_of(element: Type, count: int) -> Type:
    return Type(f"[{count} x {element.text}]", "", element, count)


@cache
def pair_of(first: Type, second: Type) -> Type:
    return Type(f"{{{first.text}, {second.text}}}")


VOID, POINTER = Type("void"), Type("ptr", "p0")
HALF, FLOAT, DOUBLE = Type("half", "f16"), Type("float", "f32"), Type("double", "f64")
BFLOAT = Type("bfloat", "bf16")
I1, I8, I16, I32, I64 = (integer(n) for n in (1, 8, 16, 32, 64))


class Value:
    """An operand: a register, a constant, or a global."""

    __slots__ = ("constant", "depth", "is_natural", "is_positive", "terms", "text", "type")

    def __init__(self, type: Type, text: str, depth: int = 0, constant: Any = None) -> None:
        """``depth`` is that of its region; ``constant`` the number of a scalar constant."""
        self.type, self.text, self.depth, self.constant = type, text, depth, constant
        self.is_natural: bool = type is I64 and constant is not None and 0 <= constant < 1 << 63
        """Whether it is an i64 known not to be negative."""
        self.is_positive: bool = self.is_natural and constant > 0
        """Whether it is an i64 known to be above 0, which any size may be divided by."""
        self.terms: tuple[Value, Value] | None = None
        """The terms that it is the sum of: first those that vary in the innermost loop, then the others."""

    @property
    def typed(self) -> str:
        return f"{self.type.text} {self.text}"


def constant(type: Type, number: float) -> Value:
    """A scalar constant."""
    if type is DOUBLE or type is FLOAT:
        rounded = number if type is DOUBLE else struct.unpack("<f", struct.pack("<f", number))[0]
        return Value(type, f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}", 0, float(number))
    if type is I1:
        return Value(type, "true" if number else "false", 0, int(number))
    return _whole(type, int(number))


@lru_cache(1 << 14)
def _whole(type: Type, number: int) -> Value:
    return Value(type, str(number), 0, number)


def constants(type: Type, numbers: Iterable[int]) -> Value:
    """A constant vector or array of whole numbers."""
    return _constants(type, tuple(numbers))


@lru_cache(1 << 12)
def _constants(type: Type, numbers: tuple[int, ...]) -> Value:
    assert type.element is not None
    inside = ", ".join([constant(type.element, number).typed for number in numbers])
    return Value(type, f"<{inside}>" if type.text[0] == "<" else f"[{inside}]")


@cache
def _repeated(one: str, type: Type) -> Value:
    return Value(type, f"splat ({one})")


def repeated(one: Value, count: int) -> Value:
    """A vector of one number."""
    return _repeated(one.typed, vector_of(one.type, count))


@cache
def zero(type: Type) -> Value:
    return Value(type, "zeroinitializer")


@cache
def undefined(type: Type) -> Value:
    return Value(type, "undef")


class Block:
    """A basic block: label, instructions, terminator."""

    __slots__ = ("end", "label", "lines")

    def __init__(self, label: str) -> None:
        self.label, self.end = label, ""
        self.lines: list[str] = []


class Function:
    """A function that is being emitted; its first block allocates stack memory."""

    def __init__(self, name: str, types: Sequence[Type], names: Sequence[str], attributes: str = "") -> None:
        """``attributes`` of the pointer parameters."""
        self.args = [Value(t, f"%{n}") for t, n in zip(types, names, strict=True)]
        self.head = ", ".join(
            f"{t.text}{attributes if t is POINTER else ''} %{n}" for t, n in zip(types, names, strict=True)
        )
        self.name, self.kind, self.traits = name, "", "nounwind"
        self.entry, self.blocks = Block("entry"), [Block("body")]
        self.entry.end = "br label %body"

    def __str__(self) -> str:
        lines = [f"define {self.kind}void @{self.name}({self.head}) {self.traits} {{"]
        for block in (self.entry, *self.blocks):
            lines.append(f"{block.label}:")
            lines += block.lines
            lines.append(block.end)
        lines.append("}")
        return "\n".join(lines)


class Module:
    """Functions, declarations and constant data."""

    def __init__(self) -> None:
        self.triple = ""
        self.functions: list[Function] = []
        self.globals: dict[str, Value] = {}
        self._heads: list[str] = []

    def declare(self, name: str, result: Type, types: Sequence[Type]) -> Value:
        """Declare an external function."""
        found = self.globals.get(name)
        if found is None:
            found = self.globals[name] = Value(result, f"@{name}")
            self._heads.append(f"declare {result.text} @{name}({', '.join(t.text for t in types)})")
        return found

    def table(self, name: str, content: Value) -> Value:
        """Constant data."""
        found = self.globals.get(name)
        if found is None:
            found = self.globals[name] = Value(POINTER, f'@"{name}"')
            self._heads.append(f'@"{name}" = internal constant {content.typed}')
        return found

    def define(self, function: Function) -> Value:
        self.functions.append(function)
        found = self.globals[function.name] = Value(VOID, f"@{function.name}")
        return found

    def __str__(self) -> str:
        weights = [f'!{i} = !{{!"branch_weights", i32 {a}, i32 {100 - a}}}' for i, a in ((2, 99), (3, 1))]
        ending = ["!0 = !{i32 1}", "!1 = !{}", *weights]
        return "\n".join([f'target triple = "{self.triple}"', *self._heads, *map(str, self.functions), *ending])

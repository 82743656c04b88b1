"""Emits LLVM IR in one pass, with common subexpressions eliminated and loop invariants hoisted.

Kernels are structured: regions nest. So the builder knows, whenever an instruction is asked for, whether the same one
was emitted where its result is available, and which loops it does not depend on. A pure instruction is emitted once, in
front of those loops. LLVM's GVN and LICM would do the same in twenty times the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sardonyx.providers.cpu.language.text import (  # fmt: skip
    I1,
    I32,
    I64,
    POINTER,
    VOID,
    Block,
    Function,
    Type,
    Value,
    constant,
    constants,
    vector_of,
    zero,
)


class Region:
    """A single-entry, single-exit region of a function, and the values computed in it."""

    __slots__ = ("block", "depth", "held", "is_loop", "known", "parent")

    def __init__(self, parent: Region | None, block: Block | None = None, *, is_loop: bool = False) -> None:
        """``block`` is the preheader of a loop."""
        self.parent, self.block, self.is_loop = parent, block, is_loop
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.known: dict[str, Value] = {}
        self.held: dict[str, Value] = {}
        """The known contents of variables."""


_FOLDED: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}  # fmt: skip
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "shl": 0, "lshr": 0, "ashr": 0, "or": 0, "sdiv": 1, "udiv": 1}
"""Right operands that leave an integer unchanged."""
_UNSIGNED = {"sdiv": "udiv", "srem": "urem"}
"""Cheaper equivalents for operands that are not negative."""
_CLOSED = frozenset(("add", "mul", "and", "or", "lshr", "udiv", "urem", *_UNSIGNED))
"""Operations whose result is not negative if the operands are not: addresses and sizes do not overflow."""
_DIVISIONS = frozenset(("sdiv", "udiv", "srem", "urem"))


class Builder:
    """Emits the instructions of one function, in order."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.block = function.blocks[0]
        self._region = Region(None)
        self._count = 0
        self._open: dict[str, tuple[Block, int, str]] = {}

    # -- instructions

    def _name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def effect(self, text: str) -> None:
        """An instruction without a result."""
        self.block.lines.append(text)

    def fresh(self, type: Type, text: str) -> Value:
        """An instruction whose result may differ each time."""
        name = self._name()
        self.block.lines.append(f"{name} = {text}")
        return Value(type, name, self._region.depth)

    def pure(self, type: Type, text: str, *operands: Value, is_safe: bool = True) -> Value:
        """A pure instruction; a safe one may be executed speculatively."""
        needed = 0
        for v in operands:  # a call of max takes twice as long, and this is the hottest function of emission
            if v.depth > needed:
                needed = v.depth
        at = self._region
        region: Region | None = at
        while region is not None and region.depth >= needed:
            found = region.known.get(text)
            if found is not None:
                return found
            region = region.parent
        if is_safe and needed < at.depth:
            at = _outside(at, needed)
        self._count = count = self._count + 1
        name = f"%v{count}"
        (at.block or self.block).lines.append(f"{name} = {text}")
        made = at.known[text] = Value(type, name, at.depth)
        return made

    def is_invariant(self, v: Value) -> bool:
        """Whether a value was computed in front of the innermost loop."""
        region: Region | None = self._region
        while region is not None and not region.is_loop:
            region = region.parent
        return region is None or v.depth < region.depth

    def binary(self, op: str, a: Value, b: Value, flags: str = "") -> Value:
        x, y = a.constant, b.constant
        if y is not None and a.type.text[0] == "i":
            if y == _NEUTRAL.get(op):
                return a
            if y == 0 and op == "mul":
                return b
            if x is not None and op in _FOLDED and a.type is I64:
                folded = _FOLDED[op](x, y)
                if -(1 << 63) <= folded < 1 << 63:
                    return constant(I64, folded)
        if op == "add" and a.type is I64 and not flags:
            return b if x == 0 else self._sum(a, b)
        return self._binary(op, a, b, flags)

    def _sum(self, a: Value, b: Value) -> Value:
        """A sum of three terms, the more loop-invariant ones first."""
        if a.depth < b.depth or a.constant is not None:
            a, b = b, a
        if a.terms is not None and b.depth < a.depth:
            a, fixed = a.terms
            b = self.binary("add", fixed, b)
        made = self._binary("add", a, b)
        if b.depth < a.depth or b.constant is not None:
            made.terms = a, b
        return made

    def _binary(self, op: str, a: Value, b: Value, flags: str = "") -> Value:
        is_natural = a.is_natural and b.is_natural and op in _CLOSED
        if is_natural and op in _UNSIGNED:
            op = _UNSIGNED[op]
        is_safe = op not in _DIVISIONS or b.constant not in (None, 0, -1)
        made = self.pure(a.type, f"{op} {flags}{a.type.text} {a.text}, {b.text}", a, b, is_safe=is_safe)
        made.is_natural |= is_natural
        made.is_positive |= (op == "mul" and a.is_positive and b.is_positive) or (
            op == "add" and is_natural and (a.is_positive or b.is_positive)
        )
        return made

    def unary(self, op: str, a: Value) -> Value:
        return self.pure(a.type, f"{op} {a.typed}", a)

    def compare(self, kind: str, condition: str, a: Value, b: Value) -> Value:
        if a.is_natural and b.is_natural and a.constant is not None and b.constant is not None:
            return constant(I1, int(_COMPARED[condition[-2:]](a.constant, b.constant)))
        type = I1 if a.type.text[0] != "<" else vector_of(I1, a.type.count)
        return self.pure(type, f"{kind} {condition} {a.typed}, {b.text}", a, b)

    def convert(self, op: str, a: Value, type: Type) -> Value:
        return a if a.type is type else self.pure(type, f"{op} {a.typed} to {type.text}", a)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        if condition.constant is not None:
            return a if condition.constant else b
        made = self.pure(a.type, f"select {condition.typed}, {a.typed}, {b.typed}", condition, a, b)
        made.is_natural |= a.is_natural and b.is_natural
        made.is_positive |= a.is_positive and b.is_positive
        return made

    def gep(self, pointer: Value, index: Value, element: Type, *, inbounds: bool = False) -> Value:
        """An address: loop-invariant terms are added first, a constant last."""
        if index.terms is None:
            return self._gep(pointer, index, element, "inbounds " if inbounds else "")
        moving, fixed = index.terms
        if fixed.constant is not None:
            return self._gep(self.gep(pointer, moving, element), fixed, element)
        if pointer.depth < index.depth:
            return self._gep(self.gep(pointer, fixed, element), moving, element)
        return self._gep(pointer, index, element)

    def _gep(self, pointer: Value, index: Value, element: Type, flags: str = "") -> Value:
        if index.constant == 0:
            return pointer
        text = f"getelementptr {flags}{element.text}, ptr {pointer.text}, {index.typed}"
        made = self.pure(POINTER, text, pointer, index)
        return made if made.depth == self._region.depth or index.constant is not None else self.opaque(made)

    def opaque(self, v: Value) -> Value:
        """A copy of ``v`` of which LLVM knows nothing, at no cost.

        LLVM would spend a quarter of its time on rewriting addresses in loops.
        """
        if v.constant is not None:
            return v
        made = self.pure(v.type, f"freeze {v.typed}", v)
        made.is_natural |= v.is_natural
        made.is_positive |= v.is_positive
        return made

    def extract(self, v: Value, index: Value) -> Value:
        assert v.type.element is not None
        return self.pure(v.type.element, f"extractelement {v.typed}, {index.typed}", v, index)

    def insert(self, v: Value, one: Value, index: Value) -> Value:
        return self.pure(v.type, f"insertelement {v.typed}, {one.typed}, {index.typed}", v, one, index)

    def shuffle(self, a: Value, b: Value, indices: Sequence[int]) -> Value:
        assert a.type.element is not None
        of = vector_of(I32, len(indices))
        mask = constants(of, indices) if any(indices) else zero(of)
        text = f"shufflevector {a.typed}, {b.typed}, {mask.typed}"
        return self.pure(vector_of(a.type.element, len(indices)), text, a, b)

    def load(self, pointer: Value, type: Type, align: int | None = None) -> Value:
        return self.fresh(type, f"load {type.text}, ptr {pointer.text}{_aligned(align)}")

    def load_fixed(self, pointer: Value, type: Type, align: int) -> Value:
        """A load from memory that nobody writes while the function runs."""
        return self.pure(type, f"load {type.text}, ptr {pointer.text}, align {align}, !invariant.load !1", pointer)

    def store(self, v: Value, pointer: Value, align: int | None = None, *, is_non_temporal: bool = False) -> None:
        self.effect(
            f"store {v.typed}, ptr {pointer.text}{_aligned(align)}{', !nontemporal !0' if is_non_temporal else ''}"
        )

    def call(self, function: Value, args: Sequence[Value], *, is_pure: bool = False) -> Value:
        text = f"call {function.type.text} {function.text}({', '.join(a.typed for a in args)})"
        if is_pure:
            return self.pure(function.type, text, *args)
        if function.type is VOID:
            self.effect(text)
            return function
        return self.fresh(function.type, text)

    def asm(self, text: str, constraints: str, result: Type, args: Sequence[Value]) -> Value:
        given = ", ".join(a.typed for a in args)
        return self.fresh(result, f'call {result.text} asm sideeffect "{text}", "{constraints}"({given})')

    def alloca(self, type: Type, align: int | None = None) -> Value:
        """Stack memory, allocated once."""
        name = self._name()
        self.function.entry.lines.append(f"{name} = alloca {type.text}{_aligned(align)}")
        return Value(POINTER, name)

    # -- variables

    def get(self, slot: Value, type: Type) -> Value:
        """The content of a variable; reloaded only where control flow joins."""
        region: Region | None = self._region
        while region is not None:
            if slot.text in region.held:
                return region.held[slot.text]
            region = None if region.is_loop else region.parent
        found = self._region.held[slot.text] = self.load(slot, type)
        return found

    def set(self, slot: Value, v: Value) -> None:
        region: Region | None = self._region.parent
        while region is not None:
            region.held.pop(slot.text, None)
            region = region.parent
        self._region.held[slot.text] = v
        self.store(v, slot)

    # -- control

    def new_block(self) -> Block:
        self._count += 1
        return Block(f"b{self._count}")

    def start(self, block: Block) -> None:
        self.function.blocks.append(block)
        self.block = block

    def phi(self, first: Value) -> Value:
        """A loop-carried value, ``first`` on entry; ``close_phi`` sets the value of the next trip."""
        front = self._region.parent
        assert self._region.is_loop and front is not None and front.block is not None
        made = self.fresh(first.type, "")
        made.is_natural = first.is_natural
        self._open[made.text] = self.block, len(self.block.lines) - 1, f"[ {first.text}, %{front.block.label} ]"
        return made

    def close_phi(self, number: Value, following: Value) -> None:
        block, line, first = self._open.pop(number.text)
        text = f"phi {number.type.text} {first}, [ {following.text}, %{self.block.label} ]"
        block.lines[line] = f"{number.text} = {text}"

    def branch(self, to: Block) -> None:
        if not self.block.end:
            self.block.end = f"br label %{to.label}"

    def branch_if(self, condition: Value, yes: Block, no: Block, likely: bool | None = None) -> None:
        if condition.constant is not None:
            self.branch(yes if condition.constant else no)
            return
        hint = "" if likely is None else f", !prof !{2 if likely else 3}"
        self.block.end = f"br i1 {condition.text}, label %{yes.label}, label %{no.label}{hint}"

    def leave(self) -> None:
        self.block.end = "ret void"

    @contextmanager
    def inside(self, block: Block, done: Block) -> Iterator[None]:
        """Emit into a block, from which control continues at ``done``."""
        self.start(block)
        self._region = Region(self._region)
        yield
        self.branch(done)
        self._close()

    @contextmanager
    def looping(self, block: Block) -> Iterator[None]:
        """Emit into a loop that begins with a block; the current block is its preheader."""
        self._region = Region(Region(self._region, self.block), is_loop=True)
        self.branch(block)
        self.start(block)
        yield
        self._close()
        self._close()

    def _close(self) -> None:
        assert self._region.parent is not None
        self._region = self._region.parent


def _outside(region: Region, needed: int) -> Region:
    """The preheader of the outermost loop that an instruction with operands of this depth can leave."""
    found = region
    while region.parent is not None and region.parent.depth >= needed and (region.is_loop or region.block is not None):
        if region.is_loop:
            found = region.parent
        region = region.parent
    return found


def _aligned(align: int | None) -> str:
    return "" if align is None else f", align {align}"

"""The values of the kernel language: scalars and vectors, local variables, and typed memory.

Registers hold f32, f64, integers and bool. Narrower floats exist in memory only: a load widens them to f32, a store
rounds once, to nearest even. Integers of fewer than 8 bits are the low bits of a byte in memory, and a whole register
element. A bool is a byte in memory and a bit in a register.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language import text
from sardonyx.providers.cpu.language.context import Code
from sardonyx.providers.cpu.language.text import I1, I8, I16, I32, I64, POINTER, Type, Value
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES

if TYPE_CHECKING:
    from sardonyx.providers.cpu.language.dsl import Kernel

f32, f64, f16, bf16 = dtypes.f32, dtypes.f64, dtypes.f16, dtypes.bf16
i64, i32, i8, u8, bool_ = dtypes.i64, dtypes.i32, dtypes.i8, dtypes.u8, dtypes.bool_
i16, u16, u32, u64 = (dtypes.of_name(n) for n in ("i16", "u16", "u32", "u64"))
SMALL = {dtypes.of_name(n): i8 if n[0] == "i" else u8 for n in ("i4", "u4", "i2", "u2")}
"""Integers of fewer than 8 bits, and the register types that hold them."""
MINIFLOATS = frozenset(t for t in dtypes.every() if t.is_float and t.bits <= 8 and t.bits != 6)
NARROW = MINIFLOATS | {f16, bf16}
"""Floats that registers hold as f32."""

Operand: TypeAlias = "Val | Var | int | float | bool"


@cache
def scalar_type(dtype: DType) -> Type:
    """The LLVM type of one element in a register."""
    if dtype is bool_:
        return I1
    if dtype is f32 or dtype in NARROW:
        return text.FLOAT
    if dtype is f64:
        return text.DOUBLE
    assert dtype.is_integer, dtype
    return text.integer(max(dtype.bits, 8))


@cache
def memory_type(dtype: DType) -> Type:
    """The LLVM type of one element in memory."""
    if dtype is bool_ or dtype in MINIFLOATS:
        return I8
    if dtype is f16:
        return text.HALF
    return I16 if dtype is bf16 else scalar_type(dtype)


def register_dtype(dtype: DType) -> DType:
    """The register type of an element of memory."""
    return f32 if dtype in NARROW else SMALL.get(dtype, dtype)


def vector(element: Type, lanes: int) -> Type:
    return element if lanes == 1 else text.vector_of(element, lanes)


class Val:
    """A scalar, or a vector of ``lanes`` elements. Operators emit instructions at the current place of the kernel."""

    __slots__ = ("dtype", "ir", "k", "lanes")

    def __init__(self, k: Kernel, value: Value, dtype: DType, lanes: int = 1) -> None:
        self.k, self.ir, self.dtype, self.lanes = k, value, dtype, lanes

    @property
    def type(self) -> Type:
        return self.ir.type

    def _like(self, value: Value) -> Val:
        return Val(self.k, value, self.dtype, self.lanes)

    def _arith(self, other: Operand, name: str, *, swapped: bool = False) -> Val:
        a, b = self.k.unify(self, other)
        if swapped:
            a, b = b, a
        return a._like(_emit(a, b, name))

    def __add__(self, other: Operand) -> Val:
        return self._arith(other, "add")

    def __radd__(self, other: Operand) -> Val:
        return self._arith(other, "add", swapped=True)

    def __sub__(self, other: Operand) -> Val:
        return self._arith(other, "sub")

    def __rsub__(self, other: Operand) -> Val:
        return self._arith(other, "sub", swapped=True)

    def __mul__(self, other: Operand) -> Val:
        return self._arith(other, "mul")

    def __rmul__(self, other: Operand) -> Val:
        return self._arith(other, "mul", swapped=True)

    def __truediv__(self, other: Operand) -> Val:
        """Integer division, rounded towards zero."""
        return self._arith(other, "div")

    def __rtruediv__(self, other: Operand) -> Val:
        return self._arith(other, "div", swapped=True)

    def __floordiv__(self, other: Operand) -> Val:
        """Division by a size, which must not be negative; checked kernels refuse that.

        A size of 0 divides like 1, since x86 would trap.
        """
        assert not self.dtype.is_float
        return self._arith(self._divisor(other), "div")

    def __mod__(self, other: Operand) -> Val:
        """The remainder of ``//``, with the sign of the dividend. The divisor is a size; one of 0 divides like 1."""
        assert not self.dtype.is_float
        return self._arith(self._divisor(other), "rem")

    def remainder(self, other: Operand) -> Val:
        """The remainder, with the sign of the dividend, for a divisor other than 0; of integers, since for floats LLVM
        would call a library.
        """
        assert not self.dtype.is_float
        return self._arith(other, "rem")

    def _divisor(self, other: Operand) -> Operand:
        if isinstance(other, Var):
            other = other.get()
        if not isinstance(other, Val) or other.dtype is not i64 or other.lanes > 1 or other.ir.is_positive:
            return other
        if self.k.checked and not other.ir.is_natural:
            self.k.refuse(other < 0, other, Code.DIVISOR)
        return self.k.max(other, 1)

    def __neg__(self) -> Val:
        if self.dtype.is_float:
            return self._like(self.k.b.unary("fneg", self.ir))
        return self._like(self.k.b.binary("sub", text.zero(self.type), self.ir))

    def __and__(self, other: Operand) -> Val:
        return self._arith(other, "and")

    def __or__(self, other: Operand) -> Val:
        return self._arith(other, "or")

    def __xor__(self, other: Operand) -> Val:
        return self._arith(other, "xor")

    def __invert__(self) -> Val:
        return self ^ (1 if self.dtype is bool_ else -1)

    def __lshift__(self, other: Operand) -> Val:
        return self._arith(other, "shl")

    def __rshift__(self, other: Operand) -> Val:
        return self._arith(other, "shr")

    def _compare(self, other: Operand, op: str) -> Val:
        a, b = self.k.unify(self, other)
        if a.dtype.is_float:
            kind, order = "fcmp", "u" if op == "ne" else "o"
        else:
            kind, order = "icmp", "" if op in ("eq", "ne") else "s" if a.dtype.kind == "int" else "u"
        return Val(self.k, self.k.b.compare(kind, order + op, a.ir, b.ir), bool_, a.lanes)

    def __lt__(self, other: Operand) -> Val:
        return self._compare(other, "lt")

    def __le__(self, other: Operand) -> Val:
        return self._compare(other, "le")

    def __gt__(self, other: Operand) -> Val:
        return self._compare(other, "gt")

    def __ge__(self, other: Operand) -> Val:
        return self._compare(other, "ge")

    def eq(self, other: Operand) -> Val:
        return self._compare(other, "eq")

    def ne(self, other: Operand) -> Val:
        """True for NaN."""
        return self._compare(other, "ne")

    def __bool__(self) -> bool:
        raise TypeError("a kernel's value is not known while the kernel is written: use k.select or k.when")

    def pointer(self) -> Value:
        """An integer as an address, for a call."""
        return self.k.b.convert("inttoptr", self.ir, POINTER)

    @property
    def is_number(self) -> bool:
        """Whether it is a known constant, and not NaN."""
        number = self.ir.constant
        return number is not None and bool(number == number)

    def through(self, dtype: DType) -> Val:
        """Round to a narrower float, or truncate to a narrower integer, and widen again."""
        return _widened(self.k, _narrowed(self.k, self, dtype), dtype, self.lanes)

    # -- across lanes

    def __getitem__(self, lane: int | Val) -> Val:
        """One element of a vector."""
        at = I32(lane) if isinstance(lane, int) else self.k.cast(lane, i32).ir
        return Val(self.k, self.k.b.extract(self.ir, at), self.dtype)

    def shuffle(self, indices: Sequence[int], other: Val | None = None) -> Val:
        """A shuffle: the elements at ``indices``; those from ``lanes`` on are of the other vector."""
        second = self.ir if other is None else other.ir
        return Val(self.k, self.k.b.shuffle(self.ir, second, indices), self.dtype, len(indices))

    def reduce_lanes(self, combine: Callable[[Val, Val], Val]) -> Val:
        """Horizontal reduction, halves with halves: the same order on every machine with as many lanes."""
        v = self
        while v.lanes > 1:
            half = v.lanes // 2
            v = combine(v.shuffle(range(half)), v.shuffle(range(half, v.lanes)))
            if half == 1:
                return v[0] if v.ir.type.element else v
        return v

    def sum(self) -> Val:
        return self.reduce_lanes(lambda a, b: a + b)

    def max(self) -> Val:
        return self.reduce_lanes(self.k.max)

    def min(self) -> Val:
        return self.reduce_lanes(self.k.min)

    def any(self) -> Val:
        """Whether any element of a vector of bools is true."""
        return self if self.lanes == 1 else self.k.intrinsic("llvm.vector.reduce.or", [self], bool_, 1, over=[self])


def _emit(a: Val, b: Val, name: str) -> Value:
    signed = a.dtype.kind == "int"
    if a.dtype.is_float:
        name = f"f{name}"
    elif name in ("div", "rem"):
        name = f"{'s' if signed else 'u'}{name}"
    elif name == "shr":
        name = "ashr" if signed else "lshr"
    return a.k.b.binary(name, a.ir, b.ir)


class Var:
    """A local variable; LLVM promotes it to registers."""

    __slots__ = ("dtype", "k", "lanes", "slot", "type")

    def __init__(self, k: Kernel, init: Val) -> None:
        self.k, self.dtype, self.lanes, self.type = k, init.dtype, init.lanes, init.type
        self.slot = k.b.alloca(init.type)
        self.set(init)

    def get(self) -> Val:
        return Val(self.k, self.k.b.get(self.slot, self.type), self.dtype, self.lanes)

    def set(self, value: Operand) -> None:
        self.k.b.set(self.slot, self.k.value(value, self.dtype, self.lanes).ir)

    def __iadd__(self, value: Operand) -> Var:
        self.set(self.get() + value)
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.get(), name)


def _forward(name: str) -> Any:
    return lambda self, *args: getattr(self.get(), name)(*args)


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "mod", "neg", "and", "or", "xor",
    "invert", "lshift", "rshift", "lt", "le", "gt", "ge", "getitem",
):  # fmt: skip
    setattr(Var, f"__{_name}__", _forward(f"__{_name}__"))


class Tile:
    """A vector of a row: its first index, its lanes, and, at the end of the row, the mask of the lanes that exist."""

    __slots__ = ("index", "lanes", "mask")

    def __init__(self, index: Val, lanes: int, mask: Val | None) -> None:
        self.index, self.lanes, self.mask = index, lanes, mask

    def keep(self, v: Val, neutral: float) -> Val:
        """``v`` with the lanes that do not exist replaced by ``neutral``."""
        return v if self.mask is None else v.k.select(self.mask, v, neutral)


class Buf:
    """Memory of one element type. ``at`` moves the pointer; ``load`` and ``store`` take indices relative to it."""

    __slots__ = ("dtype", "end", "k", "ptr", "start")

    def __init__(
        self, k: Kernel, ptr: Value, dtype: DType, start: Value | None = None, end: Value | None = None
    ) -> None:
        """``start`` and ``end`` bound the accessible memory; they are used by checked kernels only."""
        self.k, self.ptr, self.dtype, self.start, self.end = k, ptr, dtype, start, end

    def at(self, index: Operand) -> Buf:
        return self.with_pointer(self._address(index))

    def with_pointer(self, ptr: Value) -> Buf:
        """This memory with another pointer into it."""
        return Buf(self.k, ptr, self.dtype, self.start, self.end)

    def as_type(self, dtype: DType) -> Buf:
        """This memory with another element type."""
        return Buf(self.k, self.ptr, dtype, self.start, self.end)

    def _address(self, index: Operand) -> Value:
        if isinstance(index, int) and index == 0:
            return self.ptr
        offset = self.k.value(index, i64).ir
        # An address that LLVM may take to be inside proves a check of it needless.
        return self.k.b.gep(self.ptr, offset, memory_type(self.dtype), inbounds=not self.k.checked)

    def load(self, at: Operand | Tile = 0, lanes: int = 1, mask: Val | None = None) -> Val:
        """Load ``lanes`` consecutive elements, or those of a tile; masked lanes are zero."""
        if isinstance(at, Tile):
            lanes, mask, at = at.lanes, at.mask, at.index
        k, element = self.k, memory_type(self.dtype)
        p = self._address(at)
        self._check(p, lanes, mask)
        if mask is None:
            raw = k.b.load(p, vector(element, lanes), _align(self.dtype))
        elif lanes == 1:
            raw = k.guarded_load(p, element, mask)
        else:
            t = text.vector_of(element, lanes)
            fn = k.declare(f"llvm.masked.load.{t.mangled}.p0", t, [POINTER, I32, mask.type, t])
            raw = k.b.call(fn, [p, I32(_align(self.dtype)), mask.ir, text.zero(t)])
        if lanes == 1 and mask is None and self.dtype is u8:
            k.remember_origin(raw, self.with_pointer(p))
        return _widened(k, raw, self.dtype, lanes)

    def load_fixed(self, at: int, lanes: int) -> Val:
        """Load elements that nobody writes while the kernel runs: in front of all loops."""
        k, p = self.k, self._address(at)
        self._check(p, lanes, None)
        raw = k.b.load_fixed(p, vector(memory_type(self.dtype), lanes), _align(self.dtype))
        return _widened(k, raw, self.dtype, lanes)

    def store(
        self, at: Operand | Tile, value: Operand, mask: Val | None = None, *, is_non_temporal: bool = False
    ) -> None:
        """Store a vector to consecutive elements, under its mask.

        ``is_non_temporal`` asks for a non-temporal store; the vector must then consist of whole cache lines.
        """
        lanes = 1
        if isinstance(at, Tile):
            lanes, mask, at = at.lanes, at.mask, at.index
        if isinstance(value, (Val, Var)):
            lanes = max(lanes, value.lanes)
        k = self.k
        v = k.value(value, register_dtype(self.dtype), lanes)
        raw = _narrowed(k, v, self.dtype)
        p = self._address(at)
        self._check(p, lanes, mask)
        if mask is None:
            k.is_non_temporal |= is_non_temporal
            if is_non_temporal and k.checked:
                rest = Buf(k, p, self.dtype).line_offset()
                k.refuse(rest.ne(0), rest)
            k.b.store(raw, p, LINE_NBYTES if is_non_temporal else _align(self.dtype), is_non_temporal=is_non_temporal)
        elif lanes == 1:
            with k.when(mask):
                k.b.store(raw, p, _align(self.dtype))
        else:
            types = [raw.type, POINTER, I32, mask.type]
            fn = k.declare(f"llvm.masked.store.{raw.type.mangled}.p0", text.VOID, types)
            k.b.call(fn, [raw, p, I32(_align(self.dtype)), mask.ir])

    def gather(self, indices: Val, mask: Val | None = None) -> Val:
        """Gather: the elements at a vector of indices."""
        if indices.lanes == 1:
            return self.load(indices, mask=mask)
        masks = [None] * indices.lanes if mask is None else [mask[lane] for lane in range(indices.lanes)]
        return self.k.pack([self.load(indices[lane], mask=m) for lane, m in enumerate(masks)])

    def scatter(self, indices: Val, value: Val, mask: Val | None = None) -> None:
        """Scatter: store the elements of a vector at a vector of indices, in order."""
        for lane in range(indices.lanes):
            one = mask if mask is None or mask.lanes == 1 else mask[lane]
            self.store(
                indices if indices.lanes == 1 else indices[lane], value if value.lanes == 1 else value[lane], mask=one
            )

    def prefetch(self, at: Operand = 0, *, write: bool = False, locality: int = 3) -> None:
        fn = self.k.declare("llvm.prefetch.p0", text.VOID, [POINTER, I32, I32, I32])
        self.k.b.call(fn, [self._address(at), I32(int(write)), I32(locality), I32(1)])

    def address(self) -> Val:
        """The pointer as an integer."""
        return Val(self.k, self.k.b.convert("ptrtoint", self.ptr, I64), i64)

    def line_offset(self) -> Val:
        """The offset from the start of its cache line."""
        return self.address() & (LINE_NBYTES - 1)

    # -- atomics

    def load_atomic(self, at: Operand = 0, ordering: str = "acquire") -> Val:
        t, p = memory_type(self.dtype), self._checked(at)
        raw = self.k.b.fresh(t, f"load atomic {t.text}, {p.typed} {ordering}, align {self.dtype.bits // 8}")
        return Val(self.k, raw, self.dtype)

    def store_atomic(self, at: Operand, value: Operand, ordering: str = "release") -> None:
        v = self.k.value(value, self.dtype)
        p = self._checked(at)
        self.k.b.effect(f"store atomic {v.ir.typed}, {p.typed} {ordering}, align {self.dtype.bits // 8}")

    def add_atomic(self, at: Operand, value: Operand, ordering: str = "acq_rel") -> Val:
        """Atomic add; returns the old value."""
        v = self.k.value(value, self.dtype)
        before = self.k.b.fresh(v.type, f"atomicrmw add {self._checked(at).typed}, {v.ir.typed} {ordering}")
        return Val(self.k, before, self.dtype)

    def swap_atomic(self, at: Operand, expected: Operand, value: Operand) -> Val:
        """Atomic compare and swap; returns whether it succeeded."""
        old, new = self.k.value(expected, self.dtype), self.k.value(value, self.dtype)
        p, t = self._checked(at), text.pair_of(old.type, I1)
        pair = self.k.b.fresh(t, f"cmpxchg {p.typed}, {old.ir.typed}, {new.ir.typed} acq_rel acquire")
        return Val(self.k, self.k.b.fresh(I1, f"extractvalue {pair.typed}, 1"), bool_)

    def _checked(self, at: Operand) -> Value:
        """The checked address of one element."""
        p = self._address(at)
        self._check(p, 1, None)
        return p

    def _check(self, p: Value, lanes: int, mask: Val | None) -> None:
        if self.k.checked and self.start is not None and self.end is not None:
            self.k.check_address(p, self.start, self.end, self.dtype.itemsize, lanes, mask)


def _align(dtype: DType) -> int:
    return dtype.itemsize


def _widened(k: Kernel, raw: Value, dtype: DType, lanes: int) -> Val:
    if dtype is bool_:
        return Val(k, k.b.compare("icmp", "ne", raw, text.zero(raw.type)), bool_, lanes)
    if dtype is f16 and not k.isa.is_baseline:
        return Val(k, k.b.convert("fpext", raw, vector(text.FLOAT, lanes)), f32, lanes)
    if dtype is f16:
        code = Val(k, k.b.convert("bitcast", raw, vector(scalar_type(u16), lanes)), u16, lanes)
        widened: Val = _minifloats().widened(k, code, dtype)
        return widened
    if dtype is bf16:
        wide = Val(k, k.b.convert("zext", raw, vector(I32, lanes)), u32, lanes)
        return k.bitcast(wide << 16, f32)
    if dtype in MINIFLOATS:
        number: Val = _minifloats().widened(k, Val(k, raw, u8, lanes), dtype)
        return number
    return _in_range(Val(k, raw, register_dtype(dtype), lanes), dtype)


def _narrowed(k: Kernel, v: Val, dtype: DType) -> Value:
    if dtype is bool_:
        return k.b.convert("zext", v.ir, vector(I8, v.lanes))
    if dtype is f16 and not k.isa.is_baseline:
        return k.b.convert("fptrunc", v.ir, vector(text.HALF, v.lanes))
    if dtype is f16:
        return k.b.convert("bitcast", _minifloats().narrowed(k, v, dtype).ir, vector(text.HALF, v.lanes))
    if dtype in MINIFLOATS:
        narrow: Val = _minifloats().narrowed(k, v, dtype)
        return narrow.ir
    if dtype in SMALL:
        return (v & ((1 << dtype.bits) - 1)).ir
    return k.to_bf16(v).ir if dtype is bf16 else v.ir


def _in_range(v: Val, dtype: DType) -> Val:
    """Sign- or zero-extend the low bits of a byte."""
    if dtype not in SMALL:
        return v
    rest = 8 - dtype.bits
    return (v << rest) >> rest


def _minifloats() -> Any:
    from sardonyx.providers.cpu.language import minifloat

    return minifloat

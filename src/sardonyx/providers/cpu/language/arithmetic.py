"""What a kernel computes with: constants, conversions and functions of numbers and vectors.

``writer.Kernel`` is this with loops, memory and threads. Nothing here touches control flow or memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language import text
from sardonyx.providers.cpu.language.builder import Builder
from sardonyx.providers.cpu.language.text import I32, Type, Value
from sardonyx.providers.cpu.language.values import (
    Buf,
    Operand,
    Val,
    Var,
    bool_,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    scalar_type,
    u8,
    u16,
    u32,
    vector,
)
from sardonyx.providers.cpu.machine.isa import Isa

if TYPE_CHECKING:
    from sardonyx.providers.cpu.language.writer import Kernel


class Arithmetic:
    """The expressions of a kernel that is being emitted."""

    isa: Isa
    lanes: int
    b: Builder
    module: text.Module

    @property
    def _kernel(self) -> Kernel:
        return cast("Kernel", self)

    def _val(self, value: Value, dtype: DType, lanes: int = 1) -> Val:
        return Val(self._kernel, value, dtype, lanes)

    # -- numbers

    def const(self, value: float, dtype: DType = i64, lanes: int = 1) -> Val:
        one = text.constant(scalar_type(dtype), value)
        return self._val(one if lanes == 1 else text.repeated(one, lanes), dtype, lanes)

    def zeros(self, dtype: DType, lanes: int = 1) -> Val:
        return self.const(0, dtype, lanes)

    def iota(self, dtype: DType = i64, lanes: int | None = None) -> Val:
        """The vector 0, 1, 2, ..."""
        n = lanes or self.lanes
        if n == 1:
            return self.const(0, dtype)
        return self._val(text.constants(text.vector_of(scalar_type(dtype), n), range(n)), dtype, n)

    def value(self, x: Operand, dtype: DType, lanes: int = 1) -> Val:
        """``x`` with this type and width: Python numbers become constants, scalars are broadcast."""
        if isinstance(x, Var):
            x = x.get()
        if not isinstance(x, Val):
            return self.const(x, dtype, lanes)
        if x.dtype is not dtype:
            x = self.cast(x, dtype)
        return x if x.lanes == lanes else self.splat(x, lanes)

    def unify(self, a: Operand, b: Operand) -> tuple[Val, Val]:
        """Two operands with one type and width; the first that is not a Python number decides the type."""
        if type(a) is Val and type(b) is Val and a.dtype is b.dtype and a.lanes == b.lanes:
            return a, b  # as most are
        a = a.get() if isinstance(a, Var) else a
        b = b.get() if isinstance(b, Var) else b
        if not isinstance(a, Val):
            assert isinstance(b, Val)
            return self.const(a, b.dtype, b.lanes), b
        if not isinstance(b, Val):
            return a, self.const(b, a.dtype, a.lanes)
        if a.dtype is not b.dtype:
            raise TypeError(f"{a.dtype} meets {b.dtype}: cast one of them")
        if a.lanes == b.lanes:
            return a, b
        lead, lanes = a, max(a.lanes, b.lanes)
        return self.value(a, lead.dtype, lanes), self.value(b, lead.dtype, lanes)

    def splat(self, v: Val, lanes: int) -> Val:
        """Broadcast a scalar."""
        assert v.lanes == 1, f"a vector of {v.lanes} lanes is not widened to {lanes}"
        if lanes == 1:
            return v
        if v.ir.constant is not None:
            return self._val(text.repeated(v.ir, lanes), v.dtype, lanes)
        undefined = text.undefined(text.vector_of(v.type, lanes))
        one = self.b.insert(undefined, v.ir, I32(0))
        made = self._val(self.b.shuffle(one, undefined, [0] * lanes), v.dtype, lanes)
        if v.dtype is u8:
            self._kernel.keep_origin(v, made)
        return made

    def pack(self, parts: Sequence[Val]) -> Val:
        """A vector of scalars."""
        if len(parts) == 1:
            return parts[0]
        out = text.undefined(text.vector_of(parts[0].type, len(parts)))
        for i, part in enumerate(parts):
            out = self.b.insert(out, part.ir, I32(i))
        return self._val(out, parts[0].dtype, len(parts))

    def cast(self, v: Operand, dtype: DType) -> Val:
        """A conversion. Floats to integers truncate; out-of-range results depend on the chip, never undefined."""
        if isinstance(v, Var):
            v = v.get()
        assert isinstance(v, Val)
        if v.dtype is dtype:
            return v
        to = vector(scalar_type(dtype), v.lanes)
        source = v.dtype
        if dtype is bool_:
            return v.ne(0)
        if source is f32 and v.lanes > 1 and dtype in (i8, u8, i16, u16):
            return self.cast(self._within(v, dtype), dtype)
        if source is f32 and v.lanes > 1 and dtype is i32 and self.isa.name != "neon":
            return self._saturated_i32(v)
        if source.is_float and not dtype.is_float:
            sat = f"llvm.fpto{'s' if dtype.kind == 'int' else 'u'}i.sat"
            fn = self.declare(f"{sat}.{to.mangled}.{v.type.mangled}", to, [v.type])
            return self._val(self.b.call(fn, [v.ir], is_pure=True), dtype, v.lanes)
        if source.is_float:
            op = "fpext" if dtype is f64 else "fptrunc"
        elif dtype.is_float:
            op = "sitofp" if source.kind == "int" else "uitofp"
        elif dtype.bits < source.bits and source is not bool_:
            op = "trunc"
        else:
            op = "sext" if source.kind == "int" else "zext"
        return self._val(self.b.convert(op, v.ir, to), dtype, v.lanes)

    def _within(self, v: Val, dtype: DType) -> Val:
        """Floats to i32, saturated to the range of a narrower type, NaN as 0. (LLVM's saturating conversion is
        scalarized on x86.)"""
        low = -(2.0 ** (dtype.bits - 1)) if dtype.kind == "int" else 0.0
        inside = self.max(low, self.min(low + 2.0**dtype.bits - 1, v))
        return self.to_i32(self.select(v.ne(v), 0.0, inside))

    def _saturated_i32(self, v: Val) -> Val:
        """Floats to i32, saturated, NaN as 0."""
        low, high = -(2.0**31), 2.0**31
        below = self.max(low, self.min(high - 128, v))
        found = self.to_i32(self.select(v.ne(v), 0.0, below))
        return self.select(v >= high, 2**31 - 1, found)

    def fenced(self, v: Val) -> Val:
        """The same number, which LLVM does not merge with what follows: it makes a library call of f64 to f32 to f16
        where the first step loses nothing.
        """
        if v.lanes > 1:
            return v
        fence = self.declare(f"llvm.arithmetic.fence.{v.type.mangled}", v.type, [v.type])
        return self._val(self.b.call(fence, [v.ir], is_pure=True), v.dtype, v.lanes)

    def to_i32(self, v: Val) -> Val:
        """Floats within the range of i32, truncated; other results are arbitrary."""
        return self._val(self.b.convert("fptosi", v.ir, vector(scalar_type(i32), v.lanes)), i32, v.lanes)

    def bitcast(self, v: Val, dtype: DType) -> Val:
        """A bitcast; the number of lanes follows the width of the elements."""
        if v.dtype.bits == dtype.bits and v.dtype.is_float == dtype.is_float:
            return self._val(v.ir, dtype, v.lanes)
        lanes = v.lanes * v.dtype.bits // dtype.bits
        return self._val(self.b.convert("bitcast", v.ir, vector(scalar_type(dtype), lanes)), dtype, lanes)

    def to_bf16(self, v: Val, *, is_loose: bool = False) -> Val:
        """f32 rounded to the bits of bf16, ties to even; NaN stays NaN. ``is_loose`` allows flushing denormals, for
        which some chips have an instruction."""
        if is_loose and self.isa.bf16_dot and not self.isa.is_emulated and v.lanes > 1:
            wide = vector(text.BFLOAT, v.lanes)
            if v.lanes == 32:  # one instruction for two registers, which LLVM does not find
                high, low = (v.shuffle(range(i, i + 16)) for i in (16, 0))
                both = self.declare("llvm.x86.avx512bf16.cvtne2ps2bf16.512", wide, [high.type, low.type])
                narrow = self.b.call(both, [high.ir, low.ir], is_pure=True)
            else:
                narrow = self.b.convert("fptrunc", v.ir, wide)
            return self._val(self.b.convert("bitcast", narrow, vector(scalar_type(u16), v.lanes)), u16, v.lanes)
        bits = self.bitcast(v, u32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        quiet = (bits >> 16) | 0x40
        kept = self.select(v.ne(v), quiet, rounded)
        return self.cast(kept, u16)

    # -- functions

    def select(self, condition: Val, a: Operand, b: Operand) -> Val:
        x, y = self.unify(a, b)
        lanes = max(condition.lanes, x.lanes)
        c = condition if condition.lanes == lanes else self.splat(condition, lanes)
        x, y = self.value(x, x.dtype, lanes), self.value(y, y.dtype, lanes)
        return self._val(self.b.select(c.ir, x.ir, y.ir), x.dtype, lanes)

    def choose(self, condition: Val, a: Buf, b: Buf) -> Buf:
        """Select between two memories of one type."""
        assert a.dtype is b.dtype

        def chosen(x: Value | None, y: Value | None) -> Value | None:
            return None if x is None or y is None else self.b.select(condition.ir, x, y)

        ptr = self.b.select(condition.ir, a.ptr, b.ptr)
        return Buf(self._kernel, ptr, a.dtype, chosen(a.start, b.start), chosen(a.end, b.end))

    def max(self, a: Operand, b: Operand) -> Val:
        """Maximum; b if either is NaN, so pass what may be NaN second."""
        x, y = self.unify(a, b)
        if self._propagates(a, x):
            return self.propagating("llvm.maximum", x, y)
        found = self.select(x > y, x, y)
        found.ir.is_positive |= x.ir.is_positive or y.ir.is_positive
        found.ir.is_natural |= x.ir.is_natural or y.ir.is_natural
        return found

    def min(self, a: Operand, b: Operand) -> Val:
        """Minimum; b if either is NaN."""
        x, y = self.unify(a, b)
        return self.propagating("llvm.minimum", x, y) if self._propagates(a, x) else self.select(x < y, x, y)

    def _propagates(self, a: Operand, x: Val) -> bool:
        """Whether ``a`` is not NaN, so that NEON's instructions, which propagate NaN, give the same result."""
        is_number = a.is_number if isinstance(a, Val) else not isinstance(a, Var) and a == a
        return is_number and x.dtype.is_float and self.isa.name == "neon"

    def propagating(self, name: str, x: Val, y: Val) -> Val:
        """LLVM's ``maximum`` or ``minimum``: NaN if either operand is. One instruction on NEON."""
        return self.intrinsic(name, [x, y], x.dtype, x.lanes, over=[x])

    def fma(self, a: Operand, b: Operand, c: Operand) -> Val:
        """a * b + c, rounded once on every chip: for elementary functions, which compute rounding errors with it.

        Chips without the instruction emulate it (``soft_fma``), which is slow; sums of products use ``multiply_add``.
        """
        lead = next(x for x in (a, b, c) if isinstance(x, (Val, Var)))
        lanes = max(x.lanes if isinstance(x, (Val, Var)) else 1 for x in (a, b, c))
        args = [self.value(x, lead.dtype, lanes) for x in (a, b, c)]
        if self.isa.is_baseline:
            fused: Val = _soft_fma().fma(self, *args)
            return fused
        return self.intrinsic("llvm.fma", args, lead.dtype, lanes, over=args[:1])

    def multiply_add(self, a: Val, b: Val, total: Val | Var) -> Val:
        """a * b + total, for sums of products: an FMA if the chip has one, else a product and a sum, each rounded."""
        if self.isa.is_baseline or not total.dtype.is_float:
            summed: Val = total + a * b
            return summed
        return self.fma(a, b, total)

    def sqrt(self, v: Val) -> Val:
        return self._unary("llvm.sqrt", v)

    def abs(self, v: Val) -> Val:
        if v.dtype.is_float:
            return self._unary("llvm.fabs", v)
        return self.select(v < 0, -v, v) if v.dtype.kind == "int" else v

    def floor(self, v: Val) -> Val:
        return self._rounded("floor", v)

    def ceil(self, v: Val) -> Val:
        return self._rounded("ceil", v)

    def trunc(self, v: Val) -> Val:
        return self._rounded("trunc", v)

    def rint(self, v: Val) -> Val:
        """Round to the nearest integer, ties to even."""
        return self._rounded("rint", v)

    def _rounded(self, how: str, v: Val) -> Val:
        if self.isa.is_baseline:
            found: Val = getattr(_soft_fma(), how)(self, v)
            return found
        return self._unary(f"llvm.{how}", v)

    def copysign(self, magnitude: Val, sign: Val) -> Val:
        return self.intrinsic("llvm.copysign", [magnitude, sign], magnitude.dtype, magnitude.lanes, over=[magnitude])

    def _unary(self, name: str, v: Val) -> Val:
        return self.intrinsic(name, [v], v.dtype, v.lanes, over=[v])

    def intrinsic(self, name: str, args: Sequence[Val], dtype: DType, lanes: int, *, over: Sequence[Val] = ()) -> Val:
        """Call an LLVM intrinsic, overloaded on the types of ``over``."""
        full = ".".join([name, *(v.type.mangled for v in over)])
        fn = self.declare(full, vector(scalar_type(dtype), lanes), [v.type for v in args])
        return self._val(self.b.call(fn, [v.ir for v in args], is_pure=True), dtype, lanes)

    def declare(self, name: str, result: Type, types: Sequence[Type]) -> Value:
        return self.module.declare(name, result, types)

    def call_address(self, address: Val, *args: Value) -> None:
        """Call a native function without result, by its address."""
        self.b.call(Value(text.VOID, address.pointer().text), args)

    def call(self, name: str, *args: Value) -> None:
        """Call an intrinsic without result, by its full name."""
        self.b.call(self.declare(name, text.VOID, [a.type for a in args]), args)


def _soft_fma() -> Any:
    """Imported only for chips without FMA."""
    from sardonyx.providers.cpu.language import soft_fma

    return soft_fma

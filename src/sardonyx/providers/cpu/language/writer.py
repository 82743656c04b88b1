"""The kernel that is being emitted: loops, arithmetic, memory and threads (``dsl`` describes the language)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language import text
from sardonyx.providers.cpu.language.builder import Builder
from sardonyx.providers.cpu.language.context import COUNTERS, STEP_SLOT, WORDS_PER_BUFFER, Code, Context
from sardonyx.providers.cpu.language.scheduler import TileScheduler
from sardonyx.providers.cpu.language.text import I8, I32, I64, POINTER, Function, Type, Value
from sardonyx.providers.cpu.language.values import (  # fmt: skip
    Buf,
    Operand,
    Tile,
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


class Kernel:
    """One function that is being emitted."""

    def __init__(self, name: str, isa: Isa, *, checked: bool = False) -> None:
        self.name, self.isa, self.checked = name, isa, checked
        self._counters = self._depth = self._loops = 0
        self.is_non_temporal = False
        """Whether it has non-temporal stores: they are weakly ordered, so a fence ends the kernel."""
        self.module = text.Module()
        self.lanes = isa.lanes
        self.b: Builder
        self._args: Value
        self._context: Value | None = None
        self.thread: Val
        self.threads: Val

    # -- beginning and end

    def open(self, params: Mapping[str, tuple[str, DType]]) -> dict[str, Buf | Val]:
        """Begin a kernel of the step table."""
        names = ("args", "context", "thread", "threads")
        given = self._begin([POINTER, POINTER, I64, I64], names, " noalias")
        self._args, self._context, thread, threads = given
        thread.is_natural = threads.is_natural = threads.is_positive = True
        self.thread, self.threads = Val(self, thread, i64), Val(self, threads, i64)
        bases = self.b.convert("inttoptr", self._word(self._context, Context.BASES), POINTER)
        values: dict[str, Buf | Val] = {}
        word = STEP_SLOT + 1
        for name, (kind, dtype) in params.items():
            first = self._word(self._args, word)
            if kind == "number":
                values[name] = self._number(first, dtype)
                word += 1
                continue
            base = self.b.load_fixed(self.b.gep(bases, first, POINTER), POINTER, 8)
            start = self.b.gep(base, self._word(self._args, word + 1), I8)
            values[name] = Buf(self, start, dtype)
            if self.checked:
                front = -Val(self, self._word(self._args, word + 3), i64)
                end = self.b.gep(start, self._word(self._args, word + 2), I8)
                values[name] = Buf(self, start, dtype, self.b.gep(start, front.ir, I8), end)
            word += WORDS_PER_BUFFER
        return values

    def open_c_function(self, params: Mapping[str, tuple[str, DType]]) -> dict[str, Buf | Val]:
        """Begin a plain C function."""
        types = [POINTER if kind == "memory" else scalar_type(dtype) for kind, dtype in params.values()]
        args = self._begin(types, tuple(params))
        return {
            name: Buf(self, a, dtype) if kind == "memory" else Val(self, a, dtype)
            for (name, (kind, dtype)), a in zip(params.items(), args, strict=True)
        }

    def _begin(self, types: Sequence[Type], names: Sequence[str], traits: str = "") -> list[Value]:
        function = Function(self.name, types, names, traits)
        self.module.define(function)
        self.b = Builder(function)
        return function.args

    def close(self) -> None:
        if self.is_non_temporal:
            self.b.effect("fence seq_cst")
        self.b.leave()

    def _word(self, block: Value | None, i: int) -> Value:
        """A word of the arguments or the context that does not change during the kernel."""
        assert block is not None
        return self.b.load_fixed(self.b.gep(block, I64(i), I64, inbounds=True), I64, 8)

    def _number(self, word: Value, dtype: DType) -> Val:
        if dtype.is_float:
            bits = word if dtype is f64 else self.b.convert("trunc", word, I32)
            return Val(self, self.b.convert("bitcast", bits, scalar_type(dtype)), dtype)
        return Val(self, self.b.convert("trunc", word, scalar_type(dtype)), dtype)

    # -- numbers

    def const(self, value: float, dtype: DType = i64, lanes: int = 1) -> Val:
        one = text.constant(scalar_type(dtype), value)
        return Val(self, one if lanes == 1 else text.repeated(one, lanes), dtype, lanes)

    def zeros(self, dtype: DType, lanes: int = 1) -> Val:
        return self.const(0, dtype, lanes)

    def iota(self, dtype: DType = i64, lanes: int | None = None) -> Val:
        """The vector 0, 1, 2, ..."""
        n = lanes or self.lanes
        if n == 1:
            return self.const(0, dtype)
        return Val(self, text.constants(text.vector_of(scalar_type(dtype), n), range(n)), dtype, n)

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
        a, b = (x.get() if isinstance(x, Var) else x for x in (a, b))
        lead = a if isinstance(a, Val) else b
        assert isinstance(lead, Val)
        lanes = max(x.lanes if isinstance(x, Val) else 1 for x in (a, b))
        if isinstance(a, Val) and isinstance(b, Val) and a.dtype is not b.dtype:
            raise TypeError(f"{a.dtype} meets {b.dtype}: cast one of them")
        return self.value(a, lead.dtype, lanes), self.value(b, lead.dtype, lanes)

    def splat(self, v: Val, lanes: int) -> Val:
        """Broadcast a scalar."""
        assert v.lanes == 1, f"a vector of {v.lanes} lanes is not widened to {lanes}"
        if lanes == 1:
            return v
        if v.ir.constant is not None:
            return Val(self, text.repeated(v.ir, lanes), v.dtype, lanes)
        undefined = text.undefined(text.vector_of(v.type, lanes))
        one = self.b.insert(undefined, v.ir, I32(0))
        return Val(self, self.b.shuffle(one, undefined, [0] * lanes), v.dtype, lanes)

    def pack(self, parts: Sequence[Val]) -> Val:
        """A vector of scalars."""
        if len(parts) == 1:
            return parts[0]
        out = text.undefined(text.vector_of(parts[0].type, len(parts)))
        for i, part in enumerate(parts):
            out = self.b.insert(out, part.ir, I32(i))
        return Val(self, out, parts[0].dtype, len(parts))

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
        if source.is_float and not dtype.is_float:
            sat = f"llvm.fpto{'s' if dtype.kind == 'int' else 'u'}i.sat"
            fn = self.declare(f"{sat}.{to.mangled}.{v.type.mangled}", to, [v.type])
            return Val(self, self.b.call(fn, [v.ir], is_pure=True), dtype, v.lanes)
        if source.is_float:
            op = "fpext" if dtype is f64 else "fptrunc"
        elif dtype.is_float:
            op = "sitofp" if source.kind == "int" else "uitofp"
        elif dtype.bits < source.bits and source is not bool_:
            op = "trunc"
        else:
            op = "sext" if source.kind == "int" else "zext"
        return Val(self, self.b.convert(op, v.ir, to), dtype, v.lanes)

    def _within(self, v: Val, dtype: DType) -> Val:
        """Floats to i32, saturated to the range of a narrower type, NaN as 0. (LLVM's saturating conversion is
        scalarized on x86.)"""
        low = -(2.0 ** (dtype.bits - 1)) if dtype.kind == "int" else 0.0
        inside = self.max(low, self.min(low + 2.0**dtype.bits - 1, v))
        return self.to_i32(self.select(v.ne(v), 0.0, inside))

    def to_i32(self, v: Val) -> Val:
        """Floats within the range of i32, truncated; other results are arbitrary."""
        return Val(self, self.b.convert("fptosi", v.ir, vector(scalar_type(i32), v.lanes)), i32, v.lanes)

    def bitcast(self, v: Val, dtype: DType) -> Val:
        """A bitcast; the number of lanes follows the width of the elements."""
        if v.dtype.bits == dtype.bits and v.dtype.is_float == dtype.is_float:
            return Val(self, v.ir, dtype, v.lanes)
        lanes = v.lanes * v.dtype.bits // dtype.bits
        return Val(self, self.b.convert("bitcast", v.ir, vector(scalar_type(dtype), lanes)), dtype, lanes)

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
            return Val(self, self.b.convert("bitcast", narrow, vector(scalar_type(u16), v.lanes)), u16, v.lanes)
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
        return Val(self, self.b.select(c.ir, x.ir, y.ir), x.dtype, lanes)

    def choose(self, condition: Val, a: Buf, b: Buf) -> Buf:
        """Select between two memories of one type."""
        assert a.dtype is b.dtype

        def chosen(x: Value | None, y: Value | None) -> Value | None:
            return None if x is None or y is None else self.b.select(condition.ir, x, y)

        ptr = self.b.select(condition.ir, a.ptr, b.ptr)
        return Buf(self, ptr, a.dtype, chosen(a.start, b.start), chosen(a.end, b.end))

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
        return Val(self, self.b.call(fn, [v.ir for v in args], is_pure=True), dtype, lanes)

    def declare(self, name: str, result: Type, types: Sequence[Type]) -> Value:
        return self.module.declare(name, result, types)

    def call_address(self, address: Val, *args: Value) -> None:
        """Call a native function without result, by its address."""
        self.b.call(Value(text.VOID, address.pointer().text), args)

    def call(self, name: str, *args: Value) -> None:
        """Call an intrinsic without result, by its full name."""
        self.b.call(self.declare(name, text.VOID, [a.type for a in args]), args)

    # -- variables and control

    def var(self, init: Operand, dtype: DType = i64) -> Var:
        return Var(self, init if isinstance(init, Val) else self.value(init, dtype))

    @contextmanager
    def loop(self, start: Operand, stop: Operand, step: Operand = 1) -> Iterator[Val]:
        """A loop from ``start`` to ``stop``, exclusive."""
        first, last, by = (self.opaque(self.value(x, i64)) for x in (start, stop, step))
        is_single, this = by.is_number and by.ir.constant == 1, self._loops + 1

        def follow(numbers: list[Value]) -> tuple[list[Value], Val]:
            following = Val(self, self.b.binary("add", numbers[0], by.ir, "nsw "), i64)
            if self._loops > this:  # LLVM rewrites the addresses of innermost loops alone, but looks at all
                following = self.opaque(following)
            return [following.ir], following.ne(last) if is_single else following < last

        with self._turning(first < last, lambda: [first.ir], follow) as (number,):
            yield Val(self, number, i64)

    @contextmanager
    def paced(
        self, start: Operand, stop: Operand, paces: Sequence[Operand] = (), moving: Sequence[Buf] = ()
    ) -> Iterator[tuple[list[Val], list[Buf]]]:
        """A loop from ``start`` to ``stop`` by one, which gives the counter, its multiples by each pace, and memory
        advanced by as many elements.

        For innermost loops of many loads: their addresses are kept as written, because LLVM would spend half of its
        compile time on rewriting them.
        """
        first, last = (self.opaque(self.value(x, i64)) for x in (start, stop))
        steps = [self.value(step, i64) for step in (1, *paces)]

        def given(values: list[Value]) -> tuple[list[Val], list[Buf]]:
            places = zip(moving, values[len(steps) :], strict=True)
            return [Val(self, v, i64) for v in values[: len(steps)]], [m.with_pointer(p) for m, p in places]

        def follow(values: list[Value]) -> tuple[list[Value], Val]:
            numbers, places = given(values)
            following = [self.opaque(number + step) for number, step in zip(numbers, steps, strict=True)]
            moved = [self.b.opaque(place.at(1).ptr) for place in places]
            return [*(n.ir for n in following), *moved], following[0].ne(last)

        def begin() -> list[Value]:
            return [*((first * step).ir for step in steps), *(memory.at(first).ptr for memory in moving)]

        with self._turning(first < last, begin, follow) as values:
            yield given(values)

    @contextmanager
    def _turning(
        self, is_any: Val, begin: Callable[[], list[Value]], follow: Callable[[list[Value]], tuple[list[Value], Val]]
    ) -> Iterator[list[Value]]:
        """A loop over values: the initial ones, the next ones from the current, and whether to go on."""
        b = self.b
        front, body, done = b.new_block(), b.new_block(), b.new_block()
        b.branch_if(is_any.ir, front, done)
        b.start(front)
        begun = begin()
        with b.looping(body):
            values = [b.phi(v) for v in begun]
            self._depth += 1
            self._loops += 1
            yield values
            self._depth -= 1
            following, goes_on = follow(values)
            for value, next_ in zip(values, following, strict=True):
                b.close_phi(value, next_)
            b.branch_if(goes_on.ir, body, done)
        b.start(done)

    @contextmanager
    def loop_while(self, condition: Callable[[], Val]) -> Iterator[None]:
        b = self.b
        head, body, done = b.new_block(), b.new_block(), b.new_block()
        self._loops += 1
        with b.looping(head):
            b.branch_if(condition().ir, body, done)
            b.start(body)
            yield
            b.branch(head)
        b.start(done)

    @contextmanager
    def when(self, condition: Val, *, likely: bool | None = None) -> Iterator[None]:
        """A block that runs only if the condition holds."""
        b = self.b
        body, done = b.new_block(), b.new_block()
        b.branch_if(condition.ir, body, done, likely)
        with b.inside(body, done):
            yield
        b.start(done)

    @contextmanager
    def either(self, condition: Val) -> Iterator[tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        """``with k.either(c) as (yes, no): with yes: ...; with no: ...``"""
        b = self.b
        yes, no, done = b.new_block(), b.new_block(), b.new_block()
        b.branch_if(condition.ir, yes, no)
        yield b.inside(yes, done), b.inside(no, done)
        b.start(done)

    def guarded_load(self, p: Value, element: Type, condition: Val) -> Value:
        """Load only if the condition holds; zero otherwise."""
        slot = self.b.alloca(element)
        self.b.store(text.zero(element), slot)
        with self.when(condition):
            self.b.store(self.b.load(p, element), slot)
        return self.b.load(slot, element)

    def tiles(self, count: Operand, lanes: int | None = None, *, unroll: int = 1) -> Iterator[Tile]:
        """The vectors of a row: a loop over ``unroll`` whole ones at a time, one over single ones, a masked rest."""
        for block in self.blocks(count, lanes, unroll=unroll):
            yield from block

    def blocks(
        self, count: Operand, lanes: int | None = None, *, unroll: int = 1, start: Operand = 0
    ) -> Iterator[list[Tile]]:
        """The vectors of ``tiles`` from ``start`` on, those of one iteration together, so that code may interleave
        them."""
        wide, first, stop = lanes or self.lanes, self.value(start, i64), self.value(count, i64)
        if wide == 1:
            with self.loop(first, stop) as i:
                yield [Tile(i, 1, None)]
            return
        n = stop if isinstance(start, int) and start == 0 else stop - first
        done: Operand = 0
        for width in sorted({wide * unroll, wide}, reverse=True):
            whole = n - (n % width) if n.is_number else n & -width
            with self.loop(done, whole, width) as i:
                yield [Tile(first + i + u * wide, wide, None) for u in range(width // wide)]
            done = whole
        if n.is_number and n.ir.constant % wide == 0:
            return
        rest = n - done
        with self.when(rest > 0):
            yield [Tile(first + done, wide, self.mask(rest, wide))]

    def mask(self, count: Operand, lanes: int | None = None) -> Val:
        """A mask of the first ``count`` lanes."""
        n = lanes or self.lanes
        return self.iota(dtypes.i32, n) < self.cast(self.value(count, i64), dtypes.i32)

    # -- the step table's world

    @contextmanager
    def share(self, count: Operand, own: Operand = 0) -> Iterator[Val]:
        """The tiles, of ``count``, that this thread gets from the scheduler, as ranges; ``own`` tiles of a range are
        never stolen. At most once per step, outside of loops."""
        assert self._depth == 0, f"{self.name} shares inside a loop: use share_of"
        runs, more = TileScheduler(self, self.value(count, i64), own), self.var(1)
        with self.loop_while(lambda: more.get().ne(0)):
            first, last = runs.take()
            with self.loop(first, last) as i:
                yield i
            more.set(last)

    def step(self) -> Val:
        """The number, in the step table, of the step that runs this kernel."""
        return Val(self, self._word(self._args, STEP_SLOT), i64)

    def counter(self) -> Buf:
        """The next of the step's counters, one word per thread."""
        number, self._counters = self._counters, self._counters + 1
        assert number < COUNTERS, f"{self.name} shares more often than a step has counters"
        base, nbytes = (
            Val(self, self._word(self._context, slot), i64) for slot in (Context.COUNTERS, Context.COUNTER_NBYTES)
        )
        return self.memory(base + (self.step() * COUNTERS + number) * nbytes, i64, nbytes)

    def share_of(self, count: Operand) -> tuple[Val, Val]:
        """The first tile of this thread's static share, and the end of it."""
        n = self.value(count, i64)
        return n * self.thread // self.threads, n * (self.thread + 1) // self.threads

    def scratch(self, dtype: DType = i8, offset_nbytes: Operand = 0) -> Buf:
        """This thread's scratch memory, valid during the step; the step declares its size."""
        base = Val(self, self._word(self._context, Context.SCRATCH), i64)
        stride = Val(self, self._word(self._context, Context.SCRATCH_STRIDE), i64)
        start = base + stride * self.thread
        at, end = (start + offset_nbytes).pointer(), (start + stride).pointer()
        return Buf(self, at, dtype, at, end)

    def memory(self, address: Val, dtype: DType, nbytes: Operand | None = None) -> Buf:
        """Memory at an address given as an integer; unbounded without ``nbytes``."""
        return self._bounded(address.pointer(), dtype, nbytes)

    def _bounded(self, start: Value, dtype: DType, nbytes: Operand | None) -> Buf:
        if nbytes is None or not self.checked:
            return Buf(self, start, dtype)
        return Buf(self, start, dtype, start, self.b.gep(start, self.value(nbytes, i64).ir, I8))

    def local(self, dtype: DType, elements: int) -> Buf:
        """Stack memory, for a few cache lines."""
        nbytes = elements * max(dtype.bits // 8, 1)
        return self._bounded(self.b.alloca(text.array_of(I8, nbytes), 64), dtype, nbytes)

    def table(self, values: Sequence[int], dtype: DType) -> Buf:
        """A constant table of integers; equal ones are emitted once."""
        name = f"table.{dtype}.{hashlib.sha256(repr(values).encode()).hexdigest()[:16]}"
        content = text.constants(text.array_of(scalar_type(dtype), len(values)), values)
        return self._bounded(self.module.table(name, content), dtype, len(values) * dtype.itemsize)

    def context(self) -> Buf:
        """The slots of ``Context``."""
        assert self._context is not None
        return Buf(self, self._context, i64)

    def fail(self, code: int, value: Val) -> None:
        """Record an error, unless there is one; the run stops at the next barrier."""
        context = self.context()
        with self.when(context.swap_atomic(Context.ERROR, 0, code)):
            context.store(Context.ERROR_VALUE, value)
            context.store(Context.ERROR_STEP, self.step())

    def check_index(self, index: Val, size: Val) -> Val:
        """An index from data, normalized to [0, size): negative ones count from the end; others record an error and
        become 0."""
        wrapped = self.select(index < 0, index + size, index)
        bad = (wrapped < 0) | (wrapped >= size)
        with self.when(bad, likely=False):
            self.fail(Code.INDEX, index)
        return self.select(bad, 0, wrapped)

    def check_address(self, p: Value, start: Value, end: Value, nbytes: int, lanes: int, mask: Val | None) -> None:
        """Leave the kernel with an error unless ``lanes`` elements at ``p``, under the mask, are in bounds."""
        address, low, high = (Val(self, self.b.convert("ptrtoint", x, I64), i64) for x in (p, start, end))
        if mask is None:
            bad = (address < low) | (address + lanes * nbytes > high)
        elif lanes == 1:
            bad = ((address < low) | (address + nbytes > high)) & mask
        else:
            each = self.iota(i64, lanes) * nbytes + address
            bad = (((each < low) | (each + nbytes > high)) & mask).any()
        self.refuse(bad, address - low)

    def refuse(self, bad: Val, found: Val, code: int = Code.ADDRESS) -> None:
        """Leave the kernel with an error if a condition holds."""
        with self.when(bad, likely=False):
            if self._context is not None:
                self.fail(code, found)
            self.b.leave()

    def subroutine(self, name: str, count: int, body: Callable[..., None]) -> Value:
        """An internal function of ``count`` addresses, emitted once per module and called with ``k.b.call``."""
        found = self.module.globals.get(name)
        if found is not None:
            return found
        function = Function(name, [POINTER] * count, [f"a{i}" for i in range(count)])
        function.kind, function.traits = "internal ", "noinline"
        made = self.module.define(function)
        outer, self.b = self.b, Builder(function)
        body(*(Buf(self, a, i8) for a in function.args))
        self.b.leave()
        self.b = outer
        return made

    def opaque(self, v: Val) -> Val:
        """The same integer, opaque to LLVM, which would spend long on inferences from sizes."""
        return Val(self, self.b.opaque(v.ir), v.dtype)

    def asm(self, code: str, constraints: str, result: Type, *args: Value) -> Value:
        """Inline assembly, for instructions without an intrinsic."""
        return self.b.asm(code, constraints, result, args)


def _soft_fma() -> Any:
    """Imported only for chips without FMA."""
    from sardonyx.providers.cpu.language import soft_fma

    return soft_fma

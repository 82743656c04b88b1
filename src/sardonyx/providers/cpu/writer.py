"""A kernel that is being written: loops, arithmetic, memory and threads, as LLVM IR. ``dsl`` tells the language."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.providers.cpu.context import COUNTERS, STEP_SLOT, WORDS_PER_BUFFER, Code, Context
from sardonyx.providers.cpu.isa import Isa
from sardonyx.providers.cpu.runs import Runs
from sardonyx.providers.cpu.values import (
    I32,
    I64,
    POINTER,
    Buf,
    Operand,
    Tile,
    Val,
    Var,
    bool_,
    f64,
    i8,
    i64,
    mangled,
    scalar_type,
    u16,
    u32,
    vector,
)  # fmt: skip


class Kernel:
    """One function that is being written."""

    def __init__(self, name: str, isa: Isa, *, checked: bool = False) -> None:
        self.name, self.isa, self.checked = name, isa, checked
        self._counters = self._depth = 0
        self.module = ir.Module(name)
        self.lanes = isa.lanes
        self.b: Any = None
        self.fn: Any = None
        self._args: Any = None
        self._context: Any = None
        self.thread: Val
        self.threads: Val

    # -- beginning and end

    def open(self, params: Mapping[str, tuple[str, DType]]) -> dict[str, Buf | Val]:
        """A kernel of the step table."""
        self._begin([POINTER, POINTER, I64, I64], ("args", "context", "thread", "threads"))
        self._args, self._context, thread, threads = self.fn.args
        for a in (self._args, self._context):
            a.add_attribute("noalias")
        self.thread, self.threads = Val(self, thread, i64), Val(self, threads, i64)
        bases = self.b.inttoptr(self._word(self._context, Context.BASES), POINTER)
        values: dict[str, Buf | Val] = {}
        word = STEP_SLOT + 1
        for name, (kind, dtype) in params.items():
            first = self._word(self._args, word)
            if kind == "number":
                values[name] = self._number(first, dtype)
                word += 1
                continue
            base = self.b.load(self.b.gep(bases, [first], source_etype=POINTER), typ=POINTER)
            start = self.b.gep(base, [self._word(self._args, word + 1)], source_etype=ir.IntType(8))
            end = self.b.gep(start, [self._word(self._args, word + 2)], source_etype=ir.IntType(8))
            front = self.b.neg(self._word(self._args, word + 3))
            values[name] = Buf(self, start, dtype, self.b.gep(start, [front], source_etype=ir.IntType(8)), end)
            word += WORDS_PER_BUFFER
        return values

    def open_plain(self, params: Mapping[str, tuple[str, DType]]) -> dict[str, Buf | Val]:
        """A function that is called with its parameters."""
        types = [POINTER if kind == "memory" else scalar_type(dtype) for kind, dtype in params.values()]
        self._begin(types, tuple(params))
        return {
            name: Buf(self, a, dtype) if kind == "memory" else Val(self, a, dtype)
            for (name, (kind, dtype)), a in zip(params.items(), self.fn.args, strict=True)
        }

    def _begin(self, types: list[Any], names: Sequence[str]) -> None:
        self.fn = ir.Function(self.module, ir.FunctionType(ir.VoidType(), types), self.name)
        self.fn.attributes.add("nounwind")
        for a, name in zip(self.fn.args, names, strict=True):
            a.name = name
        self._entry = self.fn.append_basic_block("entry")
        body = self.fn.append_basic_block("body")
        ir.IRBuilder(self._entry).branch(body)
        self.b = ir.IRBuilder(body)

    def close(self) -> None:
        self.b.ret_void()

    def _word(self, block: Any, i: int) -> Any:
        p = self.b.gep(block, [I64(i)], inbounds=True, source_etype=I64)
        return self.b.load(p, typ=I64, align=8)

    def _number(self, word: Any, dtype: DType) -> Val:
        if dtype.is_float:
            bits = word if dtype is f64 else self.b.trunc(word, I32)
            return Val(self, self.b.bitcast(bits, scalar_type(dtype)), dtype)
        return Val(self, word if dtype.bits == 64 else self.b.trunc(word, scalar_type(dtype)), dtype)

    @contextmanager
    def at_entry(self) -> Iterator[None]:
        """Write into the function's first block, for memory that is taken once."""
        here = self.b
        self.b = ir.IRBuilder(self._entry)
        self.b.position_before(self._entry.terminator)
        yield
        self.b = here

    # -- numbers

    def const(self, value: float, dtype: DType = i64, lanes: int = 1) -> Val:
        t = scalar_type(dtype)
        one = ir.Constant(t, float(value) if dtype.is_float else int(value))
        if lanes == 1:
            return Val(self, one, dtype)
        return Val(self, ir.Constant(ir.VectorType(t, lanes), [one] * lanes), dtype, lanes)

    def zeros(self, dtype: DType, lanes: int = 1) -> Val:
        return self.const(0, dtype, lanes)

    def iota(self, dtype: DType = i64, lanes: int | None = None) -> Val:
        """0, 1, 2 ..."""
        n = lanes or self.lanes
        t = scalar_type(dtype)
        if n == 1:
            return self.const(0, dtype)
        return Val(self, ir.Constant(ir.VectorType(t, n), [ir.Constant(t, i) for i in range(n)]), dtype, n)

    def value(self, x: Operand, dtype: DType, lanes: int = 1) -> Val:
        """``x`` as a value of this type and width; numbers become constants, single values are repeated."""
        if isinstance(x, Var):
            x = x.get()
        if not isinstance(x, Val):
            return self.const(x, dtype, lanes)
        if x.dtype is not dtype:
            x = self.cast(x, dtype)
        return x if x.lanes == lanes else self.splat(x, lanes)

    def unify(self, a: Operand, b: Operand) -> tuple[Val, Val]:
        """Both operands in one type and width; the first that is not a number decides the type."""
        a, b = (x.get() if isinstance(x, Var) else x for x in (a, b))
        lead = a if isinstance(a, Val) else b
        assert isinstance(lead, Val)
        lanes = max(x.lanes if isinstance(x, Val) else 1 for x in (a, b))
        if isinstance(a, Val) and isinstance(b, Val) and a.dtype is not b.dtype:
            raise TypeError(f"{a.dtype} meets {b.dtype}: cast one of them")
        return self.value(a, lead.dtype, lanes), self.value(b, lead.dtype, lanes)

    def splat(self, v: Val, lanes: int) -> Val:
        """One number in every lane."""
        assert v.lanes == 1, f"a vector of {v.lanes} lanes is not widened to {lanes}"
        if lanes == 1:
            return v
        t = ir.VectorType(v.type, lanes)
        undefined = ir.Constant(t, ir.Undefined)
        one = self.b.insert_element(undefined, v.ir, I32(0))
        zeros = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
        return Val(self, self.b.shuffle_vector(one, undefined, zeros), v.dtype, lanes)

    def pack(self, parts: Sequence[Val]) -> Val:
        """A vector of single numbers."""
        if len(parts) == 1:
            return parts[0]
        out: Any = ir.Constant(ir.VectorType(parts[0].type, len(parts)), ir.Undefined)
        for i, part in enumerate(parts):
            out = self.b.insert_element(out, part.ir, I32(i))
        return Val(self, out, parts[0].dtype, len(parts))

    def cast(self, v: Operand, dtype: DType) -> Val:
        """A conversion; reals to integers truncate, and what is out of range is the machine's, but never undefined."""
        if isinstance(v, Var):
            v = v.get()
        assert isinstance(v, Val)
        if v.dtype is dtype:
            return v
        to = vector(scalar_type(dtype), v.lanes)
        b, source = self.b, v.dtype
        if dtype is bool_:
            return v.ne(0)
        if source is bool_:
            return Val(self, b.uitofp(v.ir, to) if dtype.is_float else b.zext(v.ir, to), dtype, v.lanes)
        if source.is_float and dtype.is_float:
            return Val(self, b.fpext(v.ir, to) if dtype is f64 else b.fptrunc(v.ir, to), dtype, v.lanes)
        if source.is_float:
            sat = f"llvm.fpto{'s' if dtype.kind == 'int' else 'u'}i.sat"
            fn = self.declare(f"{sat}.{mangled(to)}.{mangled(v.type)}", to, [v.type])
            return Val(self, b.call(fn, [v.ir]), dtype, v.lanes)
        signed = source.kind == "int"
        if dtype.is_float:
            return Val(self, b.sitofp(v.ir, to) if signed else b.uitofp(v.ir, to), dtype, v.lanes)
        if dtype.bits == source.bits:
            return Val(self, v.ir, dtype, v.lanes)
        if dtype.bits < source.bits:
            return Val(self, b.trunc(v.ir, to), dtype, v.lanes)
        return Val(self, b.sext(v.ir, to) if signed else b.zext(v.ir, to), dtype, v.lanes)

    def bitcast(self, v: Val, dtype: DType) -> Val:
        """The same bits; the width of a vector follows the width of its elements."""
        if v.dtype.bits == dtype.bits and v.dtype.is_float == dtype.is_float:
            return Val(self, v.ir, dtype, v.lanes)
        lanes = v.lanes * v.dtype.bits // dtype.bits
        return Val(self, self.b.bitcast(v.ir, vector(scalar_type(dtype), lanes)), dtype, lanes)

    def to_bf16(self, v: Val) -> Val:
        """The bits of f32 rounded to bf16, halves to even; NaN stays NaN."""
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
        """One of two memories of a type."""
        assert a.dtype is b.dtype
        ends = (self.b.select(condition.ir, x, y) for x, y in ((a.ptr, b.ptr), (a.start, b.start), (a.end, b.end)))
        ptr, start, end = ends
        return Buf(self, ptr, a.dtype, start, end)

    def max(self, a: Operand, b: Operand) -> Val:
        """The larger; b if either is NaN, so put what may be NaN second."""
        x, y = self.unify(a, b)
        return self.select(x > y, x, y)

    def min(self, a: Operand, b: Operand) -> Val:
        """The smaller; b if either is NaN."""
        x, y = self.unify(a, b)
        return self.select(x < y, x, y)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Val:
        """a * b + c, rounded once."""
        lead = next(x for x in (a, b, c) if isinstance(x, (Val, Var)))
        lanes = max(x.lanes if isinstance(x, (Val, Var)) else 1 for x in (a, b, c))
        args = [self.value(x, lead.dtype, lanes) for x in (a, b, c)]
        return self.intrinsic("llvm.fma", args, lead.dtype, lanes, over=args[:1])

    def sqrt(self, v: Val) -> Val:
        return self._unary("llvm.sqrt", v)

    def abs(self, v: Val) -> Val:
        if v.dtype.is_float:
            return self._unary("llvm.fabs", v)
        return self.select(v < 0, -v, v) if v.dtype.kind == "int" else v

    def floor(self, v: Val) -> Val:
        return self._unary("llvm.floor", v)

    def ceil(self, v: Val) -> Val:
        return self._unary("llvm.ceil", v)

    def trunc(self, v: Val) -> Val:
        return self._unary("llvm.trunc", v)

    def rint(self, v: Val) -> Val:
        """To the nearest integer, halves to even."""
        return self._unary("llvm.rint", v)

    def copysign(self, magnitude: Val, sign: Val) -> Val:
        return self.intrinsic("llvm.copysign", [magnitude, sign], magnitude.dtype, magnitude.lanes, over=[magnitude])

    def _unary(self, name: str, v: Val) -> Val:
        return self.intrinsic(name, [v], v.dtype, v.lanes, over=[v])

    def intrinsic(self, name: str, args: Sequence[Val], dtype: DType, lanes: int, *, over: Sequence[Val] = ()) -> Val:
        """A call of an LLVM intrinsic, overloaded on the types of ``over``."""
        full = ".".join([name, *(mangled(v.type) for v in over)])
        fn = self.declare(full, vector(scalar_type(dtype), lanes), [v.type for v in args])
        return Val(self, self.b.call(fn, [v.ir for v in args]), dtype, lanes)

    def declare(self, name: str, result: Any, types: list[Any]) -> Any:
        found = self.module.globals.get(name)
        return found or ir.Function(self.module, ir.FunctionType(result, types), name)

    def call_address(self, address: Val, *args: Any) -> None:
        """A call of a native function without result, by its address."""
        t = ir.FunctionType(ir.VoidType(), [a.type for a in args])
        self.b.call(self.b.inttoptr(address.ir, t.as_pointer()), list(args))

    def call(self, name: str, *args: Any) -> None:
        """A call of an intrinsic without result, by its full name."""
        self.b.call(self.declare(name, ir.VoidType(), [a.type for a in args]), list(args))

    # -- variables and control

    def var(self, init: Operand, dtype: DType = i64) -> Var:
        return Var(self, init if isinstance(init, Val) else self.value(init, dtype))

    @contextmanager
    def loop(self, start: Operand, stop: Operand, step: Operand = 1) -> Iterator[Val]:
        """Counts from ``start`` below ``stop``."""
        first, last, by = (self.value(x, i64).ir for x in (start, stop, step))
        b, before = self.b, self.b.block
        head, body, done = (b.append_basic_block(n) for n in ("loop", "loop.body", "loop.done"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(first, before)
        b.cbranch(b.icmp_signed("<", i, last), body, done)
        b.position_at_end(body)
        self._depth += 1
        yield Val(self, i, i64)
        self._depth -= 1
        i.add_incoming(b.add(i, by, flags=("nsw",)), b.block)
        b.branch(head)
        b.position_at_end(done)

    @contextmanager
    def loop_while(self, condition: Callable[[], Val]) -> Iterator[None]:
        b = self.b
        head, body, done = (b.append_basic_block(n) for n in ("while", "while.body", "while.done"))
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(condition().ir, body, done)
        b.position_at_end(body)
        yield
        b.branch(head)
        b.position_at_end(done)

    @contextmanager
    def when(self, condition: Val, *, likely: bool | None = None) -> Iterator[None]:
        """What follows runs only if the condition holds."""
        b = self.b
        body, done = b.append_basic_block("then"), b.append_basic_block("done")
        branch = b.cbranch(condition.ir, body, done)
        if likely is not None:
            branch.set_weights([99, 1] if likely else [1, 99])
        b.position_at_end(body)
        yield
        if not b.block.is_terminated:
            b.branch(done)
        b.position_at_end(done)

    @contextmanager
    def either(self, condition: Val) -> Iterator[tuple[Any, Any]]:
        """``with k.either(c) as (yes, no): with yes: ...; with no: ...``"""
        with self.b.if_else(condition.ir) as branches:
            yield branches

    def guarded_load(self, p: Any, element: Any, condition: Val) -> Any:
        """Memory that is read only if the condition holds; zero otherwise."""
        with self.at_entry():
            slot = self.b.alloca(element)
        self.b.store(ir.Constant(element, None if isinstance(element, ir.VectorType) else 0), slot)
        with self.when(condition):
            self.b.store(self.b.load(p, typ=element), slot)
        return self.b.load(slot, typ=element)

    def tiles(self, count: Operand, lanes: int | None = None, *, unroll: int = 1) -> Iterator[Tile]:
        """The vectors of a row: a loop over ``unroll`` whole ones at a time, one over single ones, a masked rest."""
        for block in self.blocks(count, lanes, unroll=unroll):
            yield from block

    def blocks(
        self, count: Operand, lanes: int | None = None, *, unroll: int = 1, start: Operand = 0
    ) -> Iterator[list[Tile]]:
        """The vectors of ``tiles`` from ``start`` on, those of one iteration together: code may interleave them."""
        wide, first, stop = lanes or self.lanes, self.value(start, i64), self.value(count, i64)
        if wide == 1:
            with self.loop(first, stop) as i:
                yield [Tile(i, 1, None)]
            return
        n = stop if isinstance(start, int) and start == 0 else stop - first
        done: Operand = 0
        for width in sorted({wide * unroll, wide}, reverse=True):
            whole = n - (n % width) if isinstance(n.ir, ir.Constant) else n & -width
            with self.loop(done, whole, width) as i:
                yield [Tile(first + i + u * wide, wide, None) for u in range(width // wide)]
            done = whole
        if isinstance(n.ir, ir.Constant) and n.ir.constant % wide == 0:
            return
        rest = n - done
        with self.when(rest > 0):
            yield [Tile(first + done, wide, self.mask(rest, wide))]

    def mask(self, count: Operand, lanes: int | None = None) -> Val:
        """The first ``count`` lanes."""
        n = lanes or self.lanes
        return self.iota(dtypes.i32, n) < self.cast(self.value(count, i64), dtypes.i32)

    # -- the step table's world

    @contextmanager
    def share(self, count: Operand) -> Iterator[Val]:
        """The tiles, of ``count``, that this thread takes, in runs of neighbours. Once in a step: not inside a loop."""
        assert self._depth == 0, f"{self.name} shares inside a loop: use share_of"
        runs, more = Runs(self, self.value(count, i64)), self.var(1)
        with self.loop_while(lambda: more.get().ne(0)):
            first, last = runs.take()
            with self.loop(first, last) as i:
                yield i
            more.set(last)

    def step(self) -> Val:
        """The number of the step at hand."""
        return Val(self, self._word(self._args, STEP_SLOT), i64)

    def counter(self) -> Buf:
        """The next of the step's counters, a word for each thread."""
        number, self._counters = self._counters, self._counters + 1
        assert number < COUNTERS, f"{self.name} shares more often than a step has counters"
        base, nbytes = (
            Val(self, self._word(self._context, slot), i64) for slot in (Context.COUNTERS, Context.COUNTER_NBYTES)
        )
        return self.memory(base + (self.step() * COUNTERS + number) * nbytes, i64)

    def share_of(self, count: Operand) -> tuple[Val, Val]:
        """The first tile of this thread's share, and the one after its last."""
        n = self.value(count, i64)
        return n * self.thread // self.threads, n * (self.thread + 1) // self.threads

    def scratch(self, dtype: DType = i8, offset_nbytes: Operand = 0) -> Buf:
        """This thread's own memory. A step says how much its kernel needs; what it holds does not outlive the step."""
        base = Val(self, self._word(self._context, Context.SCRATCH), i64)
        stride = Val(self, self._word(self._context, Context.SCRATCH_STRIDE), i64)
        start = base + stride * self.thread
        at = self.b.inttoptr((start + offset_nbytes).ir, POINTER)
        end = self.b.inttoptr((start + stride).ir, POINTER)
        return Buf(self, at, dtype, at, end)

    def memory(self, address: Val, dtype: DType) -> Buf:
        """Memory at an address that is a number; nothing bounds it."""
        return Buf(self, self.b.inttoptr(address.ir, POINTER), dtype)

    def local(self, dtype: DType, elements: int) -> Buf:
        """Memory of this call, on the stack: for a few cache lines."""
        with self.at_entry():
            slot = self.b.alloca(ir.ArrayType(ir.IntType(8), elements * max(dtype.bits // 8, 1)))
            slot.align = 64
            slot.type = POINTER
        return Buf(self, slot, dtype)

    def table(self, values: Sequence[int], dtype: DType) -> Buf:
        """Constant memory that holds integers; the same ones are held once."""
        name = f"table.{dtype}.{hashlib.sha256(repr(values).encode()).hexdigest()[:16]}"
        found = self.module.globals.get(name)
        if found is None:
            t = ir.ArrayType(scalar_type(dtype), len(values))
            found = ir.GlobalVariable(self.module, t, name)
            found.linkage, found.global_constant, found.initializer = "internal", True, ir.Constant(t, list(values))
        return Buf(self, found, dtype)

    def context(self) -> Buf:
        """The slots of ``Context``."""
        return Buf(self, self._context, i64)

    def fail(self, code: int, value: Val) -> None:
        """Record an error, if it is the run's first; the walk stops at the next barrier."""
        context = self.context()
        with self.when(context.swap_atomic(Context.ERROR, 0, code)):
            context.store(Context.ERROR_VALUE, value)
            context.store(Context.ERROR_STEP, self.step())

    def check_index(self, index: Val, size: Val) -> Val:
        """An index from data, brought into [0, size): negative ones count from the end; others are an error, and 0."""
        wrapped = self.select(index < 0, index + size, index)
        bad = (wrapped < 0) | (wrapped >= size)
        with self.when(bad, likely=False):
            self.fail(Code.INDEX, index)
        return self.select(bad, 0, wrapped)

    def check_address(self, p: Any, start: Any, end: Any, nbytes: int, lanes: int, mask: Val | None) -> None:
        """Leave the kernel with an error unless ``lanes`` elements at ``p``, where the mask allows them, are inside."""
        address, low, high = (Val(self, self.b.ptrtoint(x, I64), i64) for x in (p, start, end))
        if mask is None:
            bad = (address < low) | (address + lanes * nbytes > high)
        elif lanes == 1:
            bad = ((address < low) | (address + nbytes > high)) & mask
        else:
            each = self.iota(i64, lanes) * nbytes + address
            bad = (((each < low) | (each + nbytes > high)) & mask).any()
        with self.when(bad, likely=False):
            if self._context is not None:
                self.fail(Code.ADDRESS, address - low)
            self.b.ret_void()

    def subroutine(self, name: str, count: int, body: Callable[..., None]) -> Any:
        """An internal function of ``count`` addresses, written once in a module; called with ``k.b.call``."""
        found = self.module.globals.get(name)
        if found is not None:
            return found
        fn = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [POINTER] * count), name)
        fn.linkage = "internal"
        fn.attributes.add("noinline")
        outer = self.b, self.fn, self._entry
        self.fn, self._entry = fn, fn.append_basic_block("entry")
        start = fn.append_basic_block("body")
        ir.IRBuilder(self._entry).branch(start)
        self.b = ir.IRBuilder(start)
        body(*(Buf(self, a, i8) for a in fn.args))
        self.b.ret_void()
        self.b, self.fn, self._entry = outer
        return fn

    def opaque(self, v: Val) -> Val:
        """The same number, of which LLVM knows nothing: it spends long on what it could conclude from sizes."""
        return Val(self, self.asm("", "=r,0", v.type, v.ir), v.dtype)

    def asm(self, text: str, constraints: str, result: Any, *args: Any) -> Any:
        """Inline assembly, for what LLVM has no intrinsic."""
        fn = ir.FunctionType(result, [a.type for a in args])
        return self.b.asm(fn, text, constraints, list(args), side_effect=True)

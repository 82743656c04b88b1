"""The kernel that is being emitted: loops, arithmetic, memory and threads (``dsl`` describes the language)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.providers.cpu.language import text
from sardonyx.providers.cpu.language.arithmetic import Arithmetic
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
    f64,
    i8,
    i64,
    scalar_type,
)
from sardonyx.providers.cpu.machine.isa import Isa


class Kernel(Arithmetic):
    """One function that is being emitted."""

    def __init__(self, name: str, isa: Isa, *, checked: bool = False) -> None:
        self.name, self.isa, self.checked = name, isa, checked
        self._counters = self._depth = self._loops = 0
        self.is_non_temporal = False
        """Whether it has non-temporal stores: they are weakly ordered, so a fence ends the kernel."""
        self.quantized: dict[tuple[int, str], Any] = {}
        """What ``math.quantization`` knows of integers in registers, by their names."""
        self._origins: dict[tuple[int, str], Buf] = {}
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

    def remember_origin(self, loaded: Value, memory: Buf) -> None:
        """Note where a scalar was loaded from."""
        self._origins[id(self.b), loaded.text] = memory

    def keep_origin(self, v: Val, broadcast: Val) -> None:
        """The same for what a scalar was broadcast to."""
        if (id(self.b), v.ir.text) in self._origins:
            self.remember_origin(broadcast.ir, self.origin(v))

    def origin(self, v: Val) -> Buf:
        """The memory that a byte, or the byte that was broadcast, was loaded from."""
        return self._origins[id(self.b), v.ir.text]

    def is_invariant(self, v: Val) -> bool:
        """Whether a value was computed in front of the current loop."""
        return self.b.is_invariant(v.ir)

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
        """A copy of an integer of which LLVM knows nothing: it would spend long on inferences from sizes."""
        return Val(self, self.b.opaque(v.ir), v.dtype)

    def asm(self, code: str, constraints: str, result: Type, *args: Value) -> Value:
        """Inline assembly, for instructions without an intrinsic."""
        return self.b.asm(code, constraints, result, args)

"""What kernels ask of the processor and of Linux: the clock, a pause, sleeping until a word of memory changes."""

from __future__ import annotations

from sardonyx.providers.cpu import isa
from sardonyx.providers.cpu.dsl import Kernel, function
from sardonyx.providers.cpu.text import I32, I64, Value
from sardonyx.providers.cpu.values import Buf, Val, i64

WAIT, WAKE = 128, 129
"""futex operations, private to the process."""


def ticks(k: Kernel) -> Val:
    """A clock that never stops or jumps; ``frequency`` says how fast it runs."""
    if isa.is_arm():
        return Val(k, k.asm("mrs $0, cntvct_el0", "=r", I64), i64)
    return Val(k, k.b.call(k.declare("llvm.readcyclecounter", I64, []), []), i64)


def pause(k: Kernel) -> None:
    """Tell the processor that this is a waiting loop."""
    if isa.is_arm():
        k.call("llvm.aarch64.isb", I32(15))
    elif isa.is_x86():
        k.call("llvm.x86.sse2.pause")


def sleep(k: Kernel, at: Buf, expected: Val) -> None:
    """Sleep while the low half of a word is still what was seen."""
    _futex(k, at, WAIT, expected)


def wake(k: Kernel, at: Buf) -> None:
    """Wake all who sleep on a word."""
    _futex(k, at, WAKE, k.const(1 << 30))


def _futex(k: Kernel, at: Buf, operation: int, value: Val) -> None:
    zero = I64(0)
    args: list[Value] = [at.address().ir, I64(operation), value.ir, zero, zero, zero]
    if isa.is_arm():
        k.asm("svc #0", "={x0},{x8},{x0},{x1},{x2},{x3},{x4},{x5},~{memory}", I64, I64(98), *args)
    else:
        registers = "={rax},{rax},{rdi},{rsi},{rdx},{r10},{r8},{r9},~{rcx},~{r11},~{memory}"
        k.asm("syscall", registers, I64, I64(202), *args)


@function(out=(i64,))
def read_ticks(k: Kernel, out: Buf) -> None:
    """The clock, for Python."""
    out.store(0, ticks(k))

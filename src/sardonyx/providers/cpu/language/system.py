"""What kernels ask of the processor and of Linux: ticks, pause, the current CPU, yield, and futexes."""

from __future__ import annotations

from sardonyx.providers.cpu.language.dsl import Kernel, function
from sardonyx.providers.cpu.language.text import I32, I64, Value
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.machine import isa

X86_FUTEX, X86_YIELD = 202, 24
ARM_FUTEX, ARM_YIELD = 98, 124
CPU_SEGMENT = 0x7B
WAIT, WAKE = 128, 129
"""futex operations, private to the process."""


def ticks(k: Kernel) -> Val:
    """A monotonic tick counter."""
    if isa.is_arm():
        return Val(k, k.asm("mrs $0, cntvct_el0", "=r", I64), i64)
    return Val(k, k.b.call(k.declare("llvm.readcyclecounter", I64, []), []), i64)


def current_cpu(k: Kernel) -> Val:
    """The number of the current CPU, from 1 on.

    Linux keeps it in a segment limit, which is cheap to read. Where there is no such segment, it is the same for all.
    """
    assert isa.KNOWS_CPU
    return Val(k, k.asm(f"movl $${CPU_SEGMENT}, %eax; lsll %eax, %eax; incl %eax", "={rax},~{flags}", I64), i64)


def pause(k: Kernel) -> None:
    """Hint to the processor that this is a spin loop."""
    if isa.is_arm():
        k.call("llvm.aarch64.isb", I32(15))
    elif isa.is_x86():
        k.call("llvm.x86.sse2.pause")


def yield_cpu(k: Kernel) -> None:
    """sched_yield."""
    _ask(k, X86_YIELD, ARM_YIELD)


def sleep(k: Kernel, at: Buf, expected: Val) -> None:
    """Park while the low half of a word is still what was seen."""
    _futex(k, at, WAIT, expected)


def wake(k: Kernel, at: Buf) -> None:
    """Wake all threads parked on a word."""
    _futex(k, at, WAKE, k.const(1 << 30))


def _futex(k: Kernel, at: Buf, operation: int, value: Val) -> None:
    zero = I64(0)
    _ask(k, X86_FUTEX, ARM_FUTEX, at.address().ir, I64(operation), value.ir, zero, zero, zero)


def _ask(k: Kernel, x86: int, arm: int, *args: Value) -> None:
    """A Linux system call, by its number."""
    if isa.is_arm():
        given = "".join(f",{{x{i}}}" for i in range(len(args)))
        k.asm("svc #0", f"={{x0}},{{x8}}{given},~{{memory}}", I64, I64(arm), *args)
    else:
        given = "".join(f",{{{name}}}" for name in ("rdi", "rsi", "rdx", "r10", "r8", "r9")[: len(args)])
        k.asm("syscall", f"={{rax}},{{rax}}{given},~{{rcx}},~{{r11}},~{{memory}}", I64, I64(x86), *args)


@function(out=(i64,))
def read_ticks(k: Kernel, out: Buf) -> None:
    """The tick counter, for Python."""
    out.store(0, ticks(k))

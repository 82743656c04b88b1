"""Cancellation and deadlines: checked at barriers, and by kernels whose run time depends on data."""

from __future__ import annotations

from sardonyx.providers.cpu.language.context import Code, Context
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.system import ticks
from sardonyx.providers.cpu.language.values import Buf, Val


def look(k: Kernel, context: Buf) -> Val:
    """Whether the run has to stop. Cancellation and a passed deadline are recorded as errors."""
    with k.when(context.load_atomic(Context.CANCEL).ne(0), likely=False):
        context.swap_atomic(Context.ERROR, 0, Code.CANCELLED)
    deadline = context.load(Context.DEADLINE)
    with k.when(deadline.ne(0)), k.when(ticks(k) > deadline, likely=False):
        context.swap_atomic(Context.ERROR, 0, Code.LATE)
    return context.load_atomic(Context.ERROR).ne(0)


def is_stopped(k: Kernel) -> Val:
    """Whether the run has to stop, for a kernel, which may then skip the rest of its work (``look``)."""
    return look(k, k.context())

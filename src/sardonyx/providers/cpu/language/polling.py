"""Whether a run goes on: asked where threads meet, and by kernels whose time data decide."""

from __future__ import annotations

from sardonyx.providers.cpu.language.context import Code, Context
from sardonyx.providers.cpu.language.dsl import Kernel
from sardonyx.providers.cpu.language.system import ticks
from sardonyx.providers.cpu.language.values import Buf, Val


def look(k: Kernel, context: Buf) -> Val:
    """Whether the run is to end: an error is recorded, and so are a cancelled run and a passed deadline."""
    with k.when(context.load_atomic(Context.CANCEL).ne(0), likely=False):
        context.swap_atomic(Context.ERROR, 0, Code.CANCELLED)
    deadline = context.load(Context.DEADLINE)
    with k.when(deadline.ne(0)), k.when(ticks(k) > deadline, likely=False):
        context.swap_atomic(Context.ERROR, 0, Code.LATE)
    return context.load_atomic(Context.ERROR).ne(0)


def is_stopped(k: Kernel) -> Val:
    """The same, for a kernel of the step table, which may leave the rest of its work undone then."""
    return look(k, k.context())

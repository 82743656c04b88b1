"""Build tasks on several threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any, TypeVar

from sardonyx.errors import no_more_threads
from sardonyx.providers.cpu.memory.allocator import need_headroom

T = TypeVar("T")


def results(tasks: Iterable[Callable[[], T]], threads: int) -> list[T]:
    """The results of tasks, up to ``threads`` at a time, some of them on this thread. When one fails, those not yet
    started are skipped.

    Context variables, an untrusted model's budget among them, have the caller's values in the tasks.
    """
    need_headroom()
    pending: deque[tuple[int, Context, Callable[[], T]]] = deque(
        (i, copy_context(), task) for i, task in enumerate(tasks)
    )
    done: list[Any] = [None] * len(pending)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while pending:
                try:
                    i, context, task = pending.popleft()
                except IndexError:  # another thread took the last one
                    return
                done[i] = context.run(task)
        except BaseException as error:
            errors.append(error)
            pending.clear()

    team = [threading.Thread(target=work, name="sardonyx-build") for _ in range(min(threads, len(pending)) - 1)]
    try:
        try:
            for thread in team:
                thread.start()
        except RuntimeError as error:
            raise no_more_threads(error) from None
        work()
    finally:
        pending.clear()
        for thread in team:
            if thread.ident is not None:
                thread.join()
    if errors:
        raise errors[0]
    return done

"""Build tasks on several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import TypeVar

from sardonyx.errors import no_more_threads
from sardonyx.providers.cpu.memory.allocator import need_headroom

T = TypeVar("T")


def results(tasks: Iterable[Callable[[], T]], threads: int) -> list[T]:
    """The results of tasks, up to ``threads`` at a time. When one fails, those not yet started are skipped.

    Context variables, an untrusted model's budget among them, have the caller's values in the tasks.
    """
    from concurrent.futures import ThreadPoolExecutor

    need_headroom()
    with ThreadPoolExecutor(threads) as pool:
        try:
            try:
                pending = [pool.submit(copy_context().run, task) for task in tasks]
            except RuntimeError as error:
                raise no_more_threads(error) from None
            return [each.result() for each in pending]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise

"""Threads for asynchronous runs. A forked child starts its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from sardonyx import forks
from sardonyx.errors import no_more_threads

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")
_pool: ThreadPoolExecutor | None = None


def submit(job: Callable[[], T]) -> Future[T]:
    global _pool
    if _pool is None:  # the module is large, and most programs have no asynchronous runs
        futures = forks.imported("concurrent.futures.thread")
        workers = min(32, 4 * (os.cpu_count() or 1))
        _pool = futures.ThreadPoolExecutor(max_workers=workers, thread_name_prefix="sardonyx-run")
    try:
        return _pool.submit(job)
    except RuntimeError as error:
        raise no_more_threads(error) from None


def _forget() -> None:
    global _pool
    _pool = None


forks.at_fork(in_child=_forget)

"""Writes cache entries on a thread of its own, so that the first run of a session does not wait for the disk.

The interpreter waits for the thread when the program ends. A child of a fork leaves the writing to its parent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sardonyx import eviction, forks
from sardonyx.folders import PrivateFolder
from sardonyx.session import log

DELAY_S = 0.2
"""How long the first run goes ahead of the writing: both need the interpreter's lock."""
POLL_S = 0.01


class _Pending:
    def __init__(self) -> None:
        self.is_awaited = False
        self.done = threading.Event()


_lock = forks.lock()
_pending: dict[str, _Pending] = {}


def submit(
    folder: PrivateFolder, name: str, write: Callable[[], object], is_ready: Callable[[], bool] = lambda: True
) -> None:
    """Call ``write``, which writes the entry ``name``, soon, and then bound the size of the folder.

    It is called before ``is_ready`` only if somebody waits for the entry, or the program ends."""
    pending = _Pending()
    with _lock:
        _pending[name] = pending

    def job() -> None:
        try:
            _let_run(pending, is_ready)
            write()
            eviction.evict(folder)
        except Exception as error:
            log.emit(log.WARNING, f"a cache entry was not written: {type(error).__name__}: {error}")
        finally:
            _finish(name, pending)

    try:
        threading.Thread(target=job, name="sardonyx-cache").start()
    except RuntimeError:  # the interpreter is shutting down, or has no threads
        _finish(name, pending)


def wait(name: str | None = None) -> None:
    """Wait until an entry is written, or all are."""
    with _lock:
        waited = [pending for each, pending in _pending.items() if name in (None, each)]
    for pending in waited:
        pending.is_awaited = True
        pending.done.wait()


def is_pending(name: str) -> bool:
    """Whether an entry is still to be written."""
    return name in _pending


def _let_run(pending: _Pending, is_ready: Callable[[], bool]) -> None:
    """Return after ``DELAY_S`` if ``is_ready``, or when the entry is waited for, or when the program ends."""
    end = time.monotonic() + DELAY_S
    while not pending.is_awaited and threading.main_thread().is_alive():
        if time.monotonic() > end and is_ready():
            return
        threading.main_thread().join(POLL_S)


def _finish(name: str, pending: _Pending) -> None:
    with _lock:
        if _pending.get(name) is pending:
            del _pending[name]
    pending.done.set()


forks.at_fork(in_child=_pending.clear)

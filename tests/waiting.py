"""Waiting for what sessions do in the background."""

from __future__ import annotations

import threading

from sardonyx.session import cache_writer


def let_threads_end() -> None:
    """Wait for what writes to the cache: threads that optimize code, and the writer."""
    for thread in threading.enumerate():
        if thread.name == "sardonyx-compile":
            thread.join()
    cache_writer.wait()

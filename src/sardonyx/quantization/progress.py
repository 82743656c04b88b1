"""A line that shows how far a long loop is, where a person watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

_WIDTH = 30
_PERIOD_S = 0.1


def shown(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items; on a terminal, a progress bar on standard error while they are consumed."""
    stream = sys.stderr
    if stream is None or not stream.isatty():
        yield from items
        return
    start = last = time.monotonic()
    count = 0
    try:
        for count, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            if now - last >= _PERIOD_S or count == total:
                last = now
                stream.write("\r" + _line(what, count, total, now - start))
                stream.flush()
    finally:
        if count:
            stream.write("\r" + _line(what, count, total, time.monotonic() - start) + "\n")
            stream.flush()


def _line(what: str, count: int, total: int | None, elapsed_s: float) -> str:
    if not total:
        return f"{what}: {count}, {elapsed_s:.1f} s"
    filled = min(_WIDTH, _WIDTH * count // total)
    return f"{what} [{'#' * filled}{'.' * (_WIDTH - filled)}] {count}/{total}, {elapsed_s:.1f} s"


def length_of(source: object) -> int | None:
    """How many samples a reader says it has; None if it does not."""
    try:
        return len(source)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError, AttributeError):
        return None

"""The cache of compiled models and kernels: what it holds, how to empty it, and how to fill it ahead of time.

Sessions fill it by themselves; the command is ``sardonyx cache``. It is in ``~/.cache/sardonyx``, or where
``SARDONYX_CACHE`` points (``off``: nowhere), and holds at most ``SARDONYX_CACHE_NBYTES`` bytes, 2 GiB by default.
"""

from __future__ import annotations

import json
import marshal
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sardonyx import entries, eviction, folders
from sardonyx.records import Record
from sardonyx.session import cache_writer
from sardonyx.session.compiled_cache import CachedEngine
from sardonyx.session.session import InferenceSession

if TYPE_CHECKING:
    from sardonyx.eviction import CacheFile
    from sardonyx.session.options import SessionOptions

MODEL, SPECIALIZATION, GRAPH, KERNEL, RATES = "model", "specialization", "graph", "kernel", "rates"


class CacheItem(Record):
    """One file of the cache."""

    kind: str
    """``model`` (compiled), ``specialization`` (of a part, in a run), ``graph`` (optimized), ``kernel``, or ``rates``
    (of the machine)."""
    path: str | None
    """The model's file; None for kernels and for models that were given as bytes."""
    nbytes: int
    used_at: float
    """When it was last read or written, in seconds since the epoch, to the minute."""
    file: CacheFile


def folder() -> str | None:
    """The cache folder; None if caching is off, or if others could write to the folder."""
    found = folders.cache_folder(make=False)
    return None if found is None else found.path


def items() -> list[CacheItem]:
    """The files of the cache, the last used ones first."""
    flush()
    found = folders.cache_folder(make=False)
    if found is None:
        return []
    files = sorted(eviction.files(found), key=lambda file: -file.used_at)
    paths = {file.name.partition(".")[0]: _path(file) for file in files if file.name.endswith(".start")}
    return [_item(file, paths) for file in files]


def clear(model: str | os.PathLike[str] | None = None) -> int:
    """Delete everything, or the entries of one model; returns how many bytes. Sessions that run are not affected."""
    wanted = None if model is None else _spellings(model)
    removed = [item for item in items() if wanted is None or (item.path is not None and _spellings(item.path) & wanted)]
    for item in removed:
        item.file.remove()
    return sum(item.nbytes for item in removed)


def warm(
    model: str | os.PathLike[str] | bytes,
    sess_options: SessionOptions | None = None,
    feeds: Iterable[Mapping[str, Any]] = (),
    **kwargs: Any,
) -> bool:
    """Compile a model and write it to the cache; whether sessions with the same arguments will start from there.

    Arguments are those of ``InferenceSession``. ``feeds`` are run, so that what is compiled for their sizes is cached
    too. A model that has no entry (its custom operators are not defined yet, say) is not cached, and the result False.
    """
    kwargs.setdefault("providers", ["CPUExecutionProvider"])
    session = InferenceSession(model, sess_options, **kwargs)
    for feed in feeds:
        session.run(None, feed)
    flush()
    return isinstance(InferenceSession(model, sess_options, **kwargs)._sess.engine, CachedEngine)


def flush() -> None:
    """Wait until everything that is written in the background is in the cache."""
    cache_writer.wait()


def _item(file: CacheFile, paths: Mapping[str, str | None]) -> CacheItem:
    stem, _, suffix = file.name.partition(".")
    if suffix == "start":
        digest, _, part = stem.partition("-")
        kind, path = SPECIALIZATION if part else MODEL, paths.get(digest)
    elif suffix == "graph":
        kind, path = GRAPH, _path(file)
    else:
        kind, path = RATES if suffix == "rates" else KERNEL, None
    return CacheItem(kind, path, file.nbytes, file.used_at, file)


def _path(file: CacheFile) -> str | None:
    """The path of the model that an entry was made from, if it says so."""
    decode = json.loads if file.name.endswith(".graph") else marshal.loads
    head = entries.peek(file.folder, file.name)
    path = None if head is None else decode(head).get("path")
    return path if isinstance(path, str) else None


def _spellings(path: str | os.PathLike[str]) -> set[str]:
    return {os.path.abspath(path), os.path.realpath(path)}


__all__ = ["CacheItem", "clear", "flush", "folder", "items", "warm"]

"""The cache of compiled models and kernels: what it holds, how to empty it, and how to fill it ahead of time.

    python -m sardonyx.cache list
    python -m sardonyx.cache clear [MODEL]
    python -m sardonyx.cache warm MODEL...

Sessions fill it by themselves. It is in ``~/.cache/sardonyx``, or where ``SARDONYX_CACHE`` points (``off``: nowhere),
and holds at most ``SARDONYX_CACHE_NBYTES`` bytes, 2 GiB by default.
"""

from __future__ import annotations

import argparse
import json
import marshal
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
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
_WITHOUT_PATH = {RATES: "of this machine"}


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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sardonyx.cache", description=(__doc__ or "").split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="what the cache holds, the last used models first")
    one = commands.add_parser("clear", help="delete everything, or the entries of a model")
    one.add_argument("model", nargs="?", help="the model's file")
    many = commands.add_parser("warm", help="compile models, so that their first start is quick")
    many.add_argument("models", nargs="+", help="files of models")
    many.add_argument("--threads", type=int, default=0, help="intra_op_num_threads of the sessions to come")
    options = parser.parse_args(argv)
    if folders.cache_folder() is None:
        print(folders.why_off(), file=sys.stderr)
        return 1
    if options.command == "list":
        _print_items(items())
        return 0
    if options.command == "clear":
        print(f"{clear(options.model) / 2**20:.1f} MiB deleted")
        return 0
    return max(_warm_one(path, options.threads) for path in options.models)


def _print_items(found: Sequence[CacheItem]) -> None:
    print(f"{folder()}: {len(found)} files, {sum(item.nbytes for item in found) / 2**20:.1f} MiB")
    for item in found:
        if item.kind != KERNEL:
            used = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.used_at))
            of = item.path or _WITHOUT_PATH.get(item.kind, "given as bytes")
            print(f"{used}  {item.nbytes / 2**20:8.1f} MiB  {item.kind:14}  {of}")
    kernels = [item.nbytes for item in found if item.kind == KERNEL]
    print(f"{len(kernels)} kernels, {sum(kernels) / 2**20:.1f} MiB")


def _warm_one(path: str, threads: int) -> int:
    from sardonyx.session.options import SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = threads
    try:
        is_cached = warm(path, options)
    except Exception as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {'cached' if is_cached else 'cannot be cached'}")
    return 0 if is_cached else 1


__all__ = ["CacheItem", "clear", "flush", "folder", "items", "warm"]

if __name__ == "__main__":
    sys.exit(main())

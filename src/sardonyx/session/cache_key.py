"""The key of a compiled model in the cache: a digest of everything that its entry depends on.

These are the model (a file by its path, size and times; bytes by their digest), the options, the chip, the versions of
Python and of the packages that compile, and our own sources. External data and custom operators are known only when the
model is parsed; the entry itself names them, and they are compared when it is read.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from sardonyx import digests, knobs
from sardonyx.files import identity_of
from sardonyx.folders import PrivateFolder
from sardonyx.providers.cpu import CpuProvider
from sardonyx.providers.cpu.runtime.serialize import settings
from sardonyx.session.engine import BuildOptions

SETTLED_NS = 20_000_000
"""File systems count time in steps of up to 10 ms: a file that changed less than this ago may change again without a
new time."""
PACKAGES = "onnx", "ml_dtypes", "llvmlite"
"""Dependencies whose code decides what is cached and which a cached start does not import."""
MAX_BYTES_NBYTES = 256 << 20
"""Largest model in memory that is cached: its digest is taken at each start, and its weights are in the entry."""


class CacheKey(NamedTuple):
    folder: PrivateFolder
    digest: str
    """The name of the entry, without its suffix."""
    identity: tuple[int, ...] | None
    """The identity of the model's file; None for a model in memory."""


def key_of(source: Any, options: BuildOptions) -> CacheKey | None:
    """The key of a model; None if it cannot be cached."""
    if not options.is_cached or options.limits is not None or knobs.VERIFY.get():
        return None
    if options.save_path or options.initializers or options.external_files or len(options.providers) != 1:
        return None
    (provider,) = options.providers
    if type(provider) is not CpuProvider:
        return None
    folder = None if options.cache is None else options.cache.open()
    if folder is None:
        return None
    identity: tuple[int, ...] | None = None
    if isinstance(source, bytes):
        if len(source) > MAX_BYTES_NBYTES:
            return None
        model: tuple[Any, ...] = ("bytes", digests.hexdigest(source))
    elif isinstance(source, (str, os.PathLike)):
        identity = settled_identity(source)
        if identity is None:
            return None
        model = (os.path.realpath(source), os.path.abspath(source), *identity)
    else:
        return None
    fixed = sorted(options.free_dims.items()), sorted(options.free_dims_by_denotation.items())
    rewrites = options.level, sorted(options.disabled_passes), fixed, options.separate_dims
    asked = *rewrites, options.narrow_doubles, options.external_folder, settings(provider)
    digest = digests.hexdigest(repr((model, asked, versions(), knobs.CHECK_ADDRESSES.get())).encode())
    return CacheKey(folder, digest, identity)


def settled_identity(path: str | os.PathLike[str]) -> tuple[int, ...] | None:
    """The identity of a regular file whose next change will give it another one; None if there is none.

    Waits a few milliseconds for a file that has just been written.
    """
    for _ in range(2):
        try:
            info = os.stat(path)
        except (OSError, ValueError):
            return None
        age = time.time_ns() - info.st_ctime_ns
        if not stat.S_ISREG(info.st_mode) or age < 0:
            return None
        if age >= SETTLED_NS:
            return identity_of(info)
        time.sleep((SETTLED_NS - age) * 1e-9)
    return None


@cache
def versions() -> str:
    """Changes with our version and every source file of ours, and with the version of each dependency.

    Sources are compared by size and time; some installers give all files one time, so versions are compared besides.
    """
    package = os.path.dirname(os.path.dirname(__file__))
    ours = getattr(sys.modules["sardonyx"], "__version__", None), *sorted(_files(package))
    packages = [(name, _installed(name)) for name in PACKAGES]
    return digests.hexdigest(repr((sys.version, np.__version__, ours, packages)).encode())


def _files(folder: str) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                info = entry.stat()
                yield entry.path, info.st_size, info.st_mtime_ns


def _installed(package: str) -> tuple[str | None, int, list[str]]:
    """A package's path, installation time and metadata folders, whose names have its version, without importing it."""
    from importlib.util import find_spec

    found = find_spec(package)
    origin = None if found is None else found.origin
    if origin is None:
        return None, 0, []
    place = os.path.dirname(os.path.dirname(origin))
    names = (name for name in os.listdir(place) if name.startswith(f"{package}-"))
    return origin, os.stat(origin).st_mtime_ns, sorted(name for name in names if name.endswith(("-info", ".egg")))

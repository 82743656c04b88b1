"""A digest of a Python function: its code and what its code refers to.

Functions with the same digest compute the same, so the digest is a cache key. Functions of the same package are
followed; those of other packages count by name and version. Where a referenced object has no stable description (only
an address), the digest is unique to this process, so that no cached entry matches it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import sys
import types
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range, np.generic, np.dtype)
_process = os.urandom(16).hex()


def of(*things: Any) -> str:
    """The digest of functions, classes or values."""
    digest = _Digest()
    for thing in things:
        digest.home = _package(thing)
        digest.add(thing)
    return digest.hash.hexdigest()


def _package(thing: Any) -> str:
    return (getattr(thing, "__module__", None) or "").partition(".")[0]


class _Digest:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.home = ""
        self._seen: dict[int, Any] = {}

    def say(self, *words: object) -> None:
        self.hash.update(repr(words).encode())

    def add(self, x: Any) -> None:
        if isinstance(x, _PLAIN):
            self.say(type(x).__name__, x)
        elif isinstance(x, np.ndarray):
            self.say("array", x.dtype, x.shape)
            self.add(x.tolist() if x.dtype.hasobject else x.tobytes())
        elif id(x) in self._seen:
            self.say("again", list(self._seen).index(id(x)))
        else:
            self._seen[id(x)] = x
            self._object(x)

    def _object(self, x: Any) -> None:
        self.say(type(x).__name__)
        if isinstance(x, (list, tuple)):
            self._all(x)
        elif isinstance(x, (set, frozenset)):
            self._all(sorted(x, key=repr))
        elif isinstance(x, (dict, types.MappingProxyType)):
            self._all([part for pair in x.items() for part in pair])
        elif isinstance(x, types.CodeType):
            self.say(x.co_code, x.co_names, x.co_varnames, x.co_argcount, x.co_kwonlyargcount, x.co_flags)
            self._all(x.co_consts)
        elif isinstance(x, types.FunctionType) and _package(x) == self.home:
            self._function(x)
        elif isinstance(x, functools.partial):
            self._all([x.func, x.args, x.keywords])
        elif isinstance(x, types.MethodType):
            self._all([x.__func__, x.__self__])
        elif isinstance(x, (types.ModuleType, type)) or (callable(x) and hasattr(x, "__qualname__")):
            self._named(x)
        elif dataclasses.is_dataclass(x):
            self._all([type(x), *(getattr(x, f.name) for f in dataclasses.fields(x))])
        else:
            self.say(_process, repr(x))

    def _all(self, parts: Any) -> None:
        self.say(len(parts))
        for part in parts:
            self.add(part)

    def _function(self, fn: types.FunctionType) -> None:
        self._all([fn.__code__, fn.__defaults__, fn.__kwdefaults__])
        for cell in fn.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # not assigned yet
                self.say("empty")
        for name in sorted(_names(fn.__code__)):
            if name in fn.__globals__:
                self.say(name)
                self.add(fn.__globals__[name])

    def _named(self, x: Any) -> None:
        module = x.__name__ if isinstance(x, types.ModuleType) else x.__module__ or ""
        package = sys.modules.get(module.partition(".")[0])
        self.say(module, getattr(x, "__qualname__", ""), getattr(package, "__version__", ""))
        if isinstance(x, type) and _package(x) == self.home:
            self._all([part for name, part in sorted(vars(x).items()) if isinstance(part, types.FunctionType)])


def _names(code: types.CodeType) -> set[str]:
    """Names that code, and the functions written inside it, may look up outside."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))

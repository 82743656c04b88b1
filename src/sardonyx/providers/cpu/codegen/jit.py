"""The linker: kernels as native functions, loaded already, read from the object cache, or compiled in parallel."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sardonyx import forks, knobs, limits
from sardonyx.errors import NotImplemented
from sardonyx.providers.cpu.codegen import object_loader
from sardonyx.providers.cpu.codegen.object_loader import Address
from sardonyx.providers.cpu.machine import object_cache as objects
from sardonyx.providers.cpu.machine import parallel
from sardonyx.providers.cpu.machine.isa import Isa, current

if TYPE_CHECKING:
    from sardonyx.providers.cpu.language.dsl import Spec


def key(spec: Spec, isa: Isa, checked: bool) -> str:
    """The key of a compiled object."""
    return f"{spec.digest}-{isa.key}-{checked:d}-{objects.compiler_version()}"


CODE_NBYTES = 1 << 26
"""Bytes of code that stay loaded for later sessions; code in use by a session stays in any case."""


COMPILING = 0.6
"""The share of an untrusted model's time in which kernels are compiled; parts that come later run on numpy."""


class Statistics:
    """What this process compiled, and what it read from the object cache."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.loaded: list[str] = []
        self.written: list[float] = []
        """Processor seconds in which the IR of a kernel was written."""
        self.translated: list[float] = []
        """Processor seconds in which LLVM made machine code of it."""


statistics = Statistics()


class Linker:
    """The addresses of kernels. Each kernel is compiled once, by the first thread that asks for it."""

    def __init__(self) -> None:
        self._addresses: dict[str, Address] = {}
        """Most recently used last."""
        self._makers: dict[str, threading.Lock] = {}
        self._lock = forks.lock()
        self.natives: dict[tuple[Any, ...], str] = {}
        """The keys of the objects of native functions that Python calls."""

    def address(self, spec: Spec, isa: Isa | None = None, *, checked: bool | None = None) -> Address:
        """A kernel's native function, loaded as long as the caller holds its address."""
        isa = isa or current()
        checked = knobs.CHECK_ADDRESSES.get() if checked is None else checked
        name = key(spec, isa, checked)
        return self._made(name, spec.name, lambda: _object(spec, isa, checked, name))

    def native(self, module: str, function: str, **statics: Any) -> Address:
        """A native function by module and name; the module is imported only if the function is not known yet. It stays
        loaded for the life of the process."""
        known = module, function, tuple(statics.items()), current().key, knobs.CHECK_ADDRESSES.get()
        name = self.natives.get(known)
        found = None if name is None else self.cached(name, function)
        if found is None:
            spec = getattr(import_module(f"sardonyx.providers.cpu.{module}"), function)(**statics)
            self.natives[known] = self.name(spec, current())
            found = self.address(spec)
        found.keep()
        return found

    def name(self, spec: Spec, isa: Isa) -> str:
        """The key of the object of a kernel."""
        return key(spec, isa, knobs.CHECK_ADDRESSES.get())

    def cached(self, name: str, function: str) -> Address | None:
        """The native function of an object in the cache, if it is still there."""
        try:
            return self._made(name, function, lambda: _cached_object(name, function))
        except FileNotFoundError:
            return None

    def _made(self, name: str, function: str, make: Callable[[], bytes]) -> Address:
        with self._lock:
            found = self._addresses.pop(name, None)
            if found is not None:
                self._addresses[name] = found
                return found
            making = self._makers.setdefault(name, forks.lock())
        with making:
            with self._lock:
                found = self._addresses.get(name)
            made = object_loader.load(make(), function) if found is None else found
            with self._lock:
                self._addresses[name] = made
                self._makers.pop(name, None)
                gone = self._trim()
        del gone  # code leaves memory without the lock
        return made

    def _trim(self) -> list[Address]:
        """Drop code beyond the limit in bytes, least recently used first; returns the dropped addresses."""
        nbytes = sum(address.nbytes for address in self._addresses.values())
        gone = []
        for name in list(self._addresses)[:-1]:
            if nbytes <= CODE_NBYTES:
                break
            gone.append(self._addresses.pop(name))
            nbytes -= gone[-1].nbytes
        return gone

    def prepare(
        self, specs: Iterable[Spec], isa: Isa, threads: int, others: Iterable[Callable[[], Any]] = ()
    ) -> list[Any]:
        """Compile kernels, and call ``others``, on up to ``threads`` threads; most of the time is spent without the
        GIL.

        Returns the results in order. With one thread, or a single task, nothing is done in advance, and nothing
        returned.
        """
        kernels = {spec.digest: partial(self.address, spec, isa) for spec in specs}
        tasks: list[Callable[[], Any]] = [*kernels.values(), *others]
        if threads == 1 or len(tasks) < 2:
            return []
        return parallel.results(tasks, threads)


def _cached_object(name: str, function: str) -> bytes:
    stored = objects.read(name)
    if stored is None:
        raise FileNotFoundError(name)
    statistics.loaded.append(function)
    return stored


def _check_compiling(budget: limits.Budget) -> None:
    """Decline to compile a part of an untrusted model when most of its time is used up."""
    if budget.used > COMPILING:
        raise NotImplemented("too little of an untrusted model's time is left to compile it")


def _object(spec: Spec, isa: Isa, checked: bool, name: str) -> bytes:
    stored = objects.read(name)
    if stored is not None:
        statistics.loaded.append(spec.name)
        return stored
    budget = limits.current()
    if budget is not None:
        _check_compiling(budget)
    from sardonyx.providers.cpu.codegen.compiler import compiled  # brings LLVM

    made = compiled(spec, isa, checked=checked)
    objects.write(name, made)
    statistics.compiled.append(spec.name)
    return made


linker = Linker()


def call(spec: Spec, *args: Any, isa: Isa | None = None) -> None:
    """Call a plain function; integers and addresses only."""
    types, at = [ctypes.c_int64] * len(args), linker.address(spec, isa)
    ctypes.CFUNCTYPE(None, *types)(at)(*args)

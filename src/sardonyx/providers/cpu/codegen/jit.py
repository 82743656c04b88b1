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
    from sardonyx.folders import Place
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
        self.baseline: list[str] = []
        """Kernels of which baseline code was made."""
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
        return self._made(name, lambda: object_loader.load(_object(spec, isa, checked, name), spec.name))

    def baseline(self, spec: Spec, isa: Isa) -> Address:
        """A kernel's optimized code if that is loaded or in the object cache; else baseline code, for which
        ``replace`` puts optimized code later."""
        name = self.name(spec, isa)
        with self._lock:
            found, has_baseline = self._addresses.get(name), _baseline_name(name) in self._addresses
        if found is None and not has_baseline:  # most steps share their kernel with others
            found = self.cached(name, spec.name)
        return self._made(_baseline_name(name), partial(_baseline, spec, isa)) if found is None else found

    def replace(self, kernel: BaselineKernel) -> None:
        """Put optimized code in the place of a kernel's baseline code, unless another thread has done so."""
        with kernel.replacing:
            text = kernel.text
            if text is None:
                return
            name = key(kernel.spec, kernel.isa, kernel.checked)

            def optimized() -> Address:
                made = _object(kernel.spec, kernel.isa, kernel.checked, name, text)
                return object_loader.load(made, kernel.spec.name)

            with objects.kept_in(kernel.cache):
                kernel.replace(self._made(name, optimized))
            kernel.text = None

    def native(self, module: str, function: str, *, baseline: bool = False, **statics: Any) -> Address:
        """A native function by module and name; the module is imported only if the function is not known yet. It stays
        loaded for the life of the process. ``baseline`` code will do at first if asked for."""
        known = module, function, tuple(statics.items()), current().key, knobs.CHECK_ADDRESSES.get()
        name = self.natives.get(known)
        found = None
        if name is not None:
            with self._lock:
                found = self._addresses.get(name) or self._addresses.get(_baseline_name(name))
            found = found or self.cached(name, function)
        if found is None:
            spec = getattr(import_module(f"sardonyx.providers.cpu.{module}"), function)(**statics)
            self.natives[known] = self.name(spec, current())
            found = self.baseline(spec, current()) if baseline else self.address(spec)
        found.keep()
        return found

    def name(self, spec: Spec, isa: Isa) -> str:
        """The key of the object of a kernel."""
        return key(spec, isa, knobs.CHECK_ADDRESSES.get())

    def cached(self, name: str, function: str) -> Address | None:
        """The native function of an object in the cache, if it is still there."""
        try:
            return self._made(name, lambda: object_loader.load(_cached_object(name, function), function))
        except FileNotFoundError:
            return None

    def _made(self, name: str, make: Callable[[], Address]) -> Address:
        with self._lock:
            found = self._addresses.pop(name, None)
            if found is not None:
                self._addresses[name] = found
                return found
            making = self._makers.setdefault(name, forks.lock())
        with making:
            with self._lock:
                found = self._addresses.get(name)
            made = make() if found is None else found
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
        self,
        specs: Iterable[Spec],
        isa: Isa,
        threads: int,
        others: Iterable[Callable[[], Any]] = (),
        *,
        baseline: bool = False,
    ) -> list[Any]:
        """Compile kernels, and call ``others``, on up to ``threads`` threads; most of the time is spent without the
        GIL. ``baseline`` code will do if asked for.

        Returns the results in order. With one thread, or a single task, nothing is done in advance, and nothing
        returned.
        """
        find = self.baseline if baseline else self.address
        kernels = {spec.digest: partial(find, spec, isa) for spec in specs}
        tasks: list[Callable[[], Any]] = [*others, *kernels.values()]
        if threads == 1 or len(tasks) < 2:
            return []
        return parallel.results(tasks, threads)


def _baseline_name(name: str) -> str:
    """The key of baseline code, by that of the optimized object."""
    return f"{name}-baseline"


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


class BaselineKernel(object_loader.Replaceable):
    """The address of a kernel's baseline code, until optimized code replaces that."""

    spec: Spec
    isa: Isa
    checked: bool
    text: str | None
    """The kernel's IR; None once the optimized code is there."""
    replacing: threading.Lock
    cache: Place | None
    """Where the optimized code is kept."""
    called_nbytes = 0
    """Bytes of data of its calls, where those are counted."""


def _baseline(spec: Spec, isa: Isa) -> Address:
    from sardonyx.providers.cpu.codegen.compiler import BASELINE, compiled, text_of

    checked = knobs.CHECK_ADDRESSES.get()
    text = text_of(spec, isa, checked=checked)
    made = BaselineKernel.to(object_loader.load(compiled(spec.name, text, isa, BASELINE), spec.name))
    assert isinstance(made, BaselineKernel)
    made.spec, made.isa, made.checked, made.text, made.replacing = spec, isa, checked, text, forks.lock()
    made.cache = objects.place()
    statistics.baseline.append(spec.name)
    return made


def _object(spec: Spec, isa: Isa, checked: bool, name: str, text: str | None = None) -> bytes:
    """A kernel's object file, from the cache or compiled; ``text`` is its IR if that is known."""
    stored = objects.read(name)
    if stored is not None:
        statistics.loaded.append(spec.name)
        return stored
    budget = limits.current()
    if budget is not None:
        _check_compiling(budget)
    from sardonyx.providers.cpu.codegen.compiler import compiled, text_of  # brings LLVM

    made = compiled(spec.name, text or text_of(spec, isa, checked=checked), isa)
    objects.write(name, made)
    statistics.compiled.append(spec.name)
    return made


linker = Linker()


def call(spec: Spec, *args: Any, isa: Isa | None = None) -> None:
    """Call a plain function; integers and addresses only."""
    types, at = [ctypes.c_int64] * len(args), linker.address(spec, isa)
    ctypes.CFUNCTYPE(None, *types)(at)(*args)

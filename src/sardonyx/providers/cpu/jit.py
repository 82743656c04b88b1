"""Kernels as native functions: linked before, found on disk, or compiled now, many of them side by side."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from sardonyx import knobs
from sardonyx.providers.cpu import cache as objects
from sardonyx.providers.cpu import elf
from sardonyx.providers.cpu.dsl import Spec
from sardonyx.providers.cpu.isa import Isa, current


def key(spec: Spec, isa: Isa, checked: bool) -> str:
    """What a compiled object is known by."""
    return f"{spec.digest}-{isa.key}-{checked:d}-{objects.compiler_version()}"


@dataclass
class Statistics:
    """What this process compiled and what it found."""

    compiled: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)


statistics = Statistics()


class Linker:
    """Gives the addresses of kernels; each is made by whoever asks first."""

    def __init__(self) -> None:
        self._addresses: dict[str, int] = {}
        self._makers: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def address(self, spec: Spec, isa: Isa | None = None, *, checked: bool | None = None) -> int:
        """The native function of a kernel."""
        isa = isa or current()
        checked = knobs.CHECK_ADDRESSES.get() if checked is None else checked
        name = key(spec, isa, checked)
        found = self._addresses.get(name)
        if found is not None:
            return found
        with self._lock:
            making = self._makers.setdefault(name, threading.Lock())
        with making:
            found = self._addresses.get(name)
            if found is None:
                found = self._addresses[name] = elf.load(_object(spec, isa, checked, name), spec.name)
        with self._lock:
            self._makers.pop(name, None)
        return found

    def prepare(self, specs: Iterable[Spec], isa: Isa, threads: int) -> None:
        """Make kernels ready, by so many threads: nearly all of the time is spent outside of Python."""
        wanted = list({spec.digest: spec for spec in specs}.values())
        if threads == 1 or len(wanted) < 2:
            return
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda spec: self.address(spec, isa), wanted):
                pass

    def forget_locks(self) -> None:
        """A forked child begins with locks that nobody holds."""
        self._lock = threading.Lock()
        self._makers.clear()


def _object(spec: Spec, isa: Isa, checked: bool, name: str) -> bytes:
    stored = objects.read(name)
    if stored is not None:
        statistics.loaded.append(spec.name)
        return stored
    from sardonyx.providers.cpu.compiler import compiled  # brings LLVM

    made = compiled(spec, isa, checked=checked)
    objects.write(name, made)
    statistics.compiled.append(spec.name)
    return made


linker = Linker()


def call(spec: Spec, *args: Any, isa: Isa | None = None) -> None:
    """Call a plain function; integers and addresses only."""
    types = [ctypes.c_int64] * len(args)
    ctypes.CFUNCTYPE(None, *types)(linker.address(spec, isa))(*args)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=linker.forget_locks)

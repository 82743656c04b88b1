"""Optimized code in the place of baseline code.

A session is ready when there is code for every kernel; code that is not in the cache is baseline code at first, which
is made in a quarter of the time. The first run uses it. Meanwhile a thread of low priority makes the optimized code,
which replaces the other kernel by kernel, also in the middle of a run. A second run waits for what is missing, and
helps, so that no later run is slow.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from sardonyx import forks
from sardonyx.errors import SardonyxError
from sardonyx.providers.cpu.codegen.jit import BaselineKernel, linker
from sardonyx.providers.cpu.machine import parallel

NICENESS = 10
"""Of the thread that compiles while runs go on."""


class TierUp:
    """Replaces the baseline code of a part's kernels."""

    def __init__(self, code: Iterable[object], threads: int) -> None:
        """``code``: the addresses of the part's kernels, in the order of its steps."""
        found = {id(kernel): kernel for kernel in code if isinstance(kernel, BaselineKernel)}
        self._kernels: Sequence[BaselineKernel] = tuple(found.values())
        self._threads, self._lock = threads, forks.lock()
        self._has_begun = self._outlives_program = False

    @property
    def is_over(self) -> bool:
        return all(kernel.text is None for kernel in self._kernels)

    def begin(self, *, outlives_program: bool = False) -> None:
        """Start to compile on a thread of its own. When the program ends, that stops unless it ``outlives_program``."""
        with self._lock:
            self._outlives_program |= outlives_program
            has_begun, self._has_begun = self._has_begun, True
        if not has_begun and not self.is_over:
            with suppress(RuntimeError):  # the interpreter ends, or has no threads: ``finish`` does the work
                threading.Thread(target=self._live, name="sardonyx-compile").start()

    def _live(self) -> None:
        _lower_priority()
        for kernel in self._kernels:
            if not self._outlives_program and not threading.main_thread().is_alive():
                return
            _replace(kernel)

    def finish(self) -> None:
        """Return when all code is optimized."""
        if self.is_over:
            return
        missing = [kernel for kernel in reversed(self._kernels) if kernel.text is not None]
        if self._threads > 1 and len(missing) > 1 and threading.main_thread().is_alive():
            parallel.results((partial(_replace, kernel) for kernel in missing), self._threads)
        for kernel in missing:
            _replace(kernel)


def _replace(kernel: BaselineKernel) -> None:
    try:
        linker.replace(kernel)
    except (SardonyxError, MemoryError) as error:
        kernel.text = None
        import logging  # 3 ms of a start that logs nothing

        logging.getLogger("sardonyx").warning("kernel %s stays baseline code: %s", kernel.spec.name, error)


def _lower_priority() -> None:
    """Let the threads of runs go first; on Linux, niceness belongs to a thread."""
    with suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)

"""Calls of a single kernel on numpy arrays: for tests, benchmarks and packing weights."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sardonyx import knobs
from sardonyx.dtypes import DType
from sardonyx.errors import Fail
from sardonyx.providers.cpu.codegen.jit import BaselineKernel, linker
from sardonyx.providers.cpu.language.context import COUNTERS, STEP_SLOT, Context
from sardonyx.providers.cpu.machine.isa import Isa

if TYPE_CHECKING:
    from sardonyx.providers.cpu.codegen.object_loader import Address
    from sardonyx.providers.cpu.language.dsl import Spec

Array = np.ndarray[Any, Any]
STEP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
"""The C signature of a kernel."""


BASELINE_NBYTES = 1 << 23
"""Data of all single calls of a kernel up to which baseline code will do: for more, optimized code saves more time than
it takes to make."""


def code_for_one_call(spec: Spec, isa: Isa, nbytes: int) -> Address:
    """A kernel's code for a single call on so many bytes."""
    if not knobs.BASELINE.get() or nbytes > BASELINE_NBYTES:
        return linker.address(spec, isa)
    found = linker.baseline(spec, isa)
    if isinstance(found, BaselineKernel):
        found.called_nbytes += nbytes
        if found.called_nbytes > BASELINE_NBYTES:
            linker.replace(found)
    return found


def word(value: float, dtype: DType) -> int:
    """A number as a word of an argument block."""
    if not dtype.is_float:
        return int(value)
    code, as_int = ("d", "q") if dtype.bits == 64 else ("f", "i")
    return int(struct.unpack(as_int, struct.pack(code, value))[0])


class Signature(NamedTuple):
    """The parameters of a compiled kernel, for calling it."""

    name: str
    params: Mapping[str, tuple[str, DType]]


class Launch:
    """A kernel with its arguments, ready to be called; arrays are written in place.

    An array may come with the index of its element 0. ``at`` is the kernel's address, if it is known.
    """

    def __init__(
        self,
        spec: Spec | Signature,
        arguments: dict[str, Any],
        *,
        threads: int = 1,
        scratch_nbytes: int = 0,
        isa: Isa | None = None,
        checked: bool | None = None,
        at: int | None = None,
    ) -> None:
        self.spec, self.threads = spec, threads
        if at is None:
            assert not isinstance(spec, Signature)
            at = linker.address(spec, isa, checked=checked)
        self._at, self._call = at, STEP(at)
        self._arrays: list[Array] = []
        words = [0]
        for name, (kind, dtype) in spec.params.items():
            given = arguments[name]
            if kind == "number":
                words.append(word(given, dtype))
                continue
            array, offset = given if isinstance(given, tuple) else (given, 0)
            assert array.dtype.itemsize == dtype.itemsize, f"{spec.name}: {name} is {array.dtype}, expected {dtype}"
            front = offset * array.itemsize
            words += [len(self._arrays), front, array.nbytes - front, front]
            self._arrays.append(array)
        assert set(arguments) == set(spec.params), set(arguments) ^ set(spec.params)
        self._args = np.array(words, np.int64)
        self._args[STEP_SLOT] = 0
        self._bases = np.array([a.ctypes.data for a in self._arrays] or [0], np.int64)
        stride = -(-scratch_nbytes // 64) * 64
        self.scratch = np.zeros(stride * threads + 64, np.uint8)
        self.context = np.zeros(Context.SLOTS, np.int64)
        self.context[Context.BASES] = self._bases.ctypes.data
        self.context[Context.SCRATCH] = -(-self.scratch.ctypes.data // 64) * 64
        self.context[Context.SCRATCH_STRIDE] = stride
        self._counters = np.zeros(COUNTERS * threads, np.int64)
        self.context[Context.COUNTER_NBYTES] = 8 * threads
        self.context[Context.COUNTERS] = self._counters.ctypes.data
        self._addresses = self._args.ctypes.data, self.context.ctypes.data

    def __call__(self) -> None:
        self._counters.fill(0)
        for thread in range(self.threads):
            self.run_thread(thread)
        if self.context[Context.ERROR]:
            code, value = self.context[Context.ERROR], self.context[Context.ERROR_VALUE]
            self.context[Context.ERROR] = 0
            raise Fail(f"kernel {self.spec.name} reports error {code}", got=int(value))

    def run_thread(self, thread: int) -> None:
        """Run one thread's share."""
        self._call(*self._addresses, thread, self.threads)


def launch(
    spec: Spec, /, *, threads: int = 1, scratch_nbytes: int = 0, isa: Isa | None = None, **arguments: Any
) -> None:
    """Run a kernel once, its threads one after the other."""
    Launch(spec, arguments, threads=threads, scratch_nbytes=scratch_nbytes, isa=isa)()

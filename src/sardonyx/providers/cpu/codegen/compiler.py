"""From a kernel's IR to an object file: target machine, optimization, emission.

llvmlite holds a lock around every call of LLVM. LLVM itself only needs a context and a target machine per thread, so
the two calls that take nearly all of the time bypass that lock, and kernels are compiled in parallel.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from sardonyx import forks
from sardonyx.providers.cpu.codegen.jit import statistics
from sardonyx.providers.cpu.codegen.object_loader import undefined_symbols
from sardonyx.providers.cpu.language.dsl import Spec
from sardonyx.providers.cpu.machine.isa import Isa, current
from sardonyx.providers.cpu.memory.allocator import need_headroom

CODEGEN_LEVEL = 2

ALLOWED_SYMBOLS = frozenset(("memcpy", "memmove", "memset"))
"""The only symbols that an object may import."""

_writing = forks.lock()
"""IR is written by one thread at a time: the GIL allows no more."""

_gate = forks.Gate()
"""Counts the calls that bypass llvmlite's lock. A fork waits for them and for that lock: a child could not release
LLVM's own locks."""
_lock: Any = ffi.lib._lock._lock
forks.at_fork(before=_lock.acquire, in_parent=_lock.release, in_child=_lock.release)


@cache
def _initialized() -> bool:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return True


@cache
def _unlocked(name: str) -> Any:
    """A function of llvmlite's library, without llvmlite's lock."""
    locked = getattr(ffi.lib, name)
    found = getattr(ctypes.CDLL(ffi.lib._name), name)
    found.argtypes, found.restype = locked.argtypes, locked.restype

    def call(*args: Any) -> Any:
        with _gate:
            return found(*args)

    return call


@contextmanager
def _timed(seconds: list[float]) -> Iterator[None]:
    start = time.thread_time()
    yield
    seconds.append(time.thread_time() - start)


def _machine(isa: Isa) -> Any:
    """A target machine, for one thread."""
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=CODEGEN_LEVEL, reloc="pic", codemodel="small"
    )


def optimized(spec: Spec, isa: Isa, machine: Any, *, checked: bool = False) -> Any:
    """The kernel's module, in a context of its own, after the LLVM passes that still find work.

    The kernel language vectorizes, eliminates common subexpressions and hoists while it emits (``builder``). What is
    left is to promote variables to registers and to merge blocks.
    """
    with _writing, _timed(statistics.written):
        written = spec.emit(isa, checked=checked)
        written.module.triple = llvm.get_default_triple()
        text = str(written.module)
    try:
        module = llvm.parse_assembly(text, llvm.create_context())
        module.verify()
    except RuntimeError as error:
        raise AssertionError(f"kernel {spec.name} is not valid IR: {error}") from error
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    passes, run = llvm.create_new_function_pass_manager(), _unlocked("LLVMPY_RunNewFunctionPassManager")
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            run(passes, function, builder)
    return module


def compiled(spec: Spec, isa: Isa, *, checked: bool = False) -> bytes:
    """The object file of a kernel."""
    need_headroom()
    _initialized()
    machine = _machine(isa)
    module = optimized(spec, isa, machine, checked=checked)
    with _timed(statistics.translated), ffi.OutputString() as error:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, error)
        assert buffer, f"kernel {spec.name}: {error}"
    try:
        made = ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)
    foreign = undefined_symbols(made) - ALLOWED_SYMBOLS
    assert not foreign, f"kernel {spec.name} calls {', '.join(sorted(foreign))}"
    return made


def assembly(spec: Spec, isa: Isa | None = None) -> str:
    """The machine code as assembly text."""
    _initialized()
    isa = isa or current()
    machine = _machine(isa)
    return str(machine.emit_assembly(optimized(spec, isa, machine)))

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

from sardonyx import forks, knobs
from sardonyx.providers.cpu.codegen.jit import statistics
from sardonyx.providers.cpu.codegen.object_loader import undefined_symbols
from sardonyx.providers.cpu.language.dsl import Spec
from sardonyx.providers.cpu.machine.isa import Isa, current
from sardonyx.providers.cpu.memory.allocator import need_headroom

OPTIMIZED, BASELINE = 2, 0
"""LLVM's levels of code generation. Baseline code is made in a quarter of the time and runs one to five times as long.
Its results are the same to the bit: the level decides registers and the order of instructions only.
"""

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


_idle: dict[tuple[str, str, int], list[Any]] = {}
"""Target machines that no thread uses. One that has compiled a kernel knows its chip: a new one takes as long to read
the list of features as a small kernel takes to compile."""


@contextmanager
def _machine(isa: Isa, level: int) -> Iterator[Any]:
    """A target machine, for one thread at a time."""
    idle = _idle.setdefault((isa.cpu, isa.features, level), [])
    try:
        machine = idle.pop()
    except IndexError:
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=isa.cpu, features=isa.features, opt=level, reloc="pic", codemodel="small"
        )
    yield machine
    idle.append(machine)


def text_of(spec: Spec, isa: Isa, *, checked: bool = False) -> str:
    """The kernel's IR."""
    with _writing, _timed(statistics.written):
        written = spec.emit(isa, checked=checked)
        _initialized()
        written.module.triple = llvm.get_default_triple()
        return str(written.module)


def _module(name: str, text: str, machine: Any, level: int) -> Any:
    """The kernel's module, in a context of its own; for optimized code, after the LLVM passes that still find work.

    The kernel language vectorizes, eliminates common subexpressions and hoists while it emits (``builder``). What is
    left is to promote variables to registers and to merge blocks. Baseline code would become slower by them. Its IR is
    that of the optimized code and verified with it.
    """
    context = llvm.create_context()
    with ffi.OutputString() as error:
        module = llvm.ModuleRef(_unlocked("LLVMPY_ParseAssembly")(context, text.encode(), error), context)
        assert not error, f"kernel {name} is not valid IR: {error}"
    if level == OPTIMIZED or knobs.VERIFY.get():
        try:
            module.verify()
        except RuntimeError as invalid:
            raise AssertionError(f"kernel {name} is not valid IR: {invalid}") from invalid
    module.data_layout = str(machine.target_data)
    if level == OPTIMIZED:
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
        passes, run = llvm.create_new_function_pass_manager(), _unlocked("LLVMPY_RunNewFunctionPassManager")
        passes.add_sroa_pass()
        passes.add_simplify_cfg_pass()
        for function in module.functions:
            if not function.is_declaration:
                run(passes, function, builder)
    return module


def compiled(name: str, text: str, isa: Isa, level: int = OPTIMIZED) -> bytes:
    """The object file of the kernel of this name and IR."""
    need_headroom()
    _initialized()
    with _machine(isa, level) as machine:
        module = _module(name, text, machine, level)
        with _timed(statistics.translated), ffi.OutputString() as error:
            buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, error)
            assert buffer, f"kernel {name}: {error}"
    try:
        made = ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)
    foreign = undefined_symbols(made) - ALLOWED_SYMBOLS
    assert not foreign, f"kernel {name} calls {', '.join(sorted(foreign))}"
    return made


def assembly(spec: Spec, isa: Isa | None = None) -> str:
    """The machine code as assembly text."""
    isa = isa or current()
    text = text_of(spec, isa)
    with _machine(isa, OPTIMIZED) as machine:
        return str(machine.emit_assembly(_module(spec.name, text, machine, OPTIMIZED)))

"""From a kernel's IR to a native function: target machine, optimization, linking."""

from __future__ import annotations

import ctypes
import struct
import threading
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from sardonyx import knobs
from sardonyx.errors import Fail
from sardonyx.providers.cpu import cache as objects
from sardonyx.providers.cpu.dsl import Spec
from sardonyx.providers.cpu.isa import Isa, current

SPEED_LEVEL, CODEGEN_LEVEL = 1, 2
"""The kernel language vectorizes; LLVM at these levels is as fast as at its highest, and a third cheaper."""

ALLOWED_SYMBOLS = frozenset(("memcpy", "memmove", "memset"))
"""What an object may refer to."""

SYMBOL_TABLE = 2
"""The kind of an ELF section."""

_lock = threading.RLock()


@cache
def _initialized() -> bool:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return True


@cache
def _machine(cpu: str, features: str) -> Any:
    _initialized()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu, features=features, opt=CODEGEN_LEVEL, reloc="pic", codemodel="small")


def key(spec: Spec, isa: Isa, checked: bool) -> str:
    """What a compiled object is known by."""
    return f"{spec.digest}-{isa.key}-{checked:d}-{llvmlite.__version__}-{llvm.llvm_version_info}"


def optimized(spec: Spec, isa: Isa, *, checked: bool = False) -> Any:
    """The module of a kernel, after LLVM's passes."""
    _initialized()
    written = spec.emit(isa, checked=checked)
    written.module.triple = llvm.get_default_triple()
    try:
        module = llvm.parse_assembly(str(written.module))
        module.verify()
    except RuntimeError as error:
        raise AssertionError(f"kernel {spec.name} is not valid IR: {error}") from error
    machine = _machine(isa.cpu, isa.features)
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=SPEED_LEVEL)
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def assembly(spec: Spec, isa: Isa | None = None) -> str:
    """The machine code as text, for eyes."""
    isa = isa or current()
    return str(_machine(isa.cpu, isa.features).emit_assembly(optimized(spec, isa)))


@dataclass
class Statistics:
    """What this process compiled and what it found."""

    compiled: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)


statistics = Statistics()


class Linker:
    """Keeps every object that was linked, and gives the addresses of their functions."""

    def __init__(self) -> None:
        self._addresses: dict[str, int] = {}
        self._kept: list[Any] = []

    def address(self, spec: Spec, isa: Isa | None = None, *, checked: bool | None = None) -> int:
        """The native function of a kernel: linked before, found on disk, or compiled now."""
        isa = isa or current()
        checked = knobs.CHECK_ADDRESSES.get() if checked is None else checked
        name = key(spec, isa, checked)
        found = self._addresses.get(name)
        if found is not None:
            return found
        with _lock:
            if name not in self._addresses:
                self._addresses[name] = self._link(spec, self._object(spec, isa, checked, name))
            return self._addresses[name]

    def _object(self, spec: Spec, isa: Isa, checked: bool, name: str) -> bytes:
        stored = objects.read(name)
        if stored is not None:
            statistics.loaded.append(spec.name)
            return stored
        module = optimized(spec, isa, checked=checked)
        made: bytes = _machine(isa.cpu, isa.features).emit_object(module)
        foreign = undefined_symbols(made) - ALLOWED_SYMBOLS
        assert not foreign, f"kernel {spec.name} calls {', '.join(sorted(foreign))}"
        objects.write(name, made)
        statistics.compiled.append(spec.name)
        return made

    def _link(self, spec: Spec, content: bytes) -> int:
        _initialized()
        empty = llvm.parse_assembly("")
        engine = llvm.create_mcjit_compiler(empty, llvm.Target.from_default_triple().create_target_machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(content))
        engine.finalize_object()
        self._kept.append(engine)
        address = int(engine.get_function_address(spec.name))
        if not address:
            raise Fail(f"kernel {spec.name} could not be linked")
        return address


def undefined_symbols(content: bytes) -> set[str]:
    """What an ELF object of 64 bits wants from elsewhere."""
    sections, entry, count = struct.unpack_from("<Q10xHH", content, 0x28)[0], *struct.unpack_from("<HH", content, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", content, sections + i * entry) for i in range(count)]
    found: set[str] = set()
    for _, kind, _, _, offset, size, link, _, _, each in headers:
        if kind != SYMBOL_TABLE:
            continue
        names = headers[link][4]
        for at in range(offset, offset + size, each):
            name, _, _, section = struct.unpack_from("<IBBH", content, at)
            if name and section == 0:
                found.add(content[names + name : content.index(b"\0", names + name)].decode())
    return found


linker = Linker()


def call(spec: Spec, *args: Any, isa: Isa | None = None) -> None:
    """Call a plain function; integers and addresses only."""
    types = [ctypes.c_int64] * len(args)
    ctypes.CFUNCTYPE(None, *types)(linker.address(spec, isa))(*args)

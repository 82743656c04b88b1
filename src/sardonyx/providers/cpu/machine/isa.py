"""The instruction set of the chip, as kernels see it: vector width, registers, matrix tiles, caches.

An ``Isa`` has two sides. Its *shape* (lanes, registers, tiles) decides which kernels are emitted; its *target* (CPU
name and features) is what LLVM compiles for. ``SARDONYX_CPU`` names a CPU and sets both. On a machine that cannot run
that CPU's code the shape is kept and tile instructions are emulated by ordinary ones, so every kernel can be tested
everywhere.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache
from typing import Any

from sardonyx import knobs
from sardonyx.errors import InvalidArgument
from sardonyx.providers.cpu.machine import object_cache as objects
from sardonyx.records import Record, replace

KIB, LINE_NBYTES = 1 << 10, 64
"""Bytes, and bytes of a cache line."""


class Isa(Record):
    """One instruction set."""

    name: str
    """``amx``, ``avx512``, ``avx2``, ``neon`` or ``generic``."""
    cpu: str
    """LLVM's name of the CPU that code is emitted for."""
    features: str
    """LLVM's feature string."""
    lanes: int
    """f32 elements in a vector register."""
    registers: int
    amx: bool = False
    """Matrix tiles with bf16 products."""
    bf16_dot: bool = False
    """A vector dot product of bf16 pairs, accumulated in f32."""
    byte_dot: bool = False
    """A vector dot product of four bytes, accumulated in i32."""
    byte_permute: bool = False
    """Permutations of the bytes of two registers."""
    is_emulated: bool = False
    """Whether tiles and dot products are emulated by ordinary instructions."""
    l1_nbytes: int = 32 * KIB
    l2_nbytes: int = 1024 * KIB
    l3_nbytes: int = 8192 * KIB

    @property
    def is_baseline(self) -> bool:
        """Whether only the baseline instructions of the architecture are available: no FMA (``soft_fma``)."""
        return self.name == "generic"

    @property
    def key(self) -> str:
        """What compiled code depends on. Cache sizes are not part of it: they are parameters of kernels."""
        shape = f"{self.lanes}/{self.registers}/{self.byte_dot:d}/{self.byte_permute:d}/{self.is_emulated:d}"
        return f"{self.name}/{self.cpu}/{self.features}/{shape}"


WIDE = "-prefer-256-bit,-idivq-to-divl"
"""By default LLVM prefers half-width vectors on these CPUs, and emits a second, 32-bit version of every division, which
costs compile time."""

_X86: dict[str, Isa] = {
    "sapphirerapids": Isa(
        "amx", "sapphirerapids", WIDE, 16, 32, amx=True, bf16_dot=True, byte_dot=True, byte_permute=True
    ),
    "cooperlake": Isa("avx512", "cooperlake", WIDE, 16, 32, bf16_dot=True, byte_dot=True),
    "znver4": Isa("avx512", "znver4", WIDE, 16, 32, bf16_dot=True, byte_dot=True, byte_permute=True),
    "cascadelake": Isa("avx512", "cascadelake", WIDE, 16, 32, byte_dot=True),
    "skylake-avx512": Isa("avx512", "skylake-avx512", WIDE, 16, 32),
    "haswell": Isa("avx2", "haswell", "", 8, 16),
    "x86-64": Isa("generic", "x86-64", "", 4, 16),
}
_ARM: dict[str, Isa] = {
    "neoverse-n1": Isa("neon", "neoverse-n1", "", 4, 32, byte_dot=True),
    "generic": Isa("neon", "generic", "", 4, 32),
}
CPUS = {**_X86, **_ARM}
"""The CPUs that ``SARDONYX_CPU`` may name."""


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def is_arm() -> bool:
    return platform.machine().lower() in ("aarch64", "arm64")


KNOWS_CPU = is_x86()
"""Whether a thread can cheaply read which CPU it runs on (``language.system``)."""


def current() -> Isa:
    """The instruction set to use: the host's, or that of ``SARDONYX_CPU``."""
    return named(knobs.CPU.get())


@cache
def named(cpu: str | None) -> Isa:
    """The host's instruction set, or that of a CPU by name."""
    if cpu is None:
        return _with_cache_sizes(_host())
    if cpu not in CPUS:
        raise InvalidArgument(f"{knobs.CPU.name} does not know this CPU", expected=list(CPUS), got=cpu)
    asked = CPUS[cpu]
    if (is_x86() and cpu in _X86 and _runs(asked)) or (is_arm() and cpu in _ARM):
        return _with_cache_sizes(asked)
    host = _host()
    return _with_cache_sizes(replace(asked, cpu=host.cpu, features=host.features, is_emulated=True))


def _host() -> Isa:
    cpu, flags = _told()
    has = _features()
    if is_x86():
        wide = f"{flags},{WIDE}"
        if _runs(CPUS["skylake-avx512"]):
            amx = _runs(CPUS["sapphirerapids"])
            dots = {
                "bf16_dot": "avx512bf16" in has,
                "byte_dot": "avx512vnni" in has,
                "byte_permute": "avx512vbmi" in has,
            }
            return Isa("amx" if amx else "avx512", cpu, wide, 16, 32, amx=amx, **dots)
        if _runs(CPUS["haswell"]):
            return Isa("avx2", cpu, flags, 8, 16, byte_dot="avxvnni" in has)
        return Isa("generic", cpu, flags, 4, 16)
    if is_arm():
        has_dot = _has_byte_dot()
        return Isa("neon", cpu, f"{flags},+dotprod" if has_dot else flags, 4, 32, byte_dot=has_dot)
    return Isa("generic", cpu, flags, 4, 16)


_NEEDS = {
    "amx": ("amx-tile", "amx-bf16", "amx-int8", "avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq"),
    "avx2": ("avx2", "fma", "f16c"),
    "generic": (),
}


def _features() -> frozenset[str]:
    return frozenset(flag[1:] for flag in _told()[1].split(",") if flag.startswith("+"))


@cache
def _told() -> tuple[str, str]:
    """The host's name and features as LLVM detects them, cached on disk: loading LLVM takes longer than most starts."""
    key = f"host-{objects.compiler_version()}-{_processor()}"
    kept = objects.read(key) if _processor() else None
    if kept is not None:
        name, flags = kept.decode().split("\n")
        return name, flags
    import llvmlite.binding as llvm

    name, flags = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    if _processor():
        objects.write(key, f"{name}\n{flags}".encode())
    return name, flags


_CHANGING = ("processor", "cpu MHz", "bogomips", "BogoMIPS", "core id", "apicid", "initial apicid", "physical id")


@cache
def _processor() -> str:
    """/proc/cpuinfo of the first processor, without fields that differ between processors or over time."""
    try:
        first = _text("/proc/cpuinfo").partition("\n\n")[0]
    except OSError:
        return ""
    return "\n".join(line for line in first.splitlines() if line.partition("\t")[0].strip(": ") not in _CHANGING)


def _runs(isa: Isa) -> bool:
    """Whether this x86 machine has the features of a chip."""
    dots = (("avx512bf16", isa.bf16_dot), ("avx512vnni", isa.byte_dot), ("avx512vbmi", isa.byte_permute))
    needed = {*_NEEDS[isa.name], *(name for name, wanted in dots if wanted)}
    return needed <= _features() and (not isa.amx or allow_tiles())


def _has_byte_dot() -> bool:
    """Whether an Arm chip has byte dot products, which LLVM does not report for the host."""
    try:
        return "asimddp" in _text("/proc/cpuinfo").split()
    except OSError:
        return False


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


@cache
def allow_tiles() -> bool:
    """Ask Linux for permission to use tile registers, once per process; False if it is refused."""
    if not is_x86() or platform.system() != "Linux":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    libc = ctypes.CDLL(None)
    libc.syscall.restype = ctypes.c_long
    return bool(libc.syscall(arch_prctl, request_permission, tile_data) == 0)


def _with_cache_sizes(isa: Isa) -> Isa:
    sizes: Any = _cache_sizes()
    return replace(isa, **sizes)


@cache
def _cache_sizes() -> dict[str, int]:
    """The sizes of the data caches of the first allowed CPU, from sysfs; defaults where they are missing."""
    if not hasattr(os, "sched_getaffinity"):
        return {}
    cpu = min(os.sched_getaffinity(0))
    found: dict[str, int] = {}
    folder = f"/sys/devices/system/cpu/cpu{cpu}/cache"
    for index in range(8):
        try:
            kind, level, size = (_text(f"{folder}/index{index}/{name}").strip() for name in ("type", "level", "size"))
            if kind != "Instruction" and size.endswith("K"):
                found[f"l{int(level)}_nbytes"] = int(size[:-1]) * KIB
        except (OSError, ValueError):
            continue
    return {name: nbytes for name, nbytes in found.items() if name in ("l1_nbytes", "l2_nbytes", "l3_nbytes")}

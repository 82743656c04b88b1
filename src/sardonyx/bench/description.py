"""What a report of a problem, or of a measurement, should say of the machine and of this installation."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from sardonyx.records import Record

NEEDED = ("numpy", "ml_dtypes", "onnx", "llvmlite")
PEERS = ("onnxruntime", "openvino", "torch")
NOTABLE = (
    "amx-tile", "amx-bf16", "amx-int8", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "avx512fp16",
    "avx512vbmi", "avxvnni", "avx2", "fma", "f16c", "neon", "fullfp16", "dotprod", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip
"""Instruction sets that matter to kernels, by LLVM's names."""
LEAST_NBYTES, MOST_NBYTES = 1 << 27, 1 << 29
"""Bounds of the buffer that is read and copied, which is to be larger than caches."""


class Chip(Record):
    name: str
    kernels: str
    """The family of kernels: amx, avx512, avx2, neon or generic."""
    llvm_name: str
    """The CPU that code is emitted for."""
    features: tuple[str, ...]
    vector_bits: int
    is_emulated: bool
    l1_nbytes: int
    l2_nbytes: int
    l3_nbytes: int


class Threads(Record):
    total: int
    """CPUs of the machine."""
    used: int
    """Threads of a session that asks for none."""
    reason: str


class Rates(Record):
    """What the machine reached just now, with as many threads as a session has."""

    f32_flops: float
    bf16_flops: float | None
    """Of tile products; None without tiles."""
    read_nbytes: float
    """Per second."""
    copy_nbytes: float
    """Read and written, per second."""


class CacheState(Record):
    folder: str | None
    """None if caching is off; then ``why_off`` says why."""
    nbytes: int
    most_nbytes: int
    files: int
    why_off: str | None


class Description(Record):
    versions: Mapping[str, str]
    peers: Mapping[str, str | None]
    """Versions of other engines; None where they are not installed."""
    system: str
    chip: Chip
    threads: Threads
    memory_nbytes: int | None
    providers: tuple[str, ...]
    """Usable ones, the most preferred first."""
    unusable: Mapping[str, str]
    """Other providers, and why not."""
    rates: Rates | None
    cache: CacheState
    variables: Mapping[str, str]
    """Environment variables of Sardonyx that are set."""


def describe(*, measure: bool = True) -> Description:
    """Machine and installation. ``measure`` takes a second, for the rates."""
    from sardonyx.partition import registry
    from sardonyx.providers.cpu.runtime.team import limit

    found, chip = limit(), _chip()
    names = registry.names()
    why_not = {name: registry.why_not(name) for name in names}
    return Description(
        versions={
            "sardonyx": _own_version(),
            "python": platform.python_version(),
            **_versions(NEEDED),
        },
        peers={name: _version(name) for name in PEERS},
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        chip=chip,
        threads=Threads(os.cpu_count() or found.threads, found.threads, found.reason),
        memory_nbytes=_memory_nbytes(),
        providers=tuple(name for name in names if why_not[name] is None),
        unusable={name: why for name, why in why_not.items() if why is not None},
        rates=_rates(found.threads, chip) if measure else None,
        cache=_cache_state(),
        variables={name: value for name, value in sorted(os.environ.items()) if name.startswith("SARDONYX_")},
    )


def _own_version() -> str:
    import sardonyx

    return sardonyx.__version__


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    return {name: _version(name) or "missing" for name in names}


def _version(package: str) -> str | None:
    try:
        return version(package).split("-")[0]
    except PackageNotFoundError:
        return None


def _chip() -> Chip:
    from sardonyx.bench.machine import machine
    from sardonyx.providers.cpu.machine.isa import current

    isa = current()
    flags = {flag[1:] for flag in isa.features.split(",") if flag.startswith("+")}
    return Chip(
        machine()["cpu"],
        isa.name,
        isa.cpu,
        tuple(name for name in NOTABLE if name in flags),
        32 * isa.lanes,
        isa.is_emulated,
        isa.l1_nbytes,
        isa.l2_nbytes,
        isa.l3_nbytes,
    )


def _memory_nbytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _rates(threads: int, chip: Chip) -> Rates:
    from sardonyx.bench.limits import measure

    nbytes = min(max(LEAST_NBYTES, 2 * chip.l3_nbytes), MOST_NBYTES)
    found = measure(threads, nbytes, nbytes)
    copied = found.get("copy_nbytes")
    return Rates(found["f32_flops"], found.get("bf16_flops"), found["read_nbytes"], copied or found["read_nbytes"])


def _cache_state() -> CacheState:
    from sardonyx import cache, folders, knobs

    place = folders.cache_folder()
    most = knobs.CACHE_NBYTES.get()
    if place is None:
        return CacheState(None, 0, most, 0, folders.why_off())
    items = cache.items()
    return CacheState(place.path, sum(item.nbytes for item in items), most, len(items), None)

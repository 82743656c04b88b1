"""The machine and the versions that a report was made with."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import sardonyx
from sardonyx.providers.cpu.codegen.rates import Rates
from sardonyx.providers.cpu.machine import isa
from sardonyx.report.records import Machine

PACKAGES = ("numpy", "onnx", "llvmlite", "onnxruntime", "openvino", "torch")


def environment(threads: int) -> list[tuple[str, str]]:
    """Names and values."""
    chip = isa.current()
    found = [
        ("Sardonyx", str(sardonyx.__version__)),
        ("processor", processor()),
        ("instruction set", f"{chip.name} ({chip.cpu})"),
        ("caches", f"L1 {chip.l1_nbytes >> 10} KiB, L2 {chip.l2_nbytes >> 10} KiB, L3 {chip.l3_nbytes >> 10} KiB"),
        ("cores that may be used", str(len(os.sched_getaffinity(0)))),
        ("threads of a run", str(threads)),
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("Python", platform.python_version()),
    ]
    return found + [(name, version) for name in PACKAGES if (version := version_of(name)) is not None]


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, "") or platform.processor() or platform.machine()
    except OSError:
        return platform.processor() or platform.machine()


def machine(rates: Rates) -> Machine:
    """The rates that the page draws as a roofline: of f32 arithmetic, and of memory that no cache holds."""
    return Machine(rates.flops("f32"), rates.bandwidth(float("inf")), rates.threads)

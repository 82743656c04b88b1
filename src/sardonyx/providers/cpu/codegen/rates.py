"""What the machine can do, measured once and kept in the cache folder: rates of arithmetic and of memory.

The roofline of a kernel is the longer of two times: its operations at the rate of its arithmetic, and its bytes at the
rate at which a buffer of that size is read. ``machine_limits`` measures; nothing here depends on a model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from sardonyx import digests, entries, folders, forks
from sardonyx.dtypes import f32, f64
from sardonyx.providers.cpu.machine import isa
from sardonyx.records import Record

VERSION = 1
SIZES = tuple(1 << bits for bits in range(17, 27, 3))
"""Bytes of the buffers that are read: from what L2 holds to what no cache does."""
TERMS = {"highest": 4, "high": 3, "medium": 1}
"""Products of bf16 tiles that give one product at a precision; eight of bytes take as long as four of bf16."""

_known: dict[tuple[str, int], Rates] = {}
_lock = forks.lock()


class Rates(Record):
    """Rates of so many threads together, in operations and bytes per second. A multiply-add is two operations."""

    threads: int
    f32_flops: float
    f64_flops: float
    bf16_flops: float
    """Of tile products; 0 on chips without tiles."""
    read_nbytes: tuple[tuple[int, float], ...]
    """By the size of the buffer, in ascending order."""
    copy_nbytes: float
    """Bytes read and written, of a copy that no cache holds."""

    def flops(self, arithmetic: str, precision: str = "highest") -> float:
        """The rate of an arithmetic: ``f64``, ``i8``, or ``f32``, which tiles speed up at a precision."""
        if arithmetic == "f64":
            return self.f64_flops
        if arithmetic == "i8":
            return max(self.f32_flops, 2 * self.bf16_flops)
        return max(self.f32_flops, self.bf16_flops / TERMS.get(precision, 1))

    def bandwidth(self, nbytes: float) -> float:
        """The rate at which so many bytes are read."""
        return next((rate for size, rate in self.read_nbytes if nbytes <= size), self.read_nbytes[-1][1])

    def seconds(self, flops: float, nbytes: float, arithmetic: str, precision: str = "highest") -> tuple[float, float]:
        """The least seconds for the arithmetic, and for the bytes."""
        return flops / self.flops(arithmetic, precision), nbytes / self.bandwidth(nbytes)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__match_args__}


def rates(threads: int) -> Rates:
    """The rates of so many threads: those that were measured on this machine before, else measured now (half a
    second)."""
    chip = isa.current()
    key = chip.key, threads
    with _lock:
        found = _known.get(key)
        if found is None:
            name = f"{digests.hexdigest(repr((VERSION, _model(), chip, threads)).encode())}.rates"
            found = _stored(name, threads) or _store(name, measured(threads, chip))
            _known[key] = found
    return found


def measured(threads: int, chip: isa.Isa) -> Rates:
    """The rates, measured now."""
    from sardonyx.providers.cpu.codegen import machine_limits as limits

    return Rates(
        threads,
        limits.peak_flops(f32, threads, chip),
        limits.peak_flops(f64, threads, chip),
        0.0 if chip.is_emulated else limits.peak_tile_flops(threads, chip) or 0.0,
        tuple((size, limits.read_bandwidth(size, threads, chip)) for size in SIZES),
        max(limits.copy_bandwidth(SIZES[-1], threads, chip, is_non_temporal=streams) for streams in (False, True)),
    )


def _model() -> str:
    """The chip's name, where the system tells it: a folder may be shared by machines."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.strip() for line in file if line.startswith(("model name", "CPU part"))), "")
    except OSError:
        return ""


def _stored(name: str, threads: int) -> Rates | None:
    folder = folders.cache_folder(make=False)
    return (
        None if folder is None else entries.read(folder, name, lambda entry: _checked(json.loads(entry.head), threads))
    )


def _checked(stored: Mapping[str, Any], threads: int) -> Rates:
    read = tuple((int(size), _positive(rate)) for size, rate in stored["read_nbytes"])
    if stored["threads"] != threads or [size for size, _ in read] != list(SIZES):
        raise ValueError("rates of another number of threads or of other sizes")
    bf16 = float(stored["bf16_flops"])
    f32_flops, f64_flops, copy = (_positive(stored[name]) for name in ("f32_flops", "f64_flops", "copy_nbytes"))
    return Rates(threads, f32_flops, f64_flops, _positive(bf16) if bf16 else 0.0, read, copy)


def _positive(rate: Any) -> float:
    if not math.isfinite(rate) or rate <= 0:
        raise ValueError("a rate is a positive number")
    return float(rate)


def _store(name: str, found: Rates) -> Rates:
    folder = folders.cache_folder()
    if folder is not None:
        entries.write(folder, name, json.dumps(found.to_json()).encode())
    return found

"""What the machine can do: arithmetic peaks, and the rate at which a buffer of given size is read.

The CPU provider measures both with loops that do nothing else (``providers/cpu/codegen/machine_limits.py``). Where it
cannot, numpy's matrix product and sum stand in, which reach less than the peak, and the result says so in ``source``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

SIDE = 768
READ_NBYTES = 1 << 26
"""A smaller buffer is read over again until as much has been read, so that starting threads counts for little."""
LEAST_NBYTES = 1 << 16
"""A buffer that is read faster than a thread is started tells nothing."""


def measure(threads: int, nbytes: int, moved: int = 0) -> dict[str, Any]:
    """The limits at so many threads: ``read_nbytes`` over a buffer of ``nbytes``, which may fit a cache, and
    ``copy_nbytes`` where so many bytes, half of them read and half written, are asked about.
    """
    nbytes = max(nbytes, LEAST_NBYTES)
    try:
        from sardonyx.providers.cpu.codegen import machine_limits
    except ImportError as error:
        return _by_numpy(threads, nbytes) | {"source": f"numpy ({error})"}
    figures = {
        "f32_flops": machine_limits.peak_flops(threads=threads),
        "read_nbytes": machine_limits.read_bandwidth(nbytes, threads),
    }
    products = getattr(machine_limits, "peak_tile_flops", None)
    rate = products(threads=threads) if products else None
    if moved:
        half = max(moved // 2, LEAST_NBYTES)
        ways = (machine_limits.copy_bandwidth(half, threads, is_non_temporal=streams) for streams in (False, True))
        figures["copy_nbytes"] = max(ways)
    return figures | ({"bf16_flops": rate} if rate else {}) | {"source": "register-only loops"}


def _by_numpy(threads: int, nbytes: int) -> dict[str, float]:
    a, buffer = _square(), _buffer(max(nbytes // 8, threads))
    times = max(1, READ_NBYTES // buffer.nbytes)
    product = _best(lambda: a @ a)
    with ThreadPoolExecutor(threads) as pool:
        parts = np.array_split(buffer, threads)
        read = _best(lambda: list(pool.map(lambda part: [np.bitwise_or.reduce(part) for _ in range(times)], parts)))
    return {"f32_flops": 2 * SIDE**3 / product, "read_nbytes": times * buffer.nbytes / read}


@cache
def _square() -> Any:
    return np.ones((SIDE, SIDE), np.float32)


@cache
def _buffer(size: int) -> Any:
    return np.ones(size, np.int64)


def _best(work: Callable[[], Any], times: int = 2) -> float:
    """The shortest of a few runs after one that is not counted: a limit is what is reached undisturbed."""
    seconds = []
    for _ in range(times + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def limit_seconds(figures: dict[str, Any], precision: str, flops: float, weights: float, moved: float = 0.0) -> float:
    """The least time for so many operations on so many weights, each read once, at a precision, and for moving so many
    bytes from inputs to outputs.

    Where that is faster, f32 results may be had from eight products of bytes, which take the time of four of bf16, and
    nearly f32 ones from three of bf16.
    """
    products = {"highest": 4, "high": 3, "medium": 1}[precision]
    peak = max(figures["f32_flops"], figures.get("bf16_flops", 0.0) / products)
    itemsize = 2 if precision == "medium" and "bf16_flops" in figures else 4
    moving_s = moved / figures["copy_nbytes"] if "copy_nbytes" in figures else 0.0
    return float(max(flops / peak, weights * itemsize / figures["read_nbytes"], moving_s))

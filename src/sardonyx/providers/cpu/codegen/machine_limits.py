"""The limits of this machine, measured: multiply-adds in registers, tile products, memory bandwidth.

A kernel is judged by its share of these limits. Each figure is the best of several short bursts, so that a busy
neighbour does not count, or ``MIDDLE``: the median, neighbours included. With several threads all work at once and the
slowest counts.

Products are of random numbers: tile units save power on zeros and then run at a higher clock.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.dtypes import DType, bf16, f32
from sardonyx.providers.cpu.codegen.jit import linker
from sardonyx.providers.cpu.language.amx import LANES, NBYTES, PAIRS, ROWS, Tiles
from sardonyx.providers.cpu.language.dsl import Kernel, Spec, function
from sardonyx.providers.cpu.language.values import Buf, Val, i64
from sardonyx.providers.cpu.machine.isa import LINE_NBYTES, Isa, current

CHAINS = 12
"""Independent accumulators: more than latency times units of any supported chip, fewer than its registers."""
BURSTS = 15
READ_NBYTES = 1 << 22
"""Smaller buffers are read repeatedly until a burst has read as much: a call takes a microsecond."""

Pick = Callable[[Any], Any]
BEST: Pick = np.min
MIDDLE: Pick = np.median
"""Which of the bursts' times counts."""


@function(x=("dtype",), rounds=i64)
def multiply_add(k: Kernel, x: Buf, rounds: Val, *, dtype: DType) -> None:
    """A multiply-add to each of ``CHAINS`` vectors, ``rounds`` times, in registers only."""
    lanes = k.lanes * 32 // dtype.bits
    sums = [k.var(x.load(i * lanes, lanes)) for i in range(CHAINS)]
    factor, term = x.load(0, lanes), x.load(lanes, lanes)
    with k.loop(0, rounds):
        for total in sums:
            total.set(k.fma(factor, term, total) if dtype.is_float else total * factor + term)
    for i, total in enumerate(sums):
        x.store(i * lanes, total)


@function(x=(bf16,), sums=(f32,), rounds=i64)
def multiply_tiles(k: Kernel, x: Buf, sums: Buf, rounds: Val) -> None:
    """Products of two tiles with two others, accumulated ``rounds`` times, in registers only."""
    tiles = Tiles(k)
    tiles.configure()
    for i in range(4):
        tiles.load(4 + i, x.at(i * NBYTES // 2))
    with k.loop(0, rounds):
        for i in range(4):
            tiles.dot_bf16(i, 4 + i // 2, 6 + i % 2)
    for i in range(4):
        tiles.store(i, sums.at(i * NBYTES // 4))
    tiles.release()


@function(x=(i64,), out=(i64,), elements=i64, rounds=i64)
def read(k: Kernel, x: Buf, out: Buf, elements: Val, rounds: Val) -> None:
    """Read every element, ``rounds`` times."""
    lanes, unroll = k.lanes // 2, 8
    seen = [k.var(k.zeros(i64, lanes)) for _ in range(unroll)]
    with k.loop(0, rounds), k.loop(0, elements - (lanes * unroll - 1), lanes * unroll) as i:
        for u, total in enumerate(seen):
            total.set(x.load(i + u * lanes, lanes) | total)
    for u, total in enumerate(seen):
        out.store(u * lanes, total)


@function(x=(i64,), elements=i64)
def fetch(k: Kernel, x: Buf, elements: Val) -> None:
    """Prefetch cache lines into L2."""
    with k.loop(0, elements, LINE_NBYTES // 8) as i:
        x.prefetch(i, locality=2)


@function(x=(i64,), y=(i64,), elements=i64)
def copy(k: Kernel, x: Buf, y: Buf, elements: Val, *, is_non_temporal: bool) -> None:
    """Store whole cache lines to aligned memory."""
    lanes = max(k.lanes // 2, LINE_NBYTES // 8)
    with k.loop(0, elements - (lanes - 1), lanes) as i:
        y.store(i, x.load(i, lanes), is_non_temporal=is_non_temporal)


def peak_flops(dtype: DType = f32, threads: int = 1, isa: Isa | None = None, pick: Pick = BEST) -> float:
    """Operations per second (a multiply-add is two) of a loop in registers."""
    isa = isa or current()
    rounds, lanes = 50_000, isa.lanes * 32 // dtype.bits
    data = [np.full(CHAINS * lanes, 0.5 if dtype.is_float else 1, dtype.numpy) for _ in range(threads)]
    spec = multiply_add(dtype=dtype)
    took = burst_s(spec, [(x.ctypes.data, rounds) for x in data], isa, pick=pick)
    return 2 * CHAINS * lanes * rounds * threads / took


def peak_tile_flops(threads: int = 1, isa: Isa | None = None, pick: Pick = BEST) -> float | None:
    """Operations per second of bf16 tile products in registers (a multiply-add is two); None without tiles."""
    isa = isa or current()
    if not isa.amx:
        return None
    rounds = 20 if isa.is_emulated else 10_000
    product = 2 * ROWS * LANES * 2 * PAIRS
    data = [(tiles_of_numbers(), np.zeros(NBYTES, np.float32)) for _ in range(threads)]
    calls = [(x.ctypes.data, sums.ctypes.data, rounds) for x, sums in data]
    return 4 * product * rounds * threads / burst_s(multiply_tiles(), calls, isa, pick=pick)


def tiles_of_numbers() -> Any:
    """The operands of ``multiply_tiles``: four tiles of bf16, distributed like weights."""
    return np.random.default_rng(0).standard_normal(4 * NBYTES // 2).astype(bf16.numpy)


def read_bandwidth(nbytes: int, threads: int = 1, isa: Isa | None = None, pick: Pick = BEST) -> float:
    """Bytes per second at which a buffer of this size is read, each thread reading its part."""
    return _passing(np.ones(nbytes // 8, np.int64), threads, isa or current(), BURSTS, pick, is_read=True)


def fetch_bandwidth(x: Any, threads: int = 1, isa: Isa | None = None, bursts: int = BURSTS, pick: Pick = BEST) -> float:
    """Bytes per second at which a buffer larger than L2 is brought into it: the faster of prefetching and reading.
    Arm's chips may drop prefetches, so there reading counts."""
    isa = isa or current()
    ways = (True,) if isa.name == "neon" else (True, False)
    return max(_passing(x, threads, isa, bursts, pick, is_read=is_read) for is_read in ways)


def _passing(x: Any, threads: int, isa: Isa, bursts: int, pick: Pick, *, is_read: bool) -> float:
    part = len(x) // threads
    starts = [x[i * part :].ctypes.data for i in range(threads)]
    if is_read:
        outs, rounds = [np.zeros(8 * isa.lanes, np.int64) for _ in starts], max(READ_NBYTES // (8 * part), 1)
        calls = [(start, out.ctypes.data, part, rounds) for start, out in zip(starts, outs, strict=True)]
        return 8 * part * threads * rounds / burst_s(read(), calls, isa, bursts, pick)
    return 8 * part * threads / burst_s(fetch(), [(start, part) for start in starts], isa, bursts, pick)


def copy_bandwidth(nbytes: int, threads: int = 1, isa: Isa | None = None, *, is_non_temporal: bool = False) -> float:
    """Bytes per second, read and written, of a copy with ordinary or non-temporal stores."""
    isa = isa or current()
    part = nbytes // threads // LINE_NBYTES * (LINE_NBYTES // 8)
    x, y = (np.ones(nbytes // 8 + LINE_NBYTES, np.int64) for _ in range(2))
    first = [-a.ctypes.data % LINE_NBYTES + a.ctypes.data for a in (x, y)]
    calls = [(first[0] + 8 * i * part, first[1] + 8 * i * part, part) for i in range(threads)]
    return 2 * 8 * part * threads / burst_s(copy(is_non_temporal=is_non_temporal), calls, isa)


def burst_s(spec: Spec, calls: Sequence[tuple[int, ...]], isa: Isa, bursts: int = BURSTS, pick: Pick = BEST) -> float:
    """Seconds of one of several calls of a plain function, each thread with its own arguments."""
    at = linker.address(spec, isa, checked=False)
    fn = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(calls[0]))(at)
    if len(calls) == 1:
        return float(pick([_time_s(fn, calls[0]) for _ in range(bursts)]))
    barrier, times = threading.Barrier(len(calls)), np.zeros((len(calls), bursts))

    def work(i: int) -> None:
        for j in range(bursts):
            barrier.wait()
            times[i, j] = _time_s(fn, calls[i])

    team = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
    for t in team:
        t.start()
    for t in team:
        t.join()
    return float(pick(times.max(0)))


def _time_s(fn: Callable[..., Any], args: tuple[int, ...]) -> float:
    start = time.perf_counter()
    fn(*args)
    return time.perf_counter() - start

"""What the machine at hand can reach at best, measured: multiply-adds in registers, and reading memory.

Shares of these limits say how good a kernel is. Each figure is the best of several short bursts, so that a busy
neighbour costs bursts and not truth, or ``MIDDLE``: what the machine does at the moment, neighbours and all. With
several threads, all of them work at once and the slowest counts.

Products are of numbers. The tile unit rests where an operand is zero, and the chip raises its clock (2.9 GHz for 2.4 on
Emerald Rapids): no product that tells anybody anything comes at that rate.
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
"""Independent sums: more than latency times units of any chip this runs on, and fewer than its registers."""
BURSTS = 15
READ_NBYTES = 1 << 22
"""A smaller buffer is read over again until a burst has read as much: to be called takes a microsecond."""

Pick = Callable[[Any], Any]
BEST: Pick = np.min
MIDDLE: Pick = np.median
"""Which of the bursts' times counts."""


@function(x=("dtype",), rounds=i64)
def multiply_add(k: Kernel, x: Buf, rounds: Val, *, dtype: DType) -> None:
    """A product added to each of ``CHAINS`` vectors, ``rounds`` times; nothing but registers."""
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
    """The products of two tiles with two others, ``rounds`` times, added up; nothing but registers in between."""
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
    """Looks at every element, ``rounds`` times."""
    lanes, unroll = k.lanes // 2, 8
    seen = [k.var(k.zeros(i64, lanes)) for _ in range(unroll)]
    with k.loop(0, rounds), k.loop(0, elements - (lanes * unroll - 1), lanes * unroll) as i:
        for u, total in enumerate(seen):
            total.set(x.load(i + u * lanes, lanes) | total)
    for u, total in enumerate(seen):
        out.store(u * lanes, total)


@function(x=(i64,), elements=i64)
def fetch(k: Kernel, x: Buf, elements: Val) -> None:
    """Cache lines into L2, and no further."""
    with k.loop(0, elements, LINE_NBYTES // 8) as i:
        x.prefetch(i, locality=2)


@function(x=(i64,), y=(i64,), elements=i64)
def copy(k: Kernel, x: Buf, y: Buf, elements: Val, *, is_past: bool) -> None:
    """Whole cache lines, to memory that begins at one."""
    lanes = max(k.lanes // 2, LINE_NBYTES // 8)
    with k.loop(0, elements - (lanes - 1), lanes) as i:
        y.store(i, x.load(i, lanes), is_past=is_past)


def peak_flops(dtype: DType = f32, threads: int = 1, isa: Isa | None = None, pick: Pick = BEST) -> float:
    """Operations in a second (a multiply-add is two) of a loop that only uses registers."""
    isa = isa or current()
    rounds, lanes = 50_000, isa.lanes * 32 // dtype.bits
    data = [np.full(CHAINS * lanes, 0.5 if dtype.is_float else 1, dtype.numpy) for _ in range(threads)]
    spec = multiply_add(dtype=dtype)
    took = burst_s(spec, [(x.ctypes.data, rounds) for x in data], isa, pick=pick)
    return 2 * CHAINS * lanes * rounds * threads / took


def peak_tile_flops(threads: int = 1, isa: Isa | None = None, pick: Pick = BEST) -> float | None:
    """The same of bf16 products on tiles; None where there are none."""
    isa = isa or current()
    if not isa.amx:
        return None
    rounds = 20 if isa.is_emulated else 10_000
    product = 2 * ROWS * LANES * 2 * PAIRS
    data = [(tiles_of_numbers(), np.zeros(NBYTES, np.float32)) for _ in range(threads)]
    calls = [(x.ctypes.data, sums.ctypes.data, rounds) for x, sums in data]
    return 4 * product * rounds * threads / burst_s(multiply_tiles(), calls, isa, pick=pick)


def tiles_of_numbers() -> Any:
    """What ``multiply_tiles`` multiplies: four tiles of bf16, spread like weights are."""
    return np.random.default_rng(0).standard_normal(4 * NBYTES // 2).astype(bf16.numpy)


def read_bandwidth(nbytes: int, threads: int = 1, isa: Isa | None = None, pick: Pick = BEST) -> float:
    """Bytes in a second at which a buffer of this size is read, each thread taking its part of it."""
    return _passing(np.ones(nbytes // 8, np.int64), threads, isa or current(), BURSTS, pick, is_read=True)


def fetch_bandwidth(x: Any, threads: int = 1, isa: Isa | None = None, bursts: int = BURSTS, pick: Pick = BEST) -> float:
    """Bytes in a second at which a buffer of words that L2 does not hold comes there, by the faster of fetching and
    reading. Arm's chips drop what is asked for and would have to wait: there reading tells.
    """
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


def copy_bandwidth(nbytes: int, threads: int = 1, isa: Isa | None = None, *, is_past: bool = False) -> float:
    """Bytes, read and written, in a second at which a buffer is copied, by plain stores or by those past the caches."""
    isa = isa or current()
    part = nbytes // threads // LINE_NBYTES * (LINE_NBYTES // 8)
    x, y = (np.ones(nbytes // 8 + LINE_NBYTES, np.int64) for _ in range(2))
    first = [-a.ctypes.data % LINE_NBYTES + a.ctypes.data for a in (x, y)]
    calls = [(first[0] + 8 * i * part, first[1] + 8 * i * part, part) for i in range(threads)]
    return 2 * 8 * part * threads / burst_s(copy(is_past=is_past), calls, isa)


def burst_s(spec: Spec, calls: Sequence[tuple[int, ...]], isa: Isa, bursts: int = BURSTS, pick: Pick = BEST) -> float:
    """Seconds of one of several calls of a plain function, each thread with arguments of its own."""
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

"""The kernel language: types, masks, control flow, reductions, bounds checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.dtypes import DType
from sardonyx.errors import Fail
from sardonyx.providers.cpu.codegen import jit
from sardonyx.providers.cpu.codegen.launch import Launch, launch
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, bool_, f16, f32, f64, i8, i32, i64, u8, u32
from sardonyx.providers.cpu.machine import isa

CPUS = (None, "haswell", "skylake-avx512")
SIZES = (0, 1, 3, 4, 15, 16, 17, 61)


@kernel(x=("dtype",), y=("dtype",), n=i64)
def twice(k: Kernel, x: Buf, y: Buf, n: Val, *, dtype: DType, unroll: int) -> None:
    for t in k.tiles(n, unroll=unroll):
        v = x.load(t)
        y.store(t, v + v if dtype is not bool_ else ~v)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", [f32, f64, f16, bf16, i8, u8, i32, i64, bool_], ids=str)
def test_tiles_cover_a_row_and_nothing_else(dtype: DType, cpu: str | None) -> None:
    spec = twice(dtype=dtype, unroll=2)
    for n in SIZES:
        x = np.random.default_rng(n).integers(-60, 60, n + 3).astype(dtype.numpy)
        y = np.full_like(x, 1)
        Launch(spec, dict(x=x, y=y, n=n), isa=isa.named(cpu))()
        expected = ~x[:n] if dtype is bool_ else (x[:n] + x[:n]).astype(dtype.numpy)
        np.testing.assert_array_equal(y[:n], expected)
        np.testing.assert_array_equal(y[n:], np.full(3, 1).astype(dtype.numpy))


@kernel(x=(f32,), y=(bf16,), n=i64)
def narrow(k: Kernel, x: Buf, y: Buf, n: Val) -> None:
    for t in k.tiles(n):
        y.store(t, x.load(t))


def test_bf16_rounds_to_even_and_keeps_specials() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 4096, np.uint32)
    bits[:6] = 0x7F800000, 0xFF800000, 0x7FC00001, 0xFF7FFFFF, 0x00000001, 0x80000000
    x, y = bits.view("f"), np.zeros(4096, ml_dtypes.bfloat16)
    launch(narrow(), x=x, y=y, n=4096)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(y.astype("f"), x.astype(ml_dtypes.bfloat16).astype("f"))


@kernel(x=(f32,), out=(f32,), n=i64)
def fold(k: Kernel, x: Buf, out: Buf, n: Val) -> None:
    total, top = k.var(k.zeros(f32, k.lanes)), k.var(k.const(-np.inf, f32, k.lanes))
    for t in k.tiles(n):
        v = x.load(t)
        total += t.keep(v, 0.0)
        top.set(k.max(top, t.keep(v, -np.inf)))
    out.store(0, total.sum())
    out.store(1, top.max())


@pytest.mark.parametrize("cpu", CPUS)
def test_lanes_are_folded(cpu: str | None) -> None:
    for n in SIZES:
        x, out = np.random.default_rng(n).integers(-9, 9, n).astype("f"), np.zeros(2, "f")
        launch(fold(), x=x, out=out, n=n, isa=isa.named(cpu))
        assert out.tolist() == [x.sum(), x.max(initial=-np.inf)]


@kernel(x=("source",), y=("to",), n=i64)
def convert(k: Kernel, x: Buf, y: Buf, n: Val, *, source: DType, to: DType) -> None:
    for t in k.tiles(n):
        y.store(t, k.cast(x.load(t), to))


@pytest.mark.parametrize(
    ("source", "to"),
    [
        (f32, i32), (i32, f32), (u8, f32), (f32, u8), (f64, f32), (f32, f64), (i64, i8), (u32, i64), (f32, i64),
        (bool_, f32), (i8, i64),
    ],
    ids=str,
)  # fmt: skip
def test_casts(source: DType, to: DType) -> None:
    x = np.random.default_rng(3).uniform(0, 100, 37).astype(source.numpy)
    y = np.zeros(37, to.numpy)
    launch(convert(source=source, to=to), x=x, y=y, n=37)
    np.testing.assert_array_equal(y, x.astype(to.numpy))


@pytest.mark.parametrize("cpu", (*CPUS, "x86-64"))
@pytest.mark.parametrize("to", [i32, i8, u8], ids=str)
def test_casts_of_vectors_saturate(to: DType, cpu: str | None) -> None:
    far = [np.nan, np.inf, -np.inf, 2.0**31, -(2.0**31), 2.0**31 - 128, 3e38, -3e38, 127.5, 255.99, -128.9, -0.5, 256]
    x = np.array(far * 3, np.float32)
    y, info = np.zeros(x.size, to.numpy), np.iinfo(to.numpy)
    launch(convert(source=f32, to=to), x=x, y=y, n=x.size, isa=isa.named(cpu))
    expected = np.trunc(np.clip(np.nan_to_num(x.astype(np.float64), nan=0, posinf=1e300), info.min, info.max))
    np.testing.assert_array_equal(y.astype(np.int64), expected.astype(np.int64))


@kernel(rows=i64, out=(i64,))
def shares(k: Kernel, rows: Val, out: Buf) -> None:
    with k.share(rows) as r:
        out.store(r, out.load(r) + 1 + k.thread * 100)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [0, 1, 5, 12])
def test_every_tile_falls_to_one_thread(rows: int, threads: int) -> None:
    out = np.zeros(rows, np.int64)
    launch(shares(), rows=rows, out=out, threads=threads)
    assert (out % 100 == 1).all() and (np.diff(out // 100) >= 0).all()


@kernel(x=(f32,), index=(i64,), y=(f32,), n=i64, size=i64)
def pick(k: Kernel, x: Buf, index: Buf, y: Buf, n: Val, size: Val) -> None:
    with k.loop(0, n) as i:
        y.store(i, x.load(k.check_index(index.load(i), size)))


def test_indices_are_checked() -> None:
    x, y = np.arange(5, dtype="f"), np.zeros(3, "f")
    launch(pick(), x=x, index=np.array([4, -1, -5]), y=y, n=3, size=5)
    assert y.tolist() == [4, 4, 0]
    for bad in (5, -6, 1 << 40):
        with pytest.raises(Fail, match="error 1"):
            launch(pick(), x=x, index=np.array([0, bad, 1]), y=y, n=3, size=5)


@pytest.mark.parametrize("n", [5, 16, 21, 40])
def test_addresses_are_checked_when_asked(n: int) -> None:
    spec = twice(dtype=f32, unroll=1)
    x, y = np.zeros(n, "f"), np.zeros(n, "f")
    Launch(spec, dict(x=x, y=y, n=n), checked=True)()
    arguments: list[dict[str, Any]] = [dict(x=x, y=y[1:], n=n), dict(x=x[:-1], y=y, n=n)]
    for short in arguments:
        with pytest.raises(Fail, match="error 2"):
            Launch(spec, short, checked=True)()


ACCESSES: dict[str, Callable[[Kernel, Buf, Val], object]] = {
    "load": lambda k, x, at: x.load(at, 4),
    "store": lambda k, x, at: x.store(at, k.zeros(i64, 4)),
    "masked load": lambda k, x, at: x.load(at, 4, k.mask(2, 4)),
    "masked store": lambda k, x, at: x.store(at, k.zeros(i64, 4), k.mask(2, 4)),
    "one masked": lambda k, x, at: x.load(at, mask=at < (1 << 50)),
    "gather": lambda k, x, at: x.gather(k.iota(i64, 4) * 3 + at),
    "scatter": lambda k, x, at: x.scatter(k.iota(i64, 4) * 3 + at, k.zeros(i64, 4)),
    "atomic load": lambda k, x, at: x.load_atomic(at),
    "atomic store": lambda k, x, at: x.store_atomic(at, 0),
    "atomic add": lambda k, x, at: x.add_atomic(at, 1),
    "atomic swap": lambda k, x, at: x.swap_atomic(at, 0, 1),
    "as another type": lambda k, x, at: x.as_type(u8).load(at * 8 + 4, 8),
    "moved": lambda k, x, at: x.at(at).load(),
    "of either": lambda k, x, at: k.choose(at.eq(0), x, x).load(at),
    "paced": lambda k, x, at: _paced(k, x, at),
    "stack": lambda k, x, at: x.store(0, k.local(i64, 10).load(at)),
    "table": lambda k, x, at: x.store(0, k.table(range(10), i64).load(at)),
}


def _paced(k: Kernel, x: Buf, at: Val) -> None:
    with k.paced(at, at + 2, moving=(x,)) as (_, (here,)):
        here.store(0, 1)


@kernel(x=(i64,), at=i64)
def touch(k: Kernel, x: Buf, at: Val, *, how: str) -> None:
    x.store(1, 7)
    ACCESSES[how](k, x, at)
    x.store(1, 8)


@pytest.mark.parametrize("how", ACCESSES)
def test_no_access_escapes_the_check(how: str) -> None:
    """Ten elements: what begins at the first stays inside, and what begins in front or at the end does not."""
    for at, is_inside in ((0, True), (-1, False), (10, False), (1 << 40, False)):
        x = np.zeros(10, np.int64)
        launched = Launch(touch(how=how), dict(x=x, at=at), checked=True)
        if is_inside:
            launched()
        else:
            with pytest.raises(Fail, match="error 2"):
                launched()
        assert x[1] == (8 if is_inside else 7)


def test_a_digest_knows_the_constants_and_nothing_is_emitted_for_it() -> None:
    a, b = twice(dtype=f32, unroll=1), twice(dtype=f32, unroll=1)
    assert a == b and a.digest == b.digest
    assert len({s.digest for s in (a, twice(dtype=f64, unroll=1), twice(dtype=f32, unroll=2), narrow())}) == 4


def test_a_kernel_that_calls_a_library_is_refused() -> None:
    @kernel(x=(f32,))
    def sine(k: Kernel, x: Buf) -> None:
        x.store(0, k.intrinsic("frem", [x.load(), x.load()], f32, 1))

    with pytest.raises(AssertionError, match=r"calls frem|calls fmodf"):
        jit.linker.address(sine(), checked=False)


def test_values_are_not_known_while_a_kernel_is_written() -> None:
    @kernel(x=(f32,))
    def wrong(k: Kernel, x: Buf) -> None:
        if x.load() > 0:
            pass

    with pytest.raises(TypeError, match="not known"):
        wrong().emit(isa.current())


@kernel(out=(i64,), n=i64, d=i64)
def quotients(k: Kernel, out: Buf, n: Val, d: Val) -> None:
    out.store(0, n // d)
    out.store(1, n % d)
    with k.loop(0, 2) as i:
        out.store(i + 2, k.max(n, 0) // (k.max(d, 1) + i))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(("d", "expected"), [(3, [3, 1, 3, 2]), (0, [10, 0, 10, 5])])
def test_a_size_of_zero_divides_like_one(d: int, expected: list[int], cpu: str | None) -> None:
    out = np.zeros(4, np.int64)
    Launch(quotients(), dict(out=out, n=10, d=d), isa=isa.named(cpu))()
    assert out.tolist() == expected

"""Tiles, operands in bf16 terms and their products, against numpy: in float64, or bit for bit where it is promised."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.dtypes import f32
from sardonyx.errors import Fail
from sardonyx.ir import dims
from sardonyx.lower.groups import Contraction, Expression, View
from sardonyx.providers.cpu import select
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.common.matrices import problem
from sardonyx.providers.cpu.kernels.gemm import amx as gemm_amx
from sardonyx.providers.cpu.kernels.gemm import macro_tile
from sardonyx.providers.cpu.kernels.gemm.amx import TERMS
from sardonyx.providers.cpu.kernels.split import bf16 as split_bf16
from sardonyx.providers.cpu.kernels.split import bf16_micro_kernel
from sardonyx.providers.cpu.kernels.split.bf16_micro_kernel import PRODUCTS, Dot, Load, Schedule
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf, Val, bf16, i8, i64
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.analysis import Analysis, Target
from sardonyx.providers.cpu.program.steps import Step, Unrepresentable
from tests.providers.cpu.running import x86_assembly
from tests.providers.cpu.test_gemm import EPILOGUES, Arrays, identity, random

Array = np.ndarray[Any, Any]

HOST = isa.named(None)
EMULATED = replace(HOST, name="amx", lanes=16, registers=32, amx=True, bf16_dot=True, is_emulated=True)
CHIP = HOST if HOST.amx else EMULATED
BF16 = np.dtype(ml_dtypes.bfloat16)
PRECISIONS = tuple(TERMS)
ELEMENT = {"highest": 1e-6, "high": 2e-5, "medium": 8e-3}
"""How far an element may be from exact, as a share of abs(A) @ abs(B)."""
WHOLE = {"highest": 2e-7, "high": 5e-6, "medium": 2.6e-3}
"""The norm of the error, as a share of the result's."""
CHECKED = "highest"
"""The precision whose kernels run with address checks too."""
MOST, LEAST = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal


# -- the instructions


@kernel(a=(bf16,), b=(bf16,), c=(f32,))
def one_dot(k: Kernel, a: Buf, b: Buf, c: Buf) -> None:
    """c += a b; c has rows of 20, a of 40, the lines of b lie on end."""
    t = Tiles(k)
    t.configure()
    t.load(3, c, 80)
    t.load(4, a, 80)
    t.load(7, b)
    t.dot_bf16(3, 4, 7)
    t.store(3, c, 80)
    t.release()


@kernel(c=(f32,))
def one_zero(k: Kernel, c: Buf) -> None:
    t = Tiles(k)
    t.configure()
    t.load(2, c)
    t.zero(2)
    t.store(2, c)
    t.release()


class _Told(Tiles):
    """Tiles that leave what the tile unit is told in memory."""

    to: Buf

    def _take(self, words: Buf) -> None:
        for i in range(8):
            self.to.store(i, words.load(i))


@kernel(to=(i64,), rows=i64)
def configuration(k: Kernel, to: Buf, rows: Val) -> None:
    tiles = _Told(k)
    tiles.to = to
    tiles.configure(rows, short=(0, 2), count=4)


@pytest.mark.parametrize("rows", [0, 1, 7, 16])
def test_every_tile_has_rows(rows: int) -> None:
    """The chip faults on a configuration in which a tile has columns and no rows."""
    words = np.zeros(8, np.int64)
    Launch(configuration(), {"to": words, "rows": rows}, isa=CHIP)()
    told = words.view(np.uint8)
    assert told[0] == 1 and told[16:32].view(np.uint16).tolist() == [64] * 4 + [0] * 4
    assert told[48:56].tolist() == [max(rows, 1), 16, max(rows, 1), 16, 0, 0, 0, 0]


def test_more_rows_than_a_tile_has_are_refused() -> None:
    given = {"to": np.zeros(8, np.int64), "rows": 17}
    with pytest.raises(Fail, match="error"):
        Launch(configuration(), given, isa=CHIP, checked=True)()


@kernel(x=(i8,), y=(i8,), start=i64, stride=i64, rows=i64)
def there_and_back(k: Kernel, x: Buf, y: Buf, start: Val, stride: Val, rows: Val) -> None:
    """``rows`` rows of 64 bytes, ``stride`` apart."""
    tiles = Tiles(k)
    tiles.configure(rows, short=(0,), count=1)
    tiles.load(0, x.at(start), stride)
    tiles.store(0, y.at(start), stride)
    tiles.release()


@pytest.mark.parametrize("short", ["x", "y"])
@pytest.mark.parametrize(("start", "stride", "rows"), [(0, 64, 16), (0, 100, 16), (0, 64, 3), (1500, -100, 16)])
def test_rows_of_a_tile_stay_in_memory(short: str, start: int, stride: int, rows: int) -> None:
    """A load or a store of which one byte, in the first row or in the last one, is not there is refused."""
    places = [start + r * stride for r in range(rows)]
    need = max(places) + 64
    content = np.random.default_rng(0).integers(-128, 128, need, np.int8)
    memory = {"x": content, "y": np.zeros(need, np.int8)}
    numbers = {"start": start, "stride": stride, "rows": rows}
    Launch(there_and_back(), {**memory, **numbers}, isa=CHIP, checked=True)()
    for at in places:
        np.testing.assert_array_equal(memory["y"][at : at + 64], content[at : at + 64])
    with pytest.raises(Fail, match="error"):
        Launch(there_and_back(), {**memory, short: memory[short][:-1], **numbers}, isa=CHIP, checked=True)()
    moved = {**numbers, "start": start - min(places) - 1}
    with pytest.raises(Fail, match="error"):
        Launch(there_and_back(), {**memory, **moved}, isa=CHIP, checked=True)()


def flushed(x: Array) -> Array:
    return np.where(abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def dot_meaning(c: Array, a: Array, b: Array) -> Array:
    """What the chip's manual says of tdpbf16ps. Products of bf16 are exact in float64, and sums round far below f32."""
    a, b = flushed(a.astype(np.float32)), flushed(b.astype(np.float32))
    even, odd = np.zeros((16, 16), np.float32), np.zeros((16, 16), np.float32)
    for j in range(0, 32, 2):
        even, odd = (
            flushed((total + a[:, i : i + 1].astype(np.float64) * b[i]).astype(np.float32))
            for total, i in ((even, j), (odd, j + 1))
        )
    return flushed(flushed(c) + flushed(even + odd))


@pytest.mark.parametrize("chip", dict.fromkeys((CHIP, EMULATED)), ids=lambda chip: f"emulated={chip.is_emulated}")
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e-38, 1e19])
def test_dot(scale: float, chip: isa.Isa) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((16, 32), (32, 16)))
    a = (a * np.float32(scale)).astype(BF16)
    b = (b * np.float32(min(scale, 1.0) ** 0.9)).astype(BF16)
    c = rng.standard_normal((16, 16)).astype(np.float32) * np.float32(scale**1.9)
    a[3, 5], a[4, 6], b[7, 8], c[9, 9] = np.inf, -0.0, np.nan, LEAST
    wide_a, wide_c = np.zeros((16, 40), BF16), np.full((16, 20), 7, np.float32)
    wide_a[:, :32], wide_c[:, :16] = a, c
    pairs = np.ascontiguousarray(b.reshape(16, 2, 16).transpose(0, 2, 1))
    Launch(one_dot(), dict(a=wide_a, b=pairs, c=wide_c), isa=chip, checked=False)()
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(wide_c[:, :16], dot_meaning(c, a, b))
    assert (wide_c[:, 16:] == 7).all()


def test_zero() -> None:
    c = np.ones((16, 16), np.float32)
    Launch(one_zero(), dict(c=c), isa=CHIP)()
    assert not c.any()


def test_a_tile_outside_its_memory_is_found() -> None:
    with pytest.raises(Exception, match="one_zero reports error"):
        Launch(one_zero(), dict(c=np.ones((15, 16), np.float32)), isa=CHIP, checked=True)()


# -- operands in terms


def terms_of(x: Array, count: int) -> Array:
    """Each the rest of those before, rounded to bf16; halves away from zero."""
    found = []
    for _ in range(count):
        head = ((x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
        found.append(head)
        x = x - head
    return np.stack(found)


@pytest.mark.parametrize("layout", [split_bf16.ROWS, split_bf16.PAIRS])
@pytest.mark.parametrize("is_direct", [True, False])
@pytest.mark.parametrize("terms", [1, 3])
def test_split(layout: str, is_direct: bool, terms: int) -> None:
    spec = split_bf16.split_bf16(source=f32, terms=terms, layout=layout, is_direct=is_direct, axes=0)
    along_k = (layout == split_bf16.ROWS) == is_direct
    for lines, depth in ((0, 3), (1, 1), (5, 7), (17, 33), (64, 32), (40, 300)):
        x = random((lines, depth) if along_k else (depth, lines), np.float32)
        panels, steps = -(-lines // 32), -(-depth // 32)
        y = np.full(panels * steps * terms * 1024, 7, BF16)
        flags = np.full(panels * -(-steps // split_bf16.CHUNK), 7, np.int32)
        strides = dict(x_line=depth, x_k=1) if along_k else dict(x_line=1, x_k=lines)
        numbers = dict(lines=lines, depth=depth, limit=split_bf16.limit_of(layout, terms), **strides)
        Launch(spec, dict(x=x, y=y, flags=flags, **numbers), threads=3, isa=CHIP, checked=terms == 3)()
        whole = np.zeros((panels * 32, steps * 32), np.float32)
        whole[:lines, :depth] = x if along_k else x.T
        if layout == split_bf16.ROWS:
            whole *= np.float32(split_bf16.lift_of_left(terms))
        expected = terms_of(whole, terms)
        if layout == split_bf16.ROWS:
            tiles = expected.reshape(terms, panels, 2, 16, steps, 32).transpose(1, 4, 0, 2, 3, 5)
        else:
            tiles = expected.reshape(terms, panels, 2, 16, steps, 16, 2).transpose(1, 4, 0, 2, 5, 3, 6)
        np.testing.assert_array_equal(y.astype(np.float32), tiles.ravel())
        assert not flags.any()
        if terms == 3:
            np.testing.assert_array_equal(expected[0] + (expected[1] + expected[2]), whole)


SMALL, LARGE = split_bf16.SMALLEST, split_bf16.LARGEST
LEFT, RIGHT = split_bf16.LARGEST_LEFT, split_bf16.LARGEST_RIGHT
NEVER = (MOST, -MOST, np.inf, -np.inf, np.nan)


def below(number: float) -> np.floating[Any]:
    """The next number towards zero."""
    return np.nextafter(np.float32(number), np.float32(0))


@pytest.mark.parametrize(
    ("layout", "terms", "kept", "flagged"),
    [
        (split_bf16.ROWS, 1, (0.0, -0.0, SMALL, below(LARGE)), (-below(SMALL), LEAST, 1e-35, -LARGE, *NEVER)),
        (split_bf16.ROWS, 2, (0.0, -0.0, LEAST, -1e-40, 1e-35, below(LEFT), -below(LEFT)), (LEFT, -LEFT, *NEVER)),
        (split_bf16.ROWS, 3, (0.0, -0.0, LEAST, -1e-40, 1e-35, below(LEFT), -below(LEFT)), (LEFT, -LEFT, *NEVER)),
        (split_bf16.PAIRS, 3, (0.0, -0.0, SMALL, -below(RIGHT)), (-below(SMALL), LEAST, 1e-35, RIGHT, *NEVER)),
    ],
)
def test_flags(layout: str, terms: int, kept: tuple[float, ...], flagged: tuple[float, ...]) -> None:
    spec = split_bf16.split_bf16(source=f32, terms=terms, layout=layout, is_direct=layout == split_bf16.ROWS, axes=0)
    for number in (*kept, *flagged):
        x = random((70, 600), np.float32)
        x[40, 300] = number
        flags, y = np.zeros((3, 3), np.int32), np.zeros(3 * 19 * 1024 * terms, BF16)
        numbers = dict(lines=70, depth=600, x_line=600, x_k=1, limit=split_bf16.limit_of(layout, terms))
        Launch(spec, dict(x=x, y=y, flags=flags, **numbers), isa=CHIP)()
        expected = np.zeros((3, 3), np.int32)
        expected[1, 1] = not any(number is one for one in kept)
        np.testing.assert_array_equal(flags, expected)
        if terms == 1:
            assert split_bf16.is_weight_representable(x) == (not expected.any())


# -- the innermost loop


@pytest.mark.parametrize("terms", PRODUCTS)
@pytest.mark.parametrize("unroll", [1, 2, 4])
def test_every_product_meets_its_operands(terms: int, unroll: int) -> None:
    holds: dict[int, int] = {}
    done: list[tuple[int, int, int]] = []
    loads = 0
    for event in bf16_micro_kernel.events(terms, unroll):
        if isinstance(event, Load):
            assert holds.get(event.tile) != event.offset, "loaded although it is there"
            holds[event.tile], loads = event.offset, loads + 1
        else:
            assert isinstance(event, Dot)
            done.append((event.sums, holds[bf16_micro_kernel.A], holds[bf16_micro_kernel.B]))
    expected = [
        (j, s * terms * 1024 + p * 1024, s * terms * 1024 + q * 1024 + j * 512)
        for s in range(unroll) for p, q in PRODUCTS[terms] for j in range(2)
    ]  # fmt: skip
    assert sorted(done) == sorted(expected)
    for half in range(2):
        assert [d for d in done if d[0] == half] == [e for e in expected if e[0] == half], "the order of sums"
    assert loads == unroll * {1: 3, 2: 7, 3: 13}[terms]


# -- products


def group_of(memory: Arrays, a: Array, b: Array, is_constant: bool) -> tuple[Contraction, View]:
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    (m, k), n = a.shape[-2:], b.shape[-1]
    views = memory.input(a), memory.constant(b) if is_constant else memory.input(b)
    x, y = (
        replace(v, shape=(*batch, *v.shape[-2:]), strides=(*_batch_strides(v, len(batch)), *v.strides[-2:]))
        for v in views
    )
    out = memory.output((*batch, m, n), np.float32)
    return Contraction((), identity(np.float32), (), (out,), batch, m, n, k, x, y), out


def _batch_strides(view: View, axes: int) -> list[Any]:
    own = [s if n != 1 else 0 for n, s in zip(view.shape[:-2], view.strides, strict=False)]
    return [0] * (axes - len(own)) + own


def steps_of(group: Contraction, precision: str) -> list[Step]:
    return gemm_amx.steps(problem(group), Analysis(Target(CHIP, precision)))


def product(
    a: Array, b: Array, precision: str, *, threads: int = 1, checked: bool = False, is_constant: bool = True
) -> Array:
    memory = Arrays()
    group, out = group_of(memory, a, b, is_constant)
    memory.run(steps_of(group, precision), threads=threads, isa=CHIP, checked=checked)
    return memory.array(out)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_is_loaded_around_l1_unless_it_fits(precision: str) -> None:
    """For each term, as often as the loop is written; what is loaded otherwise is B, sums, and A of at most 16 rows."""
    group, _ = group_of(Arrays(), random((64, 96), np.float32), random((96, 64), np.float32, 1), True)
    chip = replace(CHIP, cpu="sapphirerapids", features=isa.WIDE, is_emulated=False)
    loads = [
        line.split()[0]
        for line in x86_assembly(steps_of(group, precision)[-1].spec, chip).splitlines()
        if "tileload" in line
    ]
    loops = 6 if precision == "medium" else 1  # two halves of a run, of the last one, and with many lines to fetch
    assert loads.count("tileloaddt1") == loops * TERMS[precision] < loads.count("tileloadd")


def check(got: Array, a: Array, b: Array, precision: str) -> None:
    x, y = a.astype(np.float64), b.astype(np.float64)
    assert (abs(got - x @ y) <= ELEMENT[precision] * (abs(x) @ abs(y)) + 1e-300).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("is_constant", [True, False])
def test_every_size(precision: str, is_constant: bool) -> None:
    for m, n, k in (
        (0, 5, 3), (3, 0, 5), (4, 5, 0), (1, 1, 1), (1, 33, 7), (16, 15, 31), (31, 32, 32), (33, 17, 33), (7, 97, 400),
        (290, 31, 64),
    ):  # fmt: skip
        a, b = random((m, k), np.float32), random((k, n), np.float32, 1)
        for checked in (False, True) if precision == CHECKED else (False,):
            check(product(a, b, precision, is_constant=is_constant, checked=checked), a, b, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("k", [768, 3072])
def test_error_of_long_sums(precision: str, k: int) -> None:
    a, b = random((64, k), np.float32), random((k, 64), np.float32, 1)
    got, exact = product(a, b, precision), a.astype(np.float64) @ b.astype(np.float64)
    assert np.linalg.norm(got - exact) <= WHOLE[precision] * np.linalg.norm(exact)
    check(got, a, b, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("is_constant", [True, False])
def test_transposed_operands(precision: str, is_constant: bool) -> None:
    a, b = random((70, 40), np.float32).T, random((45, 70), np.float32, 1).T
    check(product(a, b, precision, is_constant=is_constant, checked=precision == CHECKED), a, b, precision)


@pytest.mark.parametrize(("dtype", "is_constant"), [(np.dtype(np.float16), True), (BF16, False)], ids=str)
def test_narrow_operands(dtype: Any, is_constant: bool) -> None:
    """Two terms represent f16, one bf16; with two, as at ``high``, products of the low terms are left out."""
    a, b = random((40, 70), dtype), random((70, 45), dtype, 1)
    a[3, 4] = np.inf
    got = product(a, b, "highest", is_constant=is_constant)
    assert np.isinf(got[3]).all()
    check(np.delete(got, 3, 0), np.delete(a, 3, 0), b, "highest" if dtype == BF16 else "high")


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((2, 3, 40, 70), (70, 35)), ((2, 1, 40, 70), (3, 70, 35)), ((40, 70), (3, 2, 70, 35)),
        ((2, 3, 5, 70), (2, 3, 70, 35)), ((0, 5, 70), (70, 35)),
    ],
)  # fmt: skip
def test_batches_and_broadcasts(left: tuple[int, ...], right: tuple[int, ...], is_constant: bool) -> None:
    a, b = random(left, np.float32), random(right, np.float32, 1)
    for threads in (1, 3):
        check(product(a, b, "high", threads=threads, is_constant=is_constant), a, b, "high")


def test_sizes_that_are_known_at_run_time_only() -> None:
    memory = Arrays({"rows": 70, "columns": 50, "depth": 300})
    m, n, k = (dims.symbol(name) for name in ("rows", "columns", "depth"))
    a, b = random((70, 300), np.float32), random((300, 50), np.float32, 1)
    x = replace(memory.input(a), shape=(m, k), strides=(k, 1))
    y = replace(memory.input(b), shape=(k, n), strides=(n, 1))
    out = memory.output((m, n), np.float32)
    memory.run(steps_of(Contraction((), identity(np.float32), (), (out,), (), m, n, k, x, y), "highest"), isa=CHIP)
    check(memory.array(out), a, b, "highest")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_results_depend_on_neither_rows_nor_threads_nor_blocking(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = random((200, 500), np.float32), random((500, 150), np.float32, 1)
    whole = product(a, b, precision)
    for threads in (2, 3, 16):
        np.testing.assert_array_equal(product(a, b, precision, threads=threads), whole)
    np.testing.assert_array_equal(product(a[:1], b, precision), whole[:1])
    np.testing.assert_array_equal(product(a, b, precision, is_constant=False), whole)
    monkeypatch.setattr(macro_tile.Blocking, "of", lambda *_: macro_tile.Blocking(3, 2))
    monkeypatch.setitem(bf16_micro_kernel.SCHEDULES, TERMS[precision], Schedule(4, 2, 1, is_pipelined=False))
    np.testing.assert_array_equal(product(a, b, precision), whole)


# -- numbers that tiles do not carry


@pytest.mark.parametrize("precision", PRECISIONS)
def test_special_numbers_on_the_left(precision: str) -> None:
    """One special number in each row; B of ones, so that each result shows what became of it."""
    specials = np.array([np.inf, -np.inf, np.nan, MOST, -MOST, LEAST, -LEAST, 1e-35, 2.0**-101, 1e30, -0.0], np.float32)
    a, b = np.eye(40, 300, dtype=np.float32), np.ones((300, 70), np.float32)
    a[range(11), range(11)] = specials
    a[20:, 299] = random((20,), np.float32)
    with np.errstate(all="ignore"):
        exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    for is_constant in (True, False):
        got = product(a, b, precision, is_constant=is_constant, checked=precision == CHECKED)
        np.testing.assert_array_equal(got[:32], exact[:32])
        check(got[32:], a[32:], b, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_special_numbers_on_the_right(precision: str) -> None:
    specials = np.array([np.inf, -np.inf, np.nan, MOST, -MOST, LEAST, -LEAST, 1e-35, 2.0**-101, 1e30, -0.0], np.float32)
    a, b = np.ones((33, 300), np.float32), np.eye(300, 70, dtype=np.float32)
    b[range(11), range(11)] = specials
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)
    got = product(a, b, precision, is_constant=False, checked=precision == CHECKED)
    np.testing.assert_array_equal(got, exact)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_masks_of_the_lowest_float(precision: str) -> None:
    a, b = random((64, 200), np.float32), random((200, 40), np.float32, 1) * np.float32(1e-3)
    a[5, :7], a[6, 100] = -MOST, np.inf
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) @ b.astype(np.float64)
    got = product(a, b, precision)
    np.testing.assert_array_equal(got[6], exact[6].astype(np.float32))
    check(np.delete(got, 6, 0), np.delete(a, 6, 0), b, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_small_numbers_times_large_ones(precision: str) -> None:
    a, b = random((64, 96), np.float32), random((96, 40), np.float32, 1)
    a, b = a * np.float32(2.0**-118), b * np.float32(2.0**60)
    assert (abs(a) < split_bf16.SMALLEST).all() and split_bf16.is_weight_representable(b)
    check(product(a, b, precision, is_constant=False), a, b, precision)
    b = b * np.float32(2.0**-33)  # a large constant is left to vectors, except in one term
    check(product(a, b, precision), a, b, precision)


def scattered(rng: np.random.Generator, low: float, high: float, *shape: int) -> Array:
    """Numbers of all magnitudes from 10^low to 3 * 10^high, zeros among them."""
    signs = rng.choice([-1.0, 0.0, 1.0, 1.0], shape)
    return (signs * rng.uniform(1, 3, shape) * 10.0 ** rng.uniform(low, high, shape)).astype(np.float32)


def gated(rng: np.random.Generator) -> tuple[Array, Array]:
    """Columns that a gate has closed, and weights that read some of them alone."""
    a, b = rng.standard_normal((70, 300)).astype("f"), scattered(rng, -3, 5, 300, 50)
    a[:, 90:] *= (10.0 ** rng.uniform(-44, -20, 210)).astype("f")
    b[:90, :25] = 0
    return a, b


def one_by_one(rng: np.random.Generator) -> tuple[Array, Array]:
    """Each column of the result is one of A, times a power of ten."""
    b = np.zeros((300, 50), np.float32)
    b[rng.permutation(300)[:50], range(50)] = 10.0 ** rng.integers(-25, 9, 50)
    return scattered(rng, -45, 38, 70, 300), b


MIXTURES = {
    "all magnitudes": lambda rng: (scattered(rng, -45, 38, 70, 300), scattered(rng, -29, 8, 300, 50)),
    "on both sides": lambda rng: (scattered(rng, -45, 19, 70, 300), scattered(rng, -45, 19, 300, 50)),
    "small ones": lambda rng: (scattered(rng, -45, -20, 70, 300), scattered(rng, -20, 8, 300, 50)),
    "by rows": lambda rng: (
        (rng.standard_normal((70, 300)) * 10.0 ** rng.uniform(-45, 30, (70, 1))).astype("f"),
        scattered(rng, -2, 2, 300, 50),
    ),
    "one large number in each row": lambda rng: (
        np.concatenate((scattered(rng, 0, 13, 70, 1), scattered(rng, -45, -30, 70, 299)), axis=1),
        scattered(rng, -10, 8, 300, 50) * (rng.random((300, 50)) < 0.5),
    ),
    "gated": gated,
    "one by one": one_by_one,
}


@pytest.mark.parametrize("chip", dict.fromkeys((CHIP, EMULATED)), ids=lambda chip: f"emulated={chip.is_emulated}")
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_numbers_of_all_magnitudes(
    mixture: str, precision: str, is_constant: bool, chip: isa.Isa, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a result is bounded by its own products, even where all of them are denormal."""
    if mixture == "on both sides" and is_constant:
        return  # not a constant of tiles
    monkeypatch.setattr(sys.modules[__name__], "CHIP", chip)
    a, b = (np.asarray(v, np.float32) for v in MIXTURES[mixture](np.random.default_rng(0)))
    got = product(a, b, precision, is_constant=is_constant).astype(np.float64)
    wide, right = a.astype(np.float64), b.astype(np.float64)
    true, size = wide @ right, np.abs(wide) @ np.abs(right)
    kept = size < 3e38
    assert np.count_nonzero(kept) > 500
    share = {"highest": 2.0**-21, "high": 2.0**-12.9}[precision]
    assert np.all(np.abs(got - true)[kept] <= (share * size + 300 * 2.0**-149)[kept])


# -- what contractions ask for


@pytest.mark.parametrize(
    ("sizes", "is_constant", "expected"),
    [
        ((128, 768, 768), True, {"highest": 3, "high": 2, "medium": 1}),
        ((1, 768, 768), True, {"highest": None, "high": None, "medium": 1}),
        ((8, 768, 768), True, {"highest": None, "high": 2, "medium": 1}),
        ((128, 3, 768), True, {"highest": None, "high": None, "medium": None}),
        ((128, 768, 5), True, {"highest": None, "high": None, "medium": None}),
        ((128, 128, 64), False, {"highest": 3, "high": 2, "medium": 1}),
        ((8, 128, 64), False, {"highest": None, "high": None, "medium": None}),
    ],
)
def test_when_tiles_are_profitable(
    sizes: tuple[int, int, int], is_constant: bool, expected: dict[str, int | None]
) -> None:
    m, n, k = sizes
    group, _ = group_of(Arrays(), np.ones((m, k), np.float32), np.ones((k, n), np.float32), is_constant)
    for precision, terms in expected.items():
        on_tiles, p = Analysis(Target(CHIP, precision)), problem(group)
        refusal = gemm_amx.supports(p, on_tiles) or gemm_amx.pays(p, on_tiles)
        assert (None if refusal else gemm_amx.terms(p, on_tiles)) == terms
        assert gemm_amx.supports(p, Analysis(Target(isa.named("skylake-avx512"), precision))) is not None


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_constant_with_special_numbers_goes_to_vectors(precision: str) -> None:
    a, b = random((64, 90), np.float32), random((90, 70), np.float32, 1)
    b[5, 6], b[7, 8] = LEAST, -1e37
    memory, analysis = Arrays(), Analysis(Target(CHIP, precision))
    group, out = group_of(memory, a, b, True)
    with pytest.raises(Unrepresentable) as found:
        memory.run(select.steps_of(group, analysis), isa=CHIP)
    analysis = replace(analysis, unrepresentable=frozenset({found.value.identity}))
    steps = select.steps_of(group, analysis)
    assert [s.spec.name for s in steps] == ["gemm"]
    memory.run(steps, isa=CHIP)
    check(memory.array(out), a, b, precision)


def test_operands_are_split_once() -> None:
    memory, analysis = Arrays(), Analysis(Target(CHIP, "high"))
    a = random((64, 96), np.float32)
    first, _ = group_of(memory, a, random((96, 70), np.float32, 1), True)
    names = [s.spec.name for s in select.steps_of(first, analysis)]
    other, _ = group_of(memory, a, random((96, 80), np.float32, 2), True)
    again = select.steps_of(replace(other, a=first.a), analysis)
    assert (names, [s.spec.name for s in again]) == (["split_bf16", "gemm_amx"], ["gemm_amx"])


@pytest.mark.parametrize("name", ["bias and residual", "bias and gelu", "transposed"])
def test_epilogues(name: str) -> None:
    case, memory = EPILOGUES[name], Arrays()
    a, b = random((2, 11, 70), np.float32), random((2, 70, 37), np.float32, 1)
    extra = [random(shape, np.float32, 2 + i) for i, shape in enumerate(case.shapes)]
    views = tuple(memory.input(np.broadcast_to(x, (2, 11, 37))) for x in extra)
    expression = Expression((f32,) * (1 + len(extra)), case.steps, (len(extra) + len(case.steps),))
    out = memory.output((2, 11, 37), case.dtype, order=case.order)
    group = Contraction((), expression, views, (out,), (2,), 11, 37, 70, memory.input(a), memory.input(b))
    memory.run(steps_of(group, "highest"), threads=2, isa=CHIP)
    expected = case.meaning(a.astype(np.float64) @ b.astype(np.float64), *extra)
    np.testing.assert_allclose(memory.array(out), expected, rtol=1e-4, atol=1e-4)

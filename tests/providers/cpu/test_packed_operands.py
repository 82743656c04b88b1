"""Packed results of matrix products: the same bits as through plain memory, and readers that need f32."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from sardonyx.lower.groups import Storage
from sardonyx.providers.cpu import pipeline
from sardonyx.providers.cpu.kernels.gemm import amx, contraction, int8_slices
from sardonyx.providers.cpu.kernels.split import bf16
from sardonyx.providers.cpu.program.steps import Ref, Step
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory

CHIP, PAIRS = "sapphirerapids", "cooperlake"
"""With tiles, and with products of pairs on vectors."""
PRECISIONS = ("medium", "high", "highest")
FORWARD = "h0 = MatMul(x, w0) h1 = Add(h0, b) h = Gelu(h1) y = MatMul(h, w1)"
ADDED = "h0 = MatMul(x, w0) h = Add(h0, c) y = MatMul(h, w1)"
MOST, LEAST = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal


def is_checked(threads: int, precision: str) -> bool:
    """Whether addresses are checked: once is enough."""
    return threads == 2 and precision == "highest"


@pytest.fixture(autouse=True)
def _memory_is_full_of_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "garbage", b"\xff")


def random(*shape: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) * scale).astype(np.float32)


def compiled(body: str, rows: Any, sizes: tuple[int, int, int], precision: str, **more: Any) -> Compiled:
    """Two products: of ``sizes[0]`` along k, and through ``sizes[1]`` to ``sizes[2]``."""
    k, h, n = sizes
    weights = {"w0": random(k, h, scale=k**-0.5), "w1": random(h, n, scale=h**-0.5), "b": random(h)}
    weights = {name: v for name, v in weights.items() if name in body} | more.pop("constants", {})
    shapes = {"x": f"{rows},{k}", "c": f"{rows},{h}"} | {
        name: ",".join(map(str, v.shape)) for name, v in weights.items()
    }
    inputs = ", ".join(f"float[{shape}] {name}" for name, shape in shapes.items() if name in body)
    return Compiled(body, inputs, "float[A,B] y", more.pop("cpu", CHIP), precision=precision, constants=weights)


@pytest.fixture(autouse=True)
def _few_rows_fill_tiles_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(amx.LEAST_ROWS, 3, 16)
    monkeypatch.setattr(int8_slices, "LEAST_DEPTH", 1 << 20)


def kinds(found: Compiled) -> Counter[str]:
    return Counter(step.spec.name for step in found.steps)


def without_packing(m: pytest.MonkeyPatch) -> None:
    """No kernel packs for its consumer."""
    assert "packed-operands" in (one.name for one in pipeline.SELECTION)
    m.setattr(pipeline, "SELECTION", tuple(one for one in pipeline.SELECTION if one.name != "packed-operands"))


def storage_of(step: Step, name: str) -> Storage:
    ref = step.args[name]
    assert isinstance(ref, Ref)
    return ref.storage


def through_memory(monkeypatch: pytest.MonkeyPatch, *args: Any, **more: Any) -> Compiled:
    with monkeypatch.context() as m:
        without_packing(m)
        return compiled(*args, **more)


@pytest.mark.parametrize(("precision", "cpu"), [*((precision, CHIP) for precision in PRECISIONS), ("medium", PAIRS)])
def test_the_same_bits_as_through_memory(precision: str, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for rows, *sizes in ((16, 64, 64, 64), (33, 32, 70, 64), (70, 40, 300, 100), (290, 64, 95, 65)):
        args = FORWARD, rows, tuple(sizes), precision
        packed, plain = compiled(*args, cpu=cpu), through_memory(monkeypatch, *args, cpu=cpu)
        assert kinds(packed) == {"split_bf16": 1, "gemm_amx": 2} and kinds(plain) == {"split_bf16": 2, "gemm_amx": 2}
        x = random(rows, sizes[0])
        (expected,) = plain.run([x])
        assert np.isfinite(expected).all()
        for threads in (1, 2, 3):
            np.testing.assert_array_equal(
                packed.run([x], threads=threads, checked=is_checked(threads, precision))[0], expected
            )


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("width", [70, 400])
def test_rows_that_are_known_at_run_time_only(precision: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    args = FORWARD, "M", (64, width, 64), precision
    packed, plain = compiled(*args), through_memory(monkeypatch, *args)
    assert kinds(plain)["split_bf16"] == kinds(packed)["split_bf16"] + 1
    for rows in (0, 1, 7, 15, 16, 17, 32, 100):
        x = random(rows, 64)
        np.testing.assert_array_equal(packed.run([x], threads=2)[0], plain.run([x])[0])


def test_narrow_floats_are_packed_for_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"w0": random(64, 70, scale=0.1), "w1": random(70, 64, scale=0.1)}
    narrow = {name: v.astype(np.float16) for name, v in weights.items()}
    inputs = "float16[40,64] x, float16[64,70] w0, float16[70,64] w1"
    body = "h0 = MatMul(x, w0) h = Relu(h0) y = MatMul(h, w1)"
    found = Compiled(body, inputs, "float16[A,B] y", CHIP, constants=narrow)
    assert kinds(found) == {"split_bf16": 1, "gemm_amx": 2}
    x = random(40, 64).astype(np.float16)
    wide = x.astype(np.float64), *(v.astype(np.float64) for v in narrow.values())
    exact = np.maximum(wide[0] @ wide[1], 0) @ wide[2]
    np.testing.assert_allclose(found.run([x])[0].astype(np.float64), exact, rtol=2e-3, atol=2e-3)


# -- numbers that tiles do not carry

SPECIALS = np.array(
    [np.inf, -np.inf, np.nan, MOST, -MOST, LEAST, -LEAST, 1e-39, 1e-35, 2.0**-101, 2.0**63, 1e30, -0.0], np.float32
)
ELEMENT = {"highest": 1e-6, "high": 2.0**-12, "medium": 8e-3}
"""How far an element may be from exact, as a share of what its sum adds up in absolute values: two terms hold 13 bits
of what tiles do not carry."""
LOST = {"highest": 0.0, "high": 2.0**-139, "medium": 2.0**-134}
"""What denormals lose."""


def agree(got: Array, exact: Array, size: Array, precision: str) -> None:
    """``size`` is what each sum adds up in absolute values."""
    is_finite = np.isfinite(exact)
    np.testing.assert_array_equal(got[~is_finite], exact[~is_finite])
    error = abs(got[is_finite].astype(np.float64) - exact[is_finite])
    assert (error <= ELEMENT[precision] * size[is_finite] + LOST[precision]).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("column", [0, 33, 69])
def test_special_numbers_in_the_middle(precision: str, column: int) -> None:
    """One special number in a row, among zeros or among others: each result shows what became of it."""
    ones = {"w0": np.eye(64, 70, dtype=np.float32), "w1": np.ones((70, 64), np.float32)}
    found = compiled(ADDED, 80, (64, 70, 64), precision, constants=ones)
    assert kinds(found) == {"split_bf16": 1, "gemm_amx": 2}
    x, c = np.zeros((80, 64), np.float32), np.zeros((80, 70), np.float32)
    c[: len(SPECIALS), column] = SPECIALS
    c[20 : 20 + len(SPECIALS), column] = SPECIALS
    x[20:] = random(60, 64)
    with np.errstate(all="ignore"):
        exact = ((x.astype(np.float64) @ ones["w0"] + c) @ ones["w1"].astype(np.float64)).astype(np.float32)
    size = (abs(x) @ ones["w0"] + abs(c)) @ ones["w1"]
    for threads in (1, 2):
        (got,) = found.run([x, c], threads=threads, checked=is_checked(threads, precision))
        agree(got, exact, size, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_small_numbers_in_the_middle_times_large_ones(precision: str) -> None:
    weights = {"w0": np.eye(64, 70, dtype=np.float32), "w1": random(70, 64) * np.float32(2.0**26)}
    found = compiled(ADDED, 64, (64, 70, 64), precision, constants=weights)
    c = random(64, 70) * np.float32(2.0**-118)
    assert (abs(c) < bf16.SMALLEST).all()
    (got,) = found.run([np.zeros((64, 64), np.float32), c])
    exact, size = c.astype(np.float64) @ weights["w1"], abs(c).astype(np.float64) @ abs(weights["w1"])
    assert (abs(got - exact) <= ELEMENT[precision] * size).all()


def test_a_flag_does_not_outlive_its_run() -> None:
    found = compiled(ADDED, 64, (64, 70, 64), "highest")
    x, c = random(64, 64), random(64, 70)
    (expected,) = found.run([x, c])
    odd = c.copy()
    odd[5, 6] = np.nan
    assert np.isnan(found.run([x, odd])[0][5]).all()
    np.testing.assert_array_equal(found.run([x, c])[0], expected)


# -- attention

ATTENTION = "a = Attention<q_num_heads = {0}, kv_num_heads = {0}>(q, k, v) y = MatMul(a, w1)"


def attending(heads: int, width: int, precision: str, body: str = ATTENTION) -> Compiled:
    inputs = ", ".join(f"float[N,S,{heads * width}] {name}" for name in "qkv") + f", float[{heads * width},64] w1"
    weights = {"w1": random(heads * width, 64)}
    return Compiled(body.format(heads), inputs, "float[A,B,C] y", CHIP, precision=precision, constants=weights)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_attention_packs_for_its_consumer(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of rows begin anywhere in panels."""
    monkeypatch.setattr(contraction, "SMALL", 0)
    packed = attending(2, 64, precision)
    with monkeypatch.context() as m:
        without_packing(m)
        plain = attending(2, 64, precision)
    assert (kinds(packed)["split_bf16"], kinds(plain)["split_bf16"]) == (0, 1)
    for batch, rows in ((1, 32), (3, 40), (2, 1), (0, 4), (2, 70)):
        q, k, v = (random(batch, rows, 128) + np.float32(i) for i in range(3))
        (expected,) = plain.run([q, k, v])
        for threads in (1, 2, 3):
            (got,) = packed.run([q, k, v], threads=threads, checked=is_checked(threads, precision))
            np.testing.assert_array_equal(got, expected)


def test_few_rows_leave_per_head_operands_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = attending(2, 32, "highest")
    assert kinds(packed) == {"attention_amx": 1, "gemm_amx": 1, "gemm": 1}
    assert {"out", "tiles", "flags"} == packed.steps[0].writes
    with monkeypatch.context() as m:
        without_packing(m)
        plain = attending(2, 32, "highest")
    for rows in (3, 40):
        given = [random(1, rows, 64) + np.float32(i) for i in range(3)]
        np.testing.assert_array_equal(packed.run(given)[0], plain.run(given)[0])


@pytest.mark.parametrize(("heads", "width"), [(2, 48), (4, 16)])
def test_heads_that_do_not_fill_steps_do_not(heads: int, width: int) -> None:
    assert kinds(attending(heads, width, "medium"))["split_bf16"] == 1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_special_numbers_that_heads_see(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one key, results are the values."""
    monkeypatch.setattr(contraction, "SMALL", 0)
    found = attending(2, 32, precision)
    v = np.tile(random(64), (40, 1, 1))
    v[: len(SPECIALS), 0, 5] = SPECIALS
    v[20 : 20 + len(SPECIALS), 0, 60] = SPECIALS
    (got,) = found.run([np.ones_like(v), np.ones_like(v), v], threads=2)
    w = random(64, 64).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = (v[:, 0].astype(np.float64) @ w).astype(np.float32)
        size = abs(v[:, 0].astype(np.float64)) @ abs(w)
    agree(got[:, 0], exact, size, precision)


# -- loops over rows

NORMALIZED = "h = LayerNormalization(x, s, t) y = MatMul(h, w1)"


def normalized(rows: Any, width: int, precision: str, body: str = NORMALIZED) -> Compiled:
    vectors = f"float[{width}] s, float[{width}] t"
    inputs = f"float[{rows},{width}] x, {vectors}, float[{width},{width}] w1"
    weights = {"w1": random(width, width, scale=width**-0.5)}
    return Compiled(body, inputs, "float[A,B] y", CHIP, precision=precision, constants=weights)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "body", [NORMALIZED, f"{NORMALIZED[:-1]}) z = MatMul(h, w1)", NORMALIZED.replace("y =", "a =") + " y = Add(a, h)"]
)
def test_row_wise_kernels_pack_for_their_consumers(precision: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contraction, "SMALL", 0)
    for rows, width in ((16, 64), (70, 96), ("M", 352)):
        packed = normalized(rows, width, precision, body)
        with monkeypatch.context() as m:
            without_packing(m)
            plain = normalized(rows, width, precision, body)
        assert kinds(packed) + Counter(("split_bf16",)) == kinds(plain)
        for count in (0, 1, 33, 100) if rows == "M" else (rows,):
            given = [random(count, width), random(width), random(width + 1)[1:]]
            (expected,) = plain.run(given)
            for threads in (1, 2, 3):
                np.testing.assert_array_equal(
                    packed.run(given, threads=threads, checked=is_checked(threads, precision))[0], expected
                )


def test_rows_that_do_not_fill_steps_are_split() -> None:
    assert kinds(normalized(64, 80, "medium")) == {"fused_loop": 1, "split_bf16": 1, "gemm_amx": 1}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("column", [0, 40, 95])
def test_special_numbers_in_rows(precision: str, column: int) -> None:
    found = normalized(33, 96, precision)
    x, s, w = random(33, 96), np.zeros(96, np.float32), random(96, 96, scale=96**-0.5).astype(np.float64)
    for special in SPECIALS:
        t = random(96)
        t[column] = special
        with np.errstate(all="ignore"):
            exact = np.tile((t.astype(np.float64) @ w).astype(np.float32), (33, 1))
        agree(
            found.run([x, s, t], threads=2)[0], exact, np.tile(abs(t.astype(np.float64)) @ abs(w), (33, 1)), precision
        )


# -- which producers pack

MEANING = {
    "MatMul": np.matmul,
    "Add": np.add,
    "Transpose": np.transpose,
    "Softmax": lambda h: np.exp(h) / np.exp(h).sum(1, keepdims=True),
}


@pytest.mark.parametrize(
    ("body", "outputs", "is_packed"),
    [
        ("h = MatMul(x, w0) y = MatMul(h, w1)", "float[A,B] y", True),
        ("h = MatMul(x, w0) y = MatMul(h, w1) z = MatMul(h, w2)", "float[A,B] y, float[A,B] z", True),
        ("h = MatMul(x, w0) y = MatMul(h, w1)", "float[A,B] y, float[A,B] h", True),
        ("h = MatMul(x, w0) a = MatMul(h, w1) y = Add(a, h)", "float[A,B] y", True),
        ("h = MatMul(x, w0) t = Transpose(h) y = MatMul(t, w1)", "float[A,B] y", False),
        ("h = MatMul(x, w0) y = MatMul(h, h)", "float[A,B] y", True),
        ("h = MatMul(x, w0) y = MatMul(w1, h)", "float[A,B] y", False),
        ("h = MatMul(x, w0) y = MatMul(h, w1) t = Transpose(h)", "float[A,B] y, float[A,B] t", True),
        ("h = MatMul(x, w0) y = MatMul(h, w1) t = Transpose(h) z = MatMul(t, w1)", "float[A,B] y, float[A,B] z", True),
        ("h = MatMul(x, w0) s = Softmax(h) y = MatMul(s, w1)", "float[A,B] y", True),
        ("h = MatMul(x, w0) s = Softmax(h) a = MatMul(h, w1) y = Add(a, s)", "float[A,B] y", True),
    ],
)  # fmt: skip
def test_which_producers_pack_for_their_consumers(body: str, outputs: str, is_packed: bool) -> None:
    weights = {f"w{i}": random(96, 96) / 8 + np.float32(i) / 64 for i in range(3) if f"w{i}" in body}
    inputs = ", ".join(f"float[96,96] {name}" for name in ("x", *weights))
    found = Compiled(body, inputs, outputs, CHIP, constants=weights)
    read = {storage_of(step, "a") for step in found.steps if step.spec.name == "gemm_amx"}
    made = {storage_of(step, name) for step in found.steps if step.spec.name != "split_bf16" for name in step.writes}
    assert bool(read & made) == is_packed
    x, w = random(96, 96).astype(np.float64), {name: v.astype(np.float64) for name, v in weights.items()}
    names = dict(step.split(" = ") for step in body.replace(") ", ")\n").splitlines())
    values: dict[str, Array] = {"x": x, **w}
    for name, call in names.items():
        op, args = call.rstrip(")").split("(")
        values[name] = MEANING[op](*(values[arg] for arg in args.split(", ")))
    for got, name in zip(found.run([x.astype(np.float32)]), outputs.split("float[A,B] ")[1:], strict=True):
        np.testing.assert_allclose(got, values[name.rstrip(", ")], rtol=1e-4, atol=1e-4)


def test_products_that_differ_in_where_they_run_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first takes vectors for few rows, and the second does not."""
    body, sizes = "h = MatMul(x, w0) y = MatMul(h, w1)", (64, 64, 4096)
    monkeypatch.setattr(contraction, "SMALL", 1 << 14)
    found = compiled(body, "M", sizes, "high")
    assert kinds(found)["split_bf16"] == 2
    assert [step.only is None for step in found.steps if step.spec.name == "gemm_amx"] == [False, True]
    for rows in (3, 40):
        x, w0, w1 = random(rows, 64), random(64, 64, scale=0.125), random(64, 4096, scale=0.125)
        np.testing.assert_allclose(found.run([x])[0], x @ w0 @ w1, rtol=1e-3, atol=1e-3)


def test_branches_read_numbers() -> None:
    """A packed result serves products in its producer's scope; those in branches split the f32 numbers."""
    body = """
        h = MatMul(x, w0) a = MatMul(h, w1)
        b = If (c) <then_branch = t () => (float[64,64] p) { p = MatMul(h, w1) },
                    else_branch = e () => (float[64,64] q) { q = MatMul(h, w0) }>
        y = Add(a, b)"""
    weights = {"w0": random(64, 64), "w1": random(64, 64) + np.float32(1)}
    inputs = "float[64,64] x, bool c, float[64,64] w0, float[64,64] w1"
    found = Compiled(body, inputs, "float[A,B] y", CHIP, constants=weights)
    assert kinds(found)["split_bf16"] == 3
    assert [step.variant.partition("; ")[2] for step in found.steps if step.spec.name == "gemm_amx"] == [
        "packed for its reader in 3 bf16 terms and also unpacked", "", "", "A packed by its producer",
    ]  # fmt: skip

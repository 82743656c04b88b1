"""Products of numbers in slices, on emulated tiles: as exact as f32 sums, whatever numbers there are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sardonyx
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.split import int8_slices
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.program.steps import Unrepresentable
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array, Memory

CHIP = "sapphirerapids"
EPS = 2.0**-24
MOST = np.finfo(np.float32).max


@pytest.fixture(autouse=True)
def _memory_is_full_of_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "garbage", b"\xff")


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> Array:
    return (np.random.default_rng((seed, *shape)).standard_normal(shape) * scale).astype(np.float32)


def compiled(rows: Any, weight: Array, body: str = "y = MatMul(x, w)", **more: Any) -> Compiled:
    k, n = weight.shape
    extra = {"b": f"float[{n}] b", "c": f"float[{rows},{n}] c", "v": f"float[{n},64] v"}
    inputs = [f"float[{rows},{k}] x", f"float[{k},{n}] w"]
    inputs += [declared for name, declared in extra.items() if f" {name})" in body]
    return Compiled(body, ", ".join(inputs), "float[A,B] y", CHIP, constants={"w": weight, **more})


def kinds(found: Compiled) -> Counter[str]:
    return Counter(step.spec.name for step in found.steps)


def exact(x: Array, w: Array) -> tuple[Array, Array]:
    """The product, and the sum of the sizes of what it is a sum of."""
    wide, right = x.astype(np.float64), w.astype(np.float64)
    with np.errstate(all="ignore"):
        return wide @ right, np.abs(wide) @ np.abs(right)


def largest(x: Array, w: Array) -> Array:
    """What slices are kept to."""
    return np.abs(x).max(axis=1, keepdims=True).astype(np.float64) * np.abs(w).max(axis=0)


def error(y: Array, x: Array, w: Array) -> float:
    """Relative, in the mean over all results."""
    true, _ = exact(x, w)
    return float(np.sqrt(np.mean((y - true) ** 2) / np.mean(true**2)))


@pytest.mark.parametrize(
    ("m", "k", "n"), [(40, 256, 64), (50, 384, 96), (64, 300, 70), (131, 257, 100), (48, 1000, 65)]
)
def test_sums_are_nearer_to_the_truth_than_those_of_f32(m: int, k: int, n: int) -> None:
    x, w = random(m, k), random(k, n, scale=k**-0.5)
    found = compiled(m, w)
    assert kinds(found) == {"split_int8_slices": 1, "gemm_int8_slices": 1}
    results = [found.run([x], threads=threads, checked=threads == 2)[0] for threads in (1, 2, 3)]
    assert all(np.array_equal(y, results[0]) for y in results)
    assert error(results[0], x, w) < min(2e-7, error(x @ w, x, w))


def test_rows_that_are_known_at_run_time_only() -> None:
    w = random(320, 64, scale=0.05)
    found = Compiled(
        "y = MatMul(x, w)", "float[B,S,320] x, float[320,64] w", "float[B,S,64] y", CHIP, constants={"w": w}
    )
    assert kinds(found)["gemm_int8_slices"] == 1
    for rows in (0, 1, 15, 16, 17, 33, 100):
        x = random(1, rows, 320)
        true, size = exact(x, w)
        assert np.all(np.abs(found.run([x], threads=2)[0] - true) <= 4 * EPS * size)


def test_epilogues_and_packed_results() -> None:
    """A bias, an activation and a residual; and results in bf16 terms, for a product that is too short for slices."""
    w, b, c = random(300, 80, scale=0.06), random(80), random(60, 80)
    x = random(60, 300)
    found = compiled(60, w, "h = MatMul(x, w) i = Add(h, b) j = Relu(i) y = Add(j, c)", b=b)
    (y,) = found.run([x, c], threads=2)
    np.testing.assert_allclose(y, np.maximum(exact(x, w)[0] + b, 0) + c, rtol=1e-5, atol=1e-5)
    v = random(80, 64, scale=0.1)
    found = compiled(60, w, "h = MatMul(x, w) i = Relu(h) y = MatMul(i, v)", v=v)
    assert kinds(found) == {"split_int8_slices": 1, "gemm_int8_slices": 1, "gemm_amx": 1}
    (y,) = found.run([x], threads=2, checked=True)
    np.testing.assert_allclose(y, np.maximum(exact(x, w)[0], 0) @ v, rtol=1e-5, atol=1e-5)


def test_two_products_share_slices() -> None:
    w, v = random(256, 64), random(256, 96)
    inputs = "float[40,256] x, float[256,64] w, float[256,96] v"
    found = Compiled("a = MatMul(x, w) b = MatMul(x, v) y = Concat<axis = 1>(a, b)", inputs, "float[A,B] y", CHIP,
                     constants={"w": w, "v": v})  # fmt: skip
    assert kinds(found)["split_int8_slices"] == 1 and kinds(found)["gemm_int8_slices"] == 2


@pytest.mark.parametrize("large", [20.0, 100.0, 3e4, 1e9, 1e30])
def test_numbers_that_stand_out_take_nothing_from_the_others(large: float) -> None:
    """Nor do they lose more than f32 sums do, next to the largest numbers of a column."""
    x, w = random(64, 320), random(320, 64, scale=0.05)
    x[::3, 7] = large
    w[7, ::2] = 0
    (y,) = compiled(64, w).run([x], threads=2)
    true, size = exact(x, w)
    size[:, 1::2] += largest(x, w)[:, 1::2]
    assert np.all(np.abs(y - true) <= 16 * EPS * size)


def test_outliers_in_every_third_element() -> None:
    """They are then no exception, and all are kept to what the largest are kept to."""
    x, w = random(48, 512), random(512, 64, scale=0.05)
    x[:, ::3] *= 1000
    (y,) = compiled(48, w).run([x])
    assert error(y, x, w) < 3e-7


def odd_rows() -> dict[str, Array]:
    x = random(40, 256)
    rows = {name: x.copy() for name in ("infinite", "nan", "largest", "denormal", "tiny", "zero", "minus", "wide")}
    rows["infinite"][3, 7], rows["infinite"][5, 9] = np.inf, -np.inf
    rows["nan"][3, 7] = np.nan
    rows["largest"][4], rows["largest"][6, 1] = MOST, -MOST
    rows["denormal"][2] = 1e-42
    rows["tiny"][2] *= np.float32(1e-35)
    rows["zero"][:17] = 0
    rows["minus"][:, ::2] = -MOST
    rows["wide"][::5] = np.geomspace(1e-30, 1e30, 256, dtype=np.float32)
    return rows


@pytest.mark.parametrize("kind", list(odd_rows()))
def test_numbers_that_a_scale_does_not_carry(kind: str) -> None:
    x, w = odd_rows()[kind], random(256, 64)
    if kind in ("largest", "minus"):
        w *= np.float32(1e-3)
    (y,) = compiled(40, w).run([x], threads=2, checked=True)
    with np.errstate(all="ignore"):
        narrow, (true, size) = x @ w, exact(x, w)
        is_near = np.abs(y - true) <= 64 * EPS * (size + largest(x, w)) + 1e-42
    np.testing.assert_array_equal(np.isnan(y), np.isnan(narrow))
    assert np.all(np.isfinite(y[np.abs(true) < MOST / 300]))
    assert np.all(is_near[np.isfinite(narrow) & np.isfinite(y)])


@pytest.mark.parametrize("kind", ["rows", "columns", "blocks", "infinite", "denormal"])
def test_constants_of_several_kinds_are_not_sliced(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of other sizes, which their weights make up for, lose nothing."""
    x, w = random(48, 256), random(256, 64)
    if kind == "rows":
        x[:, 40:80], w[40:80] = x[:, 40:80] * 1e6, w[40:80] * 1e-6
    elif kind == "columns":
        w[9, 3] = 1e4
    elif kind == "blocks":
        x[:, :140] *= np.float32(1e5)
        w[:140, :32], w[140:, 32:] = 0, 0
    elif kind == "infinite":
        w[9, 3] = np.inf
    else:
        w[:, 5] = 1e-41
    with pytest.raises(Unrepresentable):
        compiled(48, w).run([x])
    monkeypatch.setenv("SARDONYX_CPU", CHIP)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    types = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", x.shape), ("y", (48, 64)))]
    graph = onnx.helper.make_graph([node], "one", types[:1], types[1:], [onnx.numpy_helper.from_array(w, "w")])
    session = sardonyx.InferenceSession(onnx.helper.make_model(graph).SerializeToString())
    (y,) = session.run(None, {"x": x})
    with np.errstate(all="ignore"):
        true, size = exact(x, w)
        assert np.all((np.abs(y - true) <= 8 * EPS * size + 1e-40) | ~np.isfinite(true))


def test_zeros_are_of_every_kind() -> None:
    w = random(256, 64)
    w[::3], w[:, ::5] = 0, 0
    assert kinds(compiled(48, w)) == {"split_int8_slices": 1, "gemm_int8_slices": 1}


def make_slices(x: Array) -> tuple[Array, ...]:
    """Slices, scales, and which k_blocks are fourth or flagged."""
    rows, depth = x.shape
    k_block, steps, tiles = int8_slices.block_steps(depth), -(-depth // int8_slices.STEP), -(-rows // 16)
    k_blocks = -(-steps // k_block)
    y = np.zeros(tiles * steps * (int8_slices.SLICES + 1) * int8_slices.TILE, np.int8)
    scales = np.zeros((tiles, k_blocks, 16), np.float32)
    fourth, flags = (np.zeros((tiles, k_blocks), np.int32) for _ in range(2))
    numbers = {"x_row": depth, "m": rows, "depth": depth, "k_block": k_block}
    memory = {"x": x, "y": y, "scales": scales, "fourth": fourth, "flags": flags}
    Launch(int8_slices.split_int8_slices(), {**memory, **numbers}, isa=isa.named(CHIP))()
    return y, scales, fourth, flags


@pytest.mark.parametrize("depth", [128, 192, 256, 320, 1024])
def test_usual_numbers_have_three_slices(depth: int) -> None:
    """With or without what is below zero, or below most of them."""
    x = random(320, depth)
    for usual in (x, np.maximum(x, 0), np.maximum(x - 1.3, 0)):
        *_, fourth, flags = make_slices(usual)
        assert fourth.mean() < 0.2 and not flags.any()


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 40), depth=st.integers(1, 700), spread=st.floats(0, 3))
@settings(max_examples=25)
def test_slices_add_up_to_the_numbers(seed: int, rows: int, depth: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((rows, depth)) * np.exp(spread * rng.standard_normal((rows, depth)))).astype(np.float32)
    k_block, count = int8_slices.block_steps(depth), int8_slices.SLICES
    steps, tiles = -(-depth // int8_slices.STEP), -(-rows // 16)
    k_blocks = -(-steps // k_block)
    y, scales, fourth, flags = make_slices(x)
    usual = y[: tiles * steps * count * int8_slices.TILE].reshape(tiles, steps, count, 16, int8_slices.STEP)
    last = y[usual.size :].reshape(tiles, steps, 1, 16, int8_slices.STEP)
    each = np.repeat(np.arange(k_blocks), k_block)[:steps]
    all_ = np.concatenate((usual, np.where(fourth[:, each, None, None, None], last, 0)), axis=2)
    values = (all_ * 256.0 ** -np.arange(count + 1)[:, None, None]).sum(axis=2) * (scales / int8_slices.BALANCE)[
        :, each, :, None
    ]
    found = values.transpose(0, 2, 1, 3).reshape(tiles * 16, -1)[:rows, :depth]
    for i, first in enumerate(range(0, depth, k_block * int8_slices.STEP)):
        part = x[:, first : first + k_block * int8_slices.STEP].astype(np.float64)
        largest = np.abs(part).max(axis=1, keepdims=True)
        off = np.abs(found[:, first : first + part.shape[1]] - part)
        of_rows = [flag[:, i].repeat(16)[:rows, None].astype(bool) for flag in (fourth, flags)]
        assert np.all((off <= largest * np.where(of_rows[0], 2.0**-31, 2.0**-23)) | of_rows[1])
        mean = np.abs(part).mean(axis=1, keepdims=True)
        assert np.all(of_rows[0] | (largest <= 20 * mean) | (part.shape[1] < 64))

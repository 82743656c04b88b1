"""Kernels on bytes and narrow types, bit for bit: types, odd sizes, chips, threads, and the conversions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx import dtypes
from sardonyx.dtypes import DType, f32, i8, i32, u8
from sardonyx.ops.cast import convert
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.language.amx import Tiles
from sardonyx.providers.cpu.language.dsl import Kernel, kernel
from sardonyx.providers.cpu.language.values import Buf
from tests.comparing import assert_same
from tests.lower.test_quantized import CASES, Case
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.test_amx import CHIP

Array = np.ndarray[Any, Any]
CHIPS = ("haswell", "cascadelake", "sapphirerapids")
"""With neither tiles nor dot products, with dot products, with tiles."""


def check(case: Case, cpu: str | None, threads: int, *, checked: bool = False) -> None:
    got = Compiled(*case.text, cpu).run(case.feeds(), threads=threads, checked=checked)
    for value, want in zip(got, case.expected(), strict=True):
        assert value.dtype == want.dtype
        np.testing.assert_array_equal(value, want)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_kernels(case: Case) -> None:
    check(case, None, 2)


@pytest.mark.sliced(11)
@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_other_chips(name: str, cpu: str) -> None:
    check(CASES[name], cpu, 3)


@pytest.mark.parametrize("name", ["one row", "padded"])
def test_addresses(name: str) -> None:
    check(CASES[name], None, 1, checked=True)


@pytest.mark.parametrize("sizes", [(0, 4, 3), (3, 0, 5), (3, 4, 0)])
def test_empty(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    given = {"a": ("uint8", (m, k)), "w": ("int8", (k, n)), "p": ("uint8", ())}
    check(Case("y = MatMulInteger(a, w, p)", given, "int32[] y"), None, 1)


@kernel(a=("a_dtype",), b=("b_dtype",), c=(i32,))
def one_dot(k: Kernel, a: Buf, b: Buf, c: Buf, *, a_dtype: DType, b_dtype: DType) -> None:
    t = Tiles(k)
    t.configure()
    for tile, memory in ((3, c), (4, a), (7, b)):
        t.load(tile, memory)
    t.dot_bytes(3, 4, 7, a_dtype, b_dtype)
    t.store(3, c)
    t.release()


@pytest.mark.parametrize("signs", [(a, b) for a in (i8, u8) for b in (i8, u8)], ids=str)
def test_amx_dot(signs: tuple[DType, DType]) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(*((-128, 128) if t is i8 else (0, 256)), (16, 64)).astype(t.numpy) for t in signs)
    c = rng.integers(-(2**31), 2**31, (16, 16)).astype(np.int32)
    columns = b.reshape(16, 16, 4).transpose(0, 2, 1).reshape(64, 16)
    want = (c + a.astype(np.int64) @ columns.astype(np.int64)).astype(np.int32)
    spec = one_dot(a_dtype=signs[0], b_dtype=signs[1])
    Launch(spec, {"a": a.reshape(-1), "b": b.reshape(-1), "c": c.reshape(-1)}, isa=CHIP)()
    np.testing.assert_array_equal(c, want)


# -- conversions

NARROW = [t for t in dtypes.every() if t.bits <= 8 and t.kind in ("float", "int", "uint") and t.bits != 6]
SPECIAL = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30], np.float32)
FINITE = np.concatenate((np.arange(0x7C00, dtype=np.uint16), np.arange(0x8000, 0xFC00, dtype=np.uint16)))
HALVES = np.concatenate((FINITE.view(np.float16).astype(np.float32), SPECIAL))
"""Among them halfway cases of every narrow float."""


def cast(x: Array, to: DType, saturate: int = 1) -> Array:
    import onnx
    from onnx import helper as h

    attrs = {"saturate": saturate} if to.is_float and to.bits <= 8 else {}
    source = dtypes.of_numpy(x.dtype)
    inputs, outputs = (h.make_tensor_value_info(n, t.onnx, ["n"]) for n, t in (("x", source), ("y", to)))
    graph = h.make_graph([h.make_node("Cast", ["x"], ["y"], to=to.onnx, **attrs)], "g", [inputs], [outputs])
    model: onnx.ModelProto = h.make_model(graph, opset_imports=[h.make_opsetid("", 25)], ir_version=12)
    session = sardonyx.InferenceSession(model.SerializeToString())
    assert session.explain().counts() == {"cpu": {"Cast": 1}}
    found: Array = session.run(None, {"x": x})[0]
    return found


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_narrow_number_widens(dtype: DType) -> None:
    x = np.arange(1 << dtype.bits, dtype=np.uint16).astype(np.uint8).view(dtype.numpy)
    assert_same(cast(x, f32), x.astype(np.float32))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("dtype", [t for t in NARROW if t.is_float and t.name != "f8e8m0"], ids=str)
def test_floats_narrow(dtype: DType, saturate: int) -> None:
    assert_same(cast(HALVES, dtype, saturate), convert(HALVES, dtype, saturate=bool(saturate)))


def test_powers_of_two_are_rounded_up() -> None:
    power = dtypes.of_name("f8e8m0")
    assert_same(cast(HALVES, power), convert(HALVES, power))


@pytest.mark.parametrize("dtype", [t for t in NARROW if t.is_integer], ids=str)
def test_integers_narrow(dtype: DType) -> None:
    x = np.arange(-200, 200, dtype=np.int32)
    assert_same(cast(x, dtype), convert(x, dtype))


def ratios(rng: Any, scale: float, zero: int, info: Any) -> Array:
    """Numbers within and beyond the range of integers, halves of the scale among them."""
    with np.errstate(all="ignore"):
        x = (rng.uniform(-1.3, 1.3, 3000) * (info.max - info.min) * np.float64(scale)).astype(np.float32)
        x[:1000] = (rng.integers(info.min, info.max, 1000) + 0.5) * np.float32(scale)
    x[1000:1006] = np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 0
    return x


@pytest.mark.parametrize("cpu", ["sapphirerapids", "haswell", "x86-64", "neoverse-n1"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_numbers_are_divided_by_the_scale(dtype: str, cpu: str) -> None:
    """Scales of all magnitudes; what is quantized is dequantized by the same and by other parameters at once."""
    body = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(q, t, w)"
    given = f"float[3000] x, float s, {dtype} z, float t, {dtype} w"
    compiled = Compiled(body, given, f"{dtype}[] q, float[] d, float[] e", cpu)
    rng, info = np.random.default_rng(4), np.iinfo(dtype)
    for scale in (1e-45, 1e-40, 1e-30, 0.01371, 1.0, 3.3333, 0.125, 1e10, 1e30, 2e36, 1e38):
        for zero in (0, 7, info.min, info.max):
            x, s, z = ratios(rng, scale, zero, info), np.float32(scale), np.asarray(zero, dtype)
            q, d, e = compiled.run([x, np.asarray(s), z, np.asarray(0.37, np.float32), np.asarray(3, dtype)])
            with np.errstate(all="ignore"):
                units = np.rint(x / s) + np.float32(zero)
                whole = np.minimum(np.fmax(units, info.min), info.max)
                np.testing.assert_array_equal(q, whole.astype(dtype), f"{scale} {zero}")
                np.testing.assert_array_equal(d, (whole - np.float32(zero)) * s)
                np.testing.assert_array_equal(e, (whole - np.float32(3)) * np.float32(0.37))

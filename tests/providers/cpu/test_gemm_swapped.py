"""Products whose results are transposed: computed with swapped operands, whatever the exporter's spelling."""

from __future__ import annotations

import numpy as np
import pytest

from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array

CHIPS = ("x86-64", "haswell", "skylake-avx512", "neoverse-n1")
HEAD = "a = Relu(x) "
TOKENS = "s = Constant<value = int64[3] {0, 24, -1}>() r = Reshape(a, s) t = Transpose<perm = [0, 2, 1]>(r) "
PIXELS = "t = Transpose<perm = [0, 2, 3, 1]>(a) "
SPELLINGS = {
    "tokens, transposed back": TOKENS + "m = MatMul(t, w) k = Add(m, b) y = Transpose<perm = [0, 2, 1]>(k)",
    "pixels, transposed back": PIXELS + "m = MatMul(t, w) k = Add(m, b) y = Transpose<perm = [0, 3, 1, 2]>(k)",
    "pixels as rows": (
        "q = Constant<value = int64[2] {-1, 24}>() " + PIXELS + "r = Reshape(t, q) m = Gemm(r, w, b) "
        "y = Transpose<perm = [1, 0]>(m)"
    ),
    "what follows": (
        TOKENS + "m = MatMul(t, w) k = Add(m, b) g = Tanh(k) o = Transpose<perm = [0, 2, 1]>(g) y = Add(o, r0)"
    ),
    "both": TOKENS + "m = MatMul(t, w) y = Add(m, b) z = Transpose<perm = [0, 2, 1]>(y)",
}  # fmt: skip


def wanted(name: str, x: Array, w: Array, b: Array, r0: Array) -> list[Array]:
    n, c, h, v = x.shape
    product = np.maximum(x, 0).reshape(n, c, h * v).transpose(0, 2, 1).astype(np.float64) @ w + b
    back = product.transpose(0, 2, 1)
    if name == "pixels, transposed back":
        return [back.reshape(n, w.shape[1], h, v)]
    if name == "pixels as rows":
        return [product.reshape(n * h * v, w.shape[1]).T]
    if name == "what follows":
        return [np.tanh(back) + r0]
    return [product, back] if name == "both" else [back]


@pytest.mark.sliced(2)
@pytest.mark.parametrize("cpu", CHIPS)
@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str, is_open: bool, cpu: str) -> None:
    rng = np.random.default_rng(4)
    w, b, r0 = (rng.standard_normal(s).astype(np.float32) for s in ((24, 37), (37,), (37, 1)))
    dims = "n,24,h,v" if is_open else "2,24,5,9"
    inputs, outputs = f"float[{dims}] x", "float[a,b,c,d] y" if "pixels, " in name else "float[a,b,c] y"
    outputs = "float[a,b] y" if name == "pixels as rows" else outputs
    constants = {"w": w, "b": b} | ({"r0": r0} if name == "what follows" else {})
    given = ", float[24,37] w, float[37] b" + (", float[37,1] r0" if name == "what follows" else "")
    outputs += ", float[a,c,b] z" if name == "both" else ""
    found = Compiled(HEAD + SPELLINGS[name], inputs + given, outputs, cpu, constants=constants)
    names = {step.choice.name for step in found.steps if step.choice is not None}
    assert ("gemm.swapped" in names) == (name != "both")
    for shape in ((2, 24, 5, 9), *([(1, 24, 1, 1), (1, 24, 1, 7), (3, 24, 8, 8), (0, 24, 3, 3)] if is_open else [])):
        x = rng.standard_normal(shape).astype(np.float32)
        expected, got = wanted(name, x, w, b, r0), found.run([x], checked=True)
        for g, e, again in zip(got, expected, found.run([x], threads=3), strict=True):
            np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(again, g)


@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_two_operands_of_the_run(dtype: str) -> None:
    rng = np.random.default_rng(4)
    numpy = {"float": np.float32, "double": np.float64, "float16": np.float16}[dtype]
    a, b = (rng.standard_normal(s).astype(numpy) for s in ((3, 40, 20), (3, 20, 33)))
    found = Compiled("m = MatMul(a, b) y = Transpose<perm = [0, 2, 1]>(m)", f"{dtype}[3,40,20] a, {dtype}[3,20,33] b",
                     f"{dtype}[3,33,40] y", "skylake-avx512")  # fmt: skip
    assert "gemm.swapped" in {step.choice.name for step in found.steps if step.choice is not None}
    (got,) = found.run([a, b], threads=2, checked=True)
    want = (a.astype(np.float64) @ b).transpose(0, 2, 1)
    np.testing.assert_allclose(
        got, want, rtol=1e-3 if dtype == "float16" else 1e-5, atol=1e-2 if dtype == "float16" else 1e-5
    )


@pytest.mark.parametrize(
    ("depth", "columns", "is_by_columns", "variant"),
    [
        (40, 160, True, "gemm.amx_swapped"),
        (40, 160, False, "gemm.amx_swapped"),
        (40, 70, True, "gemm.swapped"),
        (520, 70, False, "gemm.int8_slices"),
        (600, 160, True, "gemm.amx_swapped"),
        (600, 160, False, "gemm.int8_slices"),
    ],
)
@pytest.mark.parametrize("is_open", [False, True], ids=["fixed", "open"])
def test_tiles(depth: int, columns: int, is_by_columns: bool, variant: str, is_open: bool) -> None:
    """Shallow products are swapped, deep ones are not. An infinity and a tiny number are not representable."""
    rng = np.random.default_rng(4)
    w, b = (rng.standard_normal(s).astype(np.float32) for s in ((depth, columns), (columns,)))
    rows, batch = "t" if is_open else "83", 2 if is_by_columns else 1
    left, order = (f"{depth},{rows}", (0, 2, 1)) if is_by_columns else (f"{rows},{depth}", (0, 1, 2))
    before = "l = Transpose<perm = [0, 2, 1]>(x)" if is_by_columns else "l = Identity(x)"
    found = Compiled(
        before + " m = MatMul(l, w) k = Add(m, b) g = Relu(k) y = Transpose<perm = [0, 2, 1]>(g)",
        f"float[{batch},{left}] x, float[{depth},{columns}] w, float[{columns}] b",
        f"float[{batch},{columns},{rows}] y",
        "sapphirerapids", constants={"w": w, "b": b},
    )  # fmt: skip
    chosen = {step.choice.name for step in found.steps if step.choice is not None}
    assert chosen & {variant, "gemm.amx" if is_open else variant}, chosen
    for count in (83, *((1, 7, 200, 0) if is_open else ())):
        x = rng.standard_normal((batch, count, depth)).astype(np.float32)
        if count:
            x[-1, 0, 3], x[0, -1, 5] = np.inf, 1e-42
        with np.errstate(invalid="ignore"):
            want = np.maximum(x.astype(np.float64) @ w + b, 0).transpose(0, 2, 1)
        given = np.ascontiguousarray(x.transpose(order))
        (got,), (again,) = found.run([given], checked=True), found.run([given], threads=3)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(again, got)

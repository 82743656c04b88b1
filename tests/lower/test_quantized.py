"""Quantization and products of bytes, as groups, against the operators' own meanings: equal in every bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.ir.graph import Graph
from sardonyx.lower import interpret
from tests.lower.agree import kinds, lowered, parse, part_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A graph over ``inputs``: names to types and shapes. Scales (s, t, u) are small and positive."""

    body: str
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    output: str
    groups: list[str] = field(default_factory=list)

    def graph(self) -> Graph:
        return parse(*self.text)

    @property
    def text(self) -> tuple[str, str, str]:
        listed = ", ".join(f"{t}{list(shape) or ''} {name}" for name, (t, shape) in self.inputs.items())
        return self.body, listed, self.output

    def feeds(self) -> list[Array]:
        rng = np.random.default_rng(3)
        return [_random(rng, name, *given) for name, given in self.inputs.items()]

    def expected(self) -> list[Any]:
        part = part_of(self.graph())
        fed = dict(zip(self.inputs, self.feeds(), strict=True))
        return Program(part.nodes, part.inputs, part.outputs, bind).run(
            [fed[v.name] for v in part.inputs], RunContext()
        )


def _random(rng: Any, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
    if dtype in ("float", "float16", "double"):
        numpy_type = {"float": "float32", "double": "float64"}.get(dtype, dtype)
        x = rng.uniform(0.01, 0.3, shape) if name in "stu" else rng.standard_normal(shape) * 5
        return np.asarray(x, numpy_type)
    if name == "b":
        return np.asarray(rng.integers(-5000, 5000, shape), np.int32)
    if dtype in FLOAT8:
        return np.asarray(rng.standard_normal(shape) * 5, FLOAT8[dtype])
    info = np.iinfo(dtype)
    return np.asarray(rng.integers(info.min, info.max, shape, endpoint=True), dtype)


def product(a: str, b: str, m: int, k: int, n: int, *, each: bool = False) -> Case:
    columns = (n,) if each else ()
    given = {"a": (a, (m, k)), "w": (b, (k, n)), "p": (a, ()), "q": (b, columns)}
    return Case("y = MatMulInteger(a, w, p, q)", given, "int32[] y")


def qlinear(a: str, b: str, *, scale: str = "float", batch: tuple[int, ...] = (), to: str = "") -> Case:
    given = {
        "a": (a, (*batch, 5, 12)), "w": (b, (*batch, 12, 7)), "p": (a, ()), "q": (b, ()), "z": (to or a, ()),
        "s": (scale, ()), "t": (scale, ()), "u": (scale, ()),
    }  # fmt: skip
    return Case("y = QLinearMatMul(a, s, p, w, t, q, u, z)", given, f"{to or a}[] y")


def conv(x: str, w: str, image: tuple[int, ...], weights: tuple[int, ...], attrs: str, *, each: bool = False) -> Case:
    points = weights[:1] if each else ()
    given = {"x": (x, image), "w": (w, weights), "p": (x, ()), "q": (w, points)}
    return Case(f"y = ConvInteger<{attrs}>(x, w, p, q)", given, "int32[] y")


def qconv(x: str, w: str, image: tuple[int, ...], weights: tuple[int, ...], attrs: str) -> Case:
    given = {
        "x": (x, image), "w": (w, weights), "p": (x, ()), "q": (w, weights[:1]), "z": (x, ()),
        "b": ("int32", weights[:1]), "s": ("float", ()), "t": ("float", weights[:1]),
    }  # fmt: skip
    body = f"u = Constant<value = float {{11.0}}>() y = QLinearConv<{attrs}>(x, s, p, w, t, q, u, z, b)"
    return Case(body, given, f"{x}[] y")


BYTES = ("int8", "uint8")
FLOAT8 = {
    "float8e4m3fn": ml_dtypes.float8_e4m3fn, "float8e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8e5m2": ml_dtypes.float8_e5m2, "float8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip
PAD = "pads = [1, 1, 1, 1]"
PRODUCTS = {
    **{f"{a} by {b}": product(a, b, 5, 7, 3) for a in BYTES for b in BYTES},
    "a zero point for each column": product("uint8", "int8", 13, 64, 33, each=True),
    "one row": product("uint8", "uint8", 1, 100, 17),
    "many rows": product("int8", "uint8", 70, 130, 40),
    "an element": product("int8", "int8", 1, 1, 1),
    "requantized": qlinear("uint8", "int8"),
    "requantized, in halves": qlinear("int8", "uint8", scale="float16"),
    **{f"requantized to {t}": qlinear("uint8", "int8", to=t) for t in FLOAT8},
    "a batch, requantized": qlinear("uint8", "uint8", batch=(2,)),
    "vectors": Case("y = MatMulInteger(a, w)", {"a": ("uint8", (9,)), "w": ("int8", (9,))}, "int32[] y"),
    "a batch by one matrix": Case(
        "y = MatMulInteger(a, w, p)", {"a": ("uint8", (2, 3, 9)), "w": ("int8", (9, 4)), "p": ("uint8", (1,))},
        "int32[] y",
    ),
    "a zero point for each row": Case(
        "y = MatMulInteger(a, w, p)", {"a": ("int8", (3, 9)), "w": ("int8", (9, 4)), "p": ("int8", (3,))}, "int32[] y"
    ),
}  # fmt: skip
CONVOLUTIONS = {
    "padded": conv("uint8", "int8", (2, 3, 9, 10), (5, 3, 3, 3), PAD),
    "one tap": conv("int8", "uint8", (1, 8, 7, 7), (20, 8, 1, 1), "group = 1"),
    "groups, strides, unequal pads": conv(
        "uint8", "uint8", (2, 6, 11, 12), (4, 3, 3, 2), "group = 2, strides = [2, 2], pads = [1, 0, 2, 1]", each=True
    ),
    "one axis, dilated": qconv("int8", "int8", (1, 7, 13), (9, 7, 5), "dilations = [2], pads = [3, 1]"),
    "depthwise": qconv("int8", "int8", (1, 6, 14, 14), (6, 1, 3, 3), f"group = 6, {PAD}"),
    "three axes": qconv(
        "uint8", "int8", (1, 2, 5, 6, 7), (3, 2, 2, 3, 3), "strides = [1, 2, 3], pads = [1, 1, 1, 0, 1, 1]"
    ),
    "small image, many channels": qconv("uint8", "int8", (1, 40, 7, 7), (36, 40, 3, 3), PAD),
}  # fmt: skip


def _quantize(to: str, scale: tuple[int, ...], attrs: str = "axis = 1", source: str = "float") -> Case:
    given = {"x": (source, (4, 10)), "s": (source, scale), "z": (to, scale)}
    return Case(f"y = QuantizeLinear<{attrs}>(x, s, z)", given, f"{to}[] y")


def _dequantize(source: str, scale: tuple[int, ...], attrs: str = "axis = 1") -> Case:
    given = {"x": (source, (4, 10)), "s": ("float", scale), "z": (source, scale)}
    return Case(f"y = DequantizeLinear<{attrs}>(x, s, z)", given, "float[] y")


POINTWISE = {
    **{f"quantize to {t}": _quantize(t, ()) for t in ("int8", "uint8", "int16", "uint16")},
    "quantize by column": _quantize("int8", (10,)),
    "quantize by row": _quantize("uint8", (4,), "axis = 0"),
    "quantize by block": _quantize("int8", (4, 5), "axis = 1, block_size = 2"),
    "quantize by block, with a rest": _quantize("uint8", (4, 3), "axis = -1, block_size = 4"),
    "quantize halves": _quantize("int8", (), source="float16"),
    **{f"dequantize {t}": _dequantize(t, ()) for t in ("int8", "uint8", "int16", "uint16", "int32")},
    "dequantize by column": _dequantize("uint8", (10,)),
    "dequantize by block": _dequantize("int8", (2, 10), "axis = 0, block_size = 2"),
    "dynamic": Case(
        "y, v, w = DynamicQuantizeLinear(x)", {"x": ("float", (6, 50))}, "uint8[] y, float[] v, uint8[] w"
    ),
}  # fmt: skip
CASES = {**PRODUCTS, **CONVOLUTIONS, **POINTWISE}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_groups_mean_what_operators_do(case: Case) -> None:
    for got, want in zip(interpret.run(lowered(case.graph()), case.feeds()), case.expected(), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


CHAIN = (
    "p = Constant<value = uint8 {3}>() q = Constant<value = int8 {0}>() s = Constant<value = float {0.01}>() "
    "c = MatMulInteger(a, w, p, q) f = Cast<to = 1>(c) g = Mul(f, s) h = Add(g, d) r = Relu(h) "
    "z = Constant<value = uint8 {0}>() y = QuantizeLinear(r, s, z)"
)


def test_a_chain_around_a_product_is_one_group() -> None:
    given = "uint8[8, 16] a, int8[16, 12] w, float[12] d"
    found = lowered(parse(CHAIN, given, "uint8[8, 12] y")).groups
    assert [kind.split("(")[0] for kind in kinds(found)] == ["Loop", "Contraction"]


def test_numbers_out_of_range_are_clipped() -> None:
    case = Case(
        "s = Constant<value = float {0.5}>() z = Constant<value = int8 {-3}>() y = QuantizeLinear(x, s, z)",
        {"x": ("float", (7,))}, "int8[] y",
    )  # fmt: skip
    x = np.array([np.inf, -np.inf, 1e9, -1e9, 0.25, 0.75, -0.0], np.float32)
    (got,) = interpret.run(lowered(case.graph()), [x])
    np.testing.assert_array_equal(got, np.array([127, -128, 127, -128, -3, -1, -3], np.int8))


@pytest.mark.parametrize(("sizes", "count"), [("4, 768", 1), ("128, 768", 2), ("rows, 768", 2)])
def test_a_long_range_is_found_before_threads_share_the_rest(sizes: str, count: int) -> None:
    graph = parse("y, s, z = DynamicQuantizeLinear(x)", f"float[{sizes}] x", "uint8[] y, float[] s, uint8[] z")
    assert kinds(lowered(graph).groups) == ["Loop(DynamicQuantizeLinear)"] * count

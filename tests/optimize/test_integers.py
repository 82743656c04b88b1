"""Quantized models are multiplied in integers, and answer as their reals would, to one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sardonyx
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.optimize import manager
from sardonyx.optimize.fusions.integers import MAX_TERMS
from sardonyx.optimize.pipelines import INTEGERS
from tests.lower.agree import parse, part_of

Array = np.ndarray[Any, Any]


def constants(n: int) -> str:
    each = ", ".join(str(0.01 + 0.002 * i) for i in range(n))
    return (
        f"s = Constant<value = float {{0.02}}>() z = Constant<value = uint8 {{7}}>() "
        f"t = Constant<value = float[{n}] {{{each}}}>()"
        " o = Constant<value = float {0.9}>() i = Constant<value = float {0.015}>() j = Constant<value = int8 {-3}>() "
    )


CASES = {
    "product": (
        constants(6) + "a = DequantizeLinear(x, s, z) b = DequantizeLinear<axis = 1>(w, t) c = MatMul(a, b) "
        "d = Relu(c) y = QuantizeLinear(d, o, z)",
        "uint8[5, 24] x, int8[24, 6] w", "MatMulInteger",
    ),
    "product and term": (
        constants(6) + "a = DequantizeLinear(x, s, z) b = DequantizeLinear<axis = 0>(w, t) "
        "c = Gemm<transB = 1, alpha = 0.5, beta = 2.0>(a, b, v) y = QuantizeLinear(c, o, z)",
        "uint8[5, 24] x, int8[6, 24] w, float[6] v", "MatMulInteger",
    ),
    "convolution": (
        constants(6) + "a = DequantizeLinear(x, s, z) b = DequantizeLinear<axis = 0>(w, t) "
        "c = Conv<pads = [1, 1, 1, 1]>(a, b, v) y = QuantizeLinear(c, o, z)",
        "uint8[1, 8, 9, 9] x, int8[6, 8, 3, 3] w, float[6] v", "ConvInteger",
    ),
    "one scale, and a zero point": (
        constants(6) + "a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, i, j) c = MatMul(a, b) "
        "y = QuantizeLinear(c, o, z)",
        "uint8[2, 5, 24] x, int8[24, 6] w", "MatMulInteger",
    ),
    "both read twice": (
        constants(6) + "a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, i, j) c = MatMul(a, b) e = ReduceMean(a) "
        "f = Add(c, e) y = QuantizeLinear(f, o, z)",
        "uint8[5, 24] x, int8[24, 6] w", "MatMulInteger",
    ),
}  # fmt: skip
CASES |= {
    "rearranged and quantized again in between": (
        constants(6) + "h = Constant<value = int64[3] {5, 4, 6}>() a = DequantizeLinear(x, s, z) e = Reshape(a, h) "
        "f = QuantizeLinear(e, s, z) g = DequantizeLinear(f, s, z) k = Transpose<perm = [1, 0, 2]>(g) "
        "l = QuantizeLinear(k, s, z) m = DequantizeLinear(l, s, z) b = DequantizeLinear(w, i, j) c = MatMul(m, b) "
        "y = QuantizeLinear(c, o, z)",
        "uint8[5, 24] x, int8[6, 6] w", "MatMulInteger",
    ),
    "a depth that the run tells": (
        constants(6) + "a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, i, j) c = MatMul(a, b) "
        "y = QuantizeLinear(c, o, z)",
        "uint8[5, n] x, int8[n, 6] w", "MatMulInteger",
    ),
}  # fmt: skip
REFUSED = {
    "reals by integers": (
        constants(6) + "b = DequantizeLinear<axis = 1>(w, t) y = MatMul(x, b)", "float[5, 24] x, int8[24, 6] w"
    ),
    "a scale for each row": (
        constants(24) + "a = DequantizeLinear(x, s, z) b = DequantizeLinear<axis = 0>(w, t) y = MatMul(a, b)",
        "uint8[5, 24] x, int8[24, 6] w",
    ),
    "wider integers": (
        constants(6) + "k = Constant<value = uint16 {7}>() a = DequantizeLinear(x, s, k) b = DequantizeLinear(w, i, j) "
        "y = MatMul(a, b)",
        "uint16[5, 24] x, int8[24, 6] w",
    ),
    "a sum too long for i32": (
        constants(6) + "a = DequantizeLinear(x, s, z) b = DequantizeLinear(w, i, j) y = MatMul(a, b)",
        "uint8[1, 40000] x, int8[40000, 2] w",
    ),
}  # fmt: skip


def run(graph: Any, feeds: dict[str, Array]) -> list[Any]:
    part = part_of(graph)
    return Program(part.nodes, part.inputs, part.outputs, bind).run([feeds[v.name] for v in part.inputs], RunContext())


def random(graph: Any) -> dict[str, Array]:
    rng, found = np.random.default_rng(2), {}
    for value in part_of(graph).inputs:
        t = value.dtype.numpy
        low, high = (-3, 3) if t.kind == "f" else (np.iinfo(t).min, np.iinfo(t).max)
        shape = [24 if isinstance(d, str) else d for d in value.shape]
        found[value.name] = rng.integers(low, high, shape).astype(t)
    return found


@pytest.mark.parametrize(("body", "inputs", "integer"), CASES.values(), ids=CASES.keys())
def test_products_are_of_integers(body: str, inputs: str, integer: str) -> None:
    before, after = (parse(body, inputs, "uint8[] y") for _ in range(2))
    manager.run(after, INTEGERS)
    operators = [node.op_type for node in after.nodes]
    assert integer in operators and not {"MatMul", "Gemm", "Conv"} & set(operators)
    feeds = random(before)
    (want,), (got,) = run(before, feeds), run(after, feeds)
    assert len(np.unique(want)) > 8, "the case says nothing"
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


@pytest.mark.parametrize(("body", "inputs"), REFUSED.values(), ids=REFUSED.keys())
def test_products_of_wider_integers_are_kept(body: str, inputs: str) -> None:
    graph = parse(body, inputs, "float[] y")
    report = manager.run(graph, INTEGERS)
    assert not any("Integer" in node.op_type for node in graph.nodes)
    assert "a scale" not in inputs or report.declined


def test_quantizations_that_change_nothing_are_removed() -> None:
    body, inputs, _ = CASES["rearranged and quantized again in between"]
    graph = parse(body, inputs, "uint8[] y")
    manager.run(graph, INTEGERS)
    assert [node.op_type for node in graph.nodes].count("QuantizeLinear") == 1


def test_sums_of_unknown_length_may_be_long() -> None:
    """Sums that might not fit i32 are computed by numpy, and are errors only if they do not."""
    body, inputs, _ = CASES["a depth that the run tells"]
    onnx = pytest.importorskip("onnx")
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (uint8[5, 6] y) {{ {body} }}'
    session = sardonyx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    rng = np.random.default_rng(1)
    for n in (1, 100, MAX_TERMS, MAX_TERMS + 1, MAX_TERMS + 1, 100):
        x, w = rng.integers(0, 255, (5, n), np.uint8), rng.integers(-128, 127, (n, 6), np.int8)
        (got,) = session.run(None, {"x": x, "w": w})
        real = (x.astype(int) - 7) @ (w.astype(int) + 3) * (0.02 * 0.015)
        want = np.clip(np.rint(real / 0.9) + 7, 0, 255)
        assert np.abs(got - want).max() <= 1
    n = 3 * MAX_TERMS
    with pytest.raises(sardonyx.errors.InvalidArgument, match="a sum does not fit i32"):
        session.run(None, {"x": np.full((5, n), 255, np.uint8), "w": np.full((n, 6), 127, np.int8)})


def test_products_that_stay_in_reals_say_why() -> None:
    body = (
        "w = Constant<value = int8[3, 2] {1, -2, 3, 4, -5, 6}>() s = Constant<value = float {0.5}>() "
        "a = DequantizeLinear(w, s) y = MatMul(x, a)"
    )
    report = manager.run(parse(body, "float[4, 3] x", "float[] y"), INTEGERS)
    assert [d.reason for d in report.declined] == ["'x' is not dequantized: it is an input"]


def test_dequantized_constants_are_computed_once() -> None:
    body = (
        "w = Constant<value = int8[3, 2] {1, -2, 3, 4, -5, 6}>() s = Constant<value = float {0.5}>() "
        "a = DequantizeLinear(w, s) y = MatMul(x, a)"
    )
    graph = parse(body, "float[4, 3] x", "float[] y")
    manager.run(graph, INTEGERS)
    assert [node.op_type for node in graph.nodes] == ["MatMul"]
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.testing.assert_allclose(run(graph, {"x": x})[0], x @ np.array([[1, -2], [3, 4], [-5, 6]]) * 0.5)


def test_a_session_multiplies_integers_natively() -> None:
    onnx = pytest.importorskip("onnx")
    body, inputs, _ = CASES["convolution"]
    text = f'<ir_version: 10, opset_import: ["" : 21]> g ({inputs}) => (uint8[1, 6, 9, 9] y) {{ {body} }}'
    session = sardonyx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    counts = session.explain().counts()
    assert list(counts) == ["cpu"] and counts["cpu"]["ConvInteger"] == 1
    graph = parse(body, inputs, "uint8[] y")
    feeds = random(graph)
    (want,), (got,) = run(graph, feeds), session.run(None, feeds)
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("cpu", "rows", "is_integer"),
    [("haswell", 24, False), ("haswell", 2, True), ("cascadelake", 24, True), ("sapphirerapids", 24, True)],
)
def test_chips_without_byte_products_multiply_reals(
    cpu: str, rows: int, is_integer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    monkeypatch.setenv("SARDONYX_CPU", cpu)
    rng = np.random.default_rng(5)
    weights = ", ".join(map(str, rng.integers(-128, 127, 24 * 6).tolist()))
    body = constants(6) + (
        f"w = Constant<value = int8[24, 6] {{{weights}}}>() a = DequantizeLinear(x, s, z) "
        "b = DequantizeLinear<axis = 1>(w, t) c = MatMul(a, b) y = QuantizeLinear(c, o, z)"
    )
    text = f'<ir_version: 10, opset_import: ["" : 21]> g (uint8[{rows}, 24] x) => (uint8[{rows}, 6] y) {{ {body} }}'
    session = sardonyx.InferenceSession(onnx.parser.parse_model(text).SerializeToString())
    explanation = session.explain()
    assert ("MatMulInteger" in explanation.counts()["cpu"]) == is_integer
    assert is_integer == ("f32 products are quicker" not in str(explanation))
    graph = parse(body, f"uint8[{rows}, 24] x", "uint8[] y")
    x = rng.integers(0, 255, (rows, 24), np.uint8)
    (want,), (got,) = run(graph, {"x": x}), session.run(None, {"x": x})
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1

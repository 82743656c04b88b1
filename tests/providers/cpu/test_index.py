"""Kernels that gather, scatter, order and find, against the operators' own meanings."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from sardonyx.errors import Fail, InvalidArgument
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from tests.comparing import assert_same
from tests.lower.agree import ROUNDING, parse, part_of
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array

RNG = np.random.default_rng(5)


def agree(text: tuple[str, str, str], *every: list[Array], cpu: str | None = None, exact: bool = True) -> None:
    """A graph for several feeds, with one to three threads, all of which give the same bits."""
    graph, compiled = parse(*text), Compiled(*text, cpu)
    part = part_of(graph)
    program = Program(part.nodes, part.inputs, part.outputs, bind)
    for args in every:
        wanted = program.run(args, RunContext())
        alone = compiled.run(args, threads=1, checked=True)
        for got, want in zip(alone, wanted, strict=True):
            if exact:
                np.testing.assert_array_equal(got, want)
            else:
                assert_same(got, want, ROUNDING)
        for threads in (2, 3):
            for got, want in zip(compiled.run(args, threads=threads, checked=True), alone, strict=True):
                np.testing.assert_array_equal(got, want)


def reals(*shape: int, dtype: Any = "f") -> Array:
    return RNG.standard_normal(shape).astype(dtype)


def below(size: int, *shape: int, dtype: Any = "i8") -> Array:
    return RNG.integers(-size, size, shape).astype(dtype)


# Gathering


@pytest.mark.parametrize(("axis", "cpu"), [(0, None), (1, None), (2, None), (2, "skylake-avx512")])
def test_gather_elements(axis: int, cpu: str | None) -> None:
    text = (f"y = GatherElements<axis = {axis}>(x, i)", "float[n,m,o] x, int64[p,q,r] i", "float[p,q,r] y")
    feeds = []
    for shape in ((3, 4, 5), (1, 17, 2), (5, 1, 33)):
        less = [n if a != axis else n + 2 for a, n in enumerate(shape)]
        feeds.append([reals(*shape), below(shape[axis], *less)])
    feeds.append([reals(3, 4, 5), below(1, 2, 3, 0)])
    agree(text, *feeds, cpu=cpu)


def test_gather_nd_in_batches() -> None:
    text = ("y = GatherND<batch_dims = 2>(x, i)", "double[2,n,4,3,m] x, int64[2,n,5,2] i", "double[2,n,5,m] y")
    for n, m in ((3, 5), (1, 1)):
        agree(text, [reals(2, n, 4, 3, m, dtype="f8"), np.stack([below(4, 2, n, 5), below(3, 2, n, 5)], -1)])


@pytest.mark.parametrize(("batch", "time"), [(1, 0), (0, 1), (0, 2), (2, 0)])
def test_reverse_sequence(batch: int, time: int) -> None:
    shape = [4, 4, 4]
    shape[time] = 7
    text = (
        f"y = ReverseSequence<batch_axis = {batch}, time_axis = {time}>(x, l)",
        f"int16[{','.join(map(str, shape))}] x, int64[4] l", "int16[a,b,c] y",
    )  # fmt: skip
    agree(text, [np.arange(112, dtype="i2").reshape(shape), np.array([0, 1, 4, 7])])


# Scattering


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("none", "float16"), ("add", "float"), ("add", "float16"), ("mul", "int8"), ("max", "uint64"), ("min", "float")],
)
def test_scatter_elements(kind: str, dtype: str) -> None:
    text = (
        f'y = ScatterElements<axis = 1, reduction = "{kind}">(x, i, u)',
        f"{dtype}[n,m,o] x, int32[p,q,o] i, {dtype}[p,q,o] u", f"{dtype}[n,m,o] y",
    )  # fmt: skip
    numpy = {"float": "f4", "float16": "f2", "int8": "i1", "uint64": "u8"}[dtype]
    feeds = []
    for n, m, o, p, q in ((3, 4, 5, 2, 9), (2, 1, 1, 2, 3), (4, 5, 18, 4, 0)):
        x, u = (RNG.integers(0, 9, s).astype(numpy) for s in ((n, m, o), (p, q, o)))
        if dtype == "float" and x.size > 3 and u.size:
            x[0, 0, 0], u[0, 0, 0] = np.nan, np.nan
        feeds.append([x, below(m, p, q, o, dtype="i4"), u])
    agree(text, *feeds)


@pytest.mark.parametrize(
    ("kind", "cpu"), [("none", None), ("add", None), ("add", "skylake-avx512"), ("none", "sapphirerapids")]
)
def test_scatter_rows(kind: str, cpu: str | None) -> None:
    text = (
        f'y = ScatterND<reduction = "{kind}">(x, i, u)',
        "float[n,4,m] x, int64[p,2] i, float[p,m] u",
        "float[n,4,m] y",
    )
    feeds = []
    for n, m, p in ((3, 17, 20), (1, 1, 5), (7, 64, 2), (2, 5, 0)):
        i = np.stack([below(n, p), below(4, p)], -1)
        feeds.append([reals(n, 4, m), i, reals(p, m)])
    agree(text, *feeds, cpu=cpu)


def test_scatter_whole_tensors_and_single_elements() -> None:
    agree(
        ("y = ScatterND(x, i, u)", "bool[5,6] x, int64[2,3,2] i, bool[2,3] u", "bool[5,6] y"),
        [np.zeros((5, 6), bool), np.stack([below(5, 2, 3), below(6, 2, 3)], -1), np.ones((2, 3), bool)],
    )
    agree(
        ("y = ScatterND(x, i, u)", "float[5,6] x, int64[3,1] i, float[3,6] u", "float[5,6] y"),
        [reals(5, 6), np.array([[4], [0], [4]]), reals(3, 6)],
    )


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    text = (
        f'y = TensorScatter<mode = "{mode}">(x, u, w)',
        "float16[2,3,n,m] x, float16[2,3,2,m] u, int64[2] w", "float16[2,3,n,m] y",
    )  # fmt: skip
    start = np.array([0, 3] if mode == "linear" else [4, 9])
    agree(text, [reals(2, 3, 5, 7, dtype="f2"), reals(2, 3, 2, 7, dtype="f2"), start])


# Order


@pytest.mark.parametrize(
    ("kind", "flags", "axis"),
    [
        ("CumSum", "exclusive = 0", 0),
        ("CumSum", "reverse = 1", 1),
        ("CumSum", "exclusive = 1, reverse = 1", 2),
        ("CumProd", "exclusive = 1", 1),
    ],
)
def test_running_totals(kind: str, flags: str, axis: int) -> None:
    body = f"a = Constant<value_int = {axis}>() y = {kind}<{flags}>(x, a)"
    whole = [RNG.integers(-3, 4, s).astype("i4") for s in ((3, 4, 5), (2, 0, 3), (1, 17, 33))]
    agree((body, "int32[n,m,o] x", "int32[n,m,o] y"), *([x] for x in whole))
    if axis:
        feeds = [[reals(3, 4, 5)], [reals(1, 70, 20)]]
        agree((body, "float[n,m,o] x", "float[n,m,o] y"), *feeds, exact=False)


def test_running_totals_of_one_row() -> None:
    body = "a = Constant<value_int = 0>() y = CumSum(x, a)"
    agree((body, "double[n] x", "double[n] y"), [reals(1000, dtype="f8")], [reals(0, dtype="f8")], exact=False)
    agree((body, "float16[n] x", "float16[n] y"), [reals(10, dtype="f2")], exact=False)


@pytest.mark.parametrize(
    ("largest", "cpu"), [(0, None), (1, None), (0, "x86-64"), (1, "haswell"), (1, "sapphirerapids")]
)
def test_top_k_of_reals(cpu: str | None, largest: int) -> None:
    text = (
        f"s = Shape(t) y, i = TopK<largest = {largest}>(x, s)", "float[n,m] x, float[k] t",
        "float[n,k] y, int64[n,k] i",
    )  # fmt: skip
    feeds = []
    for n, m, count in (
        (3, 1, 1),
        (2, 16, 16),
        (2, 17, 3),
        (1, 1000, 100),
        (4, 33, 0),
        (3, 70, 1),
        (2, 300, 290),
        (1, 9000, 400),
        (2, 3000, 20),
        (1, 5000, 5000),
        (2, 161, 10),
        (2, 160, 10),
        (3, 140, 130),
    ):
        x = RNG.integers(-20, 20, (n, m)).astype("f")
        x[0, : m // 3] = np.resize(np.array([np.nan, -0.0, 0.0, np.inf, -np.inf], "f"), m // 3)
        feeds.append([x, np.zeros(count, "f")])
    agree(text, *feeds, cpu=cpu)


@pytest.mark.parametrize("dtype", ["f2", "f8", "i1", "u2", "i4", "u4", "i8", "u8"])
def test_top_k_of_every_type(dtype: str) -> None:
    name = {"f2": "float16", "f8": "double"}.get(dtype, f"{'u' if dtype[0] == 'u' else ''}int{8 * int(dtype[1])}")
    body = "k = Constant<value = int64[1] {3}>() y, i = TopK<axis = 1>(x, k)"
    text = (body, f"{name}[n,m,o] x", f"{name}[n,3,o] y, int64[n,3,o] i")
    if dtype[0] == "f":
        x = reals(2, 20, 3, dtype=dtype)
    else:
        info = np.iinfo(dtype)
        x = RNG.integers(info.min, info.max, (2, 20, 3), dtype=dtype, endpoint=True)
        x[0, 0], x[0, 1] = info.max, info.min
    agree(text, [x])


# Indices out of range


@pytest.mark.parametrize("index", [3, -4, 1 << 40])
def test_indices_outside_are_reported(index: int) -> None:
    pick = Compiled("y = GatherElements(x, i)", "float[3,2] x, int64[1,2] i", "float[1,2] y")
    put = Compiled("y = ScatterElements(x, i, x)", "float[3,2] x, int64[3,2] i", "float[3,2] y")
    with pytest.raises(Fail, match="error 1"):
        pick.run([reals(3, 2), np.array([[0, index]])], threads=2)
    with pytest.raises(Fail, match="error 1"):
        put.run([reals(3, 2), np.full((3, 2), index)], threads=2)


# Results as long as the data make them


@pytest.mark.parametrize("cpu", [None, "haswell", "sapphirerapids"])
def test_non_zero(cpu: str | None) -> None:
    feeds = []
    for shape in ((3, 5), (1, 1), (0, 4), (70, 130), (2, 17)):
        x = np.where(RNG.random(shape) < 0.3, RNG.standard_normal(shape), 0).astype("f")
        feeds.append([x])
    feeds += [[np.zeros((90, 100), "f")], [np.full((90, 100), np.nan, "f")]]
    agree(("y = NonZero(x)", "float[n,m] x", "int64[2,k] y"), *feeds, cpu=cpu)


def test_non_zero_of_other_ranks() -> None:
    agree(("y = NonZero(x)", "bool[n] x", "int64[1,k] y"), [RNG.random(10_000) < 0.5], [np.zeros(0, bool)])
    agree(("y = NonZero(x)", "int64[n,2,3] x", "int64[3,k] y"), [RNG.integers(0, 2, (4, 2, 3))])
    agree(("t = Transpose(x) y = NonZero(t)", "bool[n,m] x", "int64[2,k] y"), [RNG.random((7, 5)) < 0.5])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_compress(axis: int) -> None:
    text = (f"y = Compress<axis = {axis}>(x, c)", "float16[n,m,o] x, bool[k] c", "float16[a,b,c] y")
    for shape in ((3, 4, 5), (1, 20, 2)):
        for length in (shape[axis], shape[axis] - 1):
            agree(text, [reals(*shape, dtype="f2"), RNG.random(length) < 0.6])


@pytest.mark.parametrize(("is_sorted", "dtype"), [(0, "float"), (1, "float"), (1, "uint8"), (0, "int64")])
def test_unique(is_sorted: int, dtype: str) -> None:
    text = (
        f"y, a, b, c = Unique<sorted = {is_sorted}>(x)", f"{dtype}[n,m] x",
        f"{dtype}[k] y, int64[k] a, int64[l] b, int64[k] c",
    )  # fmt: skip
    numpy = {"float": "f4", "uint8": "u1", "int64": "i8"}[dtype]
    feeds = [[RNG.integers(0, top, shape).astype(numpy)] for shape, top in (((4, 5), 6), ((1, 1), 2), ((30, 9), 100))]
    if dtype == "float":
        feeds.append([np.array([[np.nan, 1, -0.0, 0.0, np.nan, -np.inf]], "f")])
    agree(text, *feeds)


@pytest.mark.parametrize("axis", [0, 1])
def test_unique_rows(axis: int) -> None:
    text = (
        f"y, a, b, c = Unique<axis = {axis}>(x)",
        "int32[n,m] x",
        "int32[k,l] y, int64[o] a, int64[p] b, int64[o] c",
    )
    agree(text, [RNG.integers(0, 2, (9, 2)).astype("i4")], [RNG.integers(0, 2, (2, 9)).astype("i4")])


@pytest.mark.parametrize(("centered", "cpu"), [(0, None), (1, None), (0, "skylake-avx512")])
def test_non_max_suppression(centered: int, cpu: str | None) -> None:
    body = f"""k = Constant<value = int64[1] {{7}}>() t = Constant<value = float[1] {{0.2}}>()
        s = Constant<value = float[1] {{0.4}}>() y = NonMaxSuppression<center_point_box = {centered}>(b, p, k, t, s)"""
    feeds = []
    for batch, classes, count in ((2, 3, 60), (1, 1, 1), (1, 2, 0), (1, 4, 33)):
        scores = np.round(RNG.random((batch, classes, count)), 1).astype("f")
        feeds.append([RNG.random((batch, count, 4)).astype("f"), scores])
    agree((body, "float[n,m,4] b, float[n,o,m] p", "int64[k,3] y"), *feeds, cpu=cpu)


def test_non_max_suppression_without_thresholds() -> None:
    body = "k = Constant<value = int64[1] {100}>() y = NonMaxSuppression(b, p, k)"
    feeds = [RNG.random((1, 40, 4)).astype("f"), RNG.random((1, 2, 40)).astype("f")]
    agree((body, "float[1,m,4] b, float[1,2,m] p", "int64[k,3] y"), feeds)


def test_bits_of_another_type() -> None:
    agree(("t = Transpose(x) y = BitCast<to = 6>(t)", "float[n,m] x", "int32[m,n] y"), [reals(5, 17)], [reals(0, 3)])
    agree(("y = BitCast<to = 16>(x)", "uint16[n] x", "bfloat16[n] y"), [np.arange(9, dtype="u2")])


@pytest.mark.parametrize("keepdims", [0, 1])
def test_arg_over_an_empty_axis(keepdims: int) -> None:
    shape = ["n", *([1] * keepdims), "k"]
    body = f"y = ArgMax<axis = 1, keepdims = {keepdims}>(x)"
    text = (body, "float[n,m,k] x", f"int64[{','.join(map(str, shape))}] y")
    agree(text, [reals(0, 0, 5)], [reals(2, 0, 0)], [reals(2, 3, 0)], [reals(2, 3, 4)])
    with pytest.raises(InvalidArgument, match="empty"):
        Compiled(*text).run([reals(2, 0, 4)])


@pytest.mark.parametrize(
    ("dtype", "indices"),
    [
        ("float", [np.nan, np.inf, -np.inf, 1e30, -1e30, -0.5, 2.75, -3, 3, -4]),
        ("double", [np.nan, np.inf, -np.inf, 1e300, -1e300, -0.5, 2.75, -3, 3, -4]),
        ("float16", [np.nan, np.inf, -np.inf, -0.5, 2.75, -3, 3, -4]),
        ("uint64", [0, 2, 3, (1 << 64) - 1, (1 << 64) - 3, 1 << 63, (1 << 63) - 1]),
        ("int64", [0, 2, 3, -3, -4, (1 << 63) - 1, -(1 << 63)]),
        ("uint32", [0, 2, 3, (1 << 32) - 1, (1 << 32) - 3, 1 << 31]),
        ("uint8", [0, 2, 3, 255, 253]),
        ("int8", [0, 2, 3, -3, -4, 127, -128]),
    ],
)
def test_one_hot_of_indices_out_of_range(dtype: str, indices: list[float]) -> None:
    body = "d = Constant<value_int = 3>() y = OneHot<axis = 0>(i, d, v)"
    text = (body, f"{dtype}[n] i, float[2] v", "float[3,n] y")
    given = np.array(indices, dtype if dtype not in ("float", "double") else dtype[0])
    agree(text, [given, np.array([0, 1], "f")], [np.repeat(given, 5), np.array([2, 1], "f")])


# Against another engine, in sessions


ELSEWHERE = {
    "TopK": (
        "k = Constant<value = int64[1] {6}>() y, i = TopK<axis = 0>(x, k)", "float[n,m] x", "float[k,m] y, int64[k,m] i"
    ),
    "ScatterND": ('y = ScatterND<reduction = "mul">(x, i, x)', "float[n,m] x, int64[n,1] i", "float[n,m] y"),
    "ScatterElements": (
        'y = ScatterElements<axis = 1, reduction = "add">(x, i, x)', "float[n,m] x, int64[n,m] i", "float[n,m] y"
    ),
    "GatherElements": ("y = GatherElements(x, i)", "float[n,m] x, int64[n,m] i", "float[n,m] y"),
    "CumSum": (
        "a = Constant<value_int = 0>() y = CumSum<exclusive = 1, reverse = 1>(x, a)", "float[n,m] x", "float[n,m] y"
    ),
    "NonZero": ("r = Relu(x) y = NonZero(r)", "float[n,m] x", "int64[2,k] y"),
    "Compress": ("c = Cast<to = 9>(i) y = Compress<axis = 1>(x, c)", "float[n,m] x, int64[k] i", "float[n,l] y"),
    "Unique": (
        "f = Floor(x) y, a, b, c = Unique<sorted = 0>(f)", "float[n,m] x",
        "float[k] y, int64[k] a, int64[l] b, int64[k] c",
    ),
    "ReverseSequence": ("y = ReverseSequence(x, l)", "float[9,m] x, int64[m] l", "float[9,m] y"),
    "Trilu": ("y = Trilu<upper = 0>(x, k)", "float[n,m] x, int64 k", "float[n,m] y"),
}  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE)
def test_answers_as_onnxruntime(name: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    body, inputs, outputs = ELSEWHERE[name]
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {body} }}'
    ).SerializeToString()
    ours, theirs = ort.InferenceSession(model), peer.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert set(ours.explain().counts()) == {"cpu"}
    given = {"x": reals(9, 7), "l": RNG.integers(0, 10, 7), "k": np.array(-2)}
    given["i"] = RNG.integers(-2, 3, {"ScatterND": (9, 1), "Compress": (6,)}.get(name, (9, 7)))
    feeds = {v.name: given[v.name] for v in theirs.get_inputs()}
    for got, want in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

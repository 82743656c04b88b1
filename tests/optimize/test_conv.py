"""Convolutions take in what surrounds them, and give the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sardonyx.ir.builder import Builder
from sardonyx.ir.graph import Graph, Value
from sardonyx.ir.tensor import Tensor
from sardonyx.optimize import manager
from tests.optimize.rewritten import Case, check, unchecked

PASSES = (
    "FoldPadConv", "FoldConvMul", "FoldConvAdd", "FoldConvBatchNorm", "FoldBatchNormConv", "FoldMulConv",
    "FoldPadAveragePool", "FoldPadMaxPool", "FuseSpaceToDepth", "FoldGatherConv",
)  # fmt: skip


def norm(channels: int, **more: Any) -> dict[str, Any]:
    variance = np.linspace(0.5, 2, channels, dtype=np.float32)
    return {"s": (channels,), "t": (channels,), "m": (channels,), "v": variance, **more}


W, B = (4, 3, 3, 3), (4,)
BN = "BatchNormalization"
PADS = np.array([0, 0, 1, 2, 0, 0, 2, 1], np.int64)

FOLDED = {
    "batch norm": Case("a = Conv(x, w, b) y = BatchNormalization(a, s, t, m, v)", ["Conv"], consts=norm(4, w=W, b=B)),
    "batch norm, no bias": Case("a = Conv(x, w) y = BatchNormalization(a, s, t, m, v)", ["Conv"], consts=norm(4, w=W)),
    "batch norm of groups": Case(
        "a = Conv<group=3>(x, w, b) y = BatchNormalization(a, s, t, m, v)", ["Conv"],
        consts=norm(6, w=(6, 1, 3, 3), b=(6,)),
    ),
    "batch norm of a transposed convolution of groups": Case(
        "a = ConvTranspose<group=3>(x, w, b) y = BatchNormalization(a, s, t, m, v)", ["ConvTranspose"],
        {"x": (2, 6, 5, 5)}, norm(12, w=(6, 4, 3, 3), b=(12,)),
    ),
    "batch norm in one dimension": Case(
        "a = Conv(x, w) y = BatchNormalization(a, s, t, m, v)", ["Conv"], {"x": (2, 3, 9)}, norm(4, w=(4, 3, 3))
    ),
    "factor and term": Case(
        "a = Conv(x, w, b) c = Mul(k, a) y = Add(c, d)", ["Conv"],
        consts={"w": W, "b": B, "k": (1, 4, 1, 1), "d": (4, 1, 1)},
    ),
    "scalar divisor": Case("a = Conv(x, w, b) y = Div(a, k)", ["Conv"], consts={"w": W, "b": B, "k": (1,)}),
    "subtraction": Case("a = Conv(x, w) y = Sub(a, d)", ["Conv"], consts={"w": W, "d": (4, 1, 1)}),
    "subtraction from": Case("a = Conv(x, w, b) y = Sub(d, a)", ["Conv"], consts={"w": W, "b": B, "d": (4, 1, 1)}),
    "batch norm before": Case(
        "a = BatchNormalization(x, s, t, m, v) y = Conv(a, w, b)", ["Conv"], consts=norm(3, w=W, b=B)
    ),
    "batch norm before groups": Case(
        "a = BatchNormalization(x, s, t, m, v) y = Conv<group=3>(a, w)", ["Conv"], consts=norm(3, w=(6, 1, 3, 3))
    ),
    "factor before, padded": Case(
        "a = Mul(k, x) y = Conv<pads=[1,1,1,1]>(a, w, b)", ["Conv"], consts={"w": W, "b": B, "k": (3, 1, 1)}
    ),
    "divisor before": Case("a = Div(x, k) y = Conv(a, w)", ["Conv"], consts={"w": W, "k": ()}),
    "pad": Case("a = Pad(x, p) y = Conv<pads=[1,0,0,1]>(a, w)", ["Conv"], consts={"w": W, "p": PADS}),
    "pad of named axes": Case(
        "a = Pad(x, p, , q) y = Conv(a, w)", ["Conv"],
        consts={"w": W, "p": np.array([1, 2, 3, 0]), "q": np.array([-1, 2])},
    ),
    "pad before an average": Case(
        "a = Pad(x, p) y = AveragePool<kernel_shape=[3,3]>(a)", ["AveragePool"], consts={"p": PADS}
    ),
    "pad before a maximum": Case(
        "a = Pad(x, p, f) y = MaxPool<kernel_shape=[3,3]>(a)", ["MaxPool"],
        consts={"p": PADS, "f": np.array(-np.inf, np.float32)},
    ),
    "pad with zeros before a maximum of what is never less": Case(
        "r = Relu(x) a = Pad(r, p) y = MaxPool<kernel_shape=[3,3]>(a)", ["Relu", "MaxPool"], consts={"p": PADS}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FOLDED.values(), ids=FOLDED.keys())
def test_folded(case: Case) -> None:
    check(case, *PASSES)


KEPT = {
    "weight from outside": Case(
        "a = Conv(x, w) y = BatchNormalization(a, s, t, m, v)", ["Conv", BN], {"x": (2, 3, 6, 6), "w": W}, norm(4),
        reason="the weight is not a constant",
    ),
    "bias from outside": Case(
        "a = Conv(x, w, b) y = Mul(a, k)", ["Conv", "Mul"], {"x": (2, 3, 6, 6), "b": B}, {"w": W, "k": (4, 1, 1)},
        reason="the bias is not a constant",
    ),
    "another reader": Case(
        "a = Conv(x, w) b = Relu(a) c = BatchNormalization(a, s, t, m, v) y = Add(b, c)", ["Conv", "Relu", BN, "Add"],
        consts=norm(4, w=W), reason="is also read by",
    ),
    "graph output inside": Case(
        "a = Conv(x, w) y = Mul(a, k)", ["Conv", "Mul"], consts={"w": W, "k": ()}, outputs="float[] y, float[] a",
        reason="is a graph output",
    ),
    "training": Case(
        "a = Conv(x, w) y, p, q = BatchNormalization<training_mode=1>(a, s, t, m, v)", ["Conv", BN],
        consts=norm(4, w=W), reason="statistics of the batch",
    ),
    "factor per pixel": Case(
        "a = Conv(x, w) y = Mul(a, k)", ["Conv", "Mul"], consts={"w": W, "k": (4, 4)}, reason="one number per channel"
    ),
    "factor that broadcasts the result": Case(
        "a = Conv(x, w) y = Mul(a, k)", ["Conv", "Mul"], consts={"w": (1, 3, 3, 3), "k": (4, 1, 1)},
        reason="one number per channel",
    ),
    "batch norm before padding": Case(
        "a = BatchNormalization(x, s, t, m, v) y = Conv<pads=[1,1,1,1]>(a, w)", [BN, "Conv"], consts=norm(3, w=W),
        reason="padding would be shifted",
    ),
    "pad with something": Case(
        "a = Pad(x, p, f) y = Conv(a, w)", ["Pad", "Conv"],
        consts={"w": W, "p": PADS, "f": np.array(1, np.float32)}, reason="padding is not zero",
    ),
    "pad of channels": Case(
        "a = Pad(x, p) y = Conv(a, w)", ["Pad", "Conv"],
        consts={"w": W, "p": np.array([0, 1, 0, 0, 0, 0, 0, 0])}, feeds={"x": (2, 2, 6, 6)}, reason="batch or channels",
    ),
    "pad that cuts": Case(
        "a = Pad(x, p) y = Conv(a, w)", ["Pad", "Conv"],
        consts={"w": W, "p": np.array([0, 0, -1, 0, 0, 0, 0, 0])}, reason="it crops",
    ),
    "pad by reflection": Case(
        'a = Pad<mode="reflect">(x, p) y = Conv(a, w)', ["Pad", "Conv"], consts={"w": W, "p": PADS},
        reason="with a constant",
    ),
    "pad with zeros before a maximum": Case(
        "a = Pad(x, p) y = MaxPool<kernel_shape=[3,3]>(a)", ["Pad", "MaxPool"], consts={"p": PADS},
        reason="may be the maximum",
    ),
    "pad as wide as the pool": Case(
        "a = Pad(x, p) y = AveragePool<kernel_shape=[2,2]>(a)", ["Pad", "AveragePool"], consts={"p": PADS},
        reason="padding only",
    ),
    "average that leaves its own padding out": Case(
        "a = Pad(x, p) y = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(a)", ["Pad", "AveragePool"],
        consts={"p": PADS}, reason="out of the average",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT.values(), ids=KEPT.keys())
def test_near_misses_are_reported_with_a_reason(case: Case) -> None:
    check(case, *PASSES)


def test_half_precision_is_folded_in_single() -> None:
    rng = np.random.default_rng(1)
    half = {
        k: rng.normal(size=s).astype(np.float16) for k, s in {"w": W, "b": B, "k": (4, 1, 1), "d": (4, 1, 1)}.items()
    }
    feeds = {"x": rng.normal(size=(1, 3, 5, 5)).astype(np.float16)}
    case = Case("a = Conv(x, w, b) c = Mul(a, k) y = Add(c, d)", ["Conv"], feeds, half, "float16[] y")
    check(case, *PASSES, tolerance=5e-3)


def test_weights_are_read_on_demand() -> None:
    graph = Graph("g", [Value("x")])
    op = Builder(graph)
    fetched: list[str] = []

    def constant(name: str, *shape: int) -> Value:
        def fetch() -> Any:
            fetched.append(name)
            return np.full(shape, 2, np.float32)

        return op.const(Tensor(Tensor.of(np.float32(0)).dtype, shape, fetch, name=name))

    a = op.Conv(graph.inputs[0], constant("w", 4, 3, 3, 3))
    graph.add_output(op.BatchNormalization(a, *(constant(n, 4) for n in "stmv")), "y")
    manager.run(graph, ("FoldConvBatchNorm",))
    (conv,) = graph.nodes
    assert conv.op_type == "Conv" and not fetched
    assert conv.inputs[1] is not None and conv.inputs[2] is not None
    np.testing.assert_allclose(conv.inputs[1].numpy(), 4 / np.sqrt(2 + 1e-5), rtol=1e-6)
    np.testing.assert_allclose(conv.inputs[2].numpy(), 2 - 4 / np.sqrt(2 + 1e-5), rtol=1e-6)


def focus(order: list[tuple[int, int]]) -> str:
    end, steps = "e = Constant<value_ints=[9223372036854775807]>()", "t = Constant<value_ints=[2]>()"
    axes = "h = Constant<value_ints=[2]>() w = Constant<value_ints=[-1]>()"
    starts = " ".join(f"s{i} = Constant<value_ints=[{i}]>()" for i in (0, 1, 2))
    rows = " ".join(f"r{i} = Slice(x, s{i}, e, h, t)" for i in sorted({i for i, _ in order}))
    cells = " ".join(f"c{k} = Slice(r{i}, s{j}, e, w, t)" for k, (i, j) in enumerate(order))
    return f"{end} {steps} {axes} {starts} {rows} {cells} a = Concat<axis=1>(c0, c1, c2, c3)"


def test_focus_becomes_space_to_depth_and_its_order_of_channels_goes_into_the_convolution() -> None:
    order = [(0, 0), (1, 0), (0, 1), (1, 1)]
    consts = {"k": (4, 12, 3, 3)}
    check(Case(focus(order) + " y = Conv(a, k)", ["SpaceToDepth", "Conv"], consts=consts), *PASSES)
    check(Case(focus(order) + " y = Relu(a)", ["SpaceToDepth", "Gather", "Relu"]), *PASSES)
    check(Case(focus(sorted(order)) + " y = Relu(a)", ["SpaceToDepth", "Relu"]), *PASSES)


def test_slices_that_overlap_are_no_space_to_depth() -> None:
    order = [(0, 0), (1, 0), (0, 0), (1, 1)]
    check(
        Case(focus(order) + " y = Relu(a)", ["Slice", "Slice", "Slice", "Slice", "Slice", "Slice", "Concat", "Relu"]),
        *PASSES,
    )


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("name", [n for n, case in FOLDED.items() if "w" in case.consts])
def test_weights_without_a_window_are_left_alone(name: str, rank: int) -> None:
    """What is wrong with the convolution, its meaning says when it runs."""
    model = unchecked(replace(FOLDED[name], consts={**FOLDED[name].consts, "w": (4,) * rank}))
    manager.run(model.graph, PASSES)

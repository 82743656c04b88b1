"""Small convolutions of one input, before and after."""

from __future__ import annotations

import pytest

from sardonyx.optimize import manager
from tests.optimize.rewritten import Case, check, unchecked

X = {"x": (2, 6, 5, 7)}
HEADS = {"u": (1, 6, 1, 1), "v": (4, 6, 1, 1), "w": (10, 6, 1, 1), "c": (4,)}
HEADS_TEXT = "a = Conv(x, u) b = Conv(x, v, c) d = Conv(x, w)"
THREE = "float[] a, float[] b, float[] d"

CASES = {
    "three heads": Case(HEADS_TEXT, ["Conv", "Split"], X, HEADS, THREE),
    "with what follows, channel by channel": Case(
        HEADS_TEXT
        + " e = Conv<pads=[1,1,1,1]>(a, p) f = Conv<group=4, pads=[1,1,1,1]>(b, q, c)"
        + " g = Conv<group=10, pads=[1,1,1,1]>(d, r) y = Sigmoid(e)",
        ["Conv", "Conv", "Split", "Sigmoid"], X,
        {**HEADS, "p": (1, 1, 3, 3), "q": (4, 1, 3, 3), "r": (10, 1, 3, 3)}, "float[] y, float[] f, float[] g",
    ),
    "windows differ": Case(
        "a = Conv(x, u) b = Conv(x, v) d = Conv<pads=[1,1,1,1]>(x, w)", ["Conv", "Conv", "Conv"], X, HEADS, THREE,
        reason="2 can be merged, 3 are needed; Conv node -> 'd' has another window",
    ),
    "only two": Case("a = Conv(x, u) b = Conv(x, v)", ["Conv", "Conv"], X, HEADS, "float[] a, float[] b",
                     reason="of the convolutions of x, 2 can be merged, 3 are needed"),
    "many filters": Case(HEADS_TEXT, ["Conv", "Conv", "Conv"], X, {**HEADS, "w": (16, 6, 1, 1)}, THREE,
                         reason="Conv node -> 'd' has 16 filters, which fill a vector"),
    "not all of what follows": Case(
        HEADS_TEXT + " e = Conv(a, p) f = Conv<group=4>(b, q)", ["Conv", "Split", "Conv", "Conv"], X,
        {**HEADS, "p": (1, 1, 3, 3), "q": (4, 1, 3, 3)}, "float[] e, float[] f, float[] d",
        reason="an output of the Split is a graph output",
    ),
    "weights are not constant": Case(
        "a = Conv(x, u) b = Conv(x, v) d = Conv(x, z)", ["Conv", "Conv", "Conv"], {**X, "z": (3, 6, 1, 1)}, HEADS,
        THREE, reason="Conv node -> 'd' has weights that are not constant",
    ),
    "a group": Case(
        "a = Conv(x, u) b = Conv(x, v) d = Conv<group=2>(x, z)", ["Conv", "Conv", "Conv"], X,
        {**HEADS, "z": (4, 3, 1, 1)}, THREE, reason="Conv node -> 'd' is grouped",
    ),
    "a channel slice that is also read by others": Case(
        "a, b = Split<axis=1, num_outputs=2>(x) d = Conv<group=3>(a, p) e = Conv<group=3>(b, p) f = Relu(b)",
        ["Split", "Conv", "Conv", "Relu"], X, {"p": (3, 1, 3, 3)}, "float[] d, float[] e, float[] f",
        reason="an output of the Split has 2 readers (b)",
    ),
    "a channel slice that is not convolved": Case(
        "a, b = Split<axis=1, num_outputs=2>(x) d = Conv<group=3>(a, p) e = Relu(b)",
        ["Split", "Conv", "Relu"], X, {"p": (3, 1, 3, 3)}, "float[] d, float[] e",
        reason="Relu node -> 'e' is not a depthwise convolution (b)",
    ),
    "depthwise windows differ": Case(
        "a, b = Split<axis=1, num_outputs=2>(x) d = Conv<group=3>(a, p) e = Conv<group=3, pads=[1,1,1,1]>(b, p)",
        ["Split", "Conv", "Conv"], X, {"p": (3, 1, 3, 3)}, "float[] d, float[] e",
        reason="the windows or attributes of the convolutions differ (b)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_siblings(case: Case) -> None:
    check(case, "JoinConvs", "JoinDepthwiseConvs")


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_weights_without_a_window_are_left_alone(rank: int) -> None:
    model = unchecked(Case(HEADS_TEXT, [], X, dict.fromkeys("uvw", (4,) * rank) | {"c": (4,)}, THREE))
    manager.run(model.graph, ("JoinConvs", "JoinDepthwiseConvs"))
    assert [n.op_type for n in model.graph.nodes] == ["Conv"] * 3


def test_a_convolution_without_siblings_is_not_reported() -> None:
    report = check(Case("a = Conv(x, u) y = Relu(x)", ["Conv", "Relu"], X, HEADS, "float[] a, float[] y"), "JoinConvs")
    assert not report.declined

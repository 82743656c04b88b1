"""Small convolutions side by side, before and after."""

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
        "a = Conv(x, u) b = Conv(x, v) d = Conv<pads=[1,1,1,1]>(x, w)", ["Conv", "Conv", "Conv"], X, HEADS, THREE
    ),
    "only two": Case("a = Conv(x, u) b = Conv(x, v)", ["Conv", "Conv"], X, HEADS, "float[] a, float[] b"),
    "many filters": Case(HEADS_TEXT, ["Conv", "Conv", "Conv"], X, {**HEADS, "w": (16, 6, 1, 1)}, THREE),
    "not all of what follows": Case(
        HEADS_TEXT + " e = Conv(a, p) f = Conv<group=4>(b, q)", ["Conv", "Split", "Conv", "Conv"], X,
        {**HEADS, "p": (1, 1, 3, 3), "q": (4, 1, 3, 3)}, "float[] e, float[] f, float[] d",
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

"""Which results are known not to be negative."""

from __future__ import annotations

import pytest

from sardonyx.lower.analysis.signs import never_negative
from tests.lower.agree import compare, lowered, parse

INPUTS = "float[2,4,6,6] x, float[4,4,1,1] w, float[4] b"
CONV = "c = Conv(x, w, b) "
KNOWN = {
    "a rectified convolution": CONV + "y = Relu(c)",
    "a residual": CONV + "a = Add(c, x) y = Relu(a)",
    "between bounds": CONV
    + "l = Constant<value = float {0.0}>() h = Constant<value = float {6.0}>() y = Clip(c, l, h)",
    "a sigmoid": CONV + "y = Sigmoid(c)",
    "a sum of such": "e = Exp(x) r = Relu(x) y = Add(e, r)",
    "pooled": CONV + "r = Relu(c) y = MaxPool<kernel_shape = [1, 1]>(r)",
    "joined": CONV + "r = Relu(c) e = Exp(x) y = Concat<axis = 1>(r, e)",
}
UNKNOWN = {
    "a convolution": CONV + "y = Identity(c)",
    "from a rectified one": "r = Relu(x) y = Conv(r, w, b)",
    "a bound below zero": "l = Constant<value = float {-1.0}>() y = Clip(x, l)",
    "a difference": "e = Exp(x) r = Relu(x) y = Sub(e, r)",
    "joined with others": CONV + "r = Relu(c) y = Concat<axis = 1>(r, x)",
    "swish": "y = Swish(x)",
}


def is_known(body: str) -> bool:
    graph = parse(body, INPUTS, "float[2,C,6,6] y")
    compare(graph)
    found = lowered(graph)
    (output,) = {v.storage for group in found.groups for v in group.writes if v.storage.kind == "output"}
    return output in never_negative(found.groups)


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str) -> None:
    assert is_known(KNOWN[name])


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown(name: str) -> None:
    assert not is_known(UNKNOWN[name])

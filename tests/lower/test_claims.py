"""What is refused, and the sentence that says why."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.lower import interpret
from sardonyx.lower.build import lower
from sardonyx.lower.claims import refusal, refusals
from sardonyx.lower.sizes import Refused
from sardonyx.partition.provider import Part
from tests.lower.agree import feeds, kinds, lowered, parse, part_of

REFUSED = {
    "depends on the data": ("y = Expand(x, s)", "float[n,m] x, int64[2] s", "float[k,l] y"),
    "'y' depends": ("y = Resize(x, , , t)", "float[4,4] x, int64[2] t", "float[8,8] y"),
    "are not known before the run": ("y = Trilu(x, k)", "float[n,m] x, int64 k", "float[n,m] y"),
    "elements of type string": ("y = Identity(x)", "string[n] x", "string[n] y"),
    "Det of more than": ("y = Det(x)", "float[n,5,5] x", "float[n] y"),
    "indices and values differ in rank": (
        "y = MaxUnpool<kernel_shape=[2,2]>(x, i)", "float[n,1,4,4] x, int64[n,1,4] i", "float[n,1,5,5] y",
    ),
    "the result are not of the image's rank": (
        "y = ConvTranspose<output_shape=[1]>(x, w)", "float[n,1,4,4] x, float[1,1,2,2] w", "float[n,1,1] y",
    ),
    "an axis is given twice": (
        "a = Constant<value_ints=[0,-2]>() b = Constant<value_ints=[2,2]>() y = Slice(x, a, b, a)", "float[4,3] x",
        "float[2,3] y",
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refusal_has_a_reason(reason: str) -> None:
    graph = parse(*REFUSED[reason])
    said = [why for why in refusals(graph).values() if why]
    assert len(said) == 1 and reason in said[0]


def test_unknown_rank_is_refused() -> None:
    graph = parse("y = Relu(x)", "float[n] x", "float[n] y")
    graph.inputs[0].type = None
    (node,) = graph.nodes
    assert "rank" in str(refusal(node))


def test_sizes_that_do_not_fit_are_an_error_of_the_caller() -> None:
    graph = parse("y = Add(x, z)", "float[n,4] x, float[m,4] z", "float[k,4] y")
    part, found = part_of(graph), lowered(graph)
    assert found.checks
    for sizes in ({"n": 3, "m": 3}, {"n": 3, "m": 1}, {"n": 1, "m": 3}):
        interpret.run(found, feeds(part, sizes))
    with pytest.raises(InvalidArgument, match="Add"):
        interpret.run(found, feeds(part, {"n": 3, "m": 2}))


def test_indices_are_checked() -> None:
    graph = parse("y = GatherND(x, i)", "float[3,4] x, int64[n,2] i", "float[n] y")
    x, _ = feeds(part_of(graph), {"n": 1})
    interpret.run(lowered(graph), [x, np.array([[-3, 3]])])
    for wrong in ([0, 4], [3, 0], [-4, 0]):
        with pytest.raises(InvalidArgument, match="out of range"):
            interpret.run(lowered(graph), [x, np.array([wrong])])


def test_a_part_with_unbound_names_uses_the_bound_ones() -> None:
    graph = parse(
        "a = Conv(x, w) b = Relu(a) c = Exp(b) y = Concat<axis = 0>(b, c)",
        "float[n,1,h,8] x, float[4,1,3,3] w", "float[k,4,l,6] y",
    )  # fmt: skip
    conv, *rest = graph.nodes
    found = lower(Part(tuple(rest), conv.outputs, tuple(graph.outputs)))
    assert len(found.sizes) == 2 and "h" not in found.sizes
    assert kinds(found.groups) == ["Loop(Relu Exp Concat)"]


def test_a_part_that_cannot_know_a_size_is_refused() -> None:
    graph = parse(
        "s = Shape(x) a = Conv(z, w) y = Expand(a, s)",
        "float[n,1,1,1] x, float[1,1,8,8] z, float[1,1,8,8] w", "float[n,1,1,1] y",
    )  # fmt: skip
    _, conv, expand = graph.nodes
    with pytest.raises(Refused, match="n"):
        lower(Part((expand,), conv.outputs, tuple(graph.outputs)))

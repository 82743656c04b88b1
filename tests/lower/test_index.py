"""Gathering, scattering, ordering and finding: what they are lowered to means what the operators mean."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.lower import interpret
from sardonyx.lower.groups import Loop
from tests.lower.agree import compare, lowered, parse

SAME = {
    "GatherElements": ("y = GatherElements<axis = 1>(x, i)", "float[n,4,m] x, int64[n,2,m] i", "float[n,2,m] y"),
    "GatherElements of a part": (
        "y = GatherElements<axis = 1>(x, i)", "float[8,4,m] x, int32[3,5,m] i", "float[3,5,m] y"
    ),
    "GatherND": (
        "y = GatherND<batch_dims = 1>(x, i)", "float[n,4,3,m] x, int64[n,5,2] i", "float[n,5,m] y"
    ),
    "ReverseSequence": ("y = ReverseSequence(x, l)", "float[5,n,m] x, int64[n] l", "float[5,n,m] y"),
    "ReverseSequence by batch": (
        "y = ReverseSequence<batch_axis = 0, time_axis = 2>(x, l)", "float[n,m,5] x, int64[n] l", "float[n,m,5] y"
    ),
    "ScatterElements": (
        "y = ScatterElements<axis = 1>(x, i, u)", "float[n,4,m] x, int64[n,2,m] i, float[n,2,m] u", "float[n,4,m] y"
    ),
    "ScatterND": ("y = ScatterND(x, i, u)", "float[n,4,3] x, int64[6,1] i, float[6,4,3] u", "float[n,4,3] y"),
    "ScatterND of two axes": (
        'y = ScatterND<reduction = "max">(x, i, u)', "float[n,4,m] x, int64[2,3,2] i, float[2,3,m] u", "float[n,4,m] y"
    ),
    "TensorScatter": (
        "y = TensorScatter(x, u, w)", "float[n,2,8,m] x, float[n,2,3,m] u, int64[n] w", "float[n,2,8,m] y"
    ),
    "TensorScatter around": (
        'y = TensorScatter<mode = "circular", axis = 1>(x, u, w)',
        "float[n,4,m] x, float[n,3,m] u, int64[n] w",
        "float[n,4,m] y",
    ),
    "TopK": (
        "k = Constant<value = int64[1] {3}>() y, i = TopK<axis = 1>(x, k)", "int64[n,7,m] x",
        "int64[n,3,m] y, int64[n,3,m] i",
    ),
    "the least of all": (
        "k = Shape<start = 1>(x) y, i = TopK<largest = 0>(x, k)", "float[n,m] x", "float[n,m] y, int64[n,m] i"
    ),
    "NonZero": ("y = NonZero(x)", "int32[n,m] x", "int64[2,k] y"),
    "Compress": ("y = Compress<axis = 1>(x, c)", "float[n,m,3] x, bool[m] c", "float[n,k,3] y"),
    "Compress all": ("y = Compress(x, c)", "float[n,m] x, bool[4] c", "float[k] y"),
    "Unique": (
        "y, a, b, c = Unique(x)", "int64[n,m] x", "int64[k] y, int64[k] a, int64[l] b, int64[k] c"
    ),
    "Unique rows": (
        "y, a, b = Unique<axis = 1, sorted = 0>(x)", "int64[2,n] x", "int64[2,k] y, int64[k] a, int64[n] b"
    ),
    "NonMaxSuppression": (
        """k = Constant<value = int64[1] {3}>() t = Constant<value = float[1] {0.3}>()
        s = Constant<value = float[1] {0.0}>() y = NonMaxSuppression(b, p, k, t, s)""",
        "float[n,9,4] b, float[n,2,9] p", "int64[k,3] y",
    ),
    "BitCast": ("t = Transpose(x) b = BitCast<to = 6>(t) y = Neg(b)", "float[n,m] x", "int32[m,n] y"),
    "EyeLike": ("y = EyeLike<k = 1, dtype = 1>(x)", "int64[n,m] x", "float[n,m] y"),
    "Range": (
        """a = Constant<value_float = 0.5>() b = Constant<value_float = 7.3>() c = Constant<value_float = 0.7>()
        r = Range(a, b, c) y = Mul(r, x)""", "float[1] x", "float[10] y",
    ),
}  # fmt: skip
for _kind in ("add", "mul", "max", "min"):
    SAME[f"ScatterElements {_kind}"] = (
        f'y = ScatterElements<reduction = "{_kind}">(x, i, u)',
        "float[n,m] x, int32[5,m] i, float[5,m] u",
        "float[n,m] y",
    )
for _exclusive in (0, 1):
    for _reverse in (0, 1):
        SAME[f"CumSum {_exclusive} {_reverse}"] = (
            f"a = Constant<value_int = 1>() y = CumSum<exclusive = {_exclusive}, reverse = {_reverse}>(x, a)",
            "float[n,m,2] x", "float[n,m,2] y",
        )  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_lowered_as_meant(name: str) -> None:
    compare(parse(*SAME[name]), {"n": 3, "m": 5}, {"n": 4, "m": 1}, {"n": 6, "m": 7})


OUTSIDE = {
    "y = GatherElements(x, i)": ("float[3] x, int64[1] i", "float[k] y", (np.zeros(3, "f"), np.array([3]))),
    "y = ScatterND(x, i, u)": (
        "float[3] x, int64[1,1] i, float[1] u", "float[3] y", (np.zeros(3, "f"), np.array([[-4]]), np.zeros(1, "f"))
    ),
    "y = Compress<axis = 0>(x, c)": (
        "float[3] x, bool[4] c", "float[k] y", (np.zeros(3, "f"), np.array([0, 0, 0, 1], bool))
    ),
    "y = TensorScatter<axis = 1>(x, u, w)": (
        "float[1,3] x, float[1,2] u, int64[1] w", "float[1,3] y",
        (np.zeros((1, 3), "f"), np.zeros((1, 2), "f"), np.array([-1])),
    ),
    "y = ReverseSequence(x, l)": (
        "float[3,1] x, int64[1] l", "float[3,1] y", (np.zeros((3, 1), "f"), np.array([4]))
    ),
}  # fmt: skip


@pytest.mark.parametrize("body", OUTSIDE)
def test_indices_out_of_range_are_errors(body: str) -> None:
    inputs, outputs, args = OUTSIDE[body]
    with pytest.raises(InvalidArgument, match="out of range"):
        interpret.run(lowered(parse(body, inputs, outputs)), args)


@pytest.mark.parametrize(
    ("index", "is_box"),
    [
        (np.array([[1]]), True),
        (np.array([[-1]]), True),
        (np.stack(np.meshgrid([0, 1], [1, 2], indexing="ij"), -1), True),
        (np.stack(np.meshgrid([1, 2], [0, 1, 2, 3], indexing="xy"), -1), True),
        (np.stack(np.meshgrid([-2, -1], [3], indexing="ij"), -1), True),
        (np.array([[0], [2]]), False),
        (np.array([[1], [1]]), False),
        (np.array([[-1], [0]]), False),
        (np.array([[0, 0], [1, 1]]), False),
    ],
)
def test_assignment_to_a_slice_is_copies(index: np.ndarray, is_box: bool) -> None:
    *outer, depth = index.shape
    rest = [3, 4, 5][depth:]
    numbers = ", ".join(map(str, index.reshape(-1)))
    body = f"i = Constant<value = int64{list(index.shape)} {{{numbers}}}>() y = ScatterND(x, i, u)"
    sizes = ",".join(map(str, [*outer, *rest]))
    groups = compare(parse(body, f"float[3,4,5] x, float[{sizes}] u", "float[3,4,5] y"))
    assert is_box == all(isinstance(g, Loop) for g in groups)

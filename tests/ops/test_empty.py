"""Operators whose operands have no elements give results of the right shape."""

import numpy as np
import pytest

from tests.ops.peers import meaning, normal

CASES = [
    ("Attention", (normal(0, 3, 4, 8), normal(0, 3, 6, 8), normal(0, 3, 6, 8)), {}, (0, 3, 4, 8)),
    ("Attention", (normal(2, 0, 4, 8), normal(2, 0, 6, 8), normal(2, 0, 6, 8)), {}, (2, 0, 4, 8)),
    ("Attention", (normal(2, 3, 0, 8), normal(2, 3, 6, 8), normal(2, 3, 6, 8)), {}, (2, 3, 0, 8)),
    ("Attention", (normal(2, 3, 4, 8), normal(2, 3, 0, 8), normal(2, 3, 0, 8)), {}, (2, 3, 4, 8)),
    ("LinearAttention", (normal(0, 4, 32),) * 3, {"update_rule": "linear"}, (0, 4, 32)),
    ("LinearAttention", (normal(2, 0, 32),) * 3, {"update_rule": "linear"}, (2, 0, 32)),
    ("ConvTranspose", (normal(0, 2, 3, 3), normal(2, 4, 3, 3)), {}, (0, 4, 5, 5)),
    ("ConvTranspose", (normal(1, 0, 3, 3), normal(0, 4, 3, 3)), {}, (1, 4, 5, 5)),
    ("Col2Im", (normal(0, 5, 5), np.array([5, 5]), np.array([1, 5])), {}, (0, 1, 5, 5)),
    ("Col2Im", (normal(1, 0, 5), np.array([5, 5]), np.array([1, 5])), {}, (1, 0, 5, 5)),
    ("DeformConv", (normal(0, 2, 3, 3), normal(4, 2, 2, 2), normal(0, 8, 2, 2)), {}, (0, 4, 2, 2)),
    ("DeformConv", (normal(1, 0, 3, 3), normal(4, 0, 2, 2), normal(1, 8, 2, 2)), {}, (1, 4, 2, 2)),
    ("RoiAlign", (normal(1, 0, 3, 3), normal(2, 4), np.array([0, 0])), {}, (2, 0, 1, 1)),
    ("RoiAlign", (normal(1, 2, 0, 3), normal(2, 4), np.array([0, 0])), {}, (2, 2, 1, 1)),
    ("Unique", (normal(0, 3),), {"axis": 0}, (0, 3)),
    ("NonZero", (normal(0, 3),), {}, (2, 0)),
]


@pytest.mark.parametrize(("name", "inputs", "attributes", "shape"), CASES)
def test_shapes(name, inputs, attributes, shape):
    heads = {"q_num_heads": 4, "kv_num_heads": 4} if name == "LinearAttention" else {}
    (got,) = meaning(name, *inputs, **attributes, **heads)
    assert got.shape == shape and not got.any()

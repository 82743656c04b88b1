"""Steps whose results are empty do not run: sizes that cost a caller nothing must not cost time."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx import errors

MANY = 10**12
NODES = {
    "Softmax": "y = Softmax(x)",
    "LogSoftmax": "y = LogSoftmax(x)",
    "Hardmax": "y = Hardmax(x)",
    "CumSum": "y = CumSum(x, axis)",
    "LayerNormalization": "y = LayerNormalization(x, scale)",
    "TopK": "y, i = TopK(x, k)",
    "MatMul": "none = Shape <start = 1> (x)\n square = Concat <axis = 0> (none, none)\n"
    "w = ConstantOfShape(square)\n y = MatMul(x, w)",
}


def session(node: str, more: str = "") -> Any:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, m] x{more}) => (float[p, q] y)\n'
        "<int64 axis = {1}, float[1] scale = {1}, int64[1] k = {0}>\n"
        f"{{ {node} }}"
    )
    return sardonyx.InferenceSession(model.SerializeToString())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("operator", NODES)
def test_rows_without_columns_take_no_time(operator: str) -> None:
    model, rng = session(NODES[operator]), np.random.default_rng(0)
    some = rng.standard_normal((3, 5)).astype(np.float32)
    before = model.run(None, {"x": some})[0]
    (found,) = model.run(None, {"x": np.empty((MANY, 0), np.float32)})
    assert found.shape == (MANY, 0)
    np.testing.assert_array_equal(model.run(None, {"x": some})[0], before)


def test_indices_into_nothing_are_refused() -> None:
    model = session(
        "i, u = Split <axis = 0> (ones)\n j = Cast <to = 7> (i)\n y = ScatterElements(x, j, u)", ", float[2, 1] ones"
    )
    one = np.ones((1, 1), np.float32)
    with pytest.raises(errors.InvalidArgument, match="index is out"):
        model.run(None, {"x": np.empty((0, 1), np.float32), "ones": np.concatenate([one, one])})
    (found,) = model.run(None, {"x": np.zeros((2, 1), np.float32), "ones": np.concatenate([one, one])})
    np.testing.assert_array_equal(found, [[0], [1]])

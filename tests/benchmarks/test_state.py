"""The program about caches that are copied or grown in place, on a decoder of one layer."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.numpy_helper import from_array

import sardonyx
from benchmarks import state

DECODER = """<ir_version: 10, opset_import: ["": 18]>
    g (int64[1, s] input_ids, int64[1, t] attention_mask, int64[1, s] position_ids, float[1, 2, p, 4] past_key_values_0)
        => (float[1, s, 8] logits, float[1, 2, t, 4] present_0) {
        e = Gather(words, input_ids)
        h = Reshape(e, by_head)
        k = Transpose<perm = [0, 2, 1, 3]>(h)
        present_0 = Concat<axis = 2>(past_key_values_0, k)
        kt = Transpose<perm = [0, 1, 3, 2]>(present_0)
        scores = MatMul(k, kt)
        weights = Softmax<axis = -1>(scores)
        seen = MatMul(weights, present_0)
        rows = Transpose<perm = [0, 2, 1, 3]>(seen)
        logits = Reshape(rows, joined)
    }"""


def test_a_row_tells_both_ways() -> None:
    model = onnx.parser.parse_model(DECODER)
    words = np.random.default_rng(0).standard_normal((20, 8), np.float32)
    constants = {"words": words, "by_head": np.array([1, -1, 2, 4]), "joined": np.array([1, -1, 8])}
    model.graph.initializer.extend(from_array(array, name) for name, array in constants.items())
    cells = state.row(sardonyx.InferenceSession(model.SerializeToString()), past=8).strip("| ").split(" | ")
    assert cells[0] == "8" and len(cells) == 4 and all(float(cell) >= 0 for cell in cells[1:3])

"""Products with one-hot rows and what follows lookups, before and after."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optimize.rewritten import Case, check

ROWS = np.array([[3], [0], [-1], [4], [2], [-5], [100]], np.int32)
ORDER = np.arange(4, dtype=np.int32)
TABLE = (4, 5)
HOT = "a = Equal(x, order) b = Cast<to=1>(a) y = MatMul(b, w)"

FOLDED = {
    "one-hot rows": Case(HOT, ["Squeeze", "Clip", "Gather"], {"x": ROWS}, {"order": ORDER, "w": TABLE}),
    "a batch of them": Case(
        HOT, ["Squeeze", "Clip", "Gather"], {"x": np.stack([ROWS, ROWS + 1])},
        {"order": ORDER.reshape(1, 1, 4), "w": TABLE},
    ),
    "what follows": Case(
        "g = Gather(w, x) a = Add(g, b) c = Relu(a) y = Mul(k, c)", ["Gather"], {"x": np.array([[3, 0], [-1, 1]])},
        {"w": TABLE, "b": (1, 1, 5), "k": ()},
    ),
    "and one-hot rows": Case(
        HOT.replace("y =", "c =") + " d = Add(c, k) y = Sigmoid(d)", ["Squeeze", "Clip", "Gather"], {"x": ROWS},
        {"order": ORDER, "w": TABLE, "k": (5,)},
    ),
}  # fmt: skip

KEPT = {
    "another order": Case(
        HOT, ["Equal", "Cast", "MatMul"], {"x": ROWS}, {"order": ORDER[::-1].copy(), "w": TABLE}, reason="not 0, 1, 2"
    ),
    "not finite": Case(
        HOT, ["Equal", "Cast", "MatMul"], {"x": ROWS}, {"order": ORDER, "w": np.full(TABLE, np.inf, np.float32)},
        reason="not finite",
    ),
    "no sign": Case(
        HOT, ["Equal", "Cast", "MatMul"], {"x": np.abs(ROWS).astype(np.uint8)},
        {"order": ORDER.astype(np.uint8), "w": TABLE}, reason="an index type",
    ),
    "as many as bytes can count": Case(
        HOT, ["Equal", "Cast", "MatMul"], {"x": ROWS.astype(np.int8)},
        {"order": np.arange(128, dtype=np.int8), "w": (128, 5)}, reason="an index type",
    ),
    "one for each lookup": Case(
        "g = Gather(w, x) y = Add(g, b)", ["Gather", "Add"], {"x": np.array([3, 0])}, {"w": TABLE, "b": (2, 1)}
    ),
    "read by others": Case(
        "g = Gather(w, x) y = Relu(g) z = Neg(g)", ["Gather", "Relu", "Neg"], {"x": np.array([3, 0])}, {"w": TABLE},
        outputs="float[] y, float[] z",
    ),
    "along columns": Case(
        "g = Gather<axis=1>(w, x) y = Add(g, b)", ["Gather", "Add"], {"x": np.array([3, 0])}, {"w": TABLE, "b": (2,)}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [*FOLDED.values(), *KEPT.values()], ids=[*FOLDED, *KEPT])
def test_lookups(case: Case) -> None:
    check(case, "FoldOneHotMatMul", "InferShapes", "FoldGatheredPointwise")

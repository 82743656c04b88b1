"""Outputs beside another engine's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import sardonyx
from sardonyx.bench.answers import agreement, answers_of
from sardonyx.errors import InvalidArgument
from tests.bench.models import product

X = np.random.default_rng(5).standard_normal((4, 5)).astype(np.float32)


@pytest.mark.parametrize(
    ("expected", "got", "agrees"),
    [
        (X, X * (1 + 1e-5), True),
        (X, X * 1.01, False),
        (X, X + 1e-6 * X.max(), True),
        (X, X.astype(np.float64), False),
        (X, X[:2], False),
        (X, np.where(X > 1, np.nan, X), False),
        (np.where(X > 1, np.nan, X), np.where(X > 1, np.nan, X), True),
        (np.array([np.inf, -np.inf]), np.array([np.inf, np.inf]), False),
        (X.astype(ml_dtypes.bfloat16), (1.02 * X).astype(ml_dtypes.bfloat16), True),
        (X.astype(ml_dtypes.bfloat16), (1.5 * X).astype(ml_dtypes.bfloat16), False),
        (X + 1j * X, X - 1j * X, False),
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array(["a"], object), np.array(["a"], object), True),
        (np.array(["a"], object), np.array(["b"], object), False),
        ([{0: 0.25, 1: 0.75}], [{0: 0.25, 1: 0.75 + 1e-6}], True),
        ([{0: 0.25}], [{1: 0.25}], False),
        ([{0: 0.25}], [{0: 0.5}], False),
        ([X], [X, X], False),
        (None, X, False),
        (None, None, True),
        (np.zeros((0, 3)), np.zeros((0, 3)), True),
    ],
)
def test_agreement(expected: Any, got: Any, agrees: bool) -> None:
    (found,) = agreement({"y": expected}, {"y": got})
    assert (found.difference is None) is agrees
    assert found.error == 0 or not agrees or math.isfinite(found.error)


def test_the_tolerance_can_be_set() -> None:
    (found,) = agreement({"y": X}, {"y": X * 1.01}, tolerance=0.02)
    assert found.difference is None and found.error == pytest.approx(0.01, rel=0.01)


@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
def test_engines_answer(tmp_path: Path, engine: str) -> None:
    path = product(tmp_path / "p.onnx", inner=5)
    (y,) = sardonyx.InferenceSession(path).run(None, {"x": X})
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    (found,) = agreement(answers_of(engine, path, {"x": X}), {"y": y})
    assert found.difference is None and y.std() > 0.1


def test_engines_that_do_not_answer(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(InvalidArgument, match="does not run the model"):
        answers_of("onnxruntime", product(tmp_path / "p.onnx"), {"x": X})
    with pytest.raises(InvalidArgument, match="with this engine"):
        answers_of("tensorflow", tmp_path / "p.onnx", {})

"""Outputs beside another engine's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import sardonyx
from sardonyx.bench.answers import agreement, answers_of, checked
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


def test_a_model_that_amplifies_rounding_is_judged_by_its_own_noise(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[64] x) => (float[64] y) { k = Constant<value_float = 3000.0>() a = Mul(x, k) y = Sin(a) }"""
    path = tmp_path / "chaos.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    x = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    y = answers_of("reference", path, {"x": x})["y"]
    near, far = y + np.float32(2e-4), y + np.float32(0.05)
    assert agreement({"y": y}, {"y": near})[0].difference is not None
    (found,) = checked("reference", path, {"x": x}, {"y": near})
    assert found.difference is None and 1e-5 < (found.rounding or 0) < 5e-3
    assert checked("reference", path, {"x": x}, {"y": far})[0].difference is not None
    assert checked("reference", path, {"x": x}, {"y": near}, tolerance=1e-4)[0].difference is not None


def test_outputs_of_integers_are_compared_exactly(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (int64[4] y) { y = Cast<to = 7>(x) }"""
    path = tmp_path / "cast.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    x = np.array([0.5, 1.5, 2.5, 3.5], np.float32)
    assert checked("reference", path, {"x": x}, {"y": np.array([0, 1, 2, 4])})[0].difference is not None

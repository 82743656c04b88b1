"""ONNX's backend suite: how a case is run, and slices of it at other levels. The whole of it: ``test_providers``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import sardonyx as ort
from tests.comparing import assert_same
from tests.conformance.onnx_cases import Case, every
from tests.slices import some

LEVELS = {
    "default": None,
    "disabled": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
}
OTHERS = [level for level in LEVELS if level != "default"]
DRAWS = ("bernoulli", "training_dropout")
"""Cases that draw random numbers: a second run of one session draws the next ones."""


def exact(case: Case, inputs: list[Any]) -> list[Any]:
    return []


def at_level(level: str) -> ort.SessionOptions:
    options = ort.SessionOptions()
    if LEVELS[level] is not None:
        options.graph_optimization_level = LEVELS[level]
    return options


def run_case(
    case: Case,
    options: ort.SessionOptions,
    spreads: Callable[[Case, list[Any]], list[Any]] = exact,
    providers: Sequence[str] | None = None,
) -> ort.InferenceSession:
    """``spreads`` says how far each output may be from the expected one, in addition to the case's tolerances."""
    model = case.model()
    session = ort.InferenceSession(model.SerializeToString(), options, providers)
    sets = list(case.data_sets())
    assert sets
    for inputs, outputs in sets:
        feeds = dict(zip((v.name for v in model.graph.input), inputs, strict=False))
        names = [o.name for o in model.graph.output]
        before = copy.deepcopy(inputs)
        scribble(session.run(names, feeds), arrays_of(inputs))
        if any(word in case.name for word in DRAWS):
            session = ort.InferenceSession(model.SerializeToString(), options, providers)
        got = session.run(names, feeds)
        assert len(got) == len(outputs)
        for now, then in zip(arrays_of(inputs), arrays_of(before), strict=True):
            assert now.tobytes() == then.tobytes() or now.dtype == object, "a run changed its input"
        for value, expected, spread in zip(got, outputs, spreads(case, inputs) or [None] * len(got), strict=True):
            if "bernoulli" in case.name:
                assert_bernoulli(value, expected, inputs[0])
            else:
                assert_same(value, toward(value, expected, spread), case.tolerance)
    return session


def arrays_of(value: Any) -> list[np.ndarray]:
    """Every array in a value, sequences included."""
    if isinstance(value, np.ndarray):
        return [value]
    return [a for item in value for a in arrays_of(item)] if isinstance(value, (list, tuple)) else []


def scribble(results: list[Any], inputs: list[np.ndarray]) -> None:
    """Overwrite results, which must be the caller's own: no input, constant or other result may notice."""
    seen = list(inputs)
    for array in arrays_of(results):
        assert not any(np.shares_memory(array, other) for other in seen), "a result shares memory"
        seen.append(array)
        assert array.dtype.kind not in "US", "strings are objects, as onnxruntime gives them"
        array[...] = np.zeros((), array.dtype) if array.dtype != object else "scribbled"


def assert_bernoulli(got: np.ndarray, expected: np.ndarray, p: np.ndarray) -> None:
    """The expected values are one random draw; type, shape and law are what can be compared."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    assert set(np.unique(got)) <= {0, 1}
    assert got[p == 0].sum() == 0
    assert abs(float(got.mean(dtype=np.float64)) - float(p.mean())) < 4 * 0.5 / np.sqrt(p.size)


def toward(got: Any, expected: Any, spread: Any) -> Any:
    """What is nearest to ``got`` and within ``spread`` of what is expected."""
    if not np.any(spread) or np.shape(got) != np.shape(expected):
        return expected
    wide = expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = np.clip(got.astype(np.float64), wide - spread, wide + spread)
    return np.where(np.isfinite(near), near, wide).astype(expected.dtype)


def test_the_suite_is_whole() -> None:
    names = [case.name for case in every()]
    assert len(names) == len(set(names))
    if onnx.__version__ == "1.23.2":
        assert len(names) == 2024


@pytest.mark.parametrize("level", OTHERS)
@pytest.mark.parametrize("case", some(every(), 20), ids=lambda c: c.name)
def test_at_other_levels(case: Case, level: str) -> None:
    run_case(case, at_level(level))

"""The benchmark program's arithmetic: ratios and their intervals, errors, limits, tables, and the float64 reference."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from benchmarks.compare import cases, reference, report, rounds
from benchmarks.compare.cases import Case
from benchmarks.compare.engines import Contestant
from benchmarks.compare.limits import limit_seconds
from benchmarks.compare.rounds import Settings, cores_of_round
from benchmarks.compare.stats import geometric_mean, paired_ratio, ratio_of_medians, relative_error, spread

RNG = np.random.default_rng(7)


def test_paired_ratio_sees_through_a_drifting_machine() -> None:
    drift = np.linspace(1, 10, 40)
    noise = RNG.normal(1, 0.02, 40)
    ratio = paired_ratio(list(1.5 * drift * noise), list(drift))
    assert ratio.low <= ratio.value <= ratio.high
    assert 1.45 < ratio.low < ratio.high < 1.55 and ratio.is_settled
    loose = ratio_of_medians(list(1.5 * drift * noise), list(drift))
    assert loose.low < 1.3 and loose.high > 1.7


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        ratio = paired_ratio(list(rng.lognormal(math.log(2), 0.2, 25)), [1.0] * 25, seed)
        hits += ratio.low <= 2 <= ratio.high
    assert 180 <= hits <= 200


def test_equal_rounds_are_not_settled() -> None:
    times = list(RNG.normal(1, 0.1, 30))
    shuffled = list(RNG.permutation(times))
    assert not ratio_of_medians(times, shuffled).is_settled


def test_pairs_are_wanted() -> None:
    with pytest.raises(ValueError, match="2 and 1"):
        paired_ratio([1.0, 2.0], [1.0])


def test_spread_and_mean() -> None:
    assert spread([float(i) for i in range(11)]) == (5, 1, 9)
    assert geometric_mean([1.0, 4.0, 16.0]) == pytest.approx(4)


@pytest.mark.parametrize(
    ("got", "reference_", "wanted"),
    [([3.0, 4.5], [3.0, 4.0], 0.1), ([1.0, math.nan], [1.0, 1.0], math.inf), ([0.5], [0.0], 0.5)],
)
def test_relative_error(got: list[float], reference_: list[float], wanted: float) -> None:
    assert relative_error(np.array(got, np.float32), np.array(reference_)) == pytest.approx(wanted)


def test_relative_error_refuses_another_shape() -> None:
    with pytest.raises(ValueError, match="shape"):
        relative_error(np.ones((2, 1)), np.ones(2))


@pytest.mark.parametrize(
    ("precision", "flops", "weights", "wanted"),
    [("highest", 300, 0, 1.0), ("high", 200, 0, 0.5), ("medium", 1200, 0, 1.0), ("highest", 0, 10, 4.0)],
)
def test_limit(precision: str, flops: float, weights: float, wanted: float) -> None:
    figures = {"f32_flops": 150.0, "bf16_flops": 1200.0, "read_nbytes": 10.0}
    assert limit_seconds(figures, precision, flops, weights) == pytest.approx(wanted)


@pytest.mark.parametrize(("seconds", "wanted"), [(1.2345, "1234"), (0.012345, "12.3"), (1.2e-5, "0.0120")])
def test_milliseconds(seconds: float, wanted: str) -> None:
    assert report.ms(seconds) == wanted


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one case: relu(x @ w) @ v, whose stored answers are numpy's."""
    w, v = (RNG.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16, 3)))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "v")]
    graph = helper.make_graph(nodes, "toy", [x], [y], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "toy.onnx")
    fed = RNG.standard_normal((5, 8)).astype(np.float32)
    cases.store(tmp_path / "toy-5.npz", **{"in": {"x": fed}, "told": {"y": np.maximum(fed @ w, 0) @ v}})
    return tmp_path


TOY = Case("toy-5", "toy", 5)


def test_reference_is_float64_and_counts(folder: Path) -> None:
    costs = reference.compute(TOY, folder)
    assert costs["flops"] == 2 * 5 * (8 * 16 + 16 * 3) and costs["weights"] == 8 * 16 + 16 * 3
    assert 0 < costs["told"] < 1e-6
    assert cases.stored(TOY.reference(folder), "out")["y"].dtype == np.float64


def test_reference_refuses_answers_of_another_model(folder: Path) -> None:
    fed = cases.stored(TOY.feeds(folder), "in")
    cases.store(TOY.feeds(folder), **{"in": fed, "told": {"y": np.ones((5, 3), np.float32)}})
    with pytest.raises(ValueError, match="float64 reference"):
        reference.compute(TOY, folder)


def test_a_case_is_measured_in_processes_and_reported(folder: Path) -> None:
    reference.compute(TOY, folder)
    contestants = [Contestant("sardonyx"), Contestant("no_such_engine")]
    settings = Settings("", threads=1, rounds=5, seconds=0.3)
    result = rounds.measure(TOY, TOY.files(folder), contestants, settings)
    entry = result["contestants"]["sardonyx"]
    assert rounds.LATE_ROUNDS <= len(entry["rounds"]) <= 5 and min(entry["rounds"]) > 0 and entry["error"] < 1e-6
    assert list(result["absent"]) == ["no_such_engine"] and not result["failed"]
    assert "| sardonyx |" in report.case_text(TOY.name, result)


def test_contestants_of_a_round_share_cores_that_rotate() -> None:
    assert [cores_of_round([4, 5, 6, 9, 11], 2, i) for i in range(4)] == [[4, 5], [6, 9], [4, 11], [5, 6]]
    assert cores_of_round([0, 1], 2, 7) == [0, 1] and cores_of_round([3], 2, 5) == [3]

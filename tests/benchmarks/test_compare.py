"""The comparison program: limits, tables, the float64 reference, and a case from processes to report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from benchmarks.compare import reference, report, rounds
from benchmarks.compare.cases import Case
from benchmarks.compare.rounds import Settings
from sardonyx.bench import arrays
from sardonyx.bench.engines import Contestant
from sardonyx.bench.limits import limit_seconds
from sardonyx.bench.rounds import LATE_ROUNDS

RNG = np.random.default_rng(7)


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
    arrays.store(tmp_path / "toy-5.npz", **{"in": {"x": fed}, "told": {"y": np.maximum(fed @ w, 0) @ v}})
    return tmp_path


TOY = Case("toy-5", "toy", 5)


def test_reference_is_float64_and_counts(folder: Path) -> None:
    costs = reference.compute(TOY, folder)
    assert costs["flops"] == 2 * 5 * (8 * 16 + 16 * 3) and costs["weights"] == 8 * 16 + 16 * 3
    assert 0 < costs["told"] < 1e-6
    assert arrays.stored(TOY.reference(folder), "out")["y"].dtype == np.float64


def test_reference_refuses_answers_of_another_model(folder: Path) -> None:
    fed = arrays.stored(TOY.feeds(folder), "in")
    arrays.store(TOY.feeds(folder), **{"in": fed, "told": {"y": np.ones((5, 3), np.float32)}})
    with pytest.raises(ValueError, match="float64 reference"):
        reference.compute(TOY, folder)


def test_a_case_is_measured_in_processes_and_reported(folder: Path) -> None:
    reference.compute(TOY, folder)
    contestants = [Contestant("sardonyx"), Contestant("no_such_engine")]
    settings = Settings("", threads=1, rounds=5, seconds=0.3)
    result = rounds.measure(TOY, TOY.files(folder), contestants, settings)
    entry = result["contestants"]["sardonyx"]
    assert LATE_ROUNDS <= len(entry["rounds"]) <= 5 and min(entry["rounds"]) > 0 and entry["error"] < 1e-6
    assert list(result["absent"]) == ["no_such_engine"] and not result["failed"]
    assert "| sardonyx |" in report.case_text(TOY.name, result)

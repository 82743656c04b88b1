"""When warming up ends, and what a worker does with several callers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sardonyx.bench.arrays import store, stored
from sardonyx.bench.engines import Contestant, Unavailable
from sardonyx.bench.process import Failed, Process
from sardonyx.bench.worker import is_steady
from tests.bench.models import product


@pytest.mark.parametrize(
    ("blocks", "steady"),
    [
        ([1.0, 1.0, 1.0], False),
        ([5.0, 1.0, 1.0, 1.0], False),
        ([5.0, 1.0, 1.0, 1.0, 1.0], True),
        ([1.0, 1.5, 1.01, 0.99], True),
        ([1.0, 0.9, 0.8, 0.7], False),
    ],
)
def test_warming_up_ends_when_times_no_longer_fall(blocks: list[float], steady: bool) -> None:
    assert is_steady(blocks) is steady


def test_a_worker_opens_warms_up_runs_and_answers(tmp_path: Path) -> None:
    model = product(tmp_path / "p.onnx")
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    store(tmp_path / "feeds.npz", **{"in": {"x": x}})
    with Process(1) as process:
        assert process.open(Contestant("sardonyx"), model)["version"]
        process.ask("feed", feeds=str(tmp_path / "feeds.npz"), key="three")
        warm = process.ask("warm", seconds=0.5, key="three")
        assert warm["runs"] >= 5 and warm["first_s"] > 0 and warm["second_s"] > 0
        turn = process.ask("turn", runs=5, callers=3, key="three")
        assert len(turn["seconds"]) == 15 and max(turn["seconds"]) <= turn["wall_s"]
        process.ask("answer", path=str(tmp_path / "answer.npz"), key="three")
        assert process.ask("memory")["mb"] > 1
    w = np.random.default_rng(7).standard_normal((8, 16)).astype(np.float32)
    np.testing.assert_allclose(stored(tmp_path / "answer.npz", "out")["y"], np.maximum(x @ w, 0), rtol=1e-5, atol=1e-6)


def test_what_goes_wrong_in_a_worker_is_told(tmp_path: Path) -> None:
    with Process(1) as process, pytest.raises(Unavailable, match="no_such_engine"):
        process.open(Contestant("no_such_engine"), tmp_path / "m.onnx")
    with Process(1) as process, pytest.raises(Failed, match="NoSuchFile"):
        process.open(Contestant("sardonyx"), tmp_path / "m.onnx")
    store(tmp_path / "feeds.npz", **{"in": {"x": np.ones((2, 9), np.float32)}})
    with Process(1) as process:
        process.open(Contestant("sardonyx"), product(tmp_path / "p.onnx"))
        process.ask("feed", feeds=str(tmp_path / "feeds.npz"))
        with pytest.raises(Failed, match="InvalidArgument"):
            process.ask("turn", runs=1, callers=2)

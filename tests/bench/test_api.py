"""``benchmark`` from end to end, and its results as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sardonyx import bench
from sardonyx.bench import Contestant, Result
from sardonyx.bench.api import installed_peers
from sardonyx.errors import InvalidArgument, NotFound
from tests.bench.models import product

QUICK = {"rounds": 4, "seconds": 0.2, "starts": 2, "warm_s": 0.1}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    model = product(tmp_path_factory.mktemp("bench") / "p.onnx")
    broken = Contestant("tests.bench.test_api:no_such_factory", label="broken")
    peers = [Contestant("sardonyx", label="the same"), broken]
    steps: list[str] = []
    found = bench.benchmark(
        model, peers=peers, batches=[1, 4], callers=[2], thread_counts=[1], step=steps.append, **QUICK
    )
    assert any("round 4 of 4" in step for step in steps)
    return found


def test_figures_agree_with_each_other(result: Result) -> None:
    assert [t.name for t in result.timings] == ["sardonyx", "the same"]
    for timing in result.timings:
        assert len(timing.rounds) == len(timing.costs_s) == 4 and timing.starts_of_rounds == (0, 0, 1, 1)
        assert 0 < timing.low_s <= timing.median_s <= timing.high_s and timing.median_s == np.median(timing.rounds)
        assert (
            timing.runs >= 4 and timing.mean_s > 0 and timing.throughput == pytest.approx(1 / np.median(timing.costs_s))
        )
        assert timing.peak_nbytes > timing.engine_nbytes > 0
        assert [start.is_cold for start in timing.starts] == [True, False]
        assert all(start.import_s > 0 and start.load_s > 0 and start.first_s > 0 for start in timing.starts)
    for sweep in result.sweeps:
        is_shared = sweep.setting in ("batch", "callers")
        for i, timing in enumerate(sweep.timings):
            cold = [start.is_cold for start in timing.starts]
            assert cold == ([False, False] if is_shared and i == 0 else [] if is_shared else [True, False])
    assert result.timings[0].nodes == {"cpu": 2} and result.inputs == {"x": "float32 [1, 8]"}
    assert result.statements == ("The symbolic dimension batch was given the size 1.",)


def test_what_cannot_take_part_is_named(result: Result) -> None:
    assert list(result.failed) == ["broken"] and "no_such_factory" in result.failed["broken"]


def test_comparisons_say_whether_a_difference_is_real(result: Result) -> None:
    (compared,) = result.comparisons
    assert (compared.subject, compared.other) == ("sardonyx", "the same") and not compared.is_real
    assert compared.ratio.low <= compared.ratio.value <= compared.ratio.high and "too few" in compared.sentence


def test_sweeps_name_the_best(result: Result) -> None:
    by_setting = {sweep.setting: sweep for sweep in result.sweeps}
    assert list(by_setting) == ["batch", "callers", "threads"]
    batch = by_setting["batch"]
    assert (
        [t.batch for t in batch.timings] == [1, 4]
        and batch.best in ("1", "4")
        and f"batch {batch.best}" in batch.sentence
    )
    best = max(batch.timings, key=lambda t: t.throughput)
    assert best.name == f"batch {batch.best}"
    assert [t.callers for t in by_setting["callers"].timings] == [2]
    assert [t.threads for t in by_setting["threads"].timings] == [1]


def test_results_survive_json(result: Result) -> None:
    assert Result.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False))) == result
    odd = replace(result, seed=math.nan)  # type: ignore[arg-type]
    assert odd.to_json()["seed"] is None


@pytest.mark.parametrize("data", [{}, {"timings": []}, {"timings": [{"name": "x"}]}])
def test_other_json_is_refused(data: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Result.from_json(data)


def test_feeds_that_are_given_are_used(tmp_path: Path) -> None:
    feeds = {"x": np.ones((5, 8), np.float32)}
    found = bench.benchmark(product(tmp_path / "p.onnx").read_bytes(), feeds, peers=(), **QUICK)
    assert found.inputs == {"x": "float32 [5, 8]"} and found.model == "model given as bytes"
    with pytest.raises(InvalidArgument, match="generated inputs"):
        bench.benchmark(tmp_path / "p.onnx", feeds, peers=(), batches=[2], **QUICK)


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"rounds": 0}, InvalidArgument, "positive"),
        ({"batches": [0]}, InvalidArgument, "positive"),
        ({"precision": "low"}, InvalidArgument, "no such precision"),
        ({"peers": ["onnx"]}, InvalidArgument, "no such peer"),
        ({"peers": [Contestant("no_such_engine")]}, NotFound, "not installed"),
        ({"providers": ["NoSuchProvider"]}, InvalidArgument, "no such provider"),
        ({"shapes": {"x": (2, 9)}}, InvalidArgument, "does not fit"),
    ],
)
def test_what_is_asked_is_checked(tmp_path: Path, asked: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        bench.benchmark(product(tmp_path / "p.onnx"), **{"peers": (), **QUICK, **asked})  # type: ignore[arg-type]


def test_peers_that_are_installed() -> None:
    assert all(peer.precision == "highest" for peer in installed_peers())

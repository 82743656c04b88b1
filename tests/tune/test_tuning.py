"""Tuning: what is tried, what is kept, and the problems that are repaired.

Times are those of a made-up machine, whose runs cost what their settings say; sessions and outputs are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.errors import InvalidArgument
from sardonyx.profile.environment import Environment, environment
from sardonyx.providers.cpu.runtime import team
from sardonyx.session.config_file import read_config
from sardonyx.tune import Tuning, tune_model
from sardonyx.tune.setups import Runner, Setup, largest_error, rows_of
from tests.profile import planted
from tests.profile.test_diagnosis import cgroup, threads, traced

Cost = Callable[[Setup], float]
DOUBLES = "session.float64_as_float32"


@pytest.fixture
def costing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cost], None]:
    """Sets what a row costs under a setup, in seconds; there is noise of 1 %."""

    def use(cost: Cost) -> None:
        noise = np.random.default_rng(0)
        monkeypatch.setattr(Runner, "seconds", lambda self: cost(self.setup) * (1 + 0.01 * noise.standard_normal()))

    use(lambda setup: 1e-3)
    return use


def around(**fields: Any) -> Environment:
    return Environment(**{"cpus": 4, "total_cpus": 4, **fields})


def kept(tuning: Tuning) -> list[str]:
    return [trial.change for trial in tuning.trials if trial.is_kept]


def test_float64(costing: Callable[[Cost], None]) -> None:
    costing(lambda setup: 1e-3 if DOUBLES in setup.entries else 2e-3)
    tuning = tune_model(*planted.doubles(), surroundings=around())
    assert kept(tuning) == [f"{DOUBLES} = 1"] and tuning.repaired == ("float64",)
    trial = tuning.trials[0]
    assert trial.is_real and 0 < trial.error < 1e-5 and trial.ratio.value == pytest.approx(2, rel=0.02)
    assert (tuning.before_s, tuning.after_s) == pytest.approx((2e-3, 1e-3), rel=0.02)
    assert tuning.config.entries == {DOUBLES: "1"}
    told = str(tuning)
    assert "2.0" in told and "repaired: float64" in told and "times as fast" in told


def test_float64_that_is_needed(costing: Callable[[Cost], None]) -> None:
    costing(lambda setup: 1e-3 if DOUBLES in setup.entries else 2e-3)
    tuning = tune_model(*planted.doubles(), surroundings=around(), max_error=1e-12)
    assert kept(tuning) == [] and tuning.repaired == () and "too large" in tuning.trials[0].reason
    assert tuning.config.entries == {} and "left: " in str(tuning)


def test_too_many_threads(costing: Callable[[Cost], None]) -> None:
    tuning = tune_model(*planted.convnet(), options=threads(8), surroundings=around())
    assert "intra_op_num_threads = 4" in kept(tuning) and tuning.repaired == ("too-many-threads",)
    assert tuning.config.options == {"intra_op_num_threads": 4}
    assert "no slower" in next(t.reason for t in tuning.trials if t.is_kept)


def test_a_quota_of_one_cpu_with_eight_threads(
    costing: Callable[[Cost], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "CGROUP", cgroup(tmp_path, cpu_DOT_max="100000 100000\n"))
    tuning = tune_model(*planted.convnet(), options=threads(8), surroundings=environment(variables={}, cpus=8))
    assert tuning.before.profile.settings["threads"] == 1, "the engine keeps to the quota"
    assert tuning.repaired == ("quota",) and tuning.config.options == {"intra_op_num_threads": 1}


def test_a_huge_copy(costing: Callable[[Cost], None]) -> None:
    costing(lambda setup: 1e-3 if setup.states else 3e-3)
    tuning = tune_model(*planted.huge_copy(), surroundings=around())
    assert tuning.repaired == ("copy",) and tuning.trials[0].error < 1e-6
    assert tuning.config.calls == {"states": [["cache", "present", 2]]}


def test_a_batch_of_one_called_in_a_loop(costing: Callable[[Cost], None], tmp_path: Path) -> None:
    costing(lambda setup: 1e-3 / min(setup.batch, 32) if setup.is_batched else 1e-3)
    made = planted.perceptron()
    profile = traced(made, [{"x": planted.random_feed(1, 128)}] * 40, tmp_path)
    tuning = tune_model(made[0], profile=profile, surroundings=around())
    assert kept(tuning) == ["8 rows in a run", "32 rows in a run"] and tuning.config.calls == {"batch": 32}
    assert tuning.repaired == ("batch-of-one",) and tuning.ratio.value == pytest.approx(32, rel=0.05)


def test_inputs_that_are_not_contiguous(costing: Callable[[Cost], None]) -> None:
    costing(lambda setup: 1e-3 if setup.is_contiguous else 2e-3)
    model, feeds = planted.convnet()
    tuning = tune_model(model, {"x": np.asfortranarray(feeds["x"])}, surroundings=around())
    assert tuning.repaired == ("strided-inputs",) and tuning.config.calls == {"contiguous_inputs": True}


def test_a_level_below_the_default(costing: Callable[[Cost], None]) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    tuning = tune_model(*planted.transformer(), options=options, surroundings=around())
    assert tuning.repaired == ("level",) and tuning.config.options == {"graph_optimization_level": 99}


def test_what_does_not_help_is_left_out(costing: Callable[[Cost], None]) -> None:
    costing(lambda setup: 1e-3 * (1 + len(setup.options) + len(setup.entries)))
    tuning = tune_model(*planted.convnet(), surroundings=around())
    assert tuning.trials and kept(tuning) == [] and {t.reason for t in tuning.trials} == {"it is slower"}
    assert tuning.config.to_json()["options"] == {} and tuning.repaired == ()


def test_a_session_that_is_fast_by_chance_is_not_its_setting(
    costing: Callable[[Cost], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first session with one thread is a little faster; a second one shows that its setting is not the reason."""
    lucky: list[object] = []

    def seconds(runner: Runner) -> float:
        if runner.setup.options.get("intra_op_num_threads") == 1 and not lucky:
            lucky.append(runner.session)
        return next(noise) * (0.95e-3 if lucky and runner.session is lucky[0] else 1e-3)

    noise = iter(1 + 0.002 * np.random.default_rng(0).standard_normal(100_000))
    monkeypatch.setattr(Runner, "seconds", seconds)
    tuning = tune_model(*planted.convnet(), surroundings=around())
    trial = next(t for t in tuning.trials if t.change == "intra_op_num_threads = 1")
    assert trial.is_real and not trial.is_kept and "other sessions" in trial.reason and kept(tuning) == []


def test_a_small_gain_that_new_sessions_have_too_is_kept(costing: Callable[[Cost], None]) -> None:
    costing(lambda setup: 0.94e-3 if setup.options.get("intra_op_num_threads") == 1 else 1e-3)
    tuning = tune_model(*planted.convnet(), surroundings=around())
    assert kept(tuning) == ["intra_op_num_threads = 1"]


def test_noise_is_left_out(costing: Callable[[Cost], None]) -> None:
    tuning = tune_model(*planted.convnet(), surroundings=around())
    assert tuning.trials and kept(tuning) == []
    assert {t.reason for t in tuning.trials} == {"the difference may be noise"}


def test_precisions_only_if_they_are_given(costing: Callable[[Cost], None]) -> None:
    costing(lambda setup: 1e-3 if "precision" in setup.options else 2e-3)
    without = tune_model(*planted.convnet(), surroundings=around())
    assert not any("precision" in t.change for t in without.trials)
    tuning = tune_model(*planted.convnet(), surroundings=around(), precisions=["medium"])
    trial = next(t for t in tuning.trials if "precision" in t.change)
    assert trial.is_kept and tuning.config.options == {"precision": "medium"}
    strict = tune_model(*planted.convnet(), surroundings=around(), precisions=["medium"], precision_error=0)
    assert not any(t.is_kept for t in strict.trials) or trial.error == 0


def test_the_config_makes_a_session(costing: Callable[[Cost], None], tmp_path: Path) -> None:
    costing(lambda setup: 1e-3 if DOUBLES in setup.entries else 2e-3)
    model, feeds = planted.doubles()
    tune_model(model, feeds, surroundings=around()).config.save(tmp_path / "tuned.json")
    options = ort.SessionOptions()
    assert options.load_config(tmp_path / "tuned.json") == read_config(tmp_path / "tuned.json")
    plain = ort.InferenceSession(model).run(None, feeds)
    tuned = ort.InferenceSession(model, options).run(None, feeds)
    assert 0 < largest_error(tuned, plain) < 1e-5 and tuned[0].dtype == np.float64


def test_reports(costing: Callable[[Cost], None]) -> None:
    told = tune_model(*planted.doubles(), surroundings=around()).to_json()
    assert json.loads(json.dumps(told, allow_nan=False))["trials"][0]["code"] == "float64"


def test_real_times() -> None:
    """With the clock of this machine: whatever it says, the outcome is consistent."""
    model, feeds = planted.perceptron()
    tuning = tune_model(model, feeds, rounds=6, seconds=0.1)
    assert tuning.before_s > 0 and tuning.after_s > 0
    assert all(t.is_real and t.ratio.low > 1 for t in tuning.trials if t.is_kept)


def test_bad_arguments() -> None:
    model, feeds = planted.perceptron()
    with pytest.raises(InvalidArgument, match="number of rounds"):
        tune_model(model, feeds, rounds=2)
    with pytest.raises(InvalidArgument, match="unknown precision"):
        tune_model(model, feeds, precisions=["exact"])
    with pytest.raises(InvalidArgument, match="without rows"):
        rows_of({"x": np.float32(1)}, 2)


def test_errors_of_outputs() -> None:
    a = np.array([1.0, 2.0])
    assert largest_error([a, ["x"], {"p": 1}], [a, ["x"], {"p": 1}]) == 0
    assert largest_error([a * 1.001], [a]) == pytest.approx(1e-3)
    assert largest_error([np.array([np.nan])], [np.array([np.nan])]) == 0
    for mine, theirs in ((np.array([1]), np.array([2])), (["x"], ["y"]), ({"p": 1}, {"q": 1}), ([1], [1, 2])):
        assert largest_error([mine], [theirs]) == float("inf")

"""Runs of a folder of models compared: what noise and a slower machine explain is no regression."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import folder
from benchmarks.regressions import regressions

RNG = np.random.default_rng(11)


def entry(ours: float = 1e-3, theirs: float = 2e-3, *, noise: float = 0.01, drift: float = 1.0) -> dict[str, Any]:
    """A model's entry, with times around these, in a run in which the machine took ``drift`` times as long."""
    rounds = {}
    for engine, seconds in (("sardonyx", ours), ("onnxruntime", theirs)):
        rounds[engine] = list(seconds * drift * RNG.normal(1, noise, 9))
    return {"rounds": rounds, "starts": {}, "failed": {}}


def with_starts(open_s: float, peak_mb: float, drift: float = 1.0) -> dict[str, Any]:
    def start(seconds: float, mb: float) -> list[dict[str, float]]:
        return [
            {"open_s": seconds * drift * f, "peak_mb": mb, "import_s": 0.1, "first_s": 0.1} for f in (0.98, 1, 1.02)
        ]

    ours, theirs = ({"cold": start(s, m), "warm": start(s, m)} for s, m in ((open_s, peak_mb), (0.5, 100)))
    return {"rounds": {}, "starts": {"sardonyx": ours, "onnxruntime": theirs}, "failed": {}}


def found(earlier: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [each.what for each in regressions({"net": earlier}, {"net": now})]


def test_a_slower_model_is_a_regression() -> None:
    (only,) = regressions({"net": entry(1e-3)}, {"net": entry(1.3e-3)})
    assert only.what == "run" and only.factor is not None and 0.7 < only.factor.low <= only.factor.high < 0.85
    assert str(only).startswith("net: run: 1.0") and str(only).endswith("times as good")


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (entry(1e-3), entry(1e-3)),
        (entry(1e-3), entry(0.5e-3)),
        (entry(1e-3), entry(1.03e-3)),
        (entry(1e-3), entry(1e-3, drift=1.8)),
        (entry(1e-3), entry(1.1e-3, noise=0.5)),
        (entry(5e-6, 6e-6), entry(6e-6, 6e-6)),
    ],
    ids=["the same", "faster", "within the margin", "a slower machine", "noise", "a microsecond"],
)
def test_what_is_none(then: dict[str, Any], now: dict[str, Any]) -> None:
    assert not found(then, now)


def test_a_machine_that_became_faster_hides_nothing() -> None:
    assert found(entry(1e-3), entry(1.3e-3, drift=0.6)) == ["run"]


def test_without_onnxruntime_times_are_compared_as_they_are() -> None:
    then, now = entry(1e-3), entry(1.3e-3)
    del then["rounds"]["onnxruntime"], now["rounds"]["onnxruntime"]
    assert found(then, now) == ["run"] and not found(now, then)


def test_starts_and_memory() -> None:
    assert found(with_starts(0.4, 90), with_starts(0.7, 120)) == [
        "first start", "second start", "memory of the first start", "memory of the second start",
    ]  # fmt: skip
    assert not found(with_starts(0.4, 90), with_starts(0.4, 93, drift=2))
    assert not found(with_starts(0.005, 90), with_starts(0.009, 90))


def test_a_model_that_no_longer_runs() -> None:
    broken = {"rounds": {}, "starts": {}, "failed": {"sardonyx": "Fail: no"}}
    (only,) = regressions({"net": entry()}, {"net": broken})
    assert str(only) == "net: run: ran then, Fail: no now"
    assert not found(broken, broken) and not found(broken, entry())


def test_models_of_one_run_only_are_left_out() -> None:
    assert not list(regressions({"a": entry(1e-3)}, {"b": entry(9e-3)}))


def test_runs_must_be_alike() -> None:
    one = {"machine": {"cpu": "x"}, "threads": 2, "models": {}}
    assert folder.worse(one, one, lambda _: entry()) == []
    with pytest.raises(ValueError, match="another threads: 2, not 4"):
        folder.worse(one, {**one, "threads": 4}, lambda _: entry())


@pytest.mark.parametrize(("again", "count"), [(1.3e-3, 1), (1e-3, 0)])
def test_what_seems_worse_is_measured_again(again: float, count: int) -> None:
    one = {"machine": {}, "threads": 2}
    earlier = {**one, "models": {"net": entry(1e-3), "other": entry(1e-3)}}
    now = {**one, "models": {"net": entry(1.3e-3), "other": entry(1e-3)}}
    asked = []

    def measured(name: str) -> dict[str, Any]:
        asked.append(name)
        return entry(again)

    assert len(folder.worse(earlier, now, measured)) == count and asked == ["net"]


def test_two_times_are_not_compared() -> None:
    then, now = entry(1e-3), entry(9e-3)
    now["rounds"] = {engine: times[:2] for engine, times in now["rounds"].items()}
    assert not found(then, now)


@pytest.mark.parametrize(("factor", "status"), [(1.0, 0), (1.5, 1)])
def test_the_exit_status(factor: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.onnx").write_bytes(b"")
    seconds = [1e-3]
    monkeypatch.setattr(folder, "entry_of", lambda path, args, made: entry(seconds[0]))
    kept, now = tmp_path / "earlier.json", tmp_path / "now.json"
    for more in (["--json", str(kept)], ["--json", str(now), "--against", str(kept)]):
        monkeypatch.setattr(sys, "argv", ["folder.py", str(tmp_path), "--starts", "0", *more])
        with pytest.raises(SystemExit) as ended:
            folder.main()
        seconds[0] *= factor
    assert ended.value.code == status and now.exists()

"""Results in files, and what has become worse between two of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sardonyx.bench.history import append_history, earlier_result, read_results, regressions
from sardonyx.bench.results import Result, Timing
from sardonyx.errors import InvalidArgument, NoSuchFile, NotFound

RNG = np.random.default_rng(3)


def timing(name: str, seconds: float, peak_nbytes: int = 10**8) -> Timing:
    rounds = tuple((seconds * RNG.normal(1, 0.01, 24)).tolist())
    return Timing(
        name, name, "1", "highest", 2, 1, 1, 240, seconds, seconds, seconds, seconds, None, None, None, 1 / seconds,
        rounds, rounds, (0,) * 24, 9, True, (), peak_nbytes, 10**7, {},
    )  # fmt: skip


def result(*timings: Timing, model: str = "m.onnx") -> Result:
    return Result(
        model, 100, "2026-01-01T00:00:00+00:00", {"cpu": "x", "cores": 2}, {}, 0, {"x": "float32 [1]"}, (), (), timings,
        (), (), {}, {},
    )  # fmt: skip


def test_what_is_slower_is_found_and_what_is_not_is_not() -> None:
    then = result(timing("sardonyx", 0.010))
    (found,) = regressions(then, result(timing("sardonyx", 0.011)))
    assert found.figure == "median" and found.factor.value == pytest.approx(0.91, abs=0.02) and "sardonyx" in str(found)
    assert regressions(then, result(timing("sardonyx", 0.0102))) == []
    assert regressions(then, result(timing("sardonyx", 0.008))) == []
    assert regressions(then, result(timing("sardonyx", 0.011)), margin=0.2) == []


def test_a_peer_takes_out_how_the_machine_changed() -> None:
    then = result(timing("sardonyx", 0.010), timing("onnxruntime", 0.020))
    slower_machine = result(timing("sardonyx", 0.015), timing("onnxruntime", 0.030))
    assert regressions(then, slower_machine) == []
    (found,) = regressions(then, result(timing("sardonyx", 0.012), timing("onnxruntime", 0.020)))
    assert found.factor.value == pytest.approx(0.83, abs=0.02)


def test_memory_that_grew_is_found() -> None:
    then = result(timing("sardonyx", 0.01, 10**8))
    (found,) = regressions(then, result(timing("sardonyx", 0.01, 2 * 10**8)))
    assert found.figure == "memory" and "200 MB" in str(found)
    assert regressions(then, result(timing("sardonyx", 0.01, 105 * 10**6))) == []


def test_runs_that_cannot_be_compared() -> None:
    then = result(timing("sardonyx", 0.01))
    for other in (replace(then, machine={"cpu": "y"}), replace(then, model="n.onnx"), replace(then, inputs={})):
        with pytest.raises(InvalidArgument, match="another"):
            regressions(then, other)
    with pytest.raises(InvalidArgument, match="in common"):
        regressions(then, result(replace(timing("sardonyx", 0.01), threads=1)))


def test_history_grows_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    first, second = result(timing("sardonyx", 0.01)), result(timing("sardonyx", 0.02), model="n.onnx")
    append_history(path, first)
    append_history(path, second)
    assert read_results(path) == [first, second] and earlier_result(path, "m.onnx") == first
    with pytest.raises(NotFound, match="no result of o"):
        earlier_result(path, "o.onnx")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xd8\xff", b"text", b'{"timings": 3}\n{"a": 1}'])
def test_files_that_are_no_history_are_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.jsonl"
    path.write_bytes(content)
    if content:
        with pytest.raises(InvalidArgument, match="no results"):
            append_history(path, result(timing("sardonyx", 0.01)))
        assert path.read_bytes() == content
    with pytest.raises((InvalidArgument, NotFound)):
        earlier_result(path, "m.onnx")
    with pytest.raises(NoSuchFile):
        read_results(tmp_path / "none")

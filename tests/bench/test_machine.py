"""When a machine is called busy, from counters that are made up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sardonyx.bench import machine
from sardonyx.bench.machine import Usage, disturbances, why_busy

START = Usage(at_s=100.0, busy_s=50.0, own_s=10.0, stolen_s=1.0, throttled_s=0.0)


def after(**grown: float) -> Usage:
    values = {name: getattr(START, name) + value for name, value in {"at_s": 10.0, **grown}.items()}
    return replace(START, **values)


@pytest.mark.parametrize(
    ("grown", "words"),
    [
        ({"busy_s": 20.0, "own_s": 19.5}, ""),
        ({"busy_s": 15.0, "own_s": 5.0}, "Other processes took 1.0 of 4 cores."),
        ({"stolen_s": 1.0}, "The hypervisor took 5 % of the cores' time."),
        ({"stolen_s": 0.3}, ""),
        ({"throttled_s": 2.5}, "The cgroup's quota stopped this process for 25 % of the time."),
    ],
)
def test_disturbances(grown: dict[str, float], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: [0, 1])
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert " ".join(disturbances(START, after(**grown), 2)) == words


def test_more_threads_than_cores() -> None:
    cores = len(machine.cores())
    assert any("more than the" in why for why in why_busy(cores + 1, look_s=0.0))
    assert not any("more than the" in why for why in why_busy(cores, look_s=0.0))


def test_counters_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stat").write_text("cpu  1000 200 300 99999 88 10 20 400 0 0\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 2500000\n")
    monkeypatch.setattr(machine, "_STAT", tmp_path / "stat")
    monkeypatch.setattr(machine, "_THROTTLED", tmp_path / "cpu.stat")
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)
    found = Usage.now()
    assert (found.busy_s, found.stolen_s, found.throttled_s) == pytest.approx((15.3, 4.0, 2.5))


def test_a_system_without_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_STAT", tmp_path / "none")
    monkeypatch.setattr(machine, "_THROTTLED", tmp_path / "none")
    assert Usage.now().busy_s == Usage.now().throttled_s == 0.0

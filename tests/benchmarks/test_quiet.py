"""Which cores are left alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from benchmarks import quiet
from benchmarks.quiet import Probe
from sardonyx.providers.cpu.machine import isa


@pytest.mark.parametrize(("registers", "l1", "is_quiet"), [(1.0, 1.1, True), (1.0, 2.0, False)])
def test_a_core_is_quiet_if_loads_cost_little(
    registers: float, l1: float, is_quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, times = Probe(isa.named("sapphirerapids"), is_small=True), iter((registers, l1))
    assert probe.peak_flops() > 0

    def seconds_of(call: Callable[[], object]) -> float:
        call()
        return next(times)

    monkeypatch.setattr(quiet, "seconds_of", seconds_of)
    assert probe.is_quiet() is is_quiet


def test_hardware_threads_of_one_core_make_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs 0 and 1 are one core, and so are 2 and 3; another process uses 4."""
    probe, here, at_work = Probe(isa.named("sapphirerapids"), is_small=True), threading.local(), set[int]()

    def seconds(_: int) -> float:
        return 100.0 if here.core == 4 or here.core ^ 1 in at_work else float(here.core)

    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: setattr(here, "core", min(cores)))
    monkeypatch.setattr(quiet, "seconds_of", lambda call: call())
    monkeypatch.setattr(probe, "_registers", lambda _: at_work.add(here.core))
    monkeypatch.setattr(probe, "_l1", seconds)
    before = threading.active_count()
    assert probe.team([0, 1, 2, 3, 4], 2) == [0, 2]
    assert threading.active_count() == before
    at_work.clear()
    assert probe.team([4, 5], 3) == [5, 4]

"""Which cores are left alone."""

from __future__ import annotations

import os
import threading
import time

import pytest
from benchmarks.quiet import Probe

from sardonyx.providers.cpu import isa


def test_a_look_at_a_core_multiplies_there() -> None:
    assert Probe(isa.named("sapphirerapids"), is_small=True).is_quiet() in (True, False)


def test_hardware_threads_of_one_core_make_no_team(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cores 0 and 1 are one, and so are 2 and 3; somebody else is at 4."""
    probe, here, at_work = Probe(isa.named("sapphirerapids"), is_small=True), threading.local(), set[int]()

    def multiply(_: int) -> None:
        is_shared = here.core == 4 or here.core ^ 1 in at_work
        time.sleep(2e-3 if is_shared else 2e-4 * here.core)

    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: setattr(here, "core", min(cores)))
    monkeypatch.setattr(probe, "_registers", lambda _: at_work.add(here.core))
    monkeypatch.setattr(probe, "_l1", multiply)
    before = threading.active_count()
    assert probe.team([0, 1, 2, 3, 4], 2) == [0, 2]
    assert threading.active_count() == before
    at_work.clear()
    assert probe.team([4, 5], 3) == [5, 4]

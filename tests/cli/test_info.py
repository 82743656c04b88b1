"""``sardonyx info``."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import sardonyx
from sardonyx.cli import UNUSABLE
from tests.cli.commands import Commands


@pytest.mark.parametrize("columns", [80, 120])
def test_machine_and_installation_are_described(commands: Commands, cache_dir: Path, columns: int) -> None:
    done = commands("info", "--no-measure", columns=columns)
    assert done.status == 0 and max(map(len, done.out.splitlines())) <= columns
    words = " ".join(done.out.split())
    for expected in (sardonyx.__version__, np.__version__, "CPUExecutionProvider", "CUDA", "threads", "L2", "2.0 GiB"):
        assert expected in words


def test_json(commands: Commands, cache_dir: Path, digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_BASELINE", "0")
    commands("cache", "warm", digits)
    found = commands("info", "--json").json
    assert found["versions"]["numpy"] == np.__version__ and found["providers"] == ["CPUExecutionProvider"]
    assert "CUDAExecutionProvider" in found["unusable"] and found["variables"]["SARDONYX_BASELINE"] == "0"
    assert 1 <= found["threads"]["used"] <= found["threads"]["total"] == os.cpu_count() and found["threads"]["reason"]
    rates = found["rates"]
    assert rates["f32_flops"] > 1e8 and rates["read_nbytes"] > 1e7 and rates["copy_nbytes"] > 1e7
    assert found["cache"]["folder"] == str(cache_dir) and found["cache"]["nbytes"] > 1000
    assert found["chip"]["l1_nbytes"] > 1000 and found["chip"]["vector_bits"] >= 128


def test_a_cache_that_is_off_is_explained(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    assert "SARDONYX_CACHE=off" in commands("info", "--no-measure").out
    assert commands("info", "--no-measure", "--json").json["cache"]["folder"] is None


def test_an_unknown_chip(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", "no-such-chip")
    done = commands("info")
    assert done.status == UNUSABLE and "SARDONYX_CPU" in done.error

"""Rates of the machine: measured once, kept in the cache, and read back only if they make sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sardonyx import cache, entries, folders
from sardonyx.providers.cpu.codegen import rates as rates_module
from sardonyx.providers.cpu.codegen.rates import SIZES, Rates, rates

WRONG: tuple[Any, ...] = ({"f32_flops": -1}, {"threads": 7}, {"read_nbytes": []}, {"copy_nbytes": "fast"}, None)
"""What a file may say that is no rate of this machine, by field; None for a file that is no JSON."""
KNOWN = Rates(1, 1e11, 5e10, 1e12, tuple((size, 1e11 / (i + 1)) for i, size in enumerate(SIZES)), 1e10)


@pytest.fixture
def measurements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that rates were measured for, with a cache folder of the test's own."""
    made: list[int] = []

    def measured(threads: int, chip: Any) -> Rates:
        made.append(threads)
        return KNOWN

    tmp_path.chmod(0o700)
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path))
    monkeypatch.setattr(rates_module, "measured", measured)
    monkeypatch.setattr(rates_module, "_known", {})
    return made


def test_measured_once(measurements: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert rates(1) == rates(1) == KNOWN and measurements == [1]
    monkeypatch.setattr(rates_module, "_known", {})  # another process
    assert rates(1) == KNOWN and measurements == [1]
    assert [item.kind for item in cache.items()] == ["rates"]


@pytest.mark.parametrize("wrong", WRONG)
def test_others_are_measured_again(measurements: list[int], monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    rates(1)
    folder = folders.cache_folder()
    assert folder is not None
    (item,) = cache.items()
    text = b"no json" if wrong is None else json.dumps({**KNOWN.to_json(), **wrong}).encode()
    entries.write(folder, item.file.name, text)
    monkeypatch.setattr(rates_module, "_known", {})
    assert rates(1) == KNOWN and measurements == [1, 1]


def test_the_roofline() -> None:
    assert KNOWN.flops("f32", "highest") == 1e12 / 4 and KNOWN.flops("f32", "medium") == 1e12
    assert KNOWN.flops("i8") == 2e12 and KNOWN.flops("f64", "medium") == 5e10
    assert KNOWN.bandwidth(10) == 1e11 and KNOWN.bandwidth(1 << 40) == 1e11 / len(SIZES)
    assert KNOWN.seconds(1e10, 1e5, "f64") == (0.2, 1e-6)


def test_this_machine() -> None:
    found = rates_module.measured(1, rates_module.isa.current())
    assert min(found.f32_flops, found.f64_flops, found.copy_nbytes, *(rate for _, rate in found.read_nbytes)) > 1e7
    assert found.f32_flops > found.f64_flops / 2

"""The IR of every kernel is what the golden file says. After a change that is meant: ``golden --update``."""

from __future__ import annotations

import json

import pytest

from sardonyx.providers.cpu.machine.isa import CPUS
from tests.providers.cpu import golden

MODELS = {name: (make, sizes) for name, make, sizes in golden.models()}
WANTED = json.loads(golden.FILE.read_text(encoding="utf-8"))


@pytest.mark.sliced(9)
@pytest.mark.parametrize("chip", golden.CHIPS)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_are_what_they_were(name: str, chip: str) -> None:
    make, sizes = MODELS[name]
    assert golden.digest(make(), sizes, chip) == WANTED[name][chip]


def test_the_file_is_of_these_models() -> None:
    assert set(WANTED) == set(MODELS) and all(set(found) == set(golden.CHIPS) for found in WANTED.values())


def test_names_do_not_count_but_code_does() -> None:
    from tests.providers.cpu.test_compiling import add_up

    chip = CPUS["haswell"]
    renamed = type(add_up)("total", add_up.module, add_up.params, add_up.body, add_up.is_c_function)
    assert golden.emitted(renamed(times=2), chip) == golden.emitted(add_up(times=2), chip)
    assert golden.emitted(add_up(times=3), chip) != golden.emitted(add_up(times=2), chip)

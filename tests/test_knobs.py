"""Environment variables: what they say, and what nothing says."""

from __future__ import annotations

import pytest

from sardonyx import knobs


@pytest.mark.parametrize("knob", [knobs.CACHE, knobs.CPU, knobs.VERIFY, knobs.BACKEND_EXCLUDE_PROVIDERS])
def test_an_empty_variable_is_one_that_is_not_set(knob: knobs.Knob[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(knob.name, "")
    assert knob.get() == knob.default


def test_set_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for knob, text, value in (
        (knobs.CPU, "haswell", "haswell"),
        (knobs.VERIFY, "1", True),
        (knobs.VERIFY, "0", False),
        (knobs.MAX_VALUE_NBYTES, "4096", 4096),
        (knobs.BACKEND_EXCLUDE_PROVIDERS, "a, b", ("a", "b")),
    ):
        monkeypatch.setenv(knob.name, text)
        assert knob.get() == value

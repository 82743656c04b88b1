"""Names of parts in the compiled-model cache: they tell apart what long attributes hold."""

from __future__ import annotations

from typing import Any

import pytest

from sardonyx.providers.cpu.dynamic_partition import LONG, _short

LONG_LISTS: list[list[Any]] = [
    [0] * LONG + [1],
    [0] * LONG + [2],
    [0.0] * LONG + [1.0],
    [0.0] * LONG + [float("nan")],
    [""] * LONG + ["ab", ""],
    [""] * LONG + ["a", "b"],
    [0] * LONG + [1 << 62],
    [0] * LONG + [1 << 80],
    [0] * LONG + [1 << 81],
    [0] * LONG + [1.0],
]


def test_other_elements_give_other_names() -> None:
    names = [repr(_short(value)) for value in LONG_LISTS]
    assert len(set(names)) == len(names)
    assert names == [repr(_short(list(value))) for value in LONG_LISTS]


@pytest.mark.parametrize("value", [1, "text", [1, 2], [], [0] * LONG])
def test_short_attributes_are_told_as_they_are(value: Any) -> None:
    assert _short(value) is value

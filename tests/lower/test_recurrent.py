"""Recurrent layers as groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sardonyx.lower.claims import refusals
from tests.lower.agree import compare, kinds, parse
from tests.lower.layers import BOTH, LATE, LAYERS, Layer

SIZES = ({"t": 5, "n": 3}, {"t": 1, "n": 1}, {"t": 0, "n": 2}, {"t": 4, "n": 0})
CASES = {
    **LAYERS,
    "batch first": Layer("LSTM", BOTH, ways=2, is_batch_first=True),
    "batch first and late": Layer("GRU", LATE, is_batch_first=True),
    "halves": Layer("LSTM", BOTH, ways=2, dtype="float16"),
    "doubles": Layer("GRU", BOTH, ways=2, dtype="double"),
}


@pytest.mark.parametrize("name", CASES)
def test_groups(name: str) -> None:
    groups = compare(parse(*CASES[name].text), *SIZES)
    assert [k.partition("(")[0] for k in kinds(groups)] == ["Loop", "Contraction", "Recurrence"]


@pytest.mark.parametrize("name", ["lstm", "both ways", "backwards"])
def test_sequences_that_end_early(name: str) -> None:
    compare(parse(*replace(CASES[name], has_lengths=True).text), {"t": 4, "n": 5})


def test_directions_with_functions_of_their_own_are_groups_of_their_own() -> None:
    layer = Layer("RNN", f'{BOTH}, activations = ["Tanh", "Relu"]', ways=2)
    groups = compare(parse(*layer.text), *SIZES)
    assert kinds(groups)[-2:] == ["Recurrence(RNN)", "Recurrence(RNN)"]


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ('activations = ["Sin"]', "unknown activation"),
        ('activations = ["Tanh", "Tanh"]', None),
        ('direction = "sideways"', "direction"),
    ],
)
def test_refusals(attributes: str, why: str | None) -> None:
    (found,) = refusals(parse(*Layer("RNN", attributes).text)).values()
    assert found is None if why is None else found is not None and why in found

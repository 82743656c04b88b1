"""Recurrent layers as groups."""

from __future__ import annotations

import pytest

from sardonyx.lower.claims import refusals
from tests.lower.agree import compare, kinds, parse

SIZES = ({"t": 5, "n": 3}, {"t": 1, "n": 1}, {"t": 0, "n": 2}, {"t": 4, "n": 0})
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(name: str, attributes: str = "", *, ways: int = 1, dtype: str = "float", batch_first: bool = False) -> str:
    """A node with every input, as text: the body, the inputs and the outputs."""
    gates, hidden, width = GATES[name], 4, 3
    states = ["h", "c"][: 1 + (name == "LSTM")]
    lead = "n,t" if batch_first else "t,n"
    state = f"n,{ways},{hidden}" if batch_first else f"{ways},n,{hidden}"
    inputs = [
        f"{dtype}[{lead},{width}] x", f"{dtype}[{ways},{gates * hidden},{width}] w",
        f"{dtype}[{ways},{gates * hidden},{hidden}] r", f"{dtype}[{ways},{2 * gates * hidden}] b",
        *(f"{dtype}[{state}] {s}" for s in states),
    ]  # fmt: skip
    y = f"n,t,{ways},{hidden}" if batch_first else f"t,{ways},n,{hidden}"
    outputs = [f"{dtype}[{y}] y", *(f"{dtype}[{state}] y_{s}" for s in states)]
    peepholes = ", p" if "peep" in attributes else ""
    if peepholes:
        inputs.append(f"{dtype}[{ways},{3 * hidden}] p")
    said = [a for a in (attributes.replace("peep", ""), f"hidden_size = {hidden}") if a]
    if batch_first:
        said.append("layout = 1")
    results = ", ".join(["y", *(f"y_{s}" for s in states)])
    body = f'{results} = {name}<{", ".join(said)}>(x, w, r, b, "", {", ".join(states)}{peepholes})'
    return body, ", ".join(inputs), ", ".join(outputs)


BOTH = 'direction = "bidirectional"'
CASES = {
    "rnn": layer("RNN"),
    "gru": layer("GRU"),
    "gru that resets late": layer("GRU", "linear_before_reset = 1"),
    "lstm": layer("LSTM"),
    "lstm with peepholes": layer("LSTM", "peep"),
    "coupled gates": layer("LSTM", "input_forget = 1"),
    "clipped": layer("LSTM", "clip = 0.3"),
    "backwards": layer("LSTM", 'direction = "reverse"'),
    "both ways": layer("GRU", BOTH, ways=2),
    "batch first": layer("LSTM", BOTH, ways=2, batch_first=True),
    "batch first late": layer("GRU", "linear_before_reset = 1", batch_first=True),
    "halves": layer("LSTM", BOTH, ways=2, dtype="float16"),
    "doubles": layer("GRU", BOTH, ways=2, dtype="double"),
    "functions": layer("GRU", 'activations = ["HardSigmoid", "Softsign"], activation_alpha = [0.3]'),
}


@pytest.mark.parametrize("name", CASES)
def test_groups(name: str) -> None:
    groups = compare(parse(*CASES[name]), *SIZES)
    assert [k.partition("(")[0] for k in kinds(groups)] == ["Loop", "Contraction", "Recurrence"]


def test_directions_with_functions_of_their_own_are_groups_of_their_own() -> None:
    names = '["Tanh", "Relu"]'
    groups = compare(parse(*layer("RNN", f"{BOTH}, activations = {names}", ways=2)), *SIZES)
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
    (found,) = refusals(parse(*layer("RNN", attributes))).values()
    assert found is None if why is None else why in found
